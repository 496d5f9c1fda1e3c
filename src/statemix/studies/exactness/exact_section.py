"""The suites of exactness as parts of the page of results."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from statemix.studies import figures
from statemix.studies import html as page
from statemix.studies.exactness import exact_drawing as drawing
from statemix.studies.exactness import exact_text as text
from statemix.studies.exactness.certified_rows import CertifiedRow
from statemix.studies.exactness.exact_suites import SUITES
from statemix.studies.exactness.tally import Tally, passed, seconds, tally
from statemix.studies.number_text import counted, duration_text
from statemix.studies.store import Row


def sections(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Yield what the page shows of each suite that has results.

    Args:
        rows: rows of results stores, by key.
    """
    for suite in SUITES.values():
        certified = suite.certified
        tallies = [tally(one, rows, certified=certified) for one in suite.conditions]
        if not any(one.rows for one in tallies):
            continue
        draw = partial(figures.draw, drawing.panels(tallies))
        yield {
            "id": suite.name,
            "title": f"{suite.name}: {suite.title}",
            "table": text.table(tallies) if certified else text.attempts_table(tallies),
            "legend": text.LEGEND if certified else text.ATTEMPTS_LEGEND,
            # Accuracy against length is that of finished networks.
            "images": page.data_uris(figures.variants(draw)) if certified else None,
            "runs": [run for one in tallies for run in _runs(one)],
        }


def _runs(found: Tally) -> Iterator[dict[str, Any]]:
    condition = found.condition
    for key, row in found.rows.items():
        attempts = row.get("attempts", [])
        yield {
            "key": key,
            "condition": f"{condition.column}, {condition.model}",
            "seed": row["seed"],
            "verdict": _verdict(row),
            "attempts": counted(len(attempts), "attempt") if attempts else "",
            "time": duration_text(seconds(row)),
            "commit": page.commit_text(row["environment"]),
        }


def _verdict(row: Row) -> str:
    """Write what a run was found to be, with the word on which it fails."""
    if "certificate" not in row:
        return "passed" if passed(row) else "failed"
    certificate = cast(CertifiedRow, row)["certificate"]
    word = " ".join(map(str, certificate["word"]))
    verdict: str = certificate["verdict"]
    return f"{verdict}: {word}" if word else verdict
