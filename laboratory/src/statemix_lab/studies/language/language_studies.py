"""The studies of language models: their tables, panels and reports."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import polars as pl

from statemix.sweeps.runner import Runnable
from statemix_lab.studies.figure import Panel, curves
from statemix_lab.studies.language.language_runs import LanguageRun
from statemix_lab.studies.language.language_suites import (
    BLOCKS,
    LARGER,
    RATE,
    RATES,
    WIDTH,
    duel_entries,
    figure_entries,
)
from statemix_lab.studies.language.language_verdicts import verdict_lines
from statemix_lab.studies.result_text import Line, Table, commit_text, duration_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import Study, chosen_rate
from statemix_lab.studies.study_entries import StudyEntry

_POINT = pl.Struct({"tokens": pl.Float64, "cpu_s": pl.Float64, "bits": pl.Float64})
_TEXTS = ("protocol", "size", "column", "model", "family", "setting", "key", "status", "commit")
_NUMBERS = ("at", "bits", "perplexity", "held_out_bits", "tokens", "cpu_s", "seconds")
_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, pl.String),
    **dict.fromkeys(_NUMBERS, pl.Float64),
    **dict.fromkeys(("seed", "parameters", "state_bytes"), pl.Int64),
    "chosen": pl.Boolean,
    "points": pl.List(_POINT),
}


def language_runs(
    entries: Sequence[StudyEntry], rows: Mapping[str, StoredRow], *, planned: bool = True
) -> pl.DataFrame:
    """Return a line for each run: its labels, and what its row holds.

    Bits and perplexity are those of the documents that score; "chosen" says whether its learning
    rate is the one that counts (null if it is open). Unless ``planned``, runs without a row are
    left out.
    """
    lines = []
    for entry in entries:
        several = len(list(entry.trials)) > 1
        for setting, config, name in entry.trials.runs:
            if not planned and name not in rows:
                continue
            lines.append(
                {
                    **entry.place,
                    "family": entry.layers[0].name,
                    "setting": setting,
                    "seed": config.seed,
                    "key": name,
                    "chosen": is_at_chosen_rate(config, rows) if several else True,
                    **_results(rows.get(name)),
                }
            )
    return pl.DataFrame(lines, schema=_SCHEMA)


def _results(row: StoredRow | None) -> dict[str, Any]:
    if row is None:
        return {}
    shared: dict[str, Any] = {"status": row["status"], "commit": commit_text(row["environment"])}
    if row["status"] != "done":
        return shared
    language = row["language"]
    scores = language["scores"]
    points = [
        {"tokens": point["tokens"], "cpu_s": point["cpu_s"], "bits": point["bits_per_byte"]}
        for point in language["curve"]
    ]
    return shared | {
        "bits": scores["test"]["bits_per_byte"],
        "perplexity": scores["test"]["perplexity"],
        "held_out_bits": scores["held_out"]["bits_per_byte"],
        "parameters": language["parameters"],
        "state_bytes": language["state_bytes"],
        "tokens": points[-1]["tokens"],
        "cpu_s": points[-1]["cpu_s"],
        "seconds": row["time_s"],
        "points": points,
    }


def is_at_chosen_rate(run: Runnable, rows: Mapping[str, StoredRow]) -> bool | None:
    """Return whether a run has the rate that is best in validation; None while runs are missing."""
    run = cast(LanguageRun, run)
    best = chosen_rate({rate: at_rate(run, rate) for rate in RATES}, rows, _validation_bits)
    return None if best is None else bool(run.training["learning_rate"] == best)


def at_rate(run: LanguageRun, rate: float) -> LanguageRun:
    """Return the run with seed 0 that tries a learning rate."""
    return replace(run, training={**run.training, "learning_rate": rate}, seed=0)


def _validation_bits(row: StoredRow) -> float:
    return float(row["language"]["scores"]["validation"]["bits_per_byte"])


def summaries(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each cell: what its finished runs at the chosen rate add up to."""
    done = (pl.col("status").eq("done") & pl.col("chosen")).fill_null(value=False)
    means = ["perplexity", "parameters", "state_bytes", "tokens", "cpu_s"]
    return runs.group_by("column", "model", "at", "family", maintain_order=True).agg(
        seeds=done.sum(),
        lost=(pl.col("status").is_not_null() & (pl.col("status") != "done")).sum(),
        bits=pl.col("bits").filter(done).mean(),
        deviation=pl.col("bits").filter(done).std(),
        setting=pl.col("setting").filter(done).first(),
        **{name: pl.col(name).filter(done).mean() for name in means},
    )


