"""A paper's table with our numbers beside it, as text."""

from collections.abc import Mapping, Sequence

from statemix.studies.higher_order.cell_scores import CellScore, Verdict
from statemix.studies.higher_order.claims import Decision, Finding
from statemix.studies.higher_order.contenders import Contender
from statemix.studies.higher_order.paper_figures import Point
from statemix.studies.higher_order.prices import prices
from statemix.studies.higher_order.protocols import SizeName
from statemix.studies.number_text import accuracy_text, counts_text, published_text
from statemix.studies.table_text import Line, Table

MARKS: Mapping[Verdict, str] = {
    "agrees": "=",
    "above": ">",
    "below": "<",
    "measured": "",
    "partial": "?",
    "empty": "",
}

LEGEND = """\
Ours above the paper's. Protocol "paper": the best test accuracy of all runs, as in the paper; in
parentheses mean and standard deviation over the seeds of the best setting. Protocol "tuned": both
over the seeds of the setting chosen on validation data. = agrees within .05, < below, > above the
paper, ? fewer than three seeds, not all data sets, or a search under way. "longer": mean over the
same seeds on sequences longer than any in training. Parameters and forward FLOPs are those of the
sequence layer; statemix bench layers measures its speed."""


def table(scores: Sequence[CellScore]) -> Table:
    """Lay out cells: a line per model, a column per column of the paper, the paper's line below.

    Beside the model stands what its layer costs.

    Args:
        scores: cells of one table.
    """
    models = list(dict.fromkeys(score.cell.model for score in scores))
    columns = list(dict.fromkeys(score.cell.column.name for score in scores))
    of = {(score.cell.model, score.cell.column.name): score for score in scores}
    lines = []
    for model in models:
        row = [of.get((model, column)) for column in columns]
        cell = next(score.cell for score in row if score)
        paid = price_texts(cell.contender, cell.size)
        lines.append(Line((model, *paid, *(cell_text(score) for score in row))))
        numbers = (published_text(score.cell.published if score else None) for score in row)
        lines.append(Line(("  paper", *[""] * len(paid), *numbers), quiet=True))
        longer = [longer_text(score) for score in row]
        if any(longer):
            lines.append(Line(("  longer", *[""] * len(paid), *longer), quiet=True))
    return Table(("model", *PRICES, *columns), tuple(lines))


def price_table(scores: Sequence[CellScore]) -> Table:
    """Lay out what the layers of some cells cost, a line for each model and price."""
    rows = ((one.cell.model, *price_texts(one.cell.contender, one.cell.size)) for one in scores)
    return Table(("model", *PRICES), tuple(Line(row) for row in dict.fromkeys(rows)))


PRICES = ("parameters", "FLOPs/token")
"""What :func:`price_texts` says, each in a word or two."""


def price_texts(contender: Contender, size: SizeName) -> tuple[str, str]:
    """Write parameters and forward FLOPs per token of a model's layer.

    Where a size tries several, they are ranges.
    """
    paid = prices(contender, size)
    flops = [one.flops for one in paid]
    parameters = [one.num_parameters for one in paid]
    return counts_text(parameters), counts_text(one.total for one in flops if one is not None)


def cell_text(score: CellScore | None) -> str:
    """Write our number, mean and deviation of the chosen setting in parentheses, and the verdict.

    A partial cell shows the mean over those of its data sets that have results.
    """
    if score is None or score.verdict == "empty":
        lost = 0 if score is None else sum(len(part.lost) for part in score.parts.values())
        return f"{lost} without result" if lost else "–"
    parts = [part for part in score.parts.values() if part.best is not None]
    bests = [part.best for part in parts if part.best is not None]
    mean = sum(part.mean for part in parts if part.mean is not None) / len(parts)
    mark = MARKS[score.verdict]
    spread = accuracy_text(mean)
    if score.deviation is not None:
        # A standard deviation of accuracies is at most .71.
        spread += f"±{accuracy_text(score.deviation)}"
    if score.cell.protocol != "paper":
        return f"{spread} {mark}"
    return f"{accuracy_text(sum(bests) / len(bests))} ({spread}) {mark}"


def longer_text(score: CellScore | None) -> str:
    """Write the mean accuracy on longer sequences and their tokens; nothing if there are none."""
    parts = score.parts.values() if score else ()
    return ", ".join(
        f"{accuracy_text(sum(values) / len(values))} at {length}"
        for part in parts
        for length, values in part.longer.items()
        if values
    )


def claims(decisions: Sequence[Decision]) -> str:
    """Write each claim with its verdict and what is known of its conditions."""
    lines = []
    for decision in decisions:
        claim = decision.claim
        lines.append(f"{decision.verdict}: {claim.statement} (protocol {decision.protocol})")
        lines += [f"  {finding_text(one)}" for one in decision.findings if one.true is not None]
        missing = sum(one.true is None for one in decision.findings)
        if missing:
            lines.append(
                f"  undecided: {missing} of {len(decision.findings)} comparisons "
                "(not yet measured, or no model has learned the task)"
            )
    return "\n".join(lines)


def finding_text(finding: Finding) -> str:
    """Write a decided condition, such as "yes: BD-LRU m=3 (.999) learns on S3-250"."""
    condition = finding.condition
    answer = "yes" if finding.true else "no"
    if condition.relation == "is smaller than":
        assert condition.other is not None
        sizes = [f"{value:,.0f} parameters" for value in finding.values if value is not None]
        return (
            f"{answer}: {condition.model.name} ({sizes[0]}) is smaller than "
            f"{condition.other.name} ({sizes[1]})"
        )
    values = [accuracy_text(value) for value in finding.values if value is not None]
    words = f"{answer}: {condition.model.name} ({values[0]}) {condition.relation}"
    if condition.other is not None:
        words += f" {condition.other.name} ({values[1]})"
    return f"{words} on {condition.column.data[0].name}"


def point_table(points: Sequence[tuple[Point, CellScore]]) -> Table:
    """Lay out the points of a figure: a line per place on the x axis, a column per line."""
    lines = []
    head = ("data", "x", *dict.fromkeys(point.line for point, _ in points))
    rows: dict[tuple[str, float], dict[str, CellScore]] = {}
    for point, score in points:
        rows.setdefault((point.panel, point.x), {})[point.line] = score
    panels = list(dict.fromkeys(panel for panel, _ in rows))
    ordered = sorted(rows.items(), key=lambda row: (panels.index(row[0][0]), row[0][1]))
    for (panel, x), scores in ordered:
        texts = (cell_text(scores.get(line)) for line in head[2:])
        lines.append(Line((panel, f"{x:g}", *texts)))
    return Table(head, tuple(lines))
