"""``statemix bench layers``: the price of every layer, and the speed of training with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statemix.bench import layers, rows
from statemix.bench.harness import Measurement, measure
from statemix.cli.bench.common import MeasuredAnywhere, name_of, print_setting, progress, ratio_text
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


@dataclass(frozen=True, kw_only=True)
class Layers(MeasuredAnywhere):
    """State what each layer costs, and time training with it.

    By default every registered layer appears, with a state of about four entries per channel where
    its options allow that (but in 16 bits no layer that iterates); --layers chooses other layers
    and options. A layer is first checked against its own single steps in float64, or against whole
    sequences if it iterates; a wrong one is not timed. One process then calls all layers in rounds,
    each in random order. Speeds are medians over rounds, and ratios to an LSTM of the same width
    are medians of the ratios within a round.
    """

    layers: tuple[LayerSpec, ...] = ()
    """Layers to compare, as in `statemix train --model.layers`: a name, then its options."""

    hidden_size: int = 256
    """Width of every layer."""

    batch_size: int = 8
    """Sequences of a call."""

    length: int = 512
    """Tokens of a sequence."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Data type of parameters and activations."""

    imports: tuple[str, ...] = ()
    """Modules to import first, which may register layers of your own."""

    def run(self) -> None:
        """Measure and print.

        Raises:
            RequestError: if a size, an option of a layer, the rounds, the threads or the budget is
                out of range, a layer does not fit into memory, or the output cannot be written.
        """
        self.check()
        dtype: torch.dtype = getattr(torch, self.dtype)
        case = layers.Case(self.hidden_size, self.batch_size, self.length)
        layers.check_case(case, dtype)
        listed = self.layers or layers.registered(self.hidden_size, dtype)
        baseline = name_of(layers.BASELINE)
        specs = {baseline: layers.BASELINE, **{name_of(spec): spec for spec in listed}}
        entries = layers.entries(specs, case, dtype, self.place())
        console, process = self.begin()
        print_setting(console, process, self.dtype, _REMARK)
        with progress(console, 1) as start_case:
            measured = measure(
                layers.providers(entries, case, dtype, self.device),
                relative_to=(baseline,),
                rounds=self.rounds,
                budget_s=self.budget_s,
                tolerance=layers.TOLERANCES[dtype],
                seed=0,
                on_step=start_case(_title(case)),
                device=self.place(),
            )
        outcomes = list(zip(entries, measured, strict=True))
        console.print(_table(case, baseline, outcomes))
        _print_notes(console, outcomes)
        if self.output is not None:
            kept = (layers.row(entry, case, one, self.dtype) for entry, one in outcomes)
            rows.append(self.output, kept, process)
            console.print(f"rows appended to {self.output}", soft_wrap=True)


def _title(case: layers.Case) -> str:
    return f"Training with one layer, width {case.hidden_size}, B={case.batch_size} T={case.length}"


def _table(
    case: layers.Case, baseline: str, outcomes: Sequence[tuple[layers.Entry, Measurement]]
) -> Table:
    table = Table(title=_title(case), title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    reference = LAYERS[layers.BASELINE.name].display_name
    table.add_column("layer")
    for name in _HEADINGS:
        table.add_column(name, justify="right")
    table.add_column(f"x time\nof {reference}", justify="right")
    for entry, one in outcomes:
        price = entry.price
        flops = price.flops and (price.flops.total, price.flops.transition)
        table.add_row(
            entry.label + ("*" if one.memory_reused is False else ""),
            *map(_short, (price.num_parameters, price.state_size)),
            *(map(_short, flops) if flops else ("-", "-")),
            *map(_short, (price.decode_bytes, entry.saved_bytes)),
            one.status if one.time_s is None else _short(case.num_tokens / one.time_s.p50),
            ratio_text(one.ratios.get(baseline)),
        )
    return table


def _print_notes(console: Console, outcomes: Sequence[tuple[layers.Entry, Measurement]]) -> None:
    """Explain the columns, the options of the layers, and times that are missing."""
    console.print(_COLUMNS)
    console.print("Layers, as --layers reads them:")
    for entry, one in outcomes:
        reason = f" ({one.status}: {one.reason})" if one.reason else ""
        console.print(f"  {entry.label}: {entry.name}{reason}", soft_wrap=True)


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
