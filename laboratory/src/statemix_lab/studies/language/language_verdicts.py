"""What the runs of Figure 4 say about the papers' claims: beyond seed noise, or not.

Models of one seed read the same data in the same order. A model beats another one beyond seed noise
if each of its seeds is better than every seed of the other.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl

from statemix_lab.studies.language.language_suites import BLOCKS, FIXED_POINTS, timed_models
from statemix_lab.studies.result_text import counted
from statemix_lab.studies.tidy import ENOUGH_SEEDS

_BitsOf = Callable[[pl.DataFrame, str], list[float]]
SeedVerdict = Literal["holds", "does not hold", "within seed noise", "open"]

_BLOCK_PAIRS = tuple(
    (f"BD-LRU m={winner}", f"BD-LRU m={loser}")
    for winner, loser in ((2, 1), (4, 1), (2, 8), (4, 8), (2, 16), (4, 16))
)
_KRONECKER, _HOUSEHOLDER = "FP-Mamba1 Kronecker", "FP-Mamba1 Householder"
# Claim -> the part of the study that decides it, and its pairs of a winner and a loser.
_CLAIMS = {
    "BD-LRU with m = 2 and 4 beats m = 1, and m = 8 and 16 fall behind": (BLOCKS, _BLOCK_PAIRS),
    "H-LRU beats BD-LRU of the same m": (
        BLOCKS,
        tuple((f"H-LRU m={m}", f"BD-LRU m={m}") for m in (4, 16)),
    ),
    "FP-Mamba1 with Kronecker and with Householder mixers beats Mamba": (
        FIXED_POINTS,
        ((_KRONECKER, "Mamba"), (_HOUSEHOLDER, "Mamba")),
    ),
    "FP-Mamba1 is better with Householder than with Kronecker mixers": (
        FIXED_POINTS,
        ((_HOUSEHOLDER, _KRONECKER),),
    ),
}


def _compare(
    winner: str, loser: str, winners: Sequence[float], losers: Sequence[float]
) -> tuple[SeedVerdict, str]:
    """Return whether the claimed winner wins beyond seed noise, and the difference of the means."""
    if min(len(winners), len(losers)) < ENOUGH_SEEDS:
        counts = f"{len(winners)} and {counted(len(losers), 'seed')}"
        return "open", f"open: {winner} against {loser} ({counts})"
    outcome: SeedVerdict = "within seed noise"
    if max(winners) < min(losers):
        outcome = "holds"
    elif min(winners) > max(losers):
        outcome = "does not hold"
    difference = float(np.mean(losers) - np.mean(winners))
    bits = f"{abs(difference):.3f} bits per byte {'fewer' if difference >= 0 else 'more'}"
    return outcome, f"{outcome}: {winner} has {bits} than {loser}"


def _bits_at_end(runs: pl.DataFrame, model: str) -> list[float]:
    """Return the bits per byte of a model by seed after all tokens, on the text that scores."""
    found = runs.filter(pl.col("model") == model).sort("seed")
    bits: list[float] = found["bits"].drop_nulls().to_list()
    return bits


def at_equal_time(speeds: Mapping[str, float]) -> _BitsOf:
    """Return a function of runs and a model that returns its bits per byte at equal time, by seed.

    The time is that in which the fastest of the measured models reads all tokens. Bits are those of
    the validation text, linear between the points of the curve. Models that are cut off have a
    larger learning rate than at their end, which counts against them.
    """

    def bits_of(runs: pl.DataFrame, model: str) -> list[float]:
        timed = runs.filter(pl.col("model").is_in(list(speeds)), pl.col("points").is_not_null())
        if model not in speeds or not timed.height:
            return []
        budget_s = min(one["tokens"] / speeds[one["model"]] for one in timed.to_dicts())
        found = []
        for points in timed.filter(pl.col("model") == model).sort("seed")["points"]:
            tokens = [one["tokens"] for one in points]
            bits = [one["bits"] for one in points]
            found.append(float(np.interp(budget_s * speeds[model], tokens, bits)))
        return found

    return bits_of


def training_speeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return tokens per second of training by model, from rows of ``statemix bench language``."""
    known = {_plain(model): name for name, model in timed_models("laptop").items()}
    return {
        known[_plain(row["model"])]: row["tokens_per_s"]
        for row in rows
        if row["benchmark"] == "language"
        and row["case"]["task"] == "training"
        and row["tokens_per_s"]
        and _plain(row["model"]) in known
    }


def figure_speeds(speeds: Mapping[str, float]) -> dict[str, float]:
    """Return speeds by the names of Figure 4, in which the minGRU is the BD-LRU with m = 1."""
    return {("BD-LRU m=1" if name.startswith("m=1") else name): one for name, one in speeds.items()}


def _plain(model: Mapping[str, Any]) -> str:
    return json.dumps(model, sort_keys=True)


def verdict_lines(runs: pl.DataFrame, speeds: Mapping[str, float]) -> list[tuple[str, list[str]]]:
    """Return each claim with its verdict, and the comparisons that decide it."""
    found = []
    for claim, (part, pairs) in _CLAIMS.items():
        # This claim alone is about time, too.
        ways: dict[str, _BitsOf] = {"at equal tokens": _bits_at_end}
        if pairs is _BLOCK_PAIRS:
            ways["at equal time"] = at_equal_time(speeds)
        of_part = runs.filter(pl.col("column") == part)
        for how, bits_of in ways.items():
            compared = [
                _compare(*pair, *(bits_of(of_part, name) for name in pair)) for pair in pairs
            ]
            # A claim holds if it holds in each comparison.
            outcomes = {outcome for outcome, _ in compared}
            order = ("open", "does not hold", "within seed noise")
            verdict = next((one for one in order if one in outcomes), "holds")
            found.append((f"{verdict}: {claim}, {how}", [text for _, text in compared]))
    return found
