"""The studies of language models: Figure 4 of Dubinin et al., and a duel of layers."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from statemix.sweeps.study_runs import Runnable
from statemix_lab.studies.chosen_rates import ChosenRates
from statemix_lab.studies.figure import Panel, draw
from statemix_lab.studies.language.language_suites import duel_entries, figure_entries
from statemix_lab.studies.language.language_tables import (
    duel_panels,
    duel_table,
    figure_panels,
    figure_table,
    is_at_chosen_rate,
    language_run_lines,
    language_runs,
)
from statemix_lab.studies.language.language_verdicts import verdict_lines
from statemix_lab.studies.result_text import Table
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import StudyEntry

LEGEND = """\
bits per byte: mean and standard deviation over seeds, of held-out documents that choose nothing.
perplexity: that of a token. state: bytes of a sequence in float32, without keys and values of
attention. training: processor time of the steps."""
_BITS = "bits per byte of validation text"


class LanguageStudy(Study):
    """Bits per byte of language models."""

    def check(self, entries: Sequence[StudyEntry]) -> None:
        del entries
        # A command whose extra is missing names the extra.
        import_module("statemix.lm")

    def runs(
        self, entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
    ) -> pl.DataFrame:
        return language_runs(entries, rows, planned=planned)

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return figure_table(runs)

    def draw(self, runs: pl.DataFrame, folder: Path) -> Figure | None:
        del folder
        panels = self.panels(runs)
        return draw(panels, y_label=_BITS) if panels else None

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        return figure_panels(runs)

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        texts = [self.legend]
        for head, details in verdict_lines(self.runs(entries, rows), {}):
            texts += [head, *(f"  {line}" for line in details)]
        return texts

    def run_lines(self, runs: pl.DataFrame) -> Iterator[list[str]]:
        return language_run_lines(runs)


class Duel(ChosenRates, LanguageStudy):
    """Every model chooses its learning rate by the bits per byte of validation text.

    A model whose chosen rate is the least or the largest of the grid is not ranked.
    """

    def is_at_chosen_rate(self, run: Runnable, rows: Mapping[str, StoredRow]) -> bool | None:
        return is_at_chosen_rate(run, rows)

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return duel_table(runs)

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        return duel_panels(runs)

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        del rows, entries
        return [self.legend]


STUDIES = (
    LanguageStudy(
        "fig4",
        "perplexity of language models against block size, width and learning rate",
        figure_entries,
        sizes=("laptop", "paper"),
        legend=LEGEND,
    ),
    Duel(
        "duel",
        "language models of equal parameters",
        duel_entries,
        legend=f"{LEGEND} Not shown: models whose chosen rate is the least or largest of the grid.",
    ),
)
"""The studies of language models, in the order of the page."""
