"""What the benchmarks share: options, progress, and the cells of their tables."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from statemix import files
from statemix.bench import rows
from statemix.bench.deadline import Deadline
from statemix.bench.devices import BenchDevice, Cpu, DeviceName, device_of
from statemix.bench.harness import Measurement, Provider, Spread, measure
from statemix.cli.options import words_of
from statemix.errors import RequestError, RunsFailedError
from statemix.layers import LayerSpec
from statemix.training.devices import check_threads

C = TypeVar("C")

WIDTH = 100
# A round of the smallest case takes a microsecond.
_MOST_ROUNDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Options of every benchmark."""

    rounds: int = 21
    """Calls per provider and case."""

    budget_s: float = 5.0
    """Seconds for the timed calls of one provider in one case. A slow provider is called less
    often, but at least three times."""

    threads: int | None = None
    """Number of threads (torch's own choice if not given)."""

    output: Path | None = None
    """JSON-lines file that receives one row per measurement, such as results/bench/ops.jsonl."""

    def check(self) -> None:
        """Check the options before anything is measured.

        Raises:
            RequestError: if the rounds, the threads or the budget is out of range.
        """
        if not 1 <= self.rounds <= _MOST_ROUNDS:
            raise RequestError(f"rounds must be in 1..{_MOST_ROUNDS}, got {self.rounds}")
        if not 0 < self.budget_s < math.inf:
            raise RequestError(f"budget_s must be positive and finite, got {self.budget_s}")
        if self.threads is not None:
            check_threads("threads", self.threads)

    def place(self) -> BenchDevice:
        """Return the device that the harness looks at."""
        return Cpu()

    def deadline(self) -> Deadline:
        """Return the time by which everything must be ready to be timed, from now on."""
        return Deadline(None)

    def begin(self) -> tuple[Console, dict[str, Any]]:
        """Open the output, set the threads, and return the console and the rows' provenance.

        Raises:
            RequestError: if the output cannot be written.
        """
        console = open_console(self.output)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return console, rows.describe_process(self.place())

    def each(
        self,
        cases: Sequence[C],
        *,
        label: Callable[[C], str],
        providers: Callable[[C], list[Provider]],
        row: Callable[[C, Measurement], dict[str, Any]],
        dtype: str,
        relative_to: Sequence[str],
        tolerance: float,
        remark: str,
        table: Callable[[Sequence[tuple[C, Sequence[Measurement]]]], Table],
    ) -> None:
        """Measure case by case, keep the rows, and print a table of all cases.

        Args:
            cases: what to measure.
            label: returns the words of a case for the progress.
            providers: returns the providers of a case.
            row: returns the row of a case and one of its measurements.
            dtype: name of the data type.
            relative_to: providers to whose times those of the others are compared.
            tolerance: largest relative error of a provider that is timed.
            remark: what the reader of the table has to know.
            table: returns the table of all cases and their measurements.

        Raises:
            RequestError: if the output cannot be written.
            RunsFailedError: if a provider failed; the others have been measured.
        """
        deadline = self.deadline()
        console, process = self.begin()
        print_setting(console, process, dtype, remark)
        outcomes = []
        with progress(console, len(cases)) as start_case:
            for case in cases:
                measured = measure(
                    providers(case),
                    relative_to=relative_to,
                    rounds=self.rounds,
                    budget_s=self.budget_s,
                    tolerance=tolerance,
                    seed=0,
                    on_step=start_case(label(case)),
                    device=self.place(),
                    deadline=deadline,
                )
                outcomes.append((case, measured))
                if self.output is not None:
                    rows.append(self.output, (row(case, one) for one in measured), process)
        console.print(table(outcomes))
        if self.output is not None:
            console.print(f"rows appended to {self.output}", soft_wrap=True)
        check_all_ran(one for _, measured in outcomes for one in measured)


@dataclass(frozen=True, kw_only=True)
class MeasuredAnywhere(Measured):
    """Options of benchmarks that also run on a GPU."""

    device: DeviceName = "cpu"
    """Where to run."""

    graphs: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """On a GPU, replay every call as a CUDA graph: times are then without those of launching."""

    limit_s: float | None = None
    """Seconds after which nothing more is compiled and checked. What is ready by then is timed, and
    the rest counts as failed (no limit if not given)."""

    def check(self) -> None:
        """Check the options, and that there is such a device.

        Raises:
            RequestError: if an option is out of range, or the device is not available.
        """
        super().check()
        if self.limit_s is not None and not 0 < self.limit_s < math.inf:
            raise RequestError(f"limit_s must be positive and finite, got {self.limit_s}")
        self.place()

    def deadline(self) -> Deadline:
        return Deadline(self.limit_s)

    def place(self) -> BenchDevice:
        return device_of(self.device, graphs=self.graphs)


def check_all_ran(measured: Iterable[Measurement]) -> None:
    """Check that no provider failed.

    Raises:
        RunsFailedError: otherwise.
    """
    failures = [one for one in measured if one.status == "failed"]
    if failures:
        first = failures[0]
        raise RunsFailedError(
            f"{len(failures)} of the measurements failed, the first of them {first.provider}: "
            f"{first.reason}"
        )


def open_console(output: Path | None) -> Console:
    """Return a console as wide as tables may be, and check that rows can be appended to a file.

    Raises:
        RequestError: if the output cannot be written.
    """
    if output is not None:
        files.open_for_append("output", output)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=WIDTH)
    return console


def print_setting(console: Console, process: Mapping[str, Any], dtype: str, remark: str) -> None:
    """Print the machine, the versions and what the reader of the tables has to know."""
    backends = ", ".join(
        f"{name} ({detail or 'unavailable'})" for name, detail in process["backends"].items()
    )
    peers = ""
    if process["device"] != Cpu().model:
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
        "Calls reuse freed memory (mallopt: no mapping, no trimming). Providers marked * need\n"
        "blocks too large for that; every call maps them anew.\n"
        f"{remark}"
    )


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[str], Callable[[str], None]]]:
    """Yield a function that starts a case and returns a function that reports its steps."""
    if not console.is_terminal:
        started = 0

        def announce(label: str) -> Callable[[str], None]:
            nonlocal started
            started += 1
            console.print(f"[{started}/{total}] {label}")
            return _say_nothing

        yield announce
        return

    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("", total=total)
        started = 0

        def advance(label: str) -> Callable[[str], None]:
            nonlocal started
            bar.update(task, completed=started)
            started += 1
            return lambda step: bar.update(task, description=f"{label}: {step}")

        yield advance
        bar.update(task, completed=total, description="done")


def _say_nothing(step: str) -> None:
    """Ignore the step: plain output has one line per case."""
    del step


def name_of(spec: LayerSpec) -> str:
    """Return a layer with its options, as users write them."""
    return " ".join(words_of(spec.asked(), "name"))


def ratio_text(ratio: Spread | None) -> str:
    """Return the median of a ratio; empty if there is none."""
    return "" if ratio is None else number_text(ratio.p50)


def number_text(number: float) -> str:
    """Two decimals below 100, none above: further digits are noise."""
    return f"{number:.2f}" if number < 100 else f"{number:.0f}"
