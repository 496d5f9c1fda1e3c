"""Networks that track an automaton exactly: the recipe on every group, and one change at a time."""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import polars as pl

from statemix.sweeps.runner import Ended
from statemix.sweeps.study_runs import Runnable, StudyRun, configured
from statemix.training.attempts import MAX_PAIRS
from statemix.training.certificates import certify_run, check_property
from statemix.training.devices import threads
from statemix_lab.studies import store
from statemix_lab.studies.chosen_rates import ChosenRates
from statemix_lab.studies.exactness.exact_protocols import has_tuned_rate, protocol_entries
from statemix_lab.studies.exactness.exact_suites import (
    automaton_entries,
    factorial_entries,
    group_entries,
    larger_group_entries,
)
from statemix_lab.studies.exactness.exact_table import (
    ATTEMPTS_LEGEND,
    LEGEND,
    MONITORS_LEGEND,
    PROTOCOLS_LEGEND,
    attempts_table,
    monitor_table,
    proof_table,
)
from statemix_lab.studies.exactness.monitors import monitor_entries, property_of
from statemix_lab.studies.figure import Panel
from statemix_lab.studies.length_table import length_panels
from statemix_lab.studies.result_text import Table
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import StudyEntry


def certified_row(ended: Ended) -> StoredRow:
    """Return the row of a run that has ended, with a certificate if it has a result."""
    row = store.row_of(ended)
    if ended.status != "done":
        return row
    began = time.process_time()
    # As the run itself, so that the cost is that of one core.
    with threads(configured(ended.job.config).runtime.num_threads):
        found, _ = certify_run(ended.job.folder, max_pairs=MAX_PAIRS)
    time_s = round(time.process_time() - began, 3)
    more = {"certificate": found.to_plain(), "certify_s": time_s}
    return cast(StoredRow, {**cast(dict[str, Any], row), **more})


class CertifiedStudy(Study):
    """Networks of tasks with an automaton, each with its certificate."""

    def row_of(self, ended: Ended) -> StoredRow:
        return certified_row(ended)


class ProtocolStudy(ChosenRates, CertifiedStudy):
    """The recipe on the tasks of other works, beside networks with tuned learning rates."""

    def is_at_chosen_rate(self, run: Runnable, rows: Mapping[str, StoredRow]) -> bool | None:
        return has_tuned_rate(run, rows)

    def runs(
        self, entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
    ) -> pl.DataFrame:
        found = super().runs(entries, rows, planned=planned)
        others = [
            name
            for entry in entries
            for _, config, name in entry.trials.runs
            if has_tuned_rate(config, rows) is False
        ]
        return found.filter(~pl.col("key").is_in(others).fill_null(value=False))


class AttemptStudy(CertifiedStudy):
    """Attempts from new weights."""

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return attempts_table(runs)

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        del runs
        return []


class ProofStudy(CertifiedStudy):
    """Networks whose certificate is their result."""

    def runs(
        self, entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
    ) -> pl.DataFrame:
        found = super().runs(entries, rows, planned=planned)
        lacks = (pl.col("status") == "done") & pl.col("certificate").is_null()
        return found.with_columns(status=pl.when(~lacks).then("status"))

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return proof_table(runs)

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        return length_panels(runs, panel="model", line="column", x_label="word length")


class MonitorStudy(CertifiedStudy):
    """Learners of a protocol, each with what is proven of what it has learned."""

    def row_of(self, ended: Ended) -> StoredRow:
        config, folder = ended.job.config, ended.job.folder
        if isinstance(config, StudyRun):
            return store.row_of(ended)
        row = certified_row(ended)
        if ended.status != "done":
            return row
        text = folder / "property.txt"
        text.write_text(property_of(config.task))
        with threads(config.runtime.num_threads):
            found, _ = check_property(folder, text, max_states=MAX_PAIRS)
        more = {"property": {name: found[name] for name in ("verdict", "pairs", "word")}}
        return cast(StoredRow, {**cast(dict[str, Any], row), **more})

    def runs(
        self, entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
    ) -> pl.DataFrame:
        found = super().runs(entries, rows, planned=planned)
        kept = [cast(Any, rows.get(name) or {}).get("property", {}) for name in found["key"]]
        states = [cast(Any, rows.get(name) or {}).get("num_states") for name in found["key"]]
        return found.with_columns(
            pl.Series("property", [one.get("verdict") for one in kept], dtype=pl.String),
            pl.Series("num_states", states, dtype=pl.Int64),
        )

    def table(self, runs: pl.DataFrame, entries: Sequence[StudyEntry]) -> Table:
        del entries
        return monitor_table(runs)

    def panels(self, runs: pl.DataFrame) -> list[Panel]:
        del runs
        return []


STUDIES = (
    ProofStudy(
        "exact-groups",
        "permutation groups, learned from words of 16",
        cache(group_entries),
        legend=LEGEND,
    ),
    ProofStudy(
        "exact-automata",
        "random automata, the languages of Tomita, and patterns, learned from words of 15 or 16",
        cache(automaton_entries),
        legend=LEGEND,
    ),
    ProofStudy(
        "larger-groups",
        "groups of up to 3,628,800 permutations, from two generators",
        cache(larger_group_entries),
        legend=LEGEND,
    ),
    ProtocolStudy(
        "exact-protocols",
        "the tasks of other works, with their lengths and labels",
        cache(protocol_entries),
        legend=PROTOCOLS_LEGEND,
    ),
    MonitorStudy(
        "monitors",
        "monitors of protocols, learned from 1,000 traces with wrong labels",
        cache(monitor_entries),
        legend=MONITORS_LEGEND,
    ),
    AttemptStudy(
        "exact-factorial",
        "changes that raise the chance of a single attempt",
        cache(factorial_entries),
        legend=ATTEMPTS_LEGEND,
    ),
)
"""The studies, in the order of the page."""
