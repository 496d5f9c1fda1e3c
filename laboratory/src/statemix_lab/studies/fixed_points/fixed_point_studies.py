"""Movahedi et al., "Fixed-Point RNNs"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl
import torch

from statemix.errors import RequestError
from statemix.layers import Layer
from statemix.models import ReadoutModel
from statemix.sweeps.runner import Ended, configured
from statemix.tasks.addressing import Split
from statemix.tasks.task import Examples
from statemix.training import load_config, load_model
from statemix.training.devices import threads
from statemix.training.schedules import attributes_set
from statemix_lab.studies import store
from statemix_lab.studies.fixed_points.fixed_point_suites import (
    ARCHIVE,
    LANGUAGE,
    PAPER,
    budget_entries,
    copying_entries,
    story_entries,
    tracking_entries,
)
from statemix_lab.studies.length_table import LENGTHS_LEGEND
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import SIZES, StudyEntry, Trials, begun
from statemix_lab.studies.tidy import by_length

# Sequences of the batch that is iterated, which ends when the slowest of them has converged.
_BATCH = 64


def iterated_row(ended: Ended) -> StoredRow:
    """Return the row of a run that has ended; with a result, also its iterations by test length."""
    row = store.row_of(ended)
    if ended.status != "done":
        return row
    config = load_config(ended.job.folder)
    task, model = config.build_task(), load_model(ended.job.folder)
    model.to(config.runtime.device)
    iterated: dict[str, dict[str, float]] = {}
    with threads(config.runtime.num_threads), attributes_set(model, config.evaluation.attributes):
        for length in map(int, row["test"]):
            numbers = _iterations(model, task.examples("test", 0, _BATCH, length))
            if numbers is not None:
                iterated[str(length)] = numbers
    return row | {"iterated": iterated}


@torch.no_grad()
def _iterations(model: ReadoutModel, examples: Examples) -> dict[str, float] | None:
    """Return the iterations, the mean over layers, and the largest residual of any of them."""
    lengths = None if examples.lengths is None else torch.from_numpy(examples.lengths)
    tokens = torch.from_numpy(examples.tokens).to(model.device)
    model(tokens, lengths=None if lengths is None else lengths.to(model.device))
    reports = [layer.reports() for layer in model.modules() if isinstance(layer, Layer)]
    iterating = [numbers for numbers in reports if "iterations" in numbers]
    if not iterating:
        return None
    iterations = torch.stack([numbers["iterations"].double() for numbers in iterating])
    residuals = torch.stack([numbers["residual"].double() for numbers in iterating])
    return {"iterations": float(iterations.mean()), "residual": float(residuals.max())}


@dataclass(frozen=True, eq=False)
class FixedPointStudy(Study):
    """Accuracies at several lengths, and the iterations that they need."""

    sizes: Any = SIZES
    legend: str = LENGTHS_LEGEND
    paper: str = PAPER
    row_of: Any = iterated_row


class StoryStudy(FixedPointStudy):
    """Questions about stories, which are read from an archive."""

    def check(self, entries: Sequence[StudyEntry]) -> None:
        if not Path(ARCHIVE).exists():
            raise RequestError(
                f"{self.name} needs {ARCHIVE} in the current folder, got none; it is at "
                "http://www.thespermwhale.com/jaseweston/babi"
            )
        # All runs read and score the same.
        config = configured(entries[0].trials.runs[0][1])
        evaluation, task = config.evaluation, config.build_task()
        counts: dict[Split, int] = {
            "validation": evaluation.validation_size,
            "test": evaluation.test_size,
        }
        for split, size in counts.items():
            try:
                task.examples(split, size - 1, size)
            except ValueError as error:
                raise RequestError(
                    f"{ARCHIVE} has too few stories: {split}_size{str(error).removeprefix('stop')}"
                ) from error


STUDIES = (
    FixedPointStudy("fp-a5", "words of permutations, and longer ones", cache(tracking_entries)),
    FixedPointStudy(
        "fp-budget", "the number of iterations allowed in training", cache(budget_entries)
    ),
    FixedPointStudy("fp-copy", "copying, which tracks no state", cache(copying_entries)),
    StoryStudy(
        "catbabi",
        "questions about the stories of bAbI",
        cache(story_entries),
        unmeasured=len(LANGUAGE),
    ),
)
"""The studies of the paper, in the order of the page."""


def overview(rows: Mapping[str, StoredRow]) -> dict[str, Any]:
    """Return how many numbers of the paper are measured and agree, of how many, and every number.

    The protocol is "reduced" where numbers are not compared.
    """
    cells = [
        line
        for size in SIZES
        for study in STUDIES
        for line in _lines(study, rows, begun(study.entries("paper", size), rows))
    ]
    place = itemgetter("suite", "column", "model", "length")
    known = {place(cell) for cell in cells if cell["published"] is not None}
    empty = [
        _line(study.name, entry, length, {"published": number.accuracy})
        for study in STUDIES
        for entry in study.entries("paper", "paper")
        for length, number in entry.published.items()
    ]
    for model, perplexity in LANGUAGE.items():
        entry = StudyEntry("FineWeb", model, Trials(list), size="paper")
        line = _line("language", entry, None, {"published": perplexity})
        empty.append(line | {"metric": "perplexity"})
    counts = [study.counts(rows) for study in STUDIES]
    measured, agree, of = (sum(one) for one in zip(*counts, strict=True))
    cells += [cell for cell in empty if place(cell) not in known]
    return {"measured": measured, "agree": agree, "of": of, "cells": cells}


def _lines(
    study: Study, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]
) -> list[dict[str, Any]]:
    if not entries:
        return []
    of = {(entry.column, entry.model): entry for entry in entries}
    numbers = by_length(study.runs(entries, rows), entries).filter(pl.col("seeds") > 0)
    order = {name: place for place, name in enumerate(of)}
    lines = [
        _line(
            study.name,
            of[number["column"], number["model"]],
            number["length"],
            number | {"published": number["comparable"]},
        )
        for number in numbers.to_dicts()
    ]
    return sorted(lines, key=lambda line: (order[line["column"], line["model"]], line["length"]))


def _line(
    study: str, entry: StudyEntry, length: int | None, number: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "suite": study,
        "column": entry.column,
        "model": entry.model,
        "length": length,
        "size": entry.size,
        "protocol": "reduced" if entry.published_for else "paper",
        "metric": entry.metric,
        "seeds": number.get("seeds", 0),
        "mean": number.get("mean"),
        "iterations": number.get("iterations_by_seed", []),
        "published": number["published"],
        "verdict": number.get("verdict", "empty"),
    }
