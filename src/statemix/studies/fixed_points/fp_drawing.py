"""Accuracy against the length of test sequences, for the suites of fixed points."""

from collections.abc import Sequence

from statemix.studies.figures import Panel, Series
from statemix.studies.fixed_points.fp_scores import ConditionScore


def panels(scores: Sequence[ConditionScore]) -> list[Panel]:
    """Return a panel for each column, with a line for each model that has results.

    Args:
        scores: conditions of a suite, at least one of them with results.
    """
    known = [one for one in scores if one.rows]
    lengths = sorted({length for one in known for length in one.lengths})
    columns = dict.fromkeys(one.condition.column for one in known)
    return [
        Panel(
            column,
            "tokens",
            "accuracy on test sequences" if place == 0 else "",
            [
                Series(one.condition.model, one.condition.model, _runs(one))
                for one in known
                if one.condition.column == column
            ],
            (lengths[0] / 1.1, lengths[-1] * 1.1),
            x_ticks=lengths,
            markers=True,
        )
        for place, column in enumerate(columns)
    ]


def _runs(score: ConditionScore) -> list[dict[float, float]]:
    values = {length: score.at(length).values for length in score.lengths}
    return [
        {float(length): of[place] for length, of in values.items()}
        for place in range(len(score.rows))
    ]
