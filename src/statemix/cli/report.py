"""``statemix report``: what the results stores say about the paper's tables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from statemix import files
from statemix.settings import RequestError

if TYPE_CHECKING:
    from statemix.experiments.fixed_point.scores import FigureRow
    from statemix.experiments.reproduction.overview import CellRow
    from statemix.experiments.store import Row


@dataclass(frozen=True)
class Report:
    """Show what the results stores hold beside the numbers of the papers.

    "page" writes one self-contained HTML page with all tables, figures, suites and runs. "cells"
    prints every cell of the tables of Dubinin et al. and every figure of Movahedi et al. that has
    results, "claims" the claims of the former with the comparisons that decide them.

    A cell counts as measured if one setting has three seeds on each of its data sets. Where that is
    so under several protocols or at several sizes, protocol "paper" decides whether the cell
    agrees, which means within 0.05; of its sizes, the largest whose runs are complete, or else the
    largest.
    """

    kind: tyro.conf.Positional[Literal["page", "cells", "claims"]] = "page"
    """What to make."""

    results: Path = Path("results/reproduce")
    """Folder of results stores (JSON-lines files), with eigenvalues in its folder "spectra"."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print as JSON: cells as {"measured": n, "agree": k, "of": 196, "cells": [...],
    "fixed_point": {"measured": n, "agree": k, "of": 108, "cells": [...]}}, where both lists
    also have the cells without results, with "verdict": "empty"; claims as
    [{"claim": name, "verdict": "holds" | "does not hold" | "open", ...}]."""

    output: Path = Path("report/index.html")
    """File of the page."""

    def run(self) -> None:
        """Write the page, or print the cells.

        Raises:
            RequestError: if the folder cannot be read, a file is not a results store, or the page
                cannot be written.
            OSError: if the page cannot be written later.
        """
        from statemix.experiments.store import merged

        if not self.results.is_dir():
            raise RequestError(f"results must be a folder of results stores, got {self.results}")
        rows = merged(sorted(self.results.glob("*.jsonl")))
        if self.kind == "cells":
            self._print_cells(rows)
            return
        if self.kind == "claims":
            self._print_claims(rows)
            return
        from statemix.experiments.reproduction.spectra import SpectraFolder
        from statemix.report.reproduction import page

        spectra = SpectraFolder(self.results / "spectra").read()
        files.open_for_append("output", self.output)
        page.write(rows, self.output, spectra)
        print(f"wrote {self.output}")

    def _print_cells(self, rows: "Mapping[str, Row]") -> None:
        from statemix.experiments.fixed_point.scores import overview as fixed_point_overview
        from statemix.experiments.reproduction.overview import overview

        found, fixed_point = overview(rows), fixed_point_overview(rows)
        if self.json:
            print(json.dumps({**found, "fixed_point": fixed_point}, indent=1))
            return
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.print(
            f"{found['measured']} of {found['of']} cells measured, {found['agree']} agree"
        )
        console.print(_table([cell for cell in found["cells"] if cell["verdict"] != "empty"]))
        of = f"{fixed_point['of']} figures of Movahedi et al."
        console.print(f"{fixed_point['measured']} of {of} measured, {fixed_point['agree']} agree")
        figures = [cell for cell in fixed_point["cells"] if cell["verdict"] != "empty"]
        if figures:
            console.print(_figures(figures))

    def _print_claims(self, rows: "Mapping[str, Row]") -> None:
        from statemix.experiments.reproduction.claims import decide, to_rows
        from statemix.experiments.reproduction.protocols import PROTOCOLS
        from statemix.report.reproduction import text

        decisions = [decision for protocol in PROTOCOLS for decision in decide(rows, protocol)]
        print(json.dumps(to_rows(decisions), indent=1) if self.json else text.claims(decisions))


def _table(cells: "list[CellRow]") -> str:
    from statemix.report.numbers import accuracy_text, counts_text, published_text
    from statemix.report.tables import Line, Table

    head = (
        "table",
        "column",
        "model",
        "parameters",
        "FLOPs/token",
        "protocol",
        "size",
        "seeds",
        "ours",
        "mean",
        "paper",
        "",
    )
    return Table(
        head,
        tuple(
            Line(
                (
                    cell["table"],
                    cell["column"],
                    cell["model"],
                    counts_text(cell["parameters"]),
                    counts_text(cell["flops"]),
                    cell["protocol"],
                    cell["size"],
                    str(cell["seeds"]),
                    "" if cell["ours"] is None else accuracy_text(cell["ours"]),
                    "" if cell["mean"] is None else accuracy_text(cell["mean"]),
                    published_text(cell["published"]),
                    _verdict(cell),
                )
            )
            for cell in cells
        ),
    ).as_text()


def _verdict(cell: "CellRow") -> str:
    data = cell["data"].values()
    if cell["verdict"] != "partial" or len(data) == 1:
        return cell["verdict"]
    begun = sum(one["ours"] is not None for one in data)
    return f"partial: {begun} of {len(data)} data sets"


def _figures(cells: "list[FigureRow]") -> str:
    from statemix.report.numbers import accuracy_text, published_text
    from statemix.report.tables import Line, Table

    head = ("suite", "column", "model", "tokens", "protocol", "size", "seeds", "mean", "paper", "")
    return Table(
        head,
        tuple(
            Line(
                (
                    cell["suite"],
                    cell["column"],
                    cell["model"],
                    str(cell["length"]),
                    cell["protocol"],
                    cell["size"],
                    str(cell["seeds"]),
                    "" if cell["mean"] is None else accuracy_text(cell["mean"]),
                    published_text(cell["published"]),
                    cell["verdict"],
                )
            )
            for cell in cells
        ),
    ).as_text()
