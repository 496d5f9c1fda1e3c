"""All numbers of the paper's tables with their results, and how many agree."""

from collections.abc import Mapping, Sequence
from typing import Any

from statemix.studies.higher_order.cell_table import longer_means
from statemix.studies.higher_order.contenders import CONTENDERS
from statemix.studies.higher_order.layer_prices import layer_price
from statemix.studies.higher_order.paper_tables import TABLES
from statemix.studies.higher_order.protocols import GRIDS
from statemix.studies.store import Row
from statemix.studies.study_entries import PROTOCOLS, SIZES, begun
from statemix.studies.tidy import scores, tidy


def overview(rows: Mapping[str, Row], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return how many numbers are measured and agree, of how many, and every number.

    A number stands under each protocol and at each size that has results for it. One without any
    has the verdict "empty", protocol "paper" and size "laptop". It counts once as measured: the
    verdict of protocol "paper" counts, then that of runs that are complete, then that of the
    largest size.

    Args:
        rows: rows of results stores, by key.
        names: names of tables; None means all.
    """
    tables = {name: TABLES[name] for name in (TABLES if names is None else names)}
    found: list[dict[str, Any]] = []
    verdicts: dict[tuple[str, str, str], tuple[tuple[bool, bool], str]] = {}
    shown: dict[tuple[str, tuple[str, str, str]], set[str]] = {}
    for protocol in reversed(PROTOCOLS):
        for size in SIZES:
            for name, table in tables.items():
                entries = begun(table.entries(protocol, size), rows)
                for score in scores(tidy(entries, rows)).to_dicts() if entries else ():
                    place = (name, score["column"], score["model"])
                    seen = shown.setdefault((protocol, place), set())
                    # Sizes share runs: one is shown for what it adds to the smaller ones.
                    if set(score["done"]) <= seen:
                        continue
                    seen |= set(score["done"])
                    found.append(_row(name, score))
                    rank = (protocol == "paper", score["complete"])
                    if score["measured"] and rank >= verdicts.get(place, (rank,))[0]:
                        verdicts[place] = (rank, score["verdict"])
    known = {(row["table"], row["column"], row["model"]) for row in found}
    for name, table in tables.items():
        left = [
            entry
            for entry in table.entries("paper", "laptop")
            if (name, entry.column, entry.model) not in known
        ]
        found += [_row(name, score) for score in scores(tidy(left, rows)).to_dicts()]
    return {
        "measured": len(verdicts),
        "agree": sum(verdict == "agrees" for _, verdict in verdicts.values()),
        "of": sum(len(numbers) for one in tables.values() for numbers in one.published.values()),
        "cells": sorted(found, key=_place),
    }


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    table = TABLES[row["table"]]
    columns = [column.name for column in table.columns]
    return (
        list(TABLES).index(row["table"]),
        columns.index(row["column"]),
        list(table.published).index(row["model"]),
    )


def _row(table: str, score: Mapping[str, Any]) -> dict[str, Any]:
    grid = GRIDS[score["size"]]
    layers = CONTENDERS[score["model"]].choices(grid.state_sizes, all_variants=grid.all_variants)
    paid = [layer_price(layer) for layer in layers]
    is_paper = score["protocol"] == "paper"
    return {
        "table": table,
        "column": score["column"],
        "model": score["model"],
        "protocol": score["protocol"],
        "size": score["size"],
        "seeds": score["seeds"],
        "runs": len(score["done"]),
        "planned": score["planned"],
        "parameters": _ends([one.num_parameters for one in paid]),
        "flops": _ends([one.flops.total for one in paid if one.flops is not None]),
        "ours": score["ours"],
        "mean": score["mean"],
        "deviation": score["deviation"],
        "published": score["published"],
        "verdict": score["verdict"],
        "data": {
            part["data"]: {
                "seeds": part["seeds"],
                "ours": part["best"] if is_paper else part["mean"],
                "mean": part["mean"],
                "longer": {str(length): mean for length, mean in longer_means(part).items()},
            }
            for part in score["parts"]
        },
    }


def _ends(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]
