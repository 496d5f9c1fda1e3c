"""``statemix bench decode``: the speed of decoding steps against projections and other layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table

from statemix.layers import LayerSpec
from statemix_lab.bench import operator_timing, step_timing
from statemix_lab.bench.compared_layers import display_name
from statemix_lab.bench.harness import COPY, Measurement
from statemix_lab.bench.step_timing import PROJECTIONS, StepCase
from statemix_lab.cli.bench.bench_options import (
    Measured,
    Timed,
    name_of,
    provider_table,
    ratio_text,
    time_texts,
)

_REMARK = """\
Every call makes many steps in inference mode; times are per step.
The state has as many entries as the layer is wide.
Roofline: the time of a copy of the bytes that a step must move, over that of the step."""


@dataclass(frozen=True, kw_only=True)
class Decode(Measured):
    """Time a layer's ``step`` against its projections alone, and against other layers.

    Steps are first checked against whole sequences in float64; wrong ones are not timed. One
    process then calls all of them in rounds, each in random order. Times are medians over rounds,
    and ratios are medians of the ratios within a round.
    """

    recurrences: tuple[operator_timing.RecurrenceName, ...] = ("bd_lru", "h_lru")
    """Layers to time."""

    batch_sizes: tuple[int, ...] = (1, 16)
    """Sequences decoded together."""

    hidden_sizes: tuple[int, ...] = (256, 1024)
    """Widths of the layer."""

    block_sizes: tuple[int, ...] = (4,)
    """Block sizes m of BD-LRU, orders m of H-LRU."""

    peers: tuple[LayerSpec, ...] = (LayerSpec("lstm"),)
    """Other layers of the same width, as in `statemix train --model.layers`."""

    def run(self) -> None:
        """Measure and print, case by case."""
        device = self.place()
        peers = {name_of(spec): spec for spec in self.peers}
        row = partial(step_timing.row, dtype=self.dtype, peers=peers)
        self.measure(
            step_timing.cases(
                self.recurrences, self.batch_sizes, self.hidden_sizes, self.block_sizes
            ),
            partial(step_timing.providers, dtype=self.torch_dtype, peers=peers, device=self.device),
            device=device,
            relative_to=(PROJECTIONS, COPY),
            label=_label,
            row=row,
            remark=_REMARK,
            block=lambda case: None,  # noqa: ARG005
            table=partial(_table, row=row),
        )


def _label(case: StepCase) -> str:
    name = display_name(case.recurrence)
    return f"{name} m={case.block_size}, width {case.hidden_size}, B={case.batch_size}"


def _table(
    outcomes: Sequence[Timed[StepCase]], row: Callable[[StepCase, Measurement], Mapping[str, Any]]
) -> Table:
    headings = ("us", "p20 - p80", "x of\nprojections", "roof-\nline", "calls")

    def cells(case: StepCase, one: Measurement) -> Sequence[str]:
        return (
            *time_texts(one, 1e6 / case.steps_per_call),
            ratio_text(one.ratios.get(PROJECTIONS)),
            ratio_text(row(case, one)["roofline"]),
            str(one.rounds),
        )

    left = ("layer", "provider")
    return provider_table("One decoding step", left, headings, outcomes, _label, cells)
