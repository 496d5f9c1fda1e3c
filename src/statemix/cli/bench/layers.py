"""``statemix bench layers``: the price of every layer, and the speed of training with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.bench import entries, layers, rows
from statemix.bench.harness import Measurement, measure
from statemix.bench.ops import TOLERANCES
from statemix.bench.roofline import COPY
from statemix.cli.bench.common import (
    MeasuredAnywhere,
    check_all_ran,
    name_of,
    print_setting,
    progress,
    ratio_text,
)
from statemix.layers import LAYERS, LayerSpec

_REMARK = """\
A call computes forward and backward of the layer alone, with the gradients of its input and of
its parameters."""

_HEADINGS = (
    "param-\neters",
    "state\nsize",
    "FLOPs/\ntoken",
    "transi-\ntion",
    "decode\nbytes",
    "saved\nbytes",
    "tokens\nper s",
)
_COLUMNS = """\
state size: entries that a sequence carries after its last token, inputs of short convolutions
included. FLOPs/token: forward pass for that token, counted from the equations (a multiply-add
is 2); transition: the part that updates and reads the state. decode bytes: moved to decode that
token for a single sequence (parameters and state read, state written). saved bytes: kept by the
forward for the backward, per token. k, M and G are powers of 1000."""


class Outcome(NamedTuple):
    """A measurement of a layer at one size."""

    case: entries.Case
    entry: entries.Entry
    measured: Measurement


@dataclass(frozen=True, kw_only=True)
class Layers(MeasuredAnywhere):
    """State what each layer costs, and time training with it.

    By default every registered layer appears, with a state of about four entries per channel where
    its options allow that (but in 16 bits no layer that iterates); --layers chooses other layers
    and options. A layer is first checked against its own single steps in float64, or against whole
    sequences if it iterates; a wrong one is not timed. One process then calls all layers in rounds,
    each in random order. Speeds are medians over rounds, and ratios to an LSTM of the same width
    are medians of the ratios within a round. Rows also have the fraction of the memory roofline:
    the time of a copy of the bytes that must move, in the same rounds, over that of the layer.
    `statemix report bench` draws the rows as Figure 3 of the paper.
    """

    layers: tuple[LayerSpec, ...] = ()
    """Layers to compare, as in `statemix train --model.layers`: a name, then its options."""

    hidden_size: int = 256
    """Width of every layer."""

    batch_size: tuple[int, ...] = (8,)
    """Sequences of a call. Several are measured one after the other."""

    length: tuple[int, ...] = (512,)
    """Tokens of a sequence. Several are measured one after the other, each with every batch
    size."""

    compiled: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also time each layer of backend=associative as the paper runs it: the whole layer under
    torch.compile with max-autotune. Each case compiles for one to three minutes."""

    projections: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also time the projections of each BD-LRU and H-LRU alone, and the layer relative to them."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Data type of parameters and activations."""

    imports: tuple[str, ...] = ()
    """Modules to import first, which may register layers of your own."""

    def run(self) -> None:
        """Measure and print.

        Raises:
            RequestError: if a size, an option of a layer, the rounds, the threads or the budget is
                out of range, a layer does not fit into memory, or the output cannot be written.
            RunsFailedError: if a layer failed; the others have been measured.
        """
        self.check()
        deadline = self.deadline()
        dtype: torch.dtype = getattr(torch, self.dtype)
        cases = [
            entries.Case(self.hidden_size, batch_size, length)
            for batch_size in self.batch_size
            for length in self.length
        ]
        for case in cases:
            entries.check_case(case, dtype)
        listed = self.layers or entries.registered(self.hidden_size, dtype)
        baseline = name_of(entries.BASELINE)
        specs = {baseline: entries.BASELINE, **{name_of(spec): spec for spec in listed}}
        # Of the cases of one length, the largest batch asks for most.
        listed_at = {
            case.length: entries.entries(specs, case, dtype, self.place(), deadline)
            for case in cases
            if case.batch_size == max(self.batch_size)
        }
        if self.compiled:
            listed_at = {n: entries.with_compiled(each) for n, each in listed_at.items()}
        if self.projections:
            listed_at = {n: entries.with_projections(each) for n, each in listed_at.items()}
        console, process = self.begin()
        print_setting(console, process, self.dtype, _REMARK)
        outcomes: list[Outcome] = []
        with progress(console, len(cases)) as start_case:
            for case in cases:
                each = listed_at[case.length]
                copied = layers.copied_bytes(each, case, dtype)
                *measured, _ = measure(
                    [
                        *layers.providers(each, case, dtype, self.device),
                        layers.copy_provider(copied, self.device),
                    ],
                    relative_to=(baseline, COPY, *(one.name for one in each if one.projections)),
                    rounds=self.rounds,
                    budget_s=self.budget_s,
                    tolerance=TOLERANCES[dtype],
                    seed=0,
                    on_step=start_case(_title(case)),
                    device=self.place(),
                    deadline=deadline,
                )
                found = [Outcome(case, *pair) for pair in zip(each, measured, strict=True)]
                console.print(_table(case, baseline, found))
                if self.output is not None:
                    kept = (
                        layers.row(one.entry, case, one.measured, self.dtype, copied)
                        for one in found
                    )
                    rows.append(self.output, kept, process)
                outcomes.extend(found)
        _print_notes(console, outcomes)
        if self.output is not None:
            console.print(f"rows appended to {self.output}", soft_wrap=True)
        check_all_ran(one.measured for one in outcomes)


