"""Figure 7 of the paper: eigenvalues of the learned transitions, kept beside the results store."""

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import torch
from matplotlib.figure import Figure

from statemix.errors import RequestError
from statemix.files import write_file
from statemix.training import load_model, load_outcome
from statemix.training.folder import WRITING_S, lock_folder, read_status
from statemix.training.schedules import attributes_set
from statemix_lab.inspection.layer_numbers import plain_eigenvalues
from statemix_lab.inspection.recurrences import eigenvalues, record
from statemix_lab.studies.complex_plane import Spectra, draw
from statemix_lab.studies.higher_order.contenders import ORDERS, Contender, bd_lru, h_lru
from statemix_lab.studies.higher_order.paper_tables import column
from statemix_lab.studies.higher_order.protocols import cell
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study_entries import (
    Planned,
    ProtocolName,
    SizeName,
    StudyEntry,
    Trial,
    Trials,
    due,
)

STEPS = (1, 4, 8, 12, 16)
"""Time steps of the figure's columns."""

SEQUENCES = 2
"""Test sequences whose eigenvalues are kept."""


RunSpectrum = dict[str, Any]
"""Eigenvalues of a trained run, with its last weights: its "key", "sequences" (their number),
"steps" (counted from 1), and at each step the [real, imaginary] "eigenvalues" of all units."""


def read_spectra(folder: Path) -> dict[str, RunSpectrum]:
    """Return the spectra in a folder by key."""
    spectra: dict[str, RunSpectrum] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            spectrum: RunSpectrum = json.loads(path.read_text(encoding="utf-8"))
            same = spectrum["key"] == path.stem
            same &= len(spectrum["steps"]) == len(spectrum["eigenvalues"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(f"{path} must hold a run's eigenvalues, got {reason}") from error
        if not same:
            raise RequestError(f"{path} must hold the eigenvalues of this run, got others")
        spectra[path.stem] = spectrum
    return spectra


# S_5 needs m = 5; small blocks and a large one show what changes with m.
_TELLING = (5, 2, 3, 8)
_LINES: dict[str, list[tuple[int, Contender]]] = {
    "BD-LRU, softmax": [(m, bd_lru(m)) for m in ORDERS],
    "BD-LRU, none": [(m, bd_lru(m, gate="none")) for m in ORDERS],
    "H-LRU, softmax": [(m, h_lru(m)) for m in ORDERS],
    "H-LRU, none": [(m, h_lru(m, gate="none")) for m in ORDERS],
}


def spectra_entries(protocol: ProtocolName, size: SizeName) -> list[StudyEntry]:
    """Return a run for each line and m: the first setting with the first seed."""
    data, order = column("table4", "s5_100k"), [*_TELLING, *ORDERS]
    points = [(m, line, model) for line, models in _LINES.items() for m, model in models]
    return [
        entry
        for m, line, model in sorted(points, key=lambda point: order.index(point[0]))
        for entry in cell(model, data, protocol, size, change=_first_run, line=line, x=float(m))
    ]


@cache
def _first_run(trials: Trials) -> Trials:
    return Trials(lambda: [Trial(one.setting, one.runs[:1]) for one in itertools.islice(trials, 1)])


def due_with_spectra(
    planned: Sequence[Planned], rows: Mapping[str, StoredRow], folder: Path, *, retry: bool
) -> list[Planned]:
    """Return the runs to train for a figure of eigenvalues."""

    def is_lost(run: Planned) -> bool:
        is_kept = (folder / f"{run.key}.json").exists() or _is_trained(run.job.folder)
        return rows[run.key]["status"] == "done" and not is_kept

    without_row = {run.key for run in due(planned, rows, retry=retry)}
    return [run for run in planned if run.key in without_row or is_lost(run)]


def store_spectra(planned: Sequence[Planned], folder: Path) -> None:
    """Store the eigenvalues of all trained runs whose folders are here, a file for each key."""
    for one in planned:
        path = folder / f"{one.key}.json"
        if not path.exists() and _is_trained(one.job.folder):
            text = json.dumps(measured(one.key, one.job.folder), separators=(",", ":"))
            with lock_folder(folder, patience_s=WRITING_S):
                write_file(path, (text + "\n").encode())


def _is_trained(folder: Path) -> bool:
    status = read_status(folder)
    return status is not None and status.status == "done"


def measured(key: str, folder: Path) -> RunSpectrum:
    """Compute the eigenvalues of the first layer of a trained run, from its folder."""
    config = load_outcome(folder).config
    tokens = torch.from_numpy(config.build_task().examples("test", 0, SEQUENCES).tokens)
    model = load_model(folder)
    with attributes_set(model, config.evaluation.attributes):
        first = record(model, tokens)[0]
        recurrence = first.recurrence()
    if recurrence is None:
        raise RequestError(f"{folder} must hold a linear recurrence, got {first.layer.name!r}")
    steps = [step for step in STEPS if step <= tokens.shape[1]]
    prepended = first.x.shape[1] - tokens.shape[1]
    of_steps = recurrence.transitions[:, [prepended + step - 1 for step in steps]]
    return {
        "key": key,
        "sequences": SEQUENCES,
        "steps": steps,
        "eigenvalues": [plain_eigenvalues(one) for one in eigenvalues(of_steps).unbind(1)],
    }


def draw_spectra(runs: pl.DataFrame, spectra: Mapping[str, RunSpectrum]) -> Figure | None:
    """Draw a panel for each line: rows of m, columns of time steps; None without eigenvalues."""
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
