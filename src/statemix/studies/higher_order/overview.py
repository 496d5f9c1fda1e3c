"""All cells of the paper's tables with their results, and how many agree."""

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

from statemix.studies.higher_order.cell_scores import CellScore, score
from statemix.studies.higher_order.paper_tables import TABLES
from statemix.studies.higher_order.prices import prices
from statemix.studies.higher_order.protocols import PROTOCOLS, SIZES
from statemix.studies.store import Row

_N = TypeVar("_N", int, float)


class DataRow(TypedDict):
    """What a cell has of one data set; numbers as in the cell."""

    seeds: int
    ours: float | None
    mean: float | None
    # Tokens of longer test sequences, as text -> mean accuracy over the seeds.
    longer: dict[str, float]


class CellRow(TypedDict):
    """What a cell has under one protocol at one size."""

    table: str
    column: str
    model: str
    protocol: str
    size: str
    # Seeds of the chosen setting, the fewest over the data sets; runs done and planned.
    seeds: int
    runs: int
    planned: int
    # Parameters of the sequence layer and its forward FLOPs per token: the least and the most of
    # the layers that the size tries.
    parameters: list[int]
    flops: list[float]
    # The number to compare with the paper's, the mean over seeds and its standard deviation; None
    # while a data set has no result.
    ours: float | None
    mean: float | None
    deviation: float | None
    published: float | None
    verdict: str
    # Data set -> what there is of it.
    data: dict[str, DataRow]


class Overview(TypedDict):
    """All cells. Every cell of the paper counts once in the first three numbers."""

    measured: int
    agree: int
    of: int
    # Each cell under every protocol and at every size that has results for it. One without any has
    # the verdict "empty", protocol "paper" and size "laptop".
    cells: list[CellRow]


def overview(rows: Mapping[str, Row]) -> Overview:
    """Return every cell of the tables, with its results if there are any.

    Args:
        rows: rows of results stores, by key.
    """
    found: list[CellRow] = []
    # The verdict that counts: that of protocol "paper", then of runs that are complete, then of the
    # largest size.
    verdicts: dict[tuple[str, str, str], tuple[tuple[bool, bool], str]] = {}
    for protocol in reversed(PROTOCOLS):
        shown: dict[tuple[str, str, str], set[str]] = {}
        for size in SIZES:
            for table in TABLES.values():
                for cell in table.cells(protocol, size):
                    if not cell.begun(rows):
                        continue
                    scored = score(cell, rows)
                    place = (cell.table, cell.column.name, cell.model)
                    # Sizes share runs: one is shown for what it adds to the smaller ones.
                    if scored.keys <= shown.setdefault(place, set()):
                        continue
                    shown[place] |= scored.keys
                    found.append(_row(scored))
                    rank = (protocol == "paper", scored.complete)
                    if scored.measured and rank >= verdicts.get(place, (rank,))[0]:
                        verdicts[place] = (rank, scored.verdict)
    known = {(row["table"], row["column"], row["model"]) for row in found}
    cells = [cell for table in TABLES.values() for cell in table.cells("paper", "laptop")]
    found += [
        _row(score(cell, rows))
        for cell in cells
        if (cell.table, cell.column.name, cell.model) not in known
    ]
    return {
        "measured": len(verdicts),
        "agree": sum(verdict == "agrees" for _, verdict in verdicts.values()),
        "of": len(cells),
        "cells": sorted(found, key=_place),
    }


def _place(row: CellRow) -> tuple[int, int, int]:
    table = TABLES[row["table"]]
    columns = [column.name for column in table.columns]
    return (
        list(TABLES).index(table.name),
        columns.index(row["column"]),
        list(table.published).index(row["model"]),
    )


def _row(scored: CellScore) -> CellRow:
    cell = scored.cell
    paid = prices(cell.contender, cell.size)
    return {
        "table": cell.table,
        "column": cell.column.name,
        "model": cell.model,
        "protocol": cell.protocol,
        "size": cell.size,
        "seeds": scored.seeds,
        "runs": len(scored.keys),
        "planned": sum(part.num_runs for part in scored.parts.values()),
        "parameters": _ends([one.num_parameters for one in paid]),
        "flops": _ends([one.flops.total for one in paid if one.flops is not None]),
        "ours": scored.ours,
        "mean": scored.mean,
        "deviation": scored.deviation,
        "published": cell.published,
        "verdict": scored.verdict,
        "data": {
            name: {
                "seeds": part.seeds,
                "ours": part.best if cell.protocol == "paper" else part.mean,
                "mean": part.mean,
                "longer": {
                    str(length): math.fsum(values) / len(values)
                    for length, values in part.longer.items()
                    if values
                },
            }
            for name, part in scored.parts.items()
        },
    }


def _ends(values: Sequence[_N]) -> list[_N]:
    return [min(values), max(values)]
