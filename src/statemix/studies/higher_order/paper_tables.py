"""The paper's tables of accuracies: their models, columns, data and numbers."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from statemix.models import ModelKind
from statemix.studies.higher_order import dubinin as published
from statemix.studies.higher_order.contenders import CONTENDERS, Contender
from statemix.studies.higher_order.protocols import Data, ProtocolName, SizeName, Trial, trials
from statemix.studies.store import key
from statemix.tasks import TASKS, TaskSpec


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: key of the column in the published numbers.
        data: its data sets; the number in the table is the mean over them.
    """

    name: str
    data: tuple[Data, ...]

    @property
    def first(self) -> "Column":
        """The column with its first data set alone."""
        return replace(self, data=self.data[:1])


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        name: name on the command line.
        title: what it shows.
        columns: its columns, those first that cost least and say most.
        published: model -> column -> the paper's number, if it has one.
        first: models in the order in which they are run; the others follow.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    published: Mapping[str, Mapping[str, float | None]]
    first: tuple[str, ...] = ()

    def cells(self, protocol: ProtocolName, size: SizeName) -> Iterator["Cell"]:
        """Yield the cells in the order in which they should be filled."""
        models = list(dict.fromkeys([*self.first, *self.published]))
        for column in self.columns:
            for model in models:
                number = self.published[model][column.name]
                yield Cell(self.name, CONTENDERS[model], column, protocol, size, number)


@dataclass(frozen=True)
class Cell:
    """A cell of a table or a point of a figure, under one protocol at one size.

    Attributes:
        table: name of the table or figure.
        contender: the model.
        column: column of the table.
        protocol: name of the protocol.
        size: name of the size.
        published: the paper's number; None if the paper only draws it.
    """

    table: str
    contender: Contender
    column: Column
    protocol: ProtocolName
    size: SizeName
    published: float | None = None

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.contender.name

    @cached_property
    def parts(self) -> Mapping[str, tuple[Trial, ...]]:
        """Data set -> the settings to try."""
        return {data.name: tuple(self._trials(data)) for data in self.column.data}

    def begun(self, rows: Container[str]) -> bool:
        """Return whether the first setting of a data set has a run among the rows of a store."""
        return any(
            name in rows
            for data in self.column.data
            for name in _first_keys(self.protocol, self.size, self.contender, data)
        )

    def _trials(self, data: Data) -> Iterator[Trial]:
        return trials(self.protocol, self.size, self.contender, data)


# A report asks for the same keys several times, and most cells have no results.
@cache
def _first_keys(
    protocol: ProtocolName, size: SizeName, contender: Contender, data: Data
) -> tuple[str, ...]:
    return tuple(key(config) for config in next(trials(protocol, size, contender, data)).runs)


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
    table.name: table
    for table in (
        Table(
            "table3",
            "MAD: compression, selective copying, in-context recall",
            (
                _mad("in_context_recall", "recall"),
                _mad("selective_copying", "selective_copying"),
                _mad("compression", "compression", "autoencoder"),
            ),
            published.table("table3_mad"),
            _DECISIVE,
        ),
        Table(
            "table4",
            "permutation composition",
            (
                _permutation("s3_250", "S3-250", laptop=200, workstation=200),
                _permutation("s4_3k", "S4-3k", laptop=60, workstation=200),
                _permutation("s3_10k", "S3-10k", laptop=15, workstation=60),
                _permutation("s4_50k", "S4-50k", laptop=4, workstation=20),
                _permutation("s5_100k", "S5-100k", laptop=3, workstation=20),
            ),
            published.table("table4_permutation"),
            _DECISIVE,
        ),
        Table(
            "table6",
            "Chomsky hierarchy: cycle navigation, modular arithmetic, parity",
            (
                _chomsky("parity", "parity", paper=20_000),
                _chomsky("cycle_navigation", "cycle_navigation", paper=20_000),
                _chomsky("modular_arithmetic", "modular_arithmetic", paper=100_000),
                _chomsky("modular_arithmetic_brackets", "bracket_arithmetic", paper=100_000),
            ),
            published.table("table6_chomsky"),
            _DECISIVE[:5],
        ),
    )
}
"""Name -> table."""


def column(table: str, name: str) -> Column:
    """Return a column of a table by their names."""
    (found,) = [one for one in TABLES[table].columns if one.name == name]
    return found
