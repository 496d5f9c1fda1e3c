"""A suite of exactness as a table."""

from collections.abc import Sequence

from statemix.studies.exactness.tally import Tally, interval
from statemix.studies.number_text import Spread, accuracy_text, duration_text
from statemix.studies.table_text import Line, Table

HEAD = ("trained on", "model", "proven", "attempts passed", "cost of a run", "accuracy")

LEGEND = """\
proven: right after every word of every length, with gates of 0 and 1. attempts passed: those of
all attempts from new weights that passed every test, with the 95% interval of an attempt's chance.
cost: mean and most, with training, tests on words of all lengths and the certificate, on one core.
accuracy: of the network as trained, the mean over seeds at the shortest and at the longest test
words. From 65,536 tokens on it is that of one word per network."""


ATTEMPTS_HEAD = (
    "trained on",
    "change",
    "attempts passed",
    "proven",
    "plateau",
    "steps",
    "cost of a run",
)

ATTEMPTS_LEGEND = """\
attempts passed: those that still answer words four times as long with sharp gates, with the 95%
interval of an attempt's chance. proven: of all that were certified, whether they passed or not,
those right after every word of every length with gates of 0 and 1, though they were never
sharpened. plateau: mean steps before an attempt left it. steps: mean steps of an attempt. cost:
mean and most, on one core."""


def attempts_table(tallies: Sequence[Tally]) -> Table:
    """Lay out conditions that differ in how an attempt is made, a line for each."""
    lines = [(one.condition.column, one.condition.model, *_attempt_cells(one)) for one in tallies]
    return Table(ATTEMPTS_HEAD, tuple(Line(line) for line in lines))


def _attempt_cells(tally: Tally) -> tuple[str, str, str, str, str]:
    if not tally.rows:
        return (_without_result(tally), "", "", "", "")
    certified = tally.verdicts.total()
    lost = f", {len(tally.lost)} without result" if tally.lost else ""
    return (
        _attempts(tally) + lost,
        f"{tally.proven} of {certified}" if certified else "–",
        _mean_count(tally.steps_on_plateau),
        _mean_count(tally.steps),
        _cost(tally),
    )


def _mean_count(counts: Sequence[int]) -> str:
    return f"{Spread.over(counts).mean:.0f}" if counts else "–"


def table(tallies: Sequence[Tally]) -> Table:
    """Lay out conditions, a line for each."""
    lines = [(one.condition.column, one.condition.model, *cells(one)) for one in tallies]
    return Table(HEAD, tuple(Line(line) for line in lines))


def cells(tally: Tally) -> tuple[str, str, str, str]:
    """Write the last four cells of a condition's line."""
    if not tally.rows:
        return (_without_result(tally), "", "", "")
    return _verdicts(tally), _attempts(tally), _cost(tally), _accuracy(tally)


def _without_result(tally: Tally) -> str:
    return f"{len(tally.lost)} without result" if tally.lost else "–"


def _verdicts(tally: Tally) -> str:
    done, planned = len(tally.rows), len(tally.condition.runs)
    others = [
        f"{count} {verdict}" for verdict, count in tally.verdicts.items() if verdict != "proven"
    ]
    ended = done + len(tally.lost)
    if tally.lost:
        others.append(f"{len(tally.lost)} without result")
    if ended < planned:
        others.append(f"{planned - ended} to do")
    return f"{tally.proven} of {ended}" + (f" ({', '.join(others)})" if others else "")


def _attempts(tally: Tally) -> str:
    if not tally.attempts:
        return "–"
    low, high = interval(tally.attempts)
    share = f"{sum(tally.attempts)} of {len(tally.attempts)}"
    return f"{share} ({accuracy_text(low)}–{accuracy_text(high)})"


def _cost(tally: Tally) -> str:
    spread = Spread.over(tally.seconds)
    return f"{duration_text(spread.mean)}, {duration_text(spread.high)}"


def _accuracy(tally: Tally) -> str:
    ends = [Spread.over(tally.accuracy(length)) for length in (tally.lengths[0], tally.lengths[-1])]
    return " … ".join(accuracy_text(spread.mean) for spread in ends)
