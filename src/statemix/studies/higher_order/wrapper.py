"""What the paper leaves open around a layer, and what a laptop leaves out, on some cells."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

from statemix.models import MixerSpec
from statemix.studies.higher_order.contenders import CONTENDERS
from statemix.studies.higher_order.paper_tables import TABLES, column
from statemix.studies.higher_order.protocols import cell
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry, Trial, Trials
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
                yield from cell(
                    CONTENDERS[model],
                    replace(whole.first, name=title),
                    protocol,
                    size,
                    number,
                    change=partial(_changed, change),
                )


@cache
def _changed(change: str, trials: Trials) -> Trials:
    return Trials(lambda: (_changed_trial(change, trial) for trial in trials)) if change else trials


def _changed_trial(change: str, trial: Trial) -> Trial:
    changed = []
    for run in trial.runs:
        tree = run.to_plain()
        for name, value in CHANGES[change].items():
            put(tree, name, value)
        changed.append(config_from_plain(tree))
    return Trial(f"{trial.setting}, {change}", tuple(changed))
