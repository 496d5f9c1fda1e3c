"""Dubinin et al.: improved state mixing in higher-order and block diagonal networks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from statemix_lab.studies.higher_order import cell_table, run_spectra
from statemix_lab.studies.higher_order.claims import claim_entries, decide, decision_text
from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import (
    PAPER,
    TABLES,
    WRAPPER_TITLE,
    wrapper_entries,
)
from statemix_lab.studies.store import Store, StoredRow
from statemix_lab.studies.study import Section, Study
from statemix_lab.studies.study_entries import PROTOCOLS, SIZES, Planned, ProtocolName, StudyEntry


@dataclass(frozen=True, eq=False)
class TableStudy(Study):
    """Numbers beside a table of the paper."""

    table: Any = cell_table.cell_table
    panels: Any = lambda _: []
    whole = True

    def counts(self, rows: Mapping[str, StoredRow]) -> tuple[int, int, int]:
        found = cell_table.overview(rows, (self.name,))
        return found["measured"], found["agree"], found["of"]


@dataclass(frozen=True, eq=False)
class FigureStudy(Study):
    """Points of a figure of the paper."""

    table: Any = lambda runs, _: cell_table.point_table(runs)
    panels: Any = cell_table.point_panels

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        del rows
        return [self.legend, cell_table.price_table(entries).as_text()]


class ClaimsStudy(TableStudy):
    """The claims of the paper, with the cells that decide them."""

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        texts = map(decision_text, decide(rows, entries[0].protocol))
        return ["\n  ".join([head, *details]) for head, details in texts]

    def sections(self, rows: Mapping[str, StoredRow], folder: Path) -> Iterator[Section]:
        del folder
        decided = [
            decision_text(decision)
            for protocol in PROTOCOLS
            for decision in decide(rows, protocol)
            if any(finding.true is not None for finding in decision.findings)
        ]
        if decided:
            yield Section(self.name, f"{self.name}: {self.title}", statements=decided)


@dataclass(frozen=True, eq=False)
class SpectraStudy(Study):
    """Eigenvalues of trained runs, which are kept beside the store."""

    table: Any = lambda runs, _: cell_table.point_table(runs.with_columns(panel=pl.col("data")))
    caption = "Eigenvalues of all units on two test sequences, and the unit circle."

    def due(self, planned: Sequence[Planned], results: Store, *, retry: bool) -> list[Planned]:
        folder = results.path.parent / "spectra"
        return run_spectra.due_with_spectra(planned, results.rows(), folder, retry=retry)

    def keep(self, planned: Sequence[Planned], results: Store) -> None:
        run_spectra.store_spectra(planned, results.path.parent / "spectra")

    def draw(self, runs: pl.DataFrame, folder: Path) -> Figure | None:
        return run_spectra.draw_spectra(runs, run_spectra.read_spectra(folder / "spectra"))


def _study(
    kind: type[Study],
    name: str,
    title: str,
    entries: Any,
    protocols: tuple[ProtocolName, ...] = PROTOCOLS,
    paper: str = "",
) -> Study:
    """Return a study; each number counts in the table that the paper has it in."""
    return kind(
        name, title, lambda *of: tuple(entries(*of)), protocols, SIZES, cell_table.LEGEND, paper
    )


STUDIES = (
    *(
        _study(TableStudy, name, one.title, one.entries, paper=PAPER)
        for name, one in TABLES.items()
    ),
    _study(TableStudy, "wrapper", WRAPPER_TITLE, wrapper_entries, ("paper",)),
    _study(ClaimsStudy, "claims", "the claims of the paper", claim_entries),
    *(_study(FigureStudy, name, one.title, one.entries) for name, one in FIGURES.items()),
    _study(
        SpectraStudy,
        "fig7",
        "eigenvalues of the learned transitions on S_5",
        run_spectra.spectra_entries,
    ),
)
"""Tables, open questions, claims and figures, in the order of the page."""
