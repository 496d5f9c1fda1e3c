"""A suite of fixed points as a table, with the paper's numbers below ours."""

from collections.abc import Sequence

from statemix.studies.fixed_points.fp_scores import ConditionScore, LengthScore
from statemix.studies.higher_order.cell_text import MARKS
from statemix.studies.number_text import Spread, accuracy_text, duration_text, published_text
from statemix.studies.table_text import Line, Table

LEGEND = """\
Columns are tokens of a test sequence. Each number is the mean over seeds, and after @ stand the
iterations at the test, the mean over seeds and layers. = agrees with the paper within .05, < below,
> above the paper, ? fewer than three seeds. cost: mean training and evaluation of a seed."""


def table(scores: Sequence[ConditionScore]) -> Table:
    """Lay out conditions: a line for each, and the paper's below it.

    Args:
        scores: conditions of one suite.
    """
    lengths = sorted(
        {length for one in scores for length in (*one.lengths, *one.condition.published)}
    )
    lines = []
    for score in scores:
        condition, tested = score.condition, score.lengths
        cells = [_number(score.at(length)) if length in tested else "" for length in lengths]
        name = (condition.column, condition.model)
        lines.append(Line((*name, _seeds(score), *cells, _cost(score))))
        if condition.published:
            numbers = [_published(score, length) for length in lengths]
            lines.append(Line(("  paper", condition.published_for, "", *numbers, ""), quiet=True))
    return Table(("trained on", "model", "seeds", *map(str, lengths), "cost"), tuple(lines))


def _number(score: LengthScore) -> str:
    text = accuracy_text(score.mean)
    if score.iterations:
        text += f" @{Spread.over(score.iterations).mean:.0f}"
    return f"{text} {MARKS[score.verdict]}".rstrip()


def _published(score: ConditionScore, length: int) -> str:
    number = score.condition.published.get(length)
    if number is None:
        return ""
    text = published_text(number.accuracy)
    return text if number.iterations is None else f"{text} @{number.iterations}"


def _seeds(score: ConditionScore) -> str:
    lost = f", {len(score.lost)} without result" if score.lost else ""
    return f"{len(score.rows)} of {len(score.condition.runs)}{lost}"


def _cost(score: ConditionScore) -> str:
    if not score.rows:
        return ""
    return duration_text(Spread.over([row["time_s"] or 0.0 for row in score.rows]).mean)
