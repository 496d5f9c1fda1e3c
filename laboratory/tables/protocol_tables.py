"""The table of the tasks of other works, from the rows of the results store."""

import math
from collections.abc import Mapping
from typing import Any

from measurement_tables import RESULTS, markdown, unproven

from statemix_lab.studies.exactness.exact_protocols import RECIPE, has_tuned_rate
from statemix_lab.studies.result_text import accuracy_text, duration_text, published_text
from statemix_lab.studies.store import StoredRow, merged
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import StudyEntry

_MISSING = "–"


def tables() -> dict[str, str]:
    """Return the Markdown of the table by the name of its file."""
    rows = merged(sorted((RESULTS / "reproduce").glob("*.jsonl")))
    entries = find_study("exact-protocols").entries("paper", "laptop")
    return {"protocols": _numbers(entries, rows)}


def _done(entry: StudyEntry, rows: Mapping[str, StoredRow]) -> list[Mapping[str, Any]]:
    keys = (key for _, run, key in entry.trials.runs if has_tuned_rate(run, rows))
    return [rows[key] for key in keys if key in rows and rows[key]["status"] == "done"]


def _numbers(entries: tuple[StudyEntry, ...], rows: Mapping[str, StoredRow]) -> str:
    """Write a line for each task and network: proofs, accuracy, published accuracy and cost."""
    lines = []
    for entry in entries:
        found = _done(entry, rows)
        proofs = [row["certificate"] for row in found if row["certificate"]["verdict"] == "proven"]
        trained = [one for one in proofs if one["network"] != "refitted"]
        lines.append(
            (
                entry.column,
                "recipe `exact`" if entry.model == RECIPE else entry.model,
                f"{len(proofs)} of {len(found)}" if found else _MISSING,
                str(len(trained)) if proofs else _MISSING,
                _accuracies(found),
                _published(entry) if entry.model == RECIPE else "",
                _cost(found),
                (unproven(found) or "none") if found else _MISSING,
            )
        )
    header = ("task", "network", "proven", "without refit", "accuracy as trained", "published")
    return markdown((*header, "mean cost", "seeds that are not proven"), lines)


def _accuracies(found: list[Mapping[str, Any]]) -> str:
    """Write the mean accuracy at each further length, and the least of a seed where it differs."""
    if not found:
        return _MISSING
    texts = []
    for length in sorted(map(int, found[0]["test"]))[1:]:
        heads = [row["test"][str(length)] for row in found]
        values = [next(iter(one.values()))["token_accuracy"] for one in heads]
        text = accuracy_text(math.fsum(values) / len(values))
        if min(values) < max(values):
            text += f" (least {accuracy_text(min(values))})"
        texts.append(f"{text} at {length:,}")
    return ", ".join(texts)


def _published(entry: StudyEntry) -> str:
    if not entry.published:
        return _MISSING
    numbers = [
        f"{published_text(number.accuracy)} at {length:,}"
        for length, number in entry.published.items()
    ]
    return f"{', '.join(numbers)} ({entry.published_for})"


def _cost(found: list[Mapping[str, Any]]) -> str:
    # Older rows have no processor time.
    seconds = [row.get("cpu_s", row["time_s"]) + row["certify_s"] for row in found]
    return duration_text(math.fsum(seconds) / len(seconds)) if seconds else _MISSING
