"""Sentences that say what the runs show, and change when the runs do."""

from statemix.experiments.summary import Run, Summary
from statemix.report.tables import accuracy_text, label, lengths, models

# A network has solved the task, as far as a row of test words can tell, from here on.
SOLVED = 0.99


def sentences(summary: Summary) -> list[str]:
    """Say for each network how many seeds solve the task, at the training length and beyond."""
    setting = summary["setting"]
    longest = lengths(summary)[-1]
    return [
        _sentence(
            label(model, m),
            [run for run in summary["runs"] if (run["model"], run["m"]) == (model, m)],
            setting["train_length"],
            longest,
            setting["chance"],
        )
        for model, m in models(summary)
    ]


def _sentence(name: str, runs: list[Run], short: int, long: int, chance: float) -> str:
    scores = [(run["accuracy"][str(short)], run["accuracy"][str(long)]) for run in runs]
    total = len(runs)
    solved = sum(at_short >= SOLVED for at_short, _ in scores)
    kept = sum(at_long >= SOLVED for _, at_long in scores)
    if not solved and not kept:
        return (
            f"{name} does not reach {SOLVED} at length {short} in any of {_seeds(total)}: its best "
            f"is {accuracy_text(max(at_short for at_short, _ in scores))} (guessing gives "
            f"{accuracy_text(chance)}), and {accuracy_text(max(at_long for _, at_long in scores))} "
            f"at length {long:,}."
        )
    if all(value == 1.0 for run in runs for value in run["accuracy"].values()):
        return (
            f"{name} makes no error in any test word, neither at length {short} nor at {long:,}, "
            f"in {_of(total, total)}."
        )
    text = (
        f"{name} reaches {SOLVED} at length {short} in {_of(solved, total)}, "
        f"and at length {long:,} in {_of(kept, total)}"
    )
    misses = [
        f"seed {run['seed']}: {accuracy_text(at_short)} and {accuracy_text(at_long)}"
        for run, (at_short, at_long) in zip(runs, scores, strict=True)
        if min(at_short, at_long) < SOLVED
    ]
    return f"{text} ({'; '.join(misses)})." if misses else f"{text}."


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _of(count: int, total: int) -> str:
    if total == 1:
        return "its one seed" if count else "none of its one seed"
    return f"all {total} seeds" if count == total else f"{count} of {total} seeds"
