"""``statemix bench kernels``: what the machine code of the Triton kernels costs, without a GPU."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from statemix.bench import compiled
from statemix.bench.compiled import OPERATORS, Compiled, Variant
from statemix.bench.predicted import KERNELS
from statemix.bench.rows import append, describe_process
from statemix.cli.bench.common import open_console, progress

_REMARK = """\
Lanes: of a program, one warp. Steps, rows: read at once. Per gate: instructions of a step, per gate
and lane, over all columns of maps; functions: powers, roots, reciprocals and tanh among them.
Issue, special, wait: time to issue the instructions, to compute the functions, and for which warps
wait for what they read, over the time to move the bytes, on an H200; above 1, that is the limit.
Bytes us: time to move the bytes of 16,384 tokens with 768 entries of state; us: the longest of all.
With --full, there are 64 times as many tokens, in short sequences. All times are a model."""

_COLUMNS = (
    "m", "lanes", "steps", "rows", "columns", "registers", "spilled", "load", "store", "per gate",
    "functions", "issue", "special", "wait", "bytes us", "us", "seconds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Compile the Triton kernels ahead of time, and read their machine code.

    No GPU is needed. The table shows registers and spills of a thread, the bytes that it loads and
    stores at once, and the instructions of a step against the time in which a GPU moves the step's
    bytes.
    """

    operators: tuple[str, ...] = OPERATORS
    """Recurrences: block (BD-LRU) and lag (H-LRU)."""

    kernels: tuple[str, ...] = KERNELS
    """Kernels: local scans, the maps of chunks, and what follows the maps."""

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 16)
    """Sizes m."""

    dtypes: tuple[str, ...] = ("bfloat16",)
    """Dtypes of the gates: bfloat16, float16, float32, float64."""

    targets: tuple[str, ...] = ("sm_90",)
    """Targets: sm_80, sm_90, sm_100, gfx942."""

    gates: tuple[str, ...] = ("softmax",)
    """Gate families; householder only for block."""

    packed: bool = False
    """Compile the variants for packed sequences."""

    ragged: bool = False
    """Compile the variants for chunks that end before the steps that are read at once."""

    tempered: bool = True
    """Compile the variants for gates with a temperature, as layers have them."""

    widths: tuple[int, ...] = (192,)
    """Units H. Loads are as wide as their powers of two allow."""

    full: bool = False
    """Compile the local scans for so many sequences that a thread holds several lanes."""

    output: Path | None = None
    """JSON-lines file to append a row per kernel to."""

    def run(self) -> None:
        """Compile and print, kernel by kernel.

        Raises:
            RequestError: if a choice is unknown, Triton is not installed or interprets, or the
                output cannot be written.
        """
        kernels = [k for k in self.kernels if k.startswith("local") or not self.full]
        variants = [
            Variant(
                operator, kernel, size, dtype, gate, target,
                packed=self.packed, ragged=self.ragged, tempered=self.tempered, width=width,
                full=self.full,
            )
            for width in self.widths
            for target in self.targets
            for dtype in self.dtypes
            for gate in self.gates
            for operator in self.operators
            for kernel in kernels
            for size in self.sizes
        ]  # fmt: skip
        compiled.check_compiler()
        console, process = open_console(self.output), describe_process()
        sources = compiled.sources()
        outcomes = []
        with progress(console, len(variants)) as start_case:
            for variant in variants:
                start_case(f"{variant.operator}, {variant.kernel}, m={variant.size}")("compiling")
                found = compiled.compiled(variant)
                outcomes.append((variant, found))
                if self.output is not None:
                    row = {**asdict(variant), **found._asdict(), "sources": sources}
                    append(self.output, [row], process)
        for about, group in groupby(outcomes, key=lambda outcome: _about(outcome[0])):
            console.print(_table(about, group))
        console.print(_REMARK)
        if self.output is not None:
            console.print(f"rows appended to {self.output}", soft_wrap=True)


def _table(about: str, outcomes: Iterable[tuple[Variant, Compiled]]) -> Table:
    table = Table(title=about, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("operator")
    table.add_column("kernel")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for variant, found in outcomes:
        shown = found._asdict()
        # Only what follows maps has any; rows keep it.
        del shown["shared"]
        cells = (variant.size, *shown.values())
        texts = ("" if cell is None else f"{cell:g}" for cell in cells)
        table.add_row(variant.operator, variant.kernel, *texts)
    return table


def _about(variant: Variant) -> str:
    marks = (
        ("many sequences", variant.full),
        ("packed", variant.packed),
        ("ragged", variant.ragged),
        ("no temperature", not variant.tempered),
    )
    about = [variant.target, variant.dtype, variant.gate, f"H = {variant.width}"]
    return ", ".join([*about, *(name for name, holds in marks if holds)])
