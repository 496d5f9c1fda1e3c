"""The figure of eigenvalues, drawn from those kept beside the results store."""

from collections.abc import Mapping
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from statemix.studies.complex_plane import Spectra, draw
from statemix.studies.higher_order.run_spectra import RunSpectrum


def draw_spectra(runs: pl.DataFrame, spectra: Mapping[str, RunSpectrum]) -> Figure | None:
    """Draw a panel for each line: rows of m, columns of time steps; None without eigenvalues.

    Args:
        runs: the runs of the figure.
        spectra: eigenvalues by key.
    """
    known = [spectra[name] for name in runs["key"].drop_nulls() if name in spectra]
    if not known:
        return None
    steps = sorted({step for spectrum in known for step in spectrum["steps"]})
    return draw(
        [
            Spectra(
                title=f"({'abcdefgh'[place]}) {line}",
                family=group["family"][0],
                row_title="m",
                column_title="time step",
                columns=[str(step) for step in steps],
                rows={
                    f"{run['x']:g}": _row(run, spectra.get(run["key"]), steps)
                    for run in group.sort("x").to_dicts()
                },
            )
            for place, ((line,), group) in enumerate(runs.group_by(["line"], maintain_order=True))
        ]
    )


def _row(
    run: Mapping[str, Any], spectrum: RunSpectrum | None, steps: list[int]
) -> list[list[list[float]]] | str:
    if spectrum is not None:
        at = dict(zip(spectrum["steps"], spectrum["eigenvalues"], strict=True))
        return [at.get(step, []) for step in steps]
    if run["status"] is None:
        return "not trained yet"
    return "eigenvalues not stored" if run["status"] == "done" else str(run["status"])
