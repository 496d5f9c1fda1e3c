"""The studies of language models: Figure 4 of Dubinin et al., and a duel of layers."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from statemix_lab.studies.language.language_suites import duel_entries, figure_entries
from statemix_lab.studies.language.language_tables import (
    duel_panels,
    duel_table,
    figure_panels,
    figure_table,
    is_at_chosen_rate,
    language_runs,
)
from statemix_lab.studies.language.language_verdicts import verdict_lines
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import StudyEntry

LEGEND = """\
bits per byte: mean and standard deviation over seeds, of held-out documents that choose nothing.
perplexity: that of a token. state: bytes of a sequence in float32, without keys and values of
attention. training: processor time of the steps."""


class LanguageStudy(Study):
    """Bits per byte of language models."""

    y_label = "bits per byte of validation text"

    def check(self, entries: Sequence[StudyEntry]) -> None:
        del entries
        # A command whose extra is missing names the extra.
        import_module("statemix.lm")

    def result_text(self, run: Mapping[str, Any]) -> str:
        return f"{run['bits']:.4f} bits per byte"


class Figure4Study(LanguageStudy):
    """Figure 4, with what its runs say about the claims."""

    def report(self, rows: Mapping[str, StoredRow], entries: Sequence[StudyEntry]) -> list[str]:
        texts = [self.legend]
        for head, details in verdict_lines(self.runs(entries, rows), {}):
            texts += [head, *(f"  {line}" for line in details)]
        return texts


STUDIES = (
    Figure4Study(
        "fig4",
        "perplexity of language models against block size, width and learning rate",
        figure_entries,
        sizes=("laptop", "paper"),
        legend=LEGEND,
        runs=language_runs,
        table=lambda runs, _: figure_table(runs),
        panels=figure_panels,
    ),
    LanguageStudy(
        "duel",
        "language models of equal parameters",
        duel_entries,
        legend=f"{LEGEND} Not shown: models whose chosen rate is the least or largest of the grid.",
        runs=language_runs,
        table=lambda runs, _: duel_table(runs),
        panels=duel_panels,
        at_chosen_rate=is_at_chosen_rate,
    ),
)
"""The studies of language models, in the order of the page."""
