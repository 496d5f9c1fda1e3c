"""The paper's tables of accuracies, shorter data for a laptop, and cells with changes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from typing import cast

from statemix.models import MixerSpec, ModelKind
from statemix.sweeps.runner import configured
from statemix.tasks import TASKS, TaskSpec
from statemix_lab.studies.higher_order.contenders import CONTENDERS
from statemix_lab.studies.higher_order.protocols import MLP_DECODER, Column, Data, cell
from statemix_lab.studies.study_entries import (
    SIZES,
    ProtocolName,
    SizeName,
    StudyEntry,
    Trial,
    Trials,
    with_settings,
)

PAPER = "Dubinin et al."


def published_table(name: str) -> dict[str, dict[str, float]]:
    """Return a table of ``lru_tables.json``: model -> column -> accuracy."""
    path = resources.files("statemix_lab.studies.higher_order").joinpath("lru_tables.json")
    return cast(dict[str, dict[str, float]], json.loads(path.read_text(encoding="utf-8"))[name])


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its columns by cost and value, and ``first``, which runs first."""

    title: str
    columns: tuple[Column, ...]
    published: Mapping[str, Mapping[str, float]]
    first: tuple[str, ...] = ()

    def entries(self, protocol: ProtocolName, size: SizeName) -> Iterator[StudyEntry]:
        """Yield the entries in the order in which they should be filled."""
        models = list(dict.fromkeys([*self.first, *self.published]))
        for one in self.columns:
            if protocol == "mlp" and one.data[0].backbone != "causal":
                continue
            for model in models:
                number = self.published[model][one.name]
                yield from cell(CONTENDERS[model], one, protocol, size, number)


def _permutation(name: str, preset: str, laptop: int, workstation: int) -> Column:
    options = TASKS["permutation"].presets[preset]
    task = TaskSpec("permutation", **options)
    durations: dict[SizeName, int] = {"laptop": laptop, "workstation": workstation, "paper": 200}
    # Protocol "mad" trains like the paper, but for the two largest sets of a laptop.
    short: dict[SizeName, int] = {} if laptop > 4 else {"laptop": 40}
    epochs: dict[SizeName, int] = {**dict.fromkeys(SIZES, 200), **short}
    return Column(name, (Data(preset, task, durations, epochs=epochs),))


def _mad(name: str, task: str, backbone: ModelKind = "causal") -> Column:
    durations: dict[SizeName, int] = {"laptop": 8, "workstation": 40, "paper": 200}
    build = partial(
        Data,
        durations=durations,
        backbone=backbone,
        metric="mad_accuracy",
        epochs=durations | {"laptop": 40},
    )
    variants = TASKS[task].presets.items()
    return Column(
        name,
        tuple(build(f"{task} {name}", TaskSpec(task, **options)) for name, options in variants),
    )


def _chomsky(name: str, task: str, paper: int) -> Column:
    durations: dict[SizeName, int] = {"laptop": 1000, "workstation": 10_000, "paper": paper}
    fixed = TaskSpec(task, train_size=10_000)
    epochs: dict[SizeName, int] = dict.fromkeys(SIZES, 200)
    data = Data(task, TaskSpec(task), durations, lengths=(255,), fixed=fixed, epochs=epochs)
    return Column(name, (data,))


_DECISIVE = (
    *("BD-LRU m=3", "BD-LRU m=2", "BD-LRU m=1", "LSTM", "BD-LRU m=4"),
    *("H-LRU m=4", "DeltaProduct_4 [-1,1]", "DeltaNet [-1,1]", "Mamba2"),
)

TABLES = {
    "table3": PaperTable(
        "MAD: compression, selective copying, in-context recall",
        (
            _mad("in_context_recall", "recall"),
            _mad("selective_copying", "selective_copying"),
            _mad("compression", "compression", "autoencoder"),
        ),
        published_table("table3_mad"),
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
        published_table("table4_permutation"),
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
        published_table("table6_chomsky"),
        _DECISIVE[:5],
    ),
}
"""Name -> table."""


def column(table: str, name: str) -> Column:
    """Return a column of a table by their names."""
    (found,) = [one for one in TABLES[table].columns if one.name == name]
    return found


