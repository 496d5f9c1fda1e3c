"""``statemix bench layers``: the price of every layer, and the speed of training with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table

from statemix.layers import LayerSpec
from statemix_lab.bench import compared_layers, layer_timing
from statemix_lab.bench.compared_layers import LayerCase, TimedLayer, display_name, layers_of_dtype
from statemix_lab.bench.harness import COPY, Measurement, Provider
from statemix_lab.cli.bench.bench_options import Measured, Timed, name_of, new_table, ratio_text

_REMARK = """\
A call computes forward and backward of the layer alone, with the gradients of its input and of
its parameters."""

_HEADINGS = (
    *("param-\neters", "state\nsize", "FLOPs/\ntoken", "transi-\ntion"),
    *("decode\nbytes", "saved\nbytes", "tokens\nper s"),
    f"x time\nof {display_name(compared_layers.BASELINE.name)}",
)
_COLUMNS = """\
state size: entries that a sequence carries after its last token, inputs of short convolutions
included. FLOPs/token: forward pass for that token, counted from the equations (a multiply-add
is 2); transition: the part that updates and reads the state. decode bytes: moved to decode that
token for a single sequence (parameters and state read, state written). saved bytes: kept by the
forward for the backward, per token. k, M and G are powers of 1000."""


@dataclass(frozen=True, kw_only=True)
class Layers(Measured):
    """State what each layer costs, and time training with it.

    By default every layer of this library appears, with a state of about four entries per channel
    where its options allow that (but in 16 bits no layer that iterates); --layers chooses other
    layers and options. A layer is first checked against its own single steps in float64, or against
    whole sequences if it iterates; a wrong one is not timed. One process then calls all layers in
    rounds, each in random order. Speeds are medians over rounds, and ratios to an LSTM of the same
    width are medians of the ratios within a round. Rows also have the fraction of the memory
    roofline: the time of a copy of the bytes that must move, in the same rounds, over that of the
    layer. `statemix report bench` draws the rows as Figure 3 of the paper.
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

    compiled: bool = False
    """Also time each layer of backend=associative as the paper runs it: the whole layer under
    torch.compile with max-autotune. Each case compiles for one to three minutes."""

    projections: bool = False
    """Also time the projections of each BD-LRU and H-LRU alone, and the layer relative to them."""

    imports: tuple[str, ...] = ()
    """Modules to import first, which may register layers of your own."""

    def run(self) -> None:
        """Measure and print."""
        device, dtype = self.place(), self.torch_dtype
        cases = [
            LayerCase(self.hidden_size, batch_size, length)
            for batch_size in self.batch_size
            for length in self.length
        ]
        for case in cases:
            compared_layers.check_case(case, dtype, device.total_bytes())
        listed = self.layers or layers_of_dtype(self.hidden_size, dtype)
        baseline = name_of(compared_layers.BASELINE)
        specs = {baseline: compared_layers.BASELINE, **{name_of(spec): spec for spec in listed}}
        # Of the cases of one length, the largest batch needs most.
        of_length = {
            case.length: compared_layers.with_variants(
                compared_layers.entries(specs, case, dtype, device),
                compiled=self.compiled,
                projections=self.projections,
            )
            for case in cases
            if case.batch_size == max(self.batch_size)
        }
        by_name = {n: {one.name: one for one in each} for n, each in of_length.items()}

        def providers(case: LayerCase) -> list[Provider]:
            return layer_timing.providers(of_length[case.length], case, dtype, self.device)

        def row(case: LayerCase, measured: Measurement) -> dict[str, Any]:
            entry = by_name[case.length][measured.provider]
            copied = layer_timing.copied_bytes(of_length[case.length], case, dtype)
            return layer_timing.row(entry, case, measured, self.dtype, copied)

        def table(outcomes: Sequence[Timed[LayerCase]]) -> Table:
            ((case, measured),) = outcomes
            return _table(case, baseline, by_name[case.length], measured)

        alone = {one.name for each in of_length.values() for one in each if one.projections}
        self.measure(
            cases,
            providers,
            device=device,
            relative_to=(baseline, COPY, *alone),
            hidden=(COPY,),
            label=_title,
            row=row,
            remark=_REMARK,
            block=lambda case: case,
            table=table,
            notes=partial(_notes, by_name),
        )


def _title(case: LayerCase) -> str:
    return f"Training with one layer, width {case.hidden_size}, B={case.batch_size} T={case.length}"


def _table(
    case: LayerCase,
    baseline: str,
    listed: Mapping[str, TimedLayer],
    measured: Sequence[Measurement],
) -> Table:
    beside_projections = any(entry.projections for entry in listed.values())
    headings = [*_HEADINGS, *["x of\nprojections"] * beside_projections]
    table = new_table(_title(case), ("layer",), headings)
    for one in measured:
        entry = listed[one.provider]
        ratios = [one.ratios.get(baseline)]
        if beside_projections:
            ratios.append(one.ratios.get(f"{one.provider} projections"))
        table.add_row(
            entry.title,
            *_paid(entry),
            one.status if one.time_s is None else _short(case.num_tokens / one.time_s.p50),
            *map(ratio_text, ratios),
        )
    return table


def _paid(entry: TimedLayer) -> list[str]:
    """Return the counted columns of a layer; of projections alone nothing is counted."""
    if entry.projections:
        return ["-"] * 6
    paid, flops = entry.price, entry.price.flops
    counted = (flops.total, flops.transition) if flops else (None, None)
    numbers = (paid.num_parameters, paid.state_size, *counted, paid.decode_bytes, entry.saved_bytes)
    return ["-" if number is None else _short(number) for number in numbers]


def _notes(
    by_name: Mapping[int, Mapping[str, TimedLayer]], outcomes: Sequence[Timed[LayerCase]]
) -> list[str]:
    """Explain the columns and the options of the layers."""
    layers: dict[str, None] = {}
    for case, measured in outcomes:
        for entry in (by_name[case.length][one.provider] for one in measured):
            if entry.name == name_of(entry.spec):
                layers[f"  {entry.title}: {entry.name}"] = None
    return [_COLUMNS, "Layers, as --layers reads them:", *layers]


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
