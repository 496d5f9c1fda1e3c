"""The paper's figure of eigenvalues, drawn from stored ones."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from statemix.studies import figures
from statemix.studies import html as page
from statemix.studies.complex_plane import Spectra, draw
from statemix.studies.higher_order.paper_figures import Point
from statemix.studies.higher_order.protocols import PROTOCOLS, SIZES
from statemix.studies.higher_order.run_spectra import SPECTRA, RunSpectrum
from statemix.studies.store import Row, key

_NOT_YET = "not trained yet"


def panels(
    points: Sequence[Point],
    rows: Mapping[str, Row],
    spectra: Mapping[str, RunSpectrum],
) -> list[Spectra]:
    """Return the panels of a figure: rows of m, columns of time steps.

    Args:
        points: its points, each with one run.
        rows: rows of results stores, by key.
        spectra: stored eigenvalues, by key.
    """
    lines = list(dict.fromkeys(point.line for point in points))
    runs = {(point.line, point.x): _run(point) for point in points}
    steps = sorted({step for name in runs.values() for step in _steps(spectra.get(name[0]))})
    found = []
    for place, line in enumerate(lines):
        of = {x: name for (of_line, x), name in runs.items() if of_line == line}
        found.append(
            Spectra(
                title=f"({'abcdefgh'[place]}) {line}",
                family=next(iter(of.values()))[1],
                row_title=points[0].x_label,
                column_title="time step",
                columns=[str(step) for step in steps],
                rows={
                    f"{x:g}": _row(spectra.get(name), rows.get(name), steps)
                    for x, (name, _) in sorted(of.items())
                },
            )
        )
    return found


def _run(point: Point) -> tuple[str, str]:
    """Return the key of a point's run, and the name of its layer."""
    ((trial,),) = point.cell.parts.values()
    (config,) = trial.runs
    return key(config), config.model.layers[0].name


def _steps(spectrum: RunSpectrum | None) -> list[int]:
    return [] if spectrum is None else spectrum["steps"]


def _row(
    spectrum: RunSpectrum | None, row: Row | None, steps: Sequence[int]
) -> list[list[list[float]]] | str:
    if spectrum is not None:
        at = dict(zip(spectrum["steps"], spectrum["eigenvalues"], strict=True))
        return [at.get(step, []) for step in steps]
    if row is None:
        return _NOT_YET
    return "eigenvalues not stored" if row["status"] == "done" else row["status"]


def lost(points: Sequence[Point], rows: Mapping[str, Row]) -> list[str]:
    """Name the runs that ended without a result, and how.

    Args:
        points: points of a figure, each with one run.
        rows: rows of results stores, by key.
    """
    ended = ((point.cell.model, rows.get(_run(point)[0])) for point in points)
    known = ((name, row["status"]) for name, row in ended if row is not None)
    return [f"{name} {status}" for name, status in known if status != "done"]


def page_figures(
    rows: Mapping[str, Row], spectra: Mapping[str, RunSpectrum]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of eigenvalues that have data, as the page's template takes them.

    Args:
        rows: rows of results stores, by key.
        spectra: stored eigenvalues, by key.
    """
    # To name the runs of every figure takes a while.
    every = SPECTRA.values() if spectra else ()
    for figure, protocol, size in itertools.product(every, PROTOCOLS, SIZES):
        points = list(figure.points(protocol, size))
        if any(_run(point)[0] in spectra for point in points):
            drawn = panels(points, rows, spectra)
            yield {
                "id": f"{figure.name}-{protocol}-{size}",
                "title": f"{figure.name}: {figure.title}",
                "setting": f'Protocol "{protocol}", size "{size}", one run for each m.',
                "note": _note(lost(points, rows)),
                "images": page.data_uris(figures.variants(partial(draw, drawn))),
            }


def _note(without: Sequence[str]) -> str:
    text = (
        "Each frame shows the unit circle and the eigenvalues of all blocks or channels at one "
        "time step of a few test sequences; an eigenvalue beyond its frame is drawn on the edge."
    )
    return f"{text} Without result: {', '.join(without)}." if without else text