def figure_table(runs: pl.DataFrame) -> Table:
    """Lay out the cells of Figure 4."""
    head = ("part", "model", "at", "seeds", "bits per byte", "perplexity", "parameters", "state")
    lines = [
        Line((one["column"], one["model"], f"{one['at']:g}", *_cells(one)))
        for one in summaries(runs).to_dicts()
    ]
    return Table((*head, "tokens", "training"), tuple(lines))


def _ranked(runs: pl.DataFrame) -> pl.DataFrame:
    """Leave out models whose best rate is at the edge of the grid: another may be better."""
    edges = [f"lr={rate:g}" for rate in (min(RATES), max(RATES))]
    chosen = pl.col("chosen").fill_null(value=False)
    at_edge = runs.filter(chosen & pl.col("setting").is_in(edges))["model"].to_list()
    return runs.filter(~pl.col("model").is_in(at_edge))


def duel_table(runs: pl.DataFrame) -> Table:
    """Lay out the models of the duel whose chosen rate lies within the grid."""
    head = ("model", "rate", "seeds", "bits per byte", "perplexity", "parameters", "state")
    lines = [
        Line((one["model"], (one["setting"] or "–").removeprefix("lr="), *_cells(one)))
        for one in summaries(_ranked(runs)).to_dicts()
    ]
    return Table((*head, "tokens", "training"), tuple(lines))


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the number of seeds and the means of a cell; dashes without results."""
    lost = f" ({one['lost']} lost)" if one["lost"] else ""
    if not one["seeds"]:
        return (f"0{lost}", *["–"] * 6)
    spread = "" if one["deviation"] is None else f" ± {one['deviation']:.3f}"
    return (
        f"{one['seeds']}{lost}",
        f"{one['bits']:.3f}{spread}",
        f"{one['perplexity']:.2f}",
        f"{one['parameters']:,.0f}",
        f"{one['state_bytes']:,.0f} B",
        f"{one['tokens']:,.0f}",
        f"{duration_text(one['cpu_s'])} CPU",
    )


def figure_panels(runs: pl.DataFrame) -> list[Panel]:
    """Return the panels of Figure 4: bits per byte against block size, width and rate."""
    axes = {
        BLOCKS: ("block size or order m", 1.0),
        LARGER: ("block size or order m", 1.0),
        WIDTH: ("width", 1.0),
        RATE: ("learning rate, thousandths", 1e3),
    }
    panels, done = [], runs.filter(pl.col("bits").is_not_null())
    for column, (label, scale) in axes.items():
        points = [
            (
                one["model"].partition(" ")[0] if column in (BLOCKS, LARGER) else one["model"],
                one["family"],
                str(one["seed"]),
                scale * one["at"],
                one["bits"],
            )
            for one in done.filter(pl.col("column") == column).to_dicts()
        ]
        if points:
            panels.append(Panel(column, label, curves(points), limits=None))
    return panels


def duel_panels(runs: pl.DataFrame, speeds: Mapping[str, float] | None = None) -> list[Panel]:
    """Return the panels of the duel, of the models in its table: bits against tokens and time."""
    done = _ranked(runs).filter(pl.col("points").is_not_null(), "chosen")
    if not done.height:
        return []
    by_tokens, by_time = [], []
    if not speeds or set(done["model"]) - speeds.keys():
        speeds = None
    for (model,), group in done.group_by(["model"], maintain_order=True):
        tokens, cpu_s = (math.fsum(group[name].to_list()) for name in ("tokens", "cpu_s"))
        rate = speeds[str(model)] if speeds else tokens / cpu_s
        for run in group.to_dicts():
            shared = (str(model), str(model), str(run["seed"]))
            for point in run["points"]:
                by_tokens.append((*shared, point["tokens"] / 1e6, point["bits"]))
                by_time.append((*shared, point["tokens"] / rate / 60, point["bits"]))
    how = "measured side by side" if speeds else "during the runs"
    return [
        Panel(title, label, curves(points), logarithmic=False, limits=None)
        for title, label, points in (
            ("at equal tokens", "million tokens", by_tokens),
            ("at equal time", f"minutes of one thread, {how}", by_time),
        )
    ]


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
