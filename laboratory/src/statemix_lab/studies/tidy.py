"""One tidy table of results: a line per run, and what runs add up to."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from statemix.sweeps.runner import Runnable
from statemix.tasks import names_of
from statemix.training import RunConfig, config_from_plain
from statemix_lab.studies.result_text import commit_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study_entries import StudyEntry

NOISE = 0.05
"""Largest difference from the paper that agrees: two models that the paper calls identical differ
by up to 0.035."""

ENOUGH_SEEDS = 3
"""Seeds of one setting, on every data set, that a number needs to count as measured."""

FULL = 0.3
"""Share of the published optimiser steps from which a run counts as trained in full."""

_TEST = pl.Struct({"length": pl.Int64, "accuracy": pl.Float64, "iterations": pl.Float64})
_ATTEMPT = pl.Struct({"passed": pl.Boolean, "steps": pl.Int64, "plateau": pl.Int64})
_RUN: dict[str, Any] = {
    "data": pl.String,
    "setting": pl.String,
    "seed": pl.Int64,
    "key": pl.String,
    "status": pl.String,
    "best_test": pl.Float64,
    "at_best_validation": pl.Float64,
    "best_validation": pl.Float64,
    "tests": pl.List(_TEST),
    "attempts": pl.List(_ATTEMPT),
    "certificate": pl.String,
    "word": pl.String,
    "share": pl.Float64,
    "seconds": pl.Float64,
    "commit": pl.String,
}
_ENTRY: dict[str, Any] = {
    "family": pl.String,
    "published": pl.Float64,
    "published_for": pl.String,
    "lengths": pl.List(pl.Int64),
}
_DONE = pl.col("status") == "done"
_LOST = pl.col("status").is_not_null() & (pl.col("status") != "done")


def tidy(
    entries: Iterable[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
) -> pl.DataFrame:
    """Return a line for each run of entries, with its labels and what its row holds."""
    labels: dict[str, Any] = dict.fromkeys(("protocol", "size", "column", "model"), pl.String)
    records = []
    for entry in entries:
        for name, value in entry.place.items():
            labels[name] = pl.String if isinstance(value, str) else pl.Float64
        number = None if entry.published_for else entry.published.get(0)
        shared: dict[str, Any] = {
            **entry.place,
            "family": entry.layers[0].name if entry.layers else entry.model,
            "published": number and number.accuracy,
            "published_for": entry.published_for,
            "lengths": entry.lengths,
            "data": entry.data or entry.column,
        }
        if not planned and not entry.begun(rows):
            records.append(shared)
            continue
        for setting, config, name in entry.trials.runs:
            run = {"setting": setting, "seed": config.seed, "key": name}
            run["share"] = _share(config, entry.updates)
            records.append({**shared, **run, **_row(rows.get(name), entry.metric)})
    return pl.DataFrame(records, schema={**labels, **_ENTRY, **_RUN})


def _share(run: Runnable, updates: int | None) -> float | None:
    """Return the share of the published steps that a run may take; it may stop early."""
    if updates is None or not isinstance(run, RunConfig) or run.schedules.epochs is None:
        return None
    per_epoch = -(-int(run.task.options["train_size"]) // run.batches.size)
    return min(run.schedules.epochs * per_epoch / updates, 1.0)


def _row(row: StoredRow | None, metric: str) -> dict[str, Any]:
    """Return what a row holds; scores are means over heads."""
    if row is None:
        return {}

    def accuracy(heads: Mapping[str, Any]) -> float | None:
        scores = [head.get(metric) for head in heads.values()]
        return None if not scores or None in scores else math.fsum(scores) / len(scores)

    iterated, certificate = row.get("iterated", {}), row.get("certificate", {})
    return {
        "status": row["status"],
        "best_test": accuracy(row.get("best_test", {})),
        "at_best_validation": accuracy(row.get("test_at_best_validation", {})),
        "best_validation": accuracy(row.get("best_validation", {})),
        "tests": [
            {
                "length": int(length),
                "accuracy": accuracy(heads),
                "iterations": iterated.get(length, {}).get("iterations"),
            }
            for length, heads in sorted(row.get("test", {}).items(), key=lambda test: int(test[0]))
        ],
        "attempts": [
            {
                "passed": attempt["passed"],
                "steps": attempt["ended"] - attempt["began"],
                "plateau": None if attempt["left"] is None else attempt["left"] - attempt["began"],
            }
            for attempt in row.get("attempts", [])
        ],
        "certificate": certificate.get("verdict"),
        "word": failing_word(row) if certificate else "",
        # Processor time does not depend on what else the machine did; older rows have none.
        "seconds": (row.get("cpu_s") or row.get("time_s") or 0.0) + row.get("certify_s", 0.0),
        "commit": commit_text(row.get("environment", {})),
    }


def failing_word(row: StoredRow) -> str:
    """Return the shortest word that refutes a row's certificate, in the letters of its task."""
    if not (word := row["certificate"].get("word")):
        return ""
    task = config_from_plain({"task": row["task"]}).build_task()
    letters, _ = names_of(task, next(iter(task.heads)))
    return " ".join(letters[token] for token in word)


