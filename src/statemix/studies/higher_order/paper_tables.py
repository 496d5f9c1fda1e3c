"""The paper's tables of accuracies: their models, columns, data and numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from statemix.models import ModelKind
from statemix.studies.higher_order import dubinin
from statemix.studies.higher_order.contenders import CONTENDERS
from statemix.studies.higher_order.protocols import Column, Data, cell
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry
from statemix.tasks import TASKS, TaskSpec


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        title: what it shows.
        columns: its columns, those first that cost least and say most.
        published: model -> column -> the number of the paper.
        first: models in the order in which they are run; the others follow.
    """

    title: str
    columns: tuple[Column, ...]
    published: Mapping[str, Mapping[str, float]]
    first: tuple[str, ...] = ()

    def entries(self, protocol: ProtocolName, size: SizeName) -> Iterator[StudyEntry]:
        """Yield the entries in the order in which they should be filled."""
        models = list(dict.fromkeys([*self.first, *self.published]))
        for one in self.columns:
            for model in models:
                number = self.published[model][one.name]
                yield from cell(CONTENDERS[model], one, protocol, size, number)


def _permutation(name: str, preset: str, laptop: int, workstation: int) -> Column:
    options = TASKS["permutation"].presets[preset]
    task = TaskSpec("permutation", **options)
    durations: dict[SizeName, int] = {"laptop": laptop, "workstation": workstation, "paper": 200}
    return Column(name, (Data(preset, task, durations),))


def _mad(name: str, task: str, backbone: ModelKind = "causal") -> Column:
    durations: dict[SizeName, int] = {"laptop": 8, "workstation": 40, "paper": 200}
    data = tuple(
        Data(
            f"{task} {variant}",
            TaskSpec(task, **options),
            durations,
            backbone=backbone,
            metric="mad_accuracy",
        )
        for variant, options in TASKS[task].presets.items()
    )
    return Column(name, data)


def _chomsky(name: str, task: str, paper: int) -> Column:
    durations: dict[SizeName, int] = {"laptop": 1000, "workstation": 10_000, "paper": paper}
    return Column(name, (Data(task, TaskSpec(task), durations, lengths=(255,)),))


_DECISIVE = (
    "BD-LRU m=3",
    "BD-LRU m=2",
    "BD-LRU m=1",
    "LSTM",
    "BD-LRU m=4",
    "H-LRU m=4",
    "DeltaProduct_4 [-1,1]",
    "DeltaNet [-1,1]",
    "Mamba2",
)

TABLES = {
    "table3": PaperTable(
        "MAD: compression, selective copying, in-context recall",
        (
            _mad("in_context_recall", "recall"),
            _mad("selective_copying", "selective_copying"),
            _mad("compression", "compression", "autoencoder"),
        ),
        dubinin.published_table("table3_mad"),
        _DECISIVE,
    ),
    "table4": PaperTable(
        "permutation composition",
        (
            _permutation("s3_250", "S3-250", laptop=200, workstation=200),
            _permutation("s4_3k", "S4-3k", laptop=60, workstation=200),
            _permutation("s3_10k", "S3-10k", laptop=15, workstation=60),
            _permutation("s4_50k", "S4-50k", laptop=4, workstation=20),
            _permutation("s5_100k", "S5-100k", laptop=3, workstation=20),
        ),
        dubinin.published_table("table4_permutation"),
        _DECISIVE,
    ),
    "table6": PaperTable(
        "Chomsky hierarchy: cycle navigation, modular arithmetic, parity",
        (
            _chomsky("parity", "parity", paper=20_000),
            _chomsky("cycle_navigation", "cycle_navigation", paper=20_000),
            _chomsky("modular_arithmetic", "modular_arithmetic", paper=100_000),
            _chomsky("modular_arithmetic_brackets", "bracket_arithmetic", paper=100_000),
        ),
        dubinin.published_table("table6_chomsky"),
        _DECISIVE[:5],
    ),
}
"""Name -> table."""


def column(table: str, name: str) -> Column:
    """Return a column of a table by their names."""
    (found,) = [one for one in TABLES[table].columns if one.name == name]
    return found
