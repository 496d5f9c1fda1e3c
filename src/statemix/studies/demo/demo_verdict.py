"""Sentences on the results, computed from the runs."""

from statemix.studies.demo.demo_scores import accuracies, lengths, networks
from statemix.studies.demo.demo_suite import DemoRow, Summary
from statemix.studies.number_text import accuracy_text, counted

# Accuracy from which a network counts as having solved the task.
SOLVED = 0.99


def sentences(summary: Summary) -> list[str]:
    """State for each network how many seeds solve which lengths, and in how many that is proven."""
    return [
        _sentence(summary, name, runs) + _proof(runs) for name, runs in networks(summary).items()
    ]


def _proof(runs: list[DemoRow]) -> str:
    certificates = [run["certificate"] for run in runs]
    proven = [found for found in certificates if found and found["verdict"] == "proven"]
    if not proven:
        return ""
    return (
        " With gates of 0 and 1, the blocks that track are proven right after every word of every "
        f"length ({len(proven)} of {counted(len(runs), 'seed')})."
    )


def _sentence(summary: Summary, name: str, runs: list[DemoRow]) -> str:
    setting, longest, total = summary["setting"], lengths(summary)[-1], len(runs)
    short = setting["train_length"]
    found = {run["seed"]: accuracies(summary, run) for run in runs if run["status"] == "done"}
    endings = [f"seed {run['seed']} {_ending(run)}" for run in runs if run["status"] != "done"]
    if not found:
        return f"{name} has no result in any of {counted(total, 'run')}: {'; '.join(endings)}."
    if not endings and all(value == 1.0 for row in found.values() for value in row.values()):
        return (
            f"{name} makes no error in any test word of length {short} to {longest:,} "
            f"({total} of {counted(total, 'seed')})."
        )
    solved = sum(row[short] >= SOLVED for row in found.values())
    kept = sum(row[longest] >= SOLVED for row in found.values())
    text = f"{name} reaches {SOLVED} at length {short} in {solved} of {counted(total, 'seed')}"
    if solved or kept:
        notes = [
            f"seed {seed}: {accuracy_text(row[short])} and {accuracy_text(row[longest])}"
            for seed, row in found.items()
            if min(row[short], row[longest]) < SOLVED
        ] + endings
        text += f", and at length {longest:,} in {kept} of {total}"
        return f"{text} ({'; '.join(notes)})." if notes else f"{text}."
    best = [accuracy_text(max(row[at] for row in found.values())) for at in (short, longest)]
    text += (
        f": the best accuracy is {best[0]} at that length (guessing gives "
        f"{accuracy_text(setting['chance'])}) and {best[1]} at length {longest:,}"
    )
    return f"{text} ({'; '.join(endings)})." if endings else f"{text}."


def _ending(run: DemoRow) -> str:
    return {
        "missing": "is missing",
        "interrupted": "was interrupted",
        "running": "is running",
    }.get(run["status"], run["status"])
