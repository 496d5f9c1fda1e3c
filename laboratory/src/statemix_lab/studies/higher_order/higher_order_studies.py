"""Dubinin et al.: improved state mixing in higher-order and block diagonal networks."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from statemix_lab.studies.figure import Panel
from statemix_lab.studies.higher_order.cell_table import (
    LEGEND,
    cell_table,
    overview,
    point_panels,
    point_table,
    price_table,
)
from statemix_lab.studies.higher_order.claims import claim_entries, decide, decision_text
from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import (
    PAPER,
    TABLES,
    WRAPPER_TITLE,
    wrapper_entries,
)
from statemix_lab.studies.higher_order.run_spectra import (
    draw_spectra,
    due_with_spectra,
    read_spectra,
    spectra_entries,
    store_spectra,
)
from statemix_lab.studies.result_text import Table
from statemix_lab.studies.store import Store, StoredRow
from statemix_lab.studies.study import Section, Study
from statemix_lab.studies.study_entries import (
    PROTOCOLS,
    SIZES,
    Planned,
    ProtocolName,
    SizeName,
    StudyEntry,
)


class TableStudy(Study):
    """Numbers beside a table of the paper."""

    whole = True

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        return cell_table(runs, entries)

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        del runs
        return []

    def counts(self, rows: Mapping[str, StoredRow]) -> tuple[int, int, int]:
        found = overview(rows, (self.name,))
        return found["measured"], found["agree"], found["of"]


class FigureStudy(Study):
    """Points of a figure of the paper."""

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return point_table(runs)

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        return point_panels(runs)

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        del rows
        return [self.legend, price_table(entries).as_text()]


class ClaimsStudy(TableStudy):
    """The claims of the paper, with the cells that decide them."""

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        return [
            "\n  ".join([head, *details])
            for one in decide(rows, entries[0].protocol)
            for head, details in [decision_text(one)]
        ]

    def sections(self, rows: Mapping[str, StoredRow], folder: Path) -> Iterator[Section]:
        del folder
        decided = [
            decision_text(one)
            for protocol in PROTOCOLS
            for one in decide(rows, protocol)
            if any(finding.true is not None for finding in one.findings)
        ]
        if decided:
            yield Section(self.name, f"{self.name}: {self.title}", statements=decided)


class SpectraStudy(Study):
    """Eigenvalues of trained runs, which are kept beside the store."""

    caption = "Eigenvalues of all units on two test sequences, and the unit circle."

    def due(self, planned: Sequence[Planned], results: Store, *, retry: bool) -> list[Planned]:
        folder = results.path.parent / "spectra"
        return due_with_spectra(planned, results.rows(), folder, retry=retry)

    def keep(self, planned: Sequence[Planned], results: Store) -> None:
        store_spectra(planned, results.path.parent / "spectra")

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return point_table(runs.with_columns(panel=pl.col("data")))

    def draw(self, runs: pl.DataFrame, folder: Path) -> Figure | None:
        return draw_spectra(runs, read_spectra(folder / "spectra"))


def _study(
    kind: type[Study],
    name: str,
    title: str,
    entries: Any,
    protocols: tuple[ProtocolName, ...] = PROTOCOLS,
    paper: str = "",
) -> Study:
    """Return a study; each number counts in the table that the paper has it in."""

    def listed(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
        return tuple(entries(protocol, size))

    return kind(name, title, listed, protocols, SIZES, LEGEND, paper)


STUDIES = (
    *(
        _study(TableStudy, name, one.title, one.entries, paper=PAPER)
        for name, one in TABLES.items()
    ),
    _study(TableStudy, "wrapper", WRAPPER_TITLE, wrapper_entries, ("paper",)),
    _study(ClaimsStudy, "claims", "the claims of the paper", claim_entries),
    *(_study(FigureStudy, name, one.title, one.entries) for name, one in FIGURES.items()),
    _study(SpectraStudy, "fig7", "eigenvalues of the learned transitions on S_5", spectra_entries),
)
"""Tables, open questions, claims and figures, in the order of the page."""
