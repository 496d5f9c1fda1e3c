"""The suites of fixed points as parts of the page of results."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from statemix.studies import figures
from statemix.studies import html as page
from statemix.studies.fixed_points import fp_drawing as drawing
from statemix.studies.fixed_points import fp_text as text
from statemix.studies.fixed_points.fp_scores import ConditionScore, score
from statemix.studies.fixed_points.fp_suites import SUITES
from statemix.studies.higher_order.protocols import SIZES
from statemix.studies.number_text import accuracy_text, duration_text
from statemix.studies.store import Row


def sections(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """Yield what the page shows of each suite and size that has results.

    Args:
        rows: rows of results stores, by key.
    """
    for suite in SUITES.values():
        for size in SIZES:
            scores = [score(condition, rows) for condition in suite.conditions(size)]
            if not any(one.rows for one in scores):
                continue
            draw = partial(figures.draw, drawing.panels(scores))
            yield {
                "id": f"{suite.name}-{size}",
                "title": f'{suite.name}: {suite.title}, size "{size}"',
                "table": text.table(scores),
                "legend": text.LEGEND,
                "images": page.data_uris(figures.variants(draw)),
                "runs": [run for one in scores for run in _runs(one)],
            }


def _runs(found: ConditionScore) -> Iterator[dict[str, Any]]:
    condition = found.condition
    for row in found.rows:
        last = row["test"][str(found.lengths[-1])]
        accuracy = next(iter(last.values()))[condition.metric]
        yield {
            "key": row["key"],
            "condition": f"{condition.column}, {condition.model}",
            "seed": row["seed"],
            "verdict": f"{accuracy_text(accuracy)} at {found.lengths[-1]}",
            "attempts": "",
            "time": duration_text(row["time_s"] or 0.0),
            "commit": page.commit_text(row["environment"]),
        }
