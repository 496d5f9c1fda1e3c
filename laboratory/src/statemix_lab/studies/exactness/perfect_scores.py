"""Networks that answer every test word of a language right, and words that refute them."""

import time
from pathlib import Path
from typing import Any, cast

from statemix import proofs
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.tasks.automata.automaton_words import AutomatonTask
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    load_model,
    load_outcome,
)
from statemix.training.devices import threads
from statemix_lab.studies.exactness.exact_suites import RECIPE, by_answers
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study_entries import ON_ONE_CORE, StudyEntry, Trials

LONGEST = 500
"""Letters of the test words that decide whether a score is perfect."""
SECONDS = 60.0
"""Time of each search for a wrong word, without its shortening."""

_CYCLE = "\n".join(
    [
        "start: 0",
        *(f"{q} {a} {(q + by) % 5}" for q in range(5) for a, by in (("0", 0), ("+", 1), ("-", -1))),
    ]
)
# The first language of each kind that LDRU has. With all labels, the recipe would choose other
# words for some of them.
_SHARED: dict[str, Any] = {"length": 40, "words": "covering"}
_LANGUAGES = {
    "parity": TaskSpec("regex", pattern="0*(10*10*)*", alphabet="01", **_SHARED),
    "cycle navigation": TaskSpec("automaton", rules=_CYCLE, **_SHARED),
    "even pairs": TaskSpec("regex", preset="even-pairs", **_SHARED),
    "modular sum": TaskSpec("automaton", preset="modular-sum", **_SHARED),
    "tomita-3": TaskSpec("regex", preset="tomita-3", **_SHARED),
    "D_2": TaskSpec("regex", preset="D_2", length=40),
    "P_2_ab": TaskSpec("regex", preset="P_2_ab", length=40),
}
_LAYERS = {
    "LSTM": LayerSpec("lstm"),
    "Mamba-2": LayerSpec("mamba2", d_state=16, head_dim=32),
    "DeltaNet [-1,1]": LayerSpec("delta_net", num_heads=2),
    "Gated DeltaProduct_2": LayerSpec(
        "delta_product", num_heads=2, num_householder=2, use_forget_gate=True
    ),
}
_TESTS: dict[str, Any] = {"lengths": (LONGEST,), "validation_size": 256, "test_size": 256}


def _other(layer: LayerSpec, task: TaskSpec) -> RunConfig:
    """Return the training of a layer of another work."""
    return RunConfig(
        task=task,
        model=ModelConfig(layers=(layer,), hidden_size=64),
        batches=BatchConfig(size=32),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        schedules=ScheduleConfig(num_steps=1000, warmup_steps=50),
        evaluation=EvaluationConfig(every=250, **_TESTS),
    )


def perfect_entries(*_: str) -> tuple[StudyEntry, ...]:
    """Return an entry for each language and network."""
    entries = []
    for column, task in _LANGUAGES.items():
        # All networks read the same words and labels.
        ours = by_answers(task)
        evaluation = ours.evaluation.replace(**_TESTS)
        configs = {RECIPE: ours.replace(evaluation=evaluation)}
        configs |= {model: _other(layer, task) for model, layer in _LAYERS.items()}
        for model, config in configs.items():
            trials = Trials.seeded(config.replace(runtime=ON_ONE_CORE), range(3))
            entries.append(StudyEntry(column, model, trials, layers=config.model.layers))
    return tuple(entries)


def is_perfect(row: StoredRow) -> bool:
    """Return whether a finished run answers every letter of the longest test words right."""
    return all(head["token_accuracy"] == 1 for head in row["test"][str(LONGEST)].values())


def outcome(row: StoredRow) -> str:
    """Return what has become of a network, in words."""
    if row["status"] != "done":
        return "without result"
    return row["refutation"]["verdict"] if is_perfect(row) else "not perfect"


def searched(folder: Path) -> dict[str, Any]:
    """Look for a word that the network of a run gets wrong, and return what was found."""
    config = load_outcome(folder).config
    task = cast(AutomatonTask, config.build_task())
    began = time.monotonic()
    with threads(config.runtime.num_threads):
        found = proofs.refute(load_model(folder), task.automaton(), seconds=SECONDS)
    result: dict[str, Any] = {
        "verdict": found.verdict,
        "letters": found.letters,
        "seconds": round(time.monotonic() - began, 1),
    }
    if found.verdict == "refuted":
        assert found.expected is not None
        result |= {
            "word": found.compressed.named(task.language.letters),
            "length": len(found.word),
            "minimal": found.minimal,
            "found_by": found.found_by,
            "answer": None if found.answer is None else task.label(found.answer),
            "expected": task.label(found.expected),
        }
    return result
