"""One page with every table and figure of the paper that has results."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from statemix.studies import figures
from statemix.studies import html as page
from statemix.studies.exactness import exact_section as exactness
from statemix.studies.fixed_points import fp_section as fixed_point
from statemix.studies.fixed_points.fp_scores import overview as fixed_point_overview
from statemix.studies.higher_order import figure_drawing as drawing
from statemix.studies.higher_order.cell_scores import CellScore, counted_scores, score, value_of
from statemix.studies.higher_order.cell_text import (
    PRICES,
    cell_text,
    finding_text,
    longer_text,
    price_texts,
)
from statemix.studies.higher_order.claims import decide
from statemix.studies.higher_order.contenders import CONTENDERS
from statemix.studies.higher_order.overview import overview
from statemix.studies.higher_order.paper_figures import FIGURES
from statemix.studies.higher_order.paper_tables import TABLES, Table
from statemix.studies.higher_order.protocols import PROTOCOLS, SIZES, ProtocolName
from statemix.studies.higher_order.run_spectra import RunSpectrum
from statemix.studies.higher_order.spectra_drawing import page_figures
from statemix.studies.higher_order.wrapper import WRAPPER
from statemix.studies.number_text import accuracy_text, duration_text
from statemix.studies.store import Row


@dataclass(frozen=True)
class Section:
    """A table under one protocol at one size.

    Attributes:
        id: anchor in the page.
        table: the table.
        protocol: name of the protocol.
        size: name of the size.
        scores: (model, column) -> scores; cells without results are absent.
    """

    id: str
    table: Table
    protocol: str
    size: str
    scores: Mapping[tuple[str, str], CellScore]


def write(
    rows: Mapping[str, Row], path: Path, spectra: Mapping[str, RunSpectrum] | None = None
) -> None:
    """Write the page atomically into an existing folder.

    Args:
        rows: rows of results stores, by key.
        path: file of the page.
        spectra: stored eigenvalues of runs, by key; None means that there are none.

    Raises:
        OSError: if it cannot be written.
    """
    page.write(path.parent, {path.name: render(rows, spectra).encode()})


def render(rows: Mapping[str, Row], spectra: Mapping[str, RunSpectrum] | None = None) -> str:
    """Render the page; every number in it is computed from the rows.

    Args:
        rows: rows of results stores, by key.
        spectra: stored eigenvalues of runs, by key; None means that there are none.
    """
    return (
        page.templates()
        .get_template("higher_order/results_page.html.j2")
        .render(
            overview=overview(rows),
            decisions=[one for protocol in PROTOCOLS for one in decide(rows, protocol)],
            finding_text=finding_text,
            sections=list(_sections(rows)),
            figures=[*_figures(rows), *page_figures(rows, spectra or {})],
            suites=[*exactness.sections(rows), *fixed_point.sections(rows)],
            fixed_point=fixed_point_overview(rows),
            cell_text=cell_text,
            longer_text=longer_text,
            PRICES=PRICES,
            CONTENDERS=CONTENDERS,
            price_texts=price_texts,
            parts=partial(_parts, rows),
            machines=_machines(rows),
        )
    )


def _sections(rows: Mapping[str, Row]) -> Iterator[Section]:
    # The wrapper's unchanged cells are those of the other tables.
    seen: dict[ProtocolName, set[str]] = {protocol: set() for protocol in PROTOCOLS}
    for table, protocol in itertools.product([*TABLES.values(), WRAPPER], PROTOCOLS):
        for size in SIZES:
            cells = [cell for cell in table.cells(protocol, size) if cell.begun(rows)]
            scores = {(cell.model, cell.column.name): score(cell, rows) for cell in cells}
            if _adds(scores.values(), seen[protocol]):
                name = f"{table.name}-{protocol}-{size}"
                yield Section(name, table, protocol, size, scores)


def _figures(rows: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    for figure, protocol in itertools.product(FIGURES.values(), PROTOCOLS):
        seen: set[str] = set()
        for size in SIZES:
            points = [point for point in figure.points(protocol, size) if point.cell.begun(rows)]
            scored = [(point, score(point.cell, rows)) for point in points]
            if _adds((scores for _, scores in scored), seen):
                images = figures.variants(partial(figures.draw, drawing.panels(scored)))
                yield {
                    "id": f"{figure.name}-{protocol}-{size}",
                    "title": f"{figure.name}: {figure.title}",
                    "setting": f'Protocol "{protocol}", size "{size}".',
                    "note": "Thick lines are means over seeds, thin lines single seeds.",
                    "images": page.data_uris(images),
                }


def _adds(scores: Iterable[CellScore], seen: set[str]) -> bool:
    """Return whether cells have runs that smaller sizes do not have, and note their runs.

    Sizes share runs: one is shown for what it adds to the smaller ones.
    """
    keys = {key for one in scores for key in one.keys}
    new = not keys <= seen
    seen |= keys
    return new


def _parts(rows: Mapping[str, Row], scored: CellScore) -> list[dict[str, Any]]:
    """Return the runs of a cell, data set by data set, each with the score that counts."""
    which = counted_scores(scored.cell.protocol)
    metrics = {data.name: data.metric for data in scored.cell.column.data}
    return [
        {
            "data": name,
            "setting": part.setting,
            "planned": part.num_runs,
            "lost": part.lost,
            "runs": [
                {
                    "key": key,
                    "seed": rows[key]["seed"],
                    "setting": setting,
                    "accuracy": accuracy_text(value_of(rows[key][which], metrics[name])),
                    "time": duration_text(rows[key]["time_s"] or 0.0),
                    "commit": page.commit_text(rows[key]["environment"]),
                }
                for key, setting in part.settings.items()
            ],
        }
        for name, part in scored.parts.items()
    ]


def _machines(rows: Mapping[str, Row]) -> list[str]:
    """Describe every combination of versions and machine once, and how many runs it made."""
    counts: dict[str, int] = {}
    for row in rows.values():
        parts = page.environment_parts(row["environment"])
        words = ", ".join(parts)
        counts[words] = counts.get(words, 0) + 1
    return [f"{words}: {count} runs" for words, count in counts.items()]
