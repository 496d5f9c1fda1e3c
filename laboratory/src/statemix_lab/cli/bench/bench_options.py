"""What the benchmarks share: options, the loop over cases, progress, and cells of tables."""

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from statemix import files
from statemix.cli.options import words_of
from statemix.errors import RequestError, RunsFailedError
from statemix.layers import LayerSpec
from statemix.training.devices import check_threads
from statemix_lab.bench import harness
from statemix_lab.bench.harness import Measurement, Provider, Spread, measure
from statemix_lab.bench.operator_timing import TOLERANCES
from statemix_lab.bench.timed_devices import Cpu, DeviceName, device_of

C = TypeVar("C")
Timed = tuple[C, Sequence[Measurement]]
DtypeName = Literal["float32", "bfloat16", "float64"]

WIDTH = 100
# A round of the smallest case takes a microsecond.
_MOST_ROUNDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Options of every benchmark."""

    dtype: DtypeName = "float32"
    """Data type of parameters, inputs and outputs. States have float32 at least."""

    rounds: int = 21
    """Calls per provider and case."""

    budget_s: float = 5.0
    """Seconds for the timed calls of one provider in one case. A slow provider is called less
    often, but at least three times."""

    threads: int | None = None
    """Number of threads (torch's own choice if not given)."""

    device: DeviceName = "cpu"
    """Where to run."""

    graphs: bool = False
    """On a GPU, replay every call as a CUDA graph: times then exclude the launches of kernels."""

    limit_s: float | None = None
    """Seconds after which no provider is compiled and checked any more. Those that are ready are
    timed, and the others count as failed (no limit if not given)."""

    output: Path | None = None
    """JSON-lines file that receives one row per measurement, such as ops.jsonl."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type in PyTorch."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def place(self) -> Cpu:
        """Check the options and return the device, before anything is measured."""
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise RequestError(f"rounds must be in 1..{_MOST_ROUNDS}, got {self.rounds}")
        for name, seconds in (("budget_s", self.budget_s), ("limit_s", self.limit_s)):
            if seconds is not None and seconds <= 0:
                raise RequestError(f"{name} must be positive, got {seconds}")
        if self.threads is not None:
            check_threads("threads", self.threads)
        return device_of(self.device, graphs=self.graphs)

    def measure(
        self,
        cases: Sequence[C],
        providers: Callable[[C], list[Provider]],
        *,
        device: Cpu,
        relative_to: Sequence[str],
        hidden: Sequence[str] = (),
        label: Callable[[C], str],
        row: Callable[[C, Measurement], dict[str, Any]],
        remark: str,
        block: Callable[[C], Hashable],
        table: Callable[[Sequence[Timed[C]]], Table],
        notes: Callable[[Sequence[Timed[C]]], Sequence[str]] = lambda outcomes: (),  # noqa: ARG005
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Measure case by case, store the rows, and print the tables.

        Providers in ``relative_to`` divide the times of the others; those in ``hidden`` are neither
        stored nor shown. Neighbouring cases with one key of ``block`` share a table.
        """
        ready_by_s = math.inf if self.limit_s is None else time.monotonic() + self.limit_s
        console = open_console(self.output)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        process = harness.describe_process(device)
        print_setting(console, process, self.dtype, remark)
        outcomes: list[Timed[C]] = []
        numbered = enumerate(cases, 1)
        with console.status("") as status:
            for _, of_block in groupby(numbered, key=lambda numbered: block(numbered[1])):
                shown: list[Timed[C]] = []
                for number, case in of_block:
                    title = f"[{number}/{len(cases)}] {label(case)}"

                    def show(step: str, title: str = title) -> None:
                        status.update(escape(f"{title}: {step}"))

                    if not console.is_terminal:
                        console.print(title)
                    measured = measure(
                        providers(case),
                        relative_to=relative_to,
                        rounds=self.rounds,
                        budget_s=self.budget_s,
                        tolerance=TOLERANCES[self.torch_dtype],
                        seed=0,
                        on_step=show,
                        device=device,
                        ready_by_s=ready_by_s,
                        clock=clock,
                    )
                    measured = [result for result in measured if result.provider not in hidden]
                    shown.append((case, measured))
                    if self.output is not None:
                        kept = (row(case, result) for result in measured)
                        harness.append_rows(self.output, kept, process)
                console.print(table(shown))
                outcomes += shown
        results = [(case, result) for case, measured in outcomes for result in measured]
        missing = (
            f"  {result.provider} {result.status}: {result.reason} ({label(case)})"
            for case, result in results
            if result.reason
        )
        for line in (*notes(outcomes), *missing):
            console.print(line, soft_wrap=True)
        if self.output is not None:
            console.print(f"rows appended to {self.output}", soft_wrap=True)
        failures = [result for _, result in results if result.status == "failed"]
        if failures:
            raise RunsFailedError(
                f"{len(failures)} of the measurements failed, the first of them "
                f"{failures[0].provider}: {failures[0].reason}"
            )


def open_console(output: Path | None) -> Console:
    """Return a console as wide as tables may be, and check that rows can be appended to a file."""
    if output is not None:
        files.check_writable("output", output)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def print_setting(console: Console, process: Mapping[str, Any], dtype: str, remark: str) -> None:
    """Print the machine, the versions and an explanation of the tables."""
    backends = ", ".join(
        f"{name} ({detail or 'unavailable'})" for name, detail in process["backends"].items()
    )
    peers = ""
    if process["device"] != Cpu.model:
        packages = process["packages"]
        version = packages["flash-linear-attention"] or packages.get("fla-core")
        # Without it, layers such as DeltaNet run their forms in PyTorch.
        peers = f", TF32 is off, flash-linear-attention {version or 'not installed'}"
    binding = process["omp_proc_bind"] or "not set (`close` gives steadier times)"
    console.print(
        f"{process['cpu']}, {process['cpu_count']} cores, {process['threads']} threads, "
        f"device {process['device']}{', as graphs' if process['graphs'] else ''}, {dtype}, "
        f"torch {process['packages']['torch']}{peers}, backends: {backends}.\n"
        f"OMP_PROC_BIND is {binding}.\n"
        "Calls reuse freed memory (mallopt: no mapping, no trimming).\n"
        f"{remark}"
    )


def new_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """Return an empty table with left-aligned columns, then right-aligned ones."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right")
    return table


def provider_table(
    title: str,
    left: Sequence[str],
    right: Sequence[str],
    outcomes: Sequence[Timed[C]],
    name: Callable[[C], str],
    cells: Callable[[C, Measurement], Sequence[str]],
) -> Table:
    """Return a table with a row per case and provider. A provider without a time has its status."""
    table = new_table(title, left, right)
    for case, measured in outcomes:
        for position, one in enumerate(measured):
            table.add_row(
                name(case) if position == 0 else "",
                one.provider,
                *([one.status] if one.time_s is None else cells(case, one)),
                end_section=position == len(measured) - 1,
            )
    return table


def name_of(spec: LayerSpec) -> str:
    """Return a layer with its options, as users write them."""
    return " ".join(words_of(spec.asked(), "name"))


def ratio_text(ratio: Spread | Mapping[str, float] | None) -> str:
    """Return the median of a ratio; empty if there is none."""
    if ratio is None:
        return ""
    return number_text(ratio.p50 if isinstance(ratio, Spread) else ratio["p50"])


def time_texts(measured: Measurement, scale: float) -> tuple[str, str]:
    """Return the median and the spread of a measured time, multiplied by a factor."""
    assert measured.time_s is not None
    p20, p50, p80 = (number_text(scale * time_s) for time_s in measured.time_s)
    return p50, f"{p20} - {p80}"


def number_text(number: float) -> str:
    """Return a number with two decimals below 100 and none above: further digits are noise."""
    return f"{number:.2f}" if number < 100 else f"{number:.0f}"
