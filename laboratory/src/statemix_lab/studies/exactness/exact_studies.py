"""Networks that track an automaton exactly: the recipe on every group, and one change at a time."""

import time
from collections.abc import Mapping, Sequence
from functools import cache, partial

import polars as pl

from statemix.sweeps.runner import Ended, StudyRun, configured
from statemix.training.attempts import MAX_PAIRS
from statemix.training.certificates import certify_run, check_property
from statemix.training.devices import threads
from statemix_lab.studies import store
from statemix_lab.studies.exactness import exact_suites, exact_table
from statemix_lab.studies.exactness.exact_protocols import has_tuned_rate, protocol_entries
from statemix_lab.studies.exactness.monitors import monitor_entries, property_of
from statemix_lab.studies.exactness.perfect_scores import (
    is_perfect,
    outcome,
    perfect_entries,
    searched,
)
from statemix_lab.studies.length_table import length_panels
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import StudyEntry
from statemix_lab.studies.tidy import tidy


def certified_row(ended: Ended) -> StoredRow:
    """Return the row of a run that has ended, with a certificate if it has a result."""
    row = store.row_of(ended)
    if ended.status != "done":
        return row
    began = time.process_time()
    # As the run itself, so that the cost is that of one core.
    with threads(configured(ended.job.config).runtime.num_threads):
        certificate, _ = certify_run(ended.job.folder, max_pairs=MAX_PAIRS)
    time_s = round(time.process_time() - began, 3)
    return row | {"certificate": certificate.to_plain(), "certify_s": time_s}


def _monitor_row(ended: Ended) -> StoredRow:
    """Return the row of a learner of a protocol, with what is proven of its safety property."""
    config, folder = ended.job.config, ended.job.folder
    if isinstance(config, StudyRun):
        return store.row_of(ended)
    row = certified_row(ended)
    if ended.status == "done":
        text = folder / "property.txt"
        text.write_text(property_of(config.task))
        with threads(config.runtime.num_threads):
            result, _ = check_property(folder, text, max_states=MAX_PAIRS)
        row["property"] = {name: result[name] for name in ("verdict", "pairs", "word")}
    return row


def _searched_row(ended: Ended) -> StoredRow:
    """Return the row of a network, with a search for wrong words if its score is perfect."""
    has_recipe = configured(ended.job.config).search.attempts is not None
    row = certified_row(ended) if has_recipe else store.row_of(ended)
    if ended.status == "done" and is_perfect(row):
        row["refutation"] = searched(ended.job.folder)
    return row


def _runs_at_chosen_rate(
    entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
) -> pl.DataFrame:
    others = [
        name
        for entry in entries
        for _, config, name in entry.trials.runs
        if has_tuned_rate(config, rows) is False
    ]
    runs = tidy(entries, rows, planned=planned)
    return runs.filter(~pl.col("key").is_in(others).fill_null(value=False))


def _certified_runs(
    entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
) -> pl.DataFrame:
    lacks = (pl.col("status") == "done") & pl.col("certificate").is_null()
    return tidy(entries, rows, planned=planned).with_columns(status=pl.when(~lacks).then("status"))


def _monitor_runs(
    entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
) -> pl.DataFrame:
    runs = tidy(entries, rows, planned=planned)
    found = [rows.get(name, {}) for name in runs["key"]]
    kept = [row.get("property", {}).get("verdict") for row in found]
    states = [row.get("num_states") for row in found]
    return runs.with_columns(
        pl.Series("property", kept, dtype=pl.String),
        pl.Series("num_states", states, dtype=pl.Int64),
    )


def _searched_runs(
    entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
) -> pl.DataFrame:
    runs = tidy(entries, rows, planned=planned)
    outcomes = [outcome(rows[name]) if name in rows else None for name in runs["key"]]
    return runs.with_columns(pl.Series("outcome", outcomes, dtype=pl.String))


CertifiedStudy = partial(Study, row_of=certified_row)
"""A study of networks of tasks with an automaton, each with its certificate."""

AttemptStudy = partial(
    CertifiedStudy,
    legend=exact_table.ATTEMPTS_LEGEND,
    table=lambda runs, _: exact_table.attempts_table(runs),
    panels=lambda _: [],
)
"""A study of attempts from new weights."""

ProofStudy = partial(
    CertifiedStudy,
    legend=exact_table.LEGEND,
    runs=_certified_runs,
    table=lambda runs, _: exact_table.proof_table(runs),
    panels=partial(length_panels, panel="model", line="column", x_label="word length"),
)
"""A study of networks whose certificate is their result."""

STUDIES = (
    ProofStudy(
        "exact-groups",
        "permutation groups, learned from words of 16",
        cache(exact_suites.group_entries),
    ),
    ProofStudy(
        "exact-automata",
        "random automata, the languages of Tomita, and patterns, learned from words of 15 or 16",
        cache(exact_suites.automaton_entries),
    ),
    ProofStudy(
        "larger-groups",
        "groups of up to 3,628,800 permutations, from two generators",
        cache(exact_suites.larger_group_entries),
    ),
    CertifiedStudy(
        "exact-protocols",
        "the tasks of other works, with their lengths and labels",
        cache(protocol_entries),
        legend=exact_table.PROTOCOLS_LEGEND,
        runs=_runs_at_chosen_rate,
        at_chosen_rate=has_tuned_rate,
    ),
    CertifiedStudy(
        "monitors",
        "monitors of protocols, learned from 1,000 traces with wrong labels",
        cache(monitor_entries),
        legend=exact_table.MONITORS_LEGEND,
        row_of=_monitor_row,
        runs=_monitor_runs,
        table=lambda runs, _: exact_table.monitor_table(runs),
        panels=lambda _: [],
    ),
    Study(
        "perfect-scores",
        "networks without a wrong answer in the tests, and words that refute them",
        cache(perfect_entries),
        legend=exact_table.SCORES_LEGEND,
        row_of=_searched_row,
        runs=_searched_runs,
        table=lambda runs, _: exact_table.score_table(runs),
        panels=lambda _: [],
    ),
    AttemptStudy(
        "exact-factorial",
        "changes that raise the chance of a single attempt",
        cache(exact_suites.factorial_entries),
    ),
)
"""The studies, in the order of the page."""