# Of the 64 tokens of the paper's compression, and the 16 of 64 of its copying, no model learns much
# within the epochs of a laptop (docs/studies/table3.md).
_SHORT = {"vocab_size": 16, "train_size": 20_000}
_COPYING = Data(
    "copying 6 of 32 tokens",
    TaskSpec("selective_copying", length=32, num_copied=6, **_SHORT),
    {"laptop": 6, "workstation": 40, "paper": 200},
    metric="mad_accuracy",
    epochs={"laptop": 40, "workstation": 40, "paper": 200},
)
SHORT_COPYING = Column("copying of 6", (_COPYING,), is_papers=False)

_COMPRESSION = Data(
    "compression of 16 tokens",
    TaskSpec("compression", length=16, **_SHORT),
    {"laptop": 15, "workstation": 60, "paper": 200},
    backbone="autoencoder",
    metric="mad_accuracy",
    epochs={"laptop": 60, "workstation": 60, "paper": 200},
)
SHORT_COMPRESSION = Column("compression of 16", (_COMPRESSION,), is_papers=False)


_LONG: Mapping[str, object] = {"schedules.epochs": 200}
_MIXERS: dict[str, Mapping[str, object]] = {
    "SwiGLU": {"model.channel_mixer": MixerSpec("swiglu").to_plain()},
    "wide MLP": {"model.channel_mixer": MixerSpec("mlp").to_plain()},
    "narrow MLP": {"model.channel_mixer": MLP_DECODER.to_plain()},
}
CHANGES: Mapping[str, Mapping[str, object]] = {
    "": {},
    "constant rate": {"schedules.learning_rate": "constant"},
    "start token": {"model.bos": True},
    "weight decay 0.1": {"optimizer.weight_decay": 0.1},
    **_MIXERS,
    "200 epochs": _LONG,
    **{f"{name} and 200 epochs": {**_MIXERS[name], **_LONG} for name in ("wide MLP", "SwiGLU")},
}
"""Name of a change -> settings that differ from protocol "paper"; that of no change is empty."""

_READOUTS = ("", "weight decay 0.1", "wide MLP", "narrow MLP")
_WRAPPERS = (*_READOUTS, "constant rate", "start token", "SwiGLU")

_FAILING = ("BD-LRU m=1", "BD-LRU m=2", "H-LRU m=4", "DeltaNet [-1,1]", "Mamba2")
# Models near the border between learning and failing, where a wrapper can decide, and an LSTM.
# Then models that fail on a laptop, which trains for a small part of the epochs of the paper.
_CELLS = (
    ("table4", "s3_250", ("BD-LRU m=3", "BD-LRU m=2", "LSTM"), _WRAPPERS),
    ("table4", "s3_250", ("BD-LRU m=8", "BD-LRU m=16"), _READOUTS),
    ("table4", "s4_3k", ("BD-LRU m=4", "LSTM"), _READOUTS),
    ("table6", "cycle_navigation", ("BD-LRU m=5", "BD-LRU m=4", "LSTM"), _WRAPPERS),
    ("table3", "in_context_recall", ("BD-LRU m=1", "H-LRU m=4", "LSTM"), _WRAPPERS),
    ("table4", "s3_10k", _FAILING, tuple(CHANGES)),
    ("table4", "s5_100k", ("BD-LRU m=5",), ("", "wide MLP and 200 epochs")),
    ("table3", "selective_copying", ("BD-LRU m=4",), ("", "200 epochs")),
)


WRAPPER_TITLE = (
    "what the paper leaves open, schedule, start token and channel mixer, and what a laptop leaves "
    "out, 200 epochs"
)


def wrapper_entries(protocol: ProtocolName, size: SizeName) -> Iterator[StudyEntry]:
    """Yield some cells of the tables, each as in the protocol and with some changes."""
    for table, name, models, changes in _CELLS:
        whole = column(table, name)
        for change in changes:
            title = f"{name}, {change}" if change else name
            for model in models:
                # The number of the paper for several data sets is their mean.
                number = TABLES[table].published[model][name] if len(whole.data) == 1 else None
                first, changed = replace(whole.first, name=title), partial(_changed, change)
                yield from cell(CONTENDERS[model], first, protocol, size, number, change=changed)


@cache
def _changed(change: str, trials: Trials) -> Trials:
    def changed() -> Iterator[Trial]:
        for trial in trials:
            runs = (with_settings(configured(run), CHANGES[change]) for run in trial.runs)
            yield Trial(f"{trial.setting}, {change}", tuple(runs))

    return Trials(changed) if change else trials
