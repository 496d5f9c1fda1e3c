"""The suites of exactness as parts of the page of results."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from statemix.experiments.exactness.conditions import SUITES
from statemix.experiments.exactness.tally import Tally, seconds, tally
from statemix.experiments.store import Row
from statemix.report import figures, page
from statemix.report.exactness import drawing, text
from statemix.report.numbers import counted, duration_text


def sections(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Yield what the page shows of each suite that has results.

    Args:
        rows: rows of results stores, by key.
    """
    for suite in SUITES.values():
        tallies = [tally(condition, rows) for condition in suite.conditions]
        if not any(one.rows for one in tallies):
            continue
        images = figures.variants(partial(figures.draw, drawing.panels(tallies)))
        yield {
            "id": suite.name,
            "title": f"{suite.name}: {suite.title}",
            "table": text.table(tallies),
            "legend": text.LEGEND,
            "images": page.data_uris(images),
            "runs": [run for one in tallies for run in _runs(one)],
        }


def _runs(found: Tally) -> Iterator[dict[str, Any]]:
    condition = found.condition
    for key, row in found.rows.items():
        certificate = row["certificate"]
        word = " ".join(map(str, certificate["word"]))
        attempts = row.get("attempts", [])
        yield {
            "key": key,
            "condition": f"{condition.column}, {condition.model}",
            "seed": row["seed"],
            "verdict": certificate["verdict"] + (f": {word}" if word else ""),
            "attempts": counted(len(attempts), "attempt") if attempts else "",
            "time": duration_text(seconds(row)),
            "commit": (row["environment"].get("commit") or "")[:7],
        }
