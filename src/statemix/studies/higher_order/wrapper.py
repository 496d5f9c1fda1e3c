"""What the paper leaves open around a layer, and what a laptop leaves out, on some cells."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from statemix.models import MixerSpec
from statemix.studies.higher_order.contenders import CONTENDERS
from statemix.studies.higher_order.paper_tables import TABLES, Cell, Column, Table, column
from statemix.studies.higher_order.protocols import Data, ProtocolName, SizeName, Trial
from statemix.studies.store import key
from statemix.training import config_from_plain
from statemix.training.plain import put

CHANGES: Mapping[str, Mapping[str, object]] = {
    "": {},
    "constant rate": {"schedules.learning_rate": "constant"},
    "start token": {"model.bos": True},
    "SwiGLU": {"model.channel_mixer": MixerSpec("swiglu").to_plain()},
    "200 epochs": {"schedules.epochs": 200},
}
"""Name of a change -> settings that differ from protocol "paper"; that of no change is empty."""

_WRAPPERS = ("", "constant rate", "start token", "SwiGLU")

# Models near the border between learning and failing, where a wrapper can decide, and an LSTM.
# Models that fail on a laptop, which trains for a thirteenth of the paper's epochs.
_CELLS = (
    ("table4", "s3_250", ("BD-LRU m=3", "BD-LRU m=2", "LSTM"), _WRAPPERS),
    ("table6", "cycle_navigation", ("BD-LRU m=5", "BD-LRU m=4", "LSTM"), _WRAPPERS),
    ("table3", "in_context_recall", ("BD-LRU m=1", "H-LRU m=4", "LSTM"), _WRAPPERS),
    ("table4", "s3_10k", ("BD-LRU m=1", "BD-LRU m=2", "H-LRU m=4"), tuple(CHANGES)),
)


@dataclass(frozen=True)
class Changed(Cell):
    """A cell whose runs differ in some settings from those of its protocol.

    Attributes:
        change: a name in :data:`CHANGES`.
    """

    change: str = ""

    def begun(self, rows: Container[str]) -> bool:
        """As in the base class."""
        return any(key(run) in rows for trials in self.parts.values() for run in trials[0].runs)

    def _trials(self, data: Data) -> Iterator[Trial]:
        for trial in super()._trials(data):
            changed = []
            for run in trial.runs:
                tree = run.to_plain()
                for name, value in CHANGES[self.change].items():
                    put(tree, name, value)
                changed.append(config_from_plain(tree))
            words = [trial.setting, *([self.change] if self.change else [])]
            yield Trial(", ".join(words), tuple(changed))


@dataclass(frozen=True)
class WrapperTable(Table):
    """Some cells of the paper's tables, each as in protocol "paper" and with some changes."""

    def cells(self, protocol: ProtocolName, size: SizeName) -> Iterator[Cell]:
        """Yield the cells in the order in which they should be filled."""
        if protocol != "paper":
            return
        for one in self.columns:
            change = one.name.partition(", ")[2]
            for model, numbers in self.published.items():
                if one.name in numbers:
                    number, contender = numbers[one.name], CONTENDERS[model]
                    yield Changed(self.name, contender, one, protocol, size, number, change)


def _table() -> WrapperTable:
    columns: list[Column] = []
    published: dict[str, dict[str, float | None]] = {}
    for table, name, models, changes in _CELLS:
        for change in changes:
            first = column(table, name).first
            columns.append(replace(first, name=f"{name}, {change}") if change else first)
            for model in models:
                whole = column(table, name)
                # The paper's number of several data sets is their mean.
                number = TABLES[table].published[model][name] if len(whole.data) == 1 else None
                published.setdefault(model, {})[columns[-1].name] = number
    title = (
        "what the paper leaves open, schedule, start token and channel mixer, and what a laptop "
        "leaves out, 200 epochs"
    )
    return WrapperTable("wrapper", title, tuple(columns), published)


WRAPPER = _table()
"""Some cells of the tables, as they are and with some changes."""
