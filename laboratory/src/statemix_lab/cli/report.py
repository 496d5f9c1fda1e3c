"""``statemix report``: what the stored results say about the papers' tables and figures."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console

from statemix import files
from statemix.cli.parser import Argument
from statemix.errors import RequestError

if TYPE_CHECKING:
    from statemix_lab.studies.store import StoredRow


@dataclass(frozen=True)
class Report:
    """Show what the results stores hold beside the numbers of the papers.

    "page" writes one self-contained HTML page with all tables, figures, studies and runs. "cells"
    prints every cell of the tables of Dubinin et al. and every figure of Movahedi et al. that has
    results, "claims" the claims of the former with the comparisons that decide them.

    "bench" draws Figure 3 of Dubinin et al., a figure for each device and data type that `statemix
    bench layers` has measured, and prints its numbers: (A) BD-LRU of 128 blocks by implementation,
    layers (B) of hidden size 768 and (C) of 33M parameters (at most 5% more or less), against the
    length and against the batch size. Panels without measurements are left out and named.

    A cell counts as measured if one setting has three seeds on each of its data sets, and in full
    if its runs had 30% of the published optimiser steps. Where a cell is measured under several
    protocols, runs in full decide whether it agrees, which means within 0.05, then protocol "mad";
    of several sizes, the largest whose runs are complete, or else the largest.
    """

    kind: Annotated[
        Literal["page", "cells", "claims", "bench"], Argument("[KIND]", positional=True)
    ] = "page"
    """What to make."""

    files: Annotated[tuple[Path, ...], Argument("[FILE ...]", positional=True)] = ()
    """For "bench": JSON-lines files of measurements (those in laboratory/results/bench if none is
    given)."""

    results: Path = Path("laboratory/results/reproduce")
    """Folder of results stores (JSON-lines files), with eigenvalues in its folder "spectra"."""

    json: bool = False
    """Print as JSON: cells as {"measured": n, "agree": k, "in_full": i, "agree_in_full": j, "of":
    196, "cells": [...], "fixed_point": {"measured": n, "agree": k, "of": 108, "cells": [...]}},
    where both lists also have the cells without results, with "verdict": "empty"; claims as
    [{"claim": name, "verdict": "holds" | "does not hold" | "open", ...}]."""

    output: Path | None = None
    """File of the page (report/index.html if not given), or folder of the figures of "bench"
    (report)."""

    imports: tuple[str, ...] = ()
    """Modules to import, such as one that registers a study of your own for the page."""

    def run(self) -> None:
        """Write the page or the figures, or print the cells."""
        if self.kind == "bench":
            self._draw_throughput()
            return
        if self.files:
            raise RequestError(f"files must be given for bench alone, got {self.files[0]}")
        from statemix_lab.studies.store import merged

        if not self.results.is_dir():
            raise RequestError(f"results must be a folder of results stores, got {self.results}")
        rows = merged(sorted(self.results.glob("*.jsonl")))
        if self.kind == "cells":
            self._print_cells(rows)
            return
        if self.kind == "claims":
            self._print_claims(rows)
            return
        from statemix.training.folder import lock_folder
        from statemix_lab.studies.page import render_page
        from statemix_lab.studies.study import studies

        output = self.output or Path("report/index.html")
        files.check_writable("output", output, replaced=True)
        with lock_folder(output.parent):
            files.write_file(output, render_page(studies().values(), rows, self.results).encode())
        print(f"wrote {output}")

    def _draw_throughput(self) -> None:
        from statemix.training.folder import lock_folder
        from statemix_lab.studies import throughput
        from statemix_lab.studies.figure import draw, png

        if self.json:
            raise RequestError("json must not be used with bench, whose rows are JSON")
        paths = self.files or tuple(sorted(Path("laboratory/results/bench").glob("*.jsonl")))
        points = throughput.read(paths)
        if not points:
            raise RequestError(
                "files must hold rows of `statemix bench layers`, got none in "
                f"{', '.join(map(str, paths)) or 'laboratory/results/bench'}"
            )
        folder = self.output or Path("report")
        files.make_folder("output", folder)
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for setting in dict.fromkeys(point.setting for point in points):
            found, missing = throughput.speed_panels(
                [point for point in points if point.setting == setting]
            )
            console.print(f"{setting.title}\n")
            for panel in found:
                console.print(f"{panel.title}\n{panel.table().as_text()}\n")
            for line in missing:
                console.print(f"left out: {line}")
            if found:
                path = folder / f"throughput-{_slug(setting.title)}.png"
                files.check_writable("output", path, replaced=True)
                title = throughput.caption(
                    setting, [one for panel in found for one in panel.points]
                )
                drawn = [panel.drawn() for panel in found]
                with lock_folder(folder):
                    files.write_file(path, png(draw(drawn, "tokens per second", title)))
                console.print(f"wrote {path}")
            console.print()
        console.print(throughput.LEGEND)

    def _print_cells(self, rows: "Mapping[str, StoredRow]") -> None:
        from statemix_lab.studies.fixed_points.fixed_point_studies import overview as fixed_points
        from statemix_lab.studies.higher_order.cell_table import overview

        found, more = overview(rows), fixed_points(rows)
        if self.json:
            print(json.dumps({**found, "fixed_point": more}, indent=1))
            return
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for numbers, noun, fields in (
            (found, "cells", _CELL_FIELDS),
            (more, "figures of Movahedi et al.", _FIGURE_FIELDS),
        ):
            console.print(
                f"{numbers['measured']} of {numbers['of']} {noun} measured, "
                f"{numbers['agree']} agree"
            )
            measured = [cell for cell in numbers["cells"] if cell["verdict"] != "empty"]
            if measured:
                console.print(_table(measured, fields))

    def _print_claims(self, rows: "Mapping[str, StoredRow]") -> None:
        from statemix_lab.studies.higher_order.claims import decide, decision_rows, decision_text
        from statemix_lab.studies.study_entries import PROTOCOLS

        decisions = [decision for protocol in PROTOCOLS for decision in decide(rows, protocol)]
        if self.json:
            print(json.dumps(decision_rows(decisions), indent=1))
            return
        for decision in decisions:
            head, details = decision_text(decision)
            print("\n  ".join([head, *details]))


def _slug(text: str) -> str:
    """Return a part of a file name, such as "amd-epyc-2-threads-float32"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


_CELL_FIELDS = (
    *("table", "column", "model", "parameters", "flops", "protocol", "size", "seeds", "ours"),
    *("mean", "published", "verdict"),
)
_FIGURE_FIELDS = (
    *("suite", "column", "model", "length", "protocol", "size", "seeds", "mean", "published"),
    "verdict",
)
# Fields whose column has another head.
_HEADS = {"flops": "FLOPs/token", "length": "tokens", "published": "paper", "verdict": ""}


def _table(cells: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> str:
    from statemix_lab.studies.result_text import Line, Table

    lines = [Line(tuple(_text(cell, name) for name in fields)) for cell in cells]
    return Table(tuple(_HEADS.get(name, name) for name in fields), tuple(lines)).as_text()


def _text(cell: Mapping[str, Any], name: str) -> str:
    from statemix_lab.studies.result_text import accuracy_text, counts_text, published_text

    value = cell[name]
    if name in ("parameters", "flops"):
        return counts_text(value)
    if name in ("ours", "mean"):
        return "" if value is None else accuracy_text(value)
    if name == "published":
        return published_text(value)
    data = cell.get("data", {}).values()
    if name == "verdict" and value == "partial" and len(data) > 1:
        begun = sum(one["ours"] is not None for one in data)
        return f"partial: {begun} of {len(data)} data sets"
    return str(value)