def cell_labels(runs: pl.DataFrame) -> list[str]:
    """Return the columns that the runs of one number have in common."""
    return [name for name in runs.columns if name not in _RUN and name not in _ENTRY]


def scores(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each number: what its runs add up to, and whether it agrees.

    Under protocol "tuned", a run counts with its test accuracy at the best validation accuracy, and
    the setting with the highest mean validation accuracy is chosen; its mean is the number. Under
    others, a run counts with its best test accuracy, the setting with the highest mean is chosen,
    and the best of the longest runs is the number: like the papers, this selects on the test set.

    Seeds are those of the chosen setting, the fewest over the data sets, and the share is that of
    the published optimiser steps. A number is complete if every run has ended.
    """
    cell = cell_labels(runs)
    part = [*cell, "data"]
    is_tuned = pl.col("protocol") == "tuned"
    chosen = (
        runs.filter(_DONE)
        .with_columns(
            values=pl.when(is_tuned).then("at_best_validation").otherwise("best_test"),
            criterion=pl.when(is_tuned).then("best_validation").otherwise("best_test"),
            of_seeds="seed",
        )
        .group_by(*part, "setting", maintain_order=True)
        .agg("values", "tests", "of_seeds", pl.mean("criterion"), pl.first("share"), seeds=pl.len())
        # A setting with fewer seeds is chosen only where there is no other.
        .sort("seeds", "criterion", descending=True, maintain_order=True)
        .group_by(part, maintain_order=True)
        .first()
        .drop("criterion")
    )
    # Screening runs are shorter than runs in full, and count only where there are no others.
    share = pl.col("share").fill_null(0.0)
    is_longest = share == share.filter(_DONE).max()
    parts = (
        runs.group_by(part, maintain_order=True)
        .agg(
            pl.col("family", "published", "published_for", "lengths").first(),
            planned=pl.col("key").is_not_null().sum(),
            done=pl.col("key").filter(_DONE),
            lost=pl.col("status").filter(_LOST),
            best=pl.col("best_test").filter(_DONE & is_longest).max(),
        )
        .join(chosen, on=part, how="left", maintain_order="left")
        .with_columns(pl.col("seeds").fill_null(0), mean=pl.col("values").list.mean())
    )

    def over_data(name: str) -> pl.Expr:
        every = pl.col(name)
        return pl.when(every.null_count() == 0).then(every.mean())

    fields = ["data", "planned", "done", "lost", "best", "mean", "seeds", "setting", "share"]
    cells = parts.group_by(cell, maintain_order=True).agg(
        pl.col("family", "published", "published_for").first(),
        pl.col("seeds").min(),
        pl.col("planned").sum(),
        done=pl.col("done").explode().drop_nulls().unique(),
        complete=(pl.col("done").list.len() + pl.col("lost").list.len() == pl.col("planned")).all(),
        share=pl.when(pl.col("share").null_count() == 0).then(pl.col("share").min()),
        best=over_data("best"),
        mean=over_data("mean"),
        deviation=pl.when(pl.col("seeds").min() > 1).then(
            pl.col("values").list.var().mean().sqrt()
        ),
        parts=pl.struct(*fields, "of_seeds", "values", "tests", "lengths"),
    )
    # Searches of one size are compared: under "tuned", every run must have ended.
    is_measured = (~is_tuned | pl.col("complete")) & (pl.col("seeds") >= ENOUGH_SEEDS)
    return cells.with_columns(
        ours=pl.when(is_tuned).then("mean").otherwise("best"), measured=is_measured
    ).with_columns(
        verdict=_verdict(pl.col("done").list.len() == 0, is_measured, "ours", "published")
    )


def _verdict(is_empty: pl.Expr, is_measured: pl.Expr, ours: str, published: str) -> pl.Expr:
    # Rounded, because 1.0 - 0.95 is more than 0.05 in floating point.
    difference = (pl.col(ours) - pl.col(published)).round(6)
    return (
        pl.when(is_empty)
        .then(pl.lit("empty"))
        .when(~is_measured)
        .then(pl.lit("partial"))
        .when(pl.col(published).is_null())
        .then(pl.lit("measured"))
        .when(difference.abs() <= NOISE)
        .then(pl.lit("agrees"))
        .when(difference > 0)
        .then(pl.lit("above"))
        .otherwise(pl.lit("below"))
    )


def by_length(runs: pl.DataFrame, entries: Iterable[StudyEntry]) -> pl.DataFrame:
    """Return a line for each number and test length that all its runs have."""
    cell = cell_labels(runs)
    done, accuracy = runs.filter(_DONE), pl.col("accuracy")
    tested = (
        done.explode("tests")
        .unnest("tests")
        .drop_nulls("length")
        .group_by(*cell, "length", maintain_order=True)
        .agg(
            seeds=pl.len(),
            values=accuracy,
            mean=accuracy.mean(),
            low=accuracy.min(),
            high=accuracy.max(),
            iterations=pl.col("iterations").mean(),
            iterations_by_seed=pl.col("iterations").drop_nulls(),
        )
        .join(done.group_by(cell).agg(finished=pl.len()), on=cell, how="left")
        .filter(pl.col("seeds") == pl.col("finished"))
    )
    numbers = pl.DataFrame(
        [
            {
                **entry.place,
                "length": length,
                "published": number.accuracy,
                "published_iterations": number.iterations,
                "published_for": entry.published_for,
            }
            for entry in entries
            for length, number in entry.published.items()
        ],
        schema={
            **{name: runs.schema[name] for name in cell},
            "length": pl.Int64,
            "published": pl.Float64,
            "published_iterations": pl.Int64,
            "published_for": pl.String,
        },
    )
    place, seeds = [*cell, "length"], pl.col("seeds")
    joined = tested.join(numbers, on=place, how="full", coalesce=True, maintain_order="left")
    return joined.with_columns(
        seeds.fill_null(0), comparable=pl.when(pl.col("published_for") == "").then("published")
    ).with_columns(verdict=_verdict(seeds == 0, seeds >= ENOUGH_SEEDS, "mean", "comparable"))


def seed_means(parts: list[dict[str, Any]]) -> list[float]:
    """Return means over the data sets of the chosen settings, for seeds that all of them have."""
    found = [dict(zip(part["of_seeds"] or (), part["values"] or (), strict=True)) for part in parts]
    common = [seed for seed in found[0] if all(seed in of for of in found)]
    return [math.fsum(of[seed] for of in found) / len(found) for seed in common]