def _title(case: entries.Case) -> str:
    return f"Training with one layer, width {case.hidden_size}, B={case.batch_size} T={case.length}"


def _table(case: entries.Case, baseline: str, outcomes: Sequence[Outcome]) -> Table:
    table = Table(title=_title(case), title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    reference = LAYERS[entries.BASELINE.name].display_name
    table.add_column("layer")
    for name in _HEADINGS:
        table.add_column(name, justify="right")
    table.add_column(f"x time\nof {reference}", justify="right")
    beside_projections = any(one.entry.projections for one in outcomes)
    if beside_projections:
        table.add_column("x of\nprojections", justify="right")
    for _, entry, one in outcomes:
        projections = entries.projections_of(entry.name)
        table.add_row(
            entry.title + ("*" if one.memory_reused is False else ""),
            *_paid(entry),
            one.status if one.time_s is None else _short(case.num_tokens / one.time_s.p50),
            ratio_text(one.ratios.get(baseline)),
            *([ratio_text(one.ratios.get(projections))] if beside_projections else []),
        )
    return table


def _paid(entry: entries.Entry) -> list[str]:
    """Return the counted columns of a layer; of projections alone nothing is counted."""
    if entry.projections:
        return ["-"] * 6
    price = entry.price
    flops = price.flops and (price.flops.total, price.flops.transition)
    return [
        *map(_short, (price.num_parameters, price.state_size)),
        *(map(_short, flops) if flops else ("-", "-")),
        _short(price.decode_bytes),
        "-" if entry.compiled or entry.failure else _short(entry.saved_bytes),
    ]


def _print_notes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Explain the columns, the options of the layers, and times that are missing."""
    console.print(_COLUMNS)
    console.print("Layers, as --layers reads them:")
    known = [one.entry for one in outcomes if one.entry.name == name_of(one.entry.spec)]
    for title, name in dict.fromkeys((entry.title, entry.name) for entry in known):
        console.print(f"  {title}: {name}", soft_wrap=True)
    for case, entry, one in outcomes:
        if one.reason:
            place = f"{entry.title}, B={case.batch_size} T={case.length}"
            console.print(f"  {place} {one.status}: {one.reason}", soft_wrap=True)


def _short(number: float) -> str:
    """Return a number with three digits, such as 1.84M."""
    units = ["", "k", "M", "G"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        del units[0]
    if units[0] == "":
        return f"{number:.0f}"
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{units[0]}"
