"""``statemix bench decode``: the speed of decoding steps against projections and other layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from statemix.bench import decode
from statemix.bench.harness import Measurement
from statemix.bench.ops import TOLERANCES
from statemix.bench.roofline import COPY
from statemix.cli.bench.common import MeasuredAnywhere, name_of, number_text, ratio_text
from statemix.layers import LAYERS, LayerSpec
from statemix.ops import BACKENDS

_REMARK = """\
Every call makes many steps in inference mode; times are per step.
The state has as many entries as the layer is wide.
Roofline: the time of a copy of the bytes that a step must move, over that of the step."""


@dataclass(frozen=True, kw_only=True)
class Decode(MeasuredAnywhere):
    """Time a layer's ``step`` against its projections alone, and against other layers.

    Steps are first checked against whole sequences in float64; wrong ones are not timed. One
    process then calls all of them in rounds, each in random order. Times are medians over rounds,
    and ratios are medians of the ratios within a round.
    """

    recurrences: tuple[decode.Recurrence, ...] = ("bd_lru", "h_lru")
    """Layers to time."""

    batch_sizes: tuple[int, ...] = (1, 16)
    """Sequences decoded together."""

    hidden_sizes: tuple[int, ...] = (256, 1024)
    """Widths of the layer."""

    block_sizes: tuple[int, ...] = (4,)
    """Block sizes m of BD-LRU, orders m of H-LRU."""

    backends: tuple[str, ...] = ()
    """Backends to time as well, beside the fastest of the device."""

    peers: tuple[LayerSpec, ...] = (LayerSpec("lstm"),)
    """Other layers of the same width, as in `statemix train --model.layers`."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Data type of parameters and activations. States have float32 at least."""

    def run(self) -> None:
        """Measure and print, case by case.

        Raises:
            RequestError: if a size, the rounds, the threads or the budget is out of range, a
                backend is unknown, or the output cannot be written.
            RunsFailedError: if a layer failed; the others have been measured.
        """
        self.check()
        for name in self.backends:
            BACKENDS.find(name)
        dtype: torch.dtype = getattr(torch, self.dtype)
        peers = {name_of(spec): spec for spec in self.peers}
        cases = decode.cases(
            self.recurrences, self.batch_sizes, self.hidden_sizes, self.block_sizes
        )
        row = partial(decode.row, dtype=self.dtype, peers=peers)
        self.each(
            cases,
            label=_label,
            providers=partial(
                decode.providers,
                dtype=dtype,
                peers=peers,
                device=self.device,
                backends=self.backends,
            ),
            row=row,
            dtype=self.dtype,
            relative_to=(decode.PROJECTIONS, COPY),
            tolerance=TOLERANCES[dtype],
            remark=_REMARK,
            table=partial(_table, row=row),
        )


def _label(case: decode.Case) -> str:
    name = LAYERS[case.recurrence].display_name
    return f"{name} m={case.block_size}, width {case.hidden_size}, B={case.batch_size}"


def _table(
    outcomes: Sequence[tuple[decode.Case, Sequence[Measurement]]],
    row: Callable[[decode.Case, Measurement], Mapping[str, Any]],
) -> Table:
    table = Table(title="One decoding step", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("layer")
    table.add_column("provider")
    for name in ("us", "p20 - p80", "x of\nprojections", "roof-\nline", "calls"):
        table.add_column(name, justify="right")
    for case, measured in outcomes:
        for position, one in enumerate(measured):
            table.add_row(
                _label(case) if position == 0 else "",
                one.provider,
                *_cells(case, one, row(case, one)["roofline"]),
                end_section=position == len(measured) - 1,
            )
    return table


def _cells(case: decode.Case, one: Measurement, roofline: Mapping[str, float] | None) -> list[str]:
    if one.time_s is None:
        return [one.status, one.reason]
    p20, p50, p80 = (1e6 * time_s / case.steps_per_call for time_s in one.time_s)
    return [
        number_text(p50),
        f"{number_text(p20)} - {number_text(p80)}",
        ratio_text(one.ratios.get(decode.PROJECTIONS)),
        number_text(roofline["p50"]) if roofline else "",
        str(one.rounds),
    ]
