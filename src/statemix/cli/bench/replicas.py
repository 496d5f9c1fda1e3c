"""``statemix bench replicas``: runs as one program against the same runs one after another."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from statemix.bench import replicas
from statemix.bench.harness import Measurement
from statemix.cli.bench.common import Measured, number_text, ratio_text
from statemix.layers import LAYERS, LayerSpec
from statemix.training.config import Device

_REMARK = """\
A call makes one optimiser step, or one evaluation on the test sequences, in every run.
The speed-up is the time of the runs one after another over that of the stack."""


@dataclass(frozen=True, kw_only=True)
class Replicas(Measured):
    """Time replicas, as `--replicas` trains them, against the same runs one after another.

    The runs differ in their seeds; each is one layer between an embedding and a readout, trained on
    permutations, as in the tables of the paper. The losses of the stack are first checked against
    those of the runs. One process then calls both in rounds, each in random order. Times are
    medians over rounds, and speed-ups are medians of the ratios within a round.
    """

    layers: tuple[LayerSpec, ...] = (
        LayerSpec("bd_lru", num_blocks=64, block_size=3),
        LayerSpec("h_lru", num_channels=64, order=3),
        LayerSpec("mamba2", d_state=8),
        LayerSpec("delta_net", num_heads=4),
    )
    """Layers to train, as in `statemix train --model.layers`: a name, then its options."""

    replicas: tuple[int, ...] = (15,)
    """Numbers of runs."""

    hidden_size: int = 128
    """Width of the networks."""

    batch_size: int = 128
    """Sequences of a step."""

    length: int = 16
    """Tokens of a sequence."""

    num_scored: int = 1280
    """Sequences of an evaluation."""

    device: Device = "auto"
    """Device of the runs; auto chooses a GPU if there is one."""

    imports: tuple[str, ...] = ()
    """Modules to import first, which may register layers of your own."""

    def run(self) -> None:
        """Measure and print, case by case.

        Raises:
            RequestError: if a size, an option of a layer, the rounds, the threads or the budget is
                out of range, the runs do not fit into memory or cannot be stacked, or the output
                cannot be written.
        """
        self.check()
        cases = replicas.cases(
            self.layers,
            self.replicas,
            hidden_size=self.hidden_size,
            batch_size=self.batch_size,
            length=self.length,
            num_scored=self.num_scored,
            device=self.device,
        )
        self.each(
            cases,
            label=lambda case: f"{_label(case)}, {case.work}",
            providers=replicas.providers,
            row=replicas.row,
            dtype="float32",
            relative_to=(replicas.STACKED,),
            tolerance=replicas.TOLERANCE,
            remark=_REMARK,
            table=_table,
        )


def _label(case: replicas.Case) -> str:
    name = LAYERS[case.layer.name].label(case.layer.options)
    return f"{name}, {case.replicas} runs"


def _table(outcomes: Sequence[tuple[replicas.Case, Sequence[Measurement]]]) -> Table:
    table = Table(
        title="Replicas as one program",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("layer")
    table.add_column("runs", justify="right")
    table.add_column("work")
    for name in ("stacked ms", "p20 - p80", "alone ms", "p20 - p80", "speed-up"):
        table.add_column(name, justify="right")
    for case, measured in outcomes:
        table.add_row(
            LAYERS[case.layer.name].label(case.layer.options),
            str(case.replicas),
            case.work,
            *(cell for one in measured for cell in _cells(one)),
            ratio_text(measured[1].ratios.get(replicas.STACKED)),
        )
    return table


def _cells(one: Measurement) -> list[str]:
    if one.time_s is None:
        return [one.status, one.reason]
    p20, p50, p80 = (1e3 * time_s for time_s in one.time_s)
    return [number_text(p50), f"{number_text(p20)} - {number_text(p80)}"]
