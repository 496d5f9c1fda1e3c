"""Accuracy against the length of words, for the networks as trained."""

from collections.abc import Sequence

from statemix.studies.exactness.tally import Tally, accuracies
from statemix.studies.figures import Panel, Series


def panels(tallies: Sequence[Tally]) -> list[Panel]:
    """Return a panel for each model, with a line for each condition that has results.

    Args:
        tallies: conditions of a suite, at least one of them with results.
    """
    lengths = sorted({length for one in tallies for length in one.lengths})
    columns = dict.fromkeys(one.condition.column for one in tallies)
    models = dict.fromkeys(one.condition.model for one in tallies if one.rows)
    of = {(one.condition.model, one.condition.column): one for one in tallies}
    return [
        Panel(
            model,
            "word length",
            "token accuracy on test words, as trained" if place == 0 else "",
            [Series(column, column, _runs(of.get((model, column)))) for column in columns],
            (lengths[0] / 1.25, lengths[-1] * 1.25),
            x_ticks=lengths[::2],
            markers=True,
        )
        for place, model in enumerate(models)
    ]


def _runs(tally: Tally | None) -> list[dict[float, float]]:
    if tally is None:
        return []
    return [
        {float(length): value for length, value in accuracies(row).items()}
        for row in tally.rows.values()
    ]
