"""``statemix report``: what the stored results say about the paper's tables and figures."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console

from statemix import files
from statemix.cli.parser import Argument
from statemix.errors import RequestError

if TYPE_CHECKING:
    from statemix.studies.fixed_points.fp_scores import FigureRow
    from statemix.studies.higher_order.overview import CellRow
    from statemix.studies.store import Row


@dataclass(frozen=True)
class Report:
    """Show what the results stores hold beside the numbers of the papers.

    "page" writes one self-contained HTML page with all tables, figures, suites and runs. "cells"
    prints every cell of the tables of Dubinin et al. and every figure of Movahedi et al. that has
    results, "claims" the claims of the former with the comparisons that decide them.

    "bench" draws Figure 3 of Dubinin et al., a figure for each device and data type that `statemix
    bench layers` has measured, and prints its numbers: (A) BD-LRU of 128 blocks by implementation,
    layers (B) of hidden size 768 and (C) of 33M parameters (at most 5% more or less), against the
    length and against the batch size. Panels without measurements are left out and named.

    A cell counts as measured if one setting has three seeds on each of its data sets. Where that is
    so under several protocols or at several sizes, protocol "paper" decides whether the cell
    agrees, which means within 0.05; of its sizes, the largest whose runs are complete, or else the
    largest.
    """

    kind: Annotated[
        Literal["page", "cells", "claims", "bench"], Argument("[KIND]", positional=True)
    ] = "page"
    """What to make."""

    files: Annotated[tuple[Path, ...], Argument("[FILE ...]", positional=True)] = ()
    """For "bench": JSON-lines files of measurements (results/bench/*.jsonl if none is given)."""

    results: Path = Path("results/reproduce")
    """Folder of results stores (JSON-lines files), with eigenvalues in its folder "spectra"."""

    json: bool = False
    """Print as JSON: cells as {"measured": n, "agree": k, "of": 196, "cells": [...],
    "fixed_point": {"measured": n, "agree": k, "of": 108, "cells": [...]}}, where both lists
    also have the cells without results, with "verdict": "empty"; claims as
    [{"claim": name, "verdict": "holds" | "does not hold" | "open", ...}]."""

    output: Path | None = None
    """File of the page (report/index.html if not given), or folder of the figures of "bench"
    (report)."""

    def run(self) -> None:
        """Write the page or the figures, or print the cells.

        Raises:
            RequestError: if the folder or a file cannot be read, a file does not hold such results,
                or the page or a figure cannot be written.
            OSError: if the page or a figure cannot be written later.
        """
        if self.kind == "bench":
            self._draw_throughput()
            return
        if self.files:
            raise RequestError(f"files must be given for bench alone, got {self.files[0]}")
        from statemix.studies.store import merged

        if not self.results.is_dir():
            raise RequestError(f"results must be a folder of results stores, got {self.results}")
        rows = merged(sorted(self.results.glob("*.jsonl")))
        if self.kind == "cells":
            self._print_cells(rows)
            return
        if self.kind == "claims":
            self._print_claims(rows)
            return
        from statemix.studies.higher_order import results_page as page
        from statemix.studies.higher_order.run_spectra import SpectraFolder

        spectra = SpectraFolder(self.results / "spectra").read()
        output = self.output or Path("report/index.html")
        files.open_for_append("output", output)
        page.write(rows, output, spectra)
        print(f"wrote {output}")

    def _draw_throughput(self) -> None:
        from statemix.studies import figures
        from statemix.studies.throughput import throughput_drawing as drawing
        from statemix.studies.throughput import throughput_text as text
        from statemix.studies.throughput.points import read
        from statemix.studies.throughput.throughput_panels import panels

        if self.json:
            raise RequestError("json must not be used with bench, whose rows are JSON")
        paths = self.files or tuple(sorted(Path("results/bench").glob("*.jsonl")))
        points = read(paths)
        if not points:
            raise RequestError(
                "files must hold rows of `statemix bench layers`, got none in "
                f"{', '.join(map(str, paths)) or 'results/bench'}"
            )
        folder = self.output or Path("report")
        files.make_folder("output", folder)
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for setting in dict.fromkeys(point.setting for point in points):
            found, missing = panels([point for point in points if point.setting == setting])
            console.print(f"{setting.title}\n")
            for panel in found:
                console.print(f"{panel.title}\n{text.panel_table(panel).as_text()}\n")
            for line in missing:
                console.print(f"left out: {line}")
            if found:
                path = folder / f"throughput-{_slug(setting.title)}.png"
                files.open_for_append("output", path)
                path.write_bytes(figures.png(drawing.draw(setting, found), figures.DPI))
                console.print(f"wrote {path}")
            console.print()
        console.print(text.LEGEND)

    def _print_cells(self, rows: "Mapping[str, Row]") -> None:
        from statemix.studies.fixed_points.fp_scores import overview as fixed_point_overview
        from statemix.studies.higher_order.overview import overview

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
        from statemix.studies.higher_order import cell_text as text
        from statemix.studies.higher_order.claims import decide, to_rows
        from statemix.studies.higher_order.protocols import PROTOCOLS

        decisions = [decision for protocol in PROTOCOLS for decision in decide(rows, protocol)]
        print(json.dumps(to_rows(decisions), indent=1) if self.json else text.claims(decisions))


def _slug(text: str) -> str:
    """Return a part of a file name.

    Example:
        >>> _slug("AMD EPYC, 2 threads, float32")
        'amd-epyc-2-threads-float32'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _table(cells: "list[CellRow]") -> str:
    from statemix.studies.number_text import accuracy_text, counts_text, published_text
    from statemix.studies.table_text import Line, Table

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
    from statemix.studies.number_text import accuracy_text, published_text
    from statemix.studies.table_text import Line, Table

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
