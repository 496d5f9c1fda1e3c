"""``statemix report``: what the results stores say about the paper's tables."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from statemix.settings import RequestError

if TYPE_CHECKING:
    from statemix.experiments.reproduction.overview import CellRow


@dataclass(frozen=True)
class Report:
    """Compare every cell of the paper's tables that has results with the paper.

    A cell counts as measured if one setting has three seeds on each of its data sets. Where there
    are results under several protocols or at several sizes, protocol "paper" and the largest size
    whose runs are complete decide whether the cell agrees, which means within 0.05.
    """

    kind: tyro.conf.Positional[Literal["cells"]]
    """What to show."""

    results: Path = Path("results/reproduce")
    """Folder of results stores (JSON-lines files)."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON: {"measured": n, "agree": k, "of": 196, "cells": [...]}."""

    def run(self) -> None:
        """Print the cells.

        Raises:
            RequestError: if the folder cannot be read, or a file is not a results store.
        """
        from statemix.experiments.reproduction.overview import overview
        from statemix.experiments.store import merged

        if not self.results.is_dir():
            raise RequestError(f"results must be a folder of results stores, got {self.results}")
        found = overview(merged(sorted(self.results.glob("*.jsonl"))))
        if self.json:
            print(json.dumps(found, indent=1))
            return
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.print(
            f"{found['measured']} of {found['of']} cells measured, {found['agree']} agree"
        )
        console.print(_table(found["cells"]))


def _table(cells: "list[CellRow]") -> str:
    from statemix.report.numbers import accuracy_text, published_text
    from statemix.report.tables import Line, Table

    head = ("table", "column", "model", "protocol", "size", "seeds", "ours", "mean", "paper", "")
    return Table(
        head,
        tuple(
            Line(
                (
                    cell["table"],
                    cell["column"],
                    cell["model"],
                    cell["protocol"],
                    cell["size"],
                    str(cell["seeds"]),
                    "" if cell["ours"] is None else accuracy_text(cell["ours"]),
                    "" if cell["mean"] is None else accuracy_text(cell["mean"]),
                    published_text(cell["published"]),
                    cell["verdict"],
                )
            )
            for cell in cells
        ),
    ).as_text()
