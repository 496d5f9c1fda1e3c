"""Networks that track an automaton exactly: the recipe on every group, and one change at a time."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from statemix.studies.exactness.certified_rows import certified_row
from statemix.studies.exactness.exact_factorial import factorial_entries
from statemix.studies.exactness.exact_groups import group_entries
from statemix.studies.exactness.exact_table import (
    ATTEMPTS_LEGEND,
    LEGEND,
    attempts_table,
    group_panels,
    proof_table,
)
from statemix.studies.result_text import Table
from statemix.studies.runner import Ended
from statemix.studies.store import Row
from statemix.studies.study import Study
from statemix.studies.study_entries import StudyEntry


class AttemptStudy(Study):
    """Attempts from new weights, whose networks are certified."""

    def row_of(self, ended: Ended) -> Row:
        return certified_row(ended)

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return attempts_table(runs)

    def draw(self, runs: pl.DataFrame, folder: Path) -> Any:
        del runs, folder


class ProofStudy(AttemptStudy):
    """Networks whose certificate is their result."""

    def runs(
        self, entries: Sequence[StudyEntry], rows: Mapping[str, Row], *, planned: bool = True
    ) -> pl.DataFrame:
        found = super().runs(entries, rows, planned=planned)
        lacks = (pl.col("status") == "done") & pl.col("certificate").is_null()
        return found.with_columns(status=pl.when(~lacks).then("status"))

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return proof_table(runs)

    def panels(self, runs: pl.DataFrame) -> Any:
        return group_panels(runs)

    def draw(self, runs: pl.DataFrame, folder: Path) -> Any:
        return Study.draw(self, runs, folder)


STUDIES = (
    ProofStudy(
        "exact-groups",
        "permutation groups, learned from words of 16",
        cache(group_entries),
        legend=LEGEND,
    ),
    AttemptStudy(
        "exact-factorial",
        "changes that raise the chance of a single attempt",
        cache(factorial_entries),
        legend=ATTEMPTS_LEGEND,
    ),
)
"""The studies, in the order of the page."""
