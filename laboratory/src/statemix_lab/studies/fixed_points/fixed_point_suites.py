"""The entries of the studies of Movahedi et al.: groups, iterations, copying and questions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix.training.settings import Assignments
from statemix_lab.studies.study_entries import Number, SizeName, StudyEntry, Trials

PAPER = "Movahedi et al."
_TABLES = json.loads(
    resources.files("statemix_lab.studies.fixed_points")
    .joinpath("fixed_point_tables.json")
    .read_text(encoding="utf-8")
)

STATE_TRACKING: dict[str, dict[str, float]] = _TABLES["accuracy_at_512_tokens_after_128"]
"""Model -> group -> accuracy at 512 tokens, after training with at most 128.

It must be that of single answers, as the paper has .24 for a model that does not generalise.
"""

ITERATION_BUDGETS = {
    int(budget): {int(length): Number(*number) for length, number in numbers.items()}
    for budget, numbers in _TABLES[
        "a5_by_iteration_budget_and_length, [accuracy, iterations at the test]"
    ].items()
}
"""Most iterations in training -> tokens of a test word -> the numbers.

The accuracy must be the share of words without a mistake, as it falls to 0.
"""

CATBABI: dict[int, dict[str, float]] = {
    int(num_layers): numbers
    for num_layers, numbers in _TABLES["catbabi_by_number_of_layers"].items()
}
"""Number of layers -> model -> accuracy on the questions of catbAbI."""

LANGUAGE: dict[str, float] = _TABLES["language_perplexity_160M_2B_tokens_FineWeb"]
"""Model -> test perplexity."""

# The paper's code trains until three quarters of a batch have converged.
_TRAINED = 0.75
_EVALUATIONS = 5


@dataclass(frozen=True)
class Scale:
    """The training of every model of a suite; iterating layers differentiate ``gradient`` steps."""

    hidden_size: int
    d_state: int
    batch_size: int
    num_steps: int
    learning_rate: float
    seeds: tuple[int, ...] = (0, 1, 2)
    warmup_steps: int = 0
    weight_decay: float = 0.01
    test_iterations: int = 1000
    num_scored: int = 512
    gradient: int = 1
    first_length: int | None = None

    def runs(
        self, task: TaskSpec, layer: LayerSpec, lengths: Sequence[int], **model: Any
    ) -> Trials:
        """Return one setting, with a run for each seed."""
        usual = {"num_layers": 1, "hidden_size": self.hidden_size}
        attributes = Assignments()
        if layer.options.get("max_iterations", 1) != 1:
            attributes = Assignments(max_iterations=self.test_iterations, quantile=1.0)
        config = RunConfig(
            task=task,
            model=ModelConfig(layers=(layer,), **{**usual, **model}),
            batches=BatchConfig(size=self.batch_size),
            optimizer=OptimizerConfig(
                learning_rate=self.learning_rate, weight_decay=self.weight_decay, clip_norm=1.0
            ),
            schedules=ScheduleConfig(
                num_steps=self.num_steps,
                warmup_steps=self.warmup_steps,
                learning_rate="cosine",
                min_learning_rate=0.0,
                first_length=self.first_length,
            ),
            evaluation=EvaluationConfig(
                every=-(-self.num_steps // _EVALUATIONS),
                test_size=self.num_scored,
                validation_size=self.num_scored,
                lengths=tuple(lengths),
                attributes=attributes,
            ),
            # One thread: two runs side by side are faster than one with two threads.
            runtime=RuntimeConfig(num_threads=1),
        )
        return Trials.seeded(config, self.seeds)


def words(group: str, length: int, size: SizeName) -> TaskSpec:
    """Return the task of words over a group, of all lengths from 2 to that of training."""
    options = {"group": group, "length": length, "min_length": 2}
    return TaskSpec("permutation", **options, **({"generators": True} if size == "laptop" else {}))


def fp_mamba(version: int, scale: Scale, **options: object) -> LayerSpec:
    """FP-Mamba 1 or 2 as the paper trains it: within 10% of its fixed point."""
    usual: dict[str, object] = {"d_state": scale.d_state, "tolerance": 0.1, "quantile": _TRAINED}
    if scale.gradient != 1:
        usual["gradient"] = scale.gradient
    return LayerSpec(f"fp_mamba{version}", **{**usual, **options})


Scales = Mapping[SizeName, Scale]
"""Size -> the training of a suite."""


def _entry(
    size: SizeName,
    column: str,
    model: str,
    layer: LayerSpec,
    trials: Trials,
    paper: str,
    **more: Any,
) -> StudyEntry:
    """Return an entry; ``paper`` is the setting of the paper, which a laptop does not have."""
    published_for = paper if size == "laptop" else ""
    more = {"size": size, "layers": (layer,), "published_for": published_for, **more}
    return StudyEntry(column, model, trials, **more)


_TRACKING_SCALES: Scales = {
    "laptop": Scale(64, 4, 64, 1500, 2e-3, test_iterations=256),
    # All layers see as many tokens. Words are short at first, as in fp-budget.
    "workstation": Scale(256, 16, 256, 5000, 3e-3, gradient=4, first_length=4),
    "paper": Scale(512, 16, 512, 20_000, 1e-4),
}
# Longest words of training, of the two of the paper, which tests at four times the longer.
_WORDS: dict[SizeName, int] = {"laptop": 16, "workstation": 16, "paper": 128}
_PUBLISHED_AT = 512
_WORDS_OF_PAPER = "words of all elements"
# Model -> width with which its layer has as many parameters as others of the usual width; in the
# paper all have one width.
_WIDTHS = {
    "FP-Mamba1 Kronecker": 60,
    "FP-Mamba1 Householder_4": 42,
    "FP-Mamba2 Householder": 44,
    "LSTM": 98,
    "FP-RNN Householder_1": 93,
    "FP-RNN Householder_4": 72,
    "FP-RNN Householder_1, contraction": 93,
}
# Model -> steps that take a laptop as long as 1,500 of FP-Mamba1 with one reflection, to two digits
# (laboratory/results/fixed_point/step-times.jsonl); a contraction was not measured on its own.
_STEPS = {
    "FP-Mamba1 Kronecker": 640,
    "BD-LRU m=5 softmax": 7700,
    "LSTM": 9500,
    "DeltaProduct_4": 1000,
    "BD-LRU m=5 signed": 7800,
    "BD-LRU m=5 householder": 7300,
    "FP-Mamba1 Householder_4": 990,
    "GatedDeltaProduct_4": 890,
    "FP-Mamba2 Kronecker": 1100,
    "FP-Mamba2 Householder": 1600,
    "FP-RNN Householder_1": 6900,
    "FP-RNN Householder_4": 6800,
    "FP-RNN Householder_1, contraction": 6900,
}


def _tracking_layers(scale: Scale, length: int) -> dict[str, LayerSpec]:
    """Return the models, those of the paper by its names."""
    iterated = {"d_conv": 0, "max_iterations": length}
    width = scale.hidden_size
    # As many parameters as FP-Mamba1 with one reflection, which has about 19 times the square of
    # the width.
    blocks = {"num_blocks": round(width * 0.47), "block_size": 5}
    heads = {"num_heads": width // 16, "head_dim": 32, "conv_size": 0}
    return {
        "FP-Mamba1 Kronecker": fp_mamba(1, scale, mixer="kronecker", **iterated),
        "BD-LRU m=5 softmax": LayerSpec("bd_lru", **blocks),
        "LSTM": LayerSpec("lstm"),
        "FP-Mamba1 Householder_1": fp_mamba(1, scale, **iterated),
        "DeltaProduct_4": LayerSpec("delta_product", **heads),
        "BD-LRU m=5 signed": LayerSpec("bd_lru", **blocks, gate="signed"),
        "BD-LRU m=5 householder": LayerSpec("bd_lru", **blocks, gate="householder"),
        "FP-Mamba1 Householder_4": fp_mamba(1, scale, rank=4, **iterated),
        "GatedDeltaProduct_4": LayerSpec("delta_product", **heads, use_forget_gate=True),
        "FP-Mamba2 Kronecker": fp_mamba(2, scale, mixer="kronecker", **iterated),
        "FP-Mamba2 Householder": fp_mamba(2, scale, rank=4, **iterated),
        "FP-RNN Householder_1": LayerSpec("fp_rnn"),
        "FP-RNN Householder_4": LayerSpec("fp_rnn", rank=4),
        "FP-RNN Householder_1, contraction": LayerSpec("fp_rnn", contraction=0.95),
    }


def tracking_entries(_: str, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of fp-a5: fixed points beside BD-LRU and others on A_5 and S_5."""
    scale, length = _TRACKING_SCALES[size], _WORDS[size]
    entries = []
    for group in ("A_5", "S_5"):
        task = words(group, length, size)
        for model, layer in _tracking_layers(scale, length).items():
            known = STATE_TRACKING.get(model)
            published = {_PUBLISHED_AT: Number(known[group])} if known else {}
            width, own = scale.hidden_size, scale
            if size == "laptop":
                width = _WIDTHS.get(model, width)
                own = replace(scale, num_steps=_STEPS.get(model, scale.num_steps))
            lengths = [factor * length for factor in (2, 4, 8)]
            runs = own.runs(task, layer, lengths, bos=True, hidden_size=width)
            column = task.build().title
            more: Any = {"published": published}
            if size == "workstation":
                more["published_for"] = f"words of up to {_WORDS['paper']} elements"
            entries.append(_entry(size, column, model, layer, runs, _WORDS_OF_PAPER, **more))
    return tuple(entries)


_BUDGET_GROUP, _BUDGET_LENGTH = "A_5", 16
# Paper: mean of four runs.
_BUDGET_SCALES: Scales = {
    **_TRACKING_SCALES,
    # With a gradient of one application, and words of 16 from the start, a layer is right on one
    # element in five after 1,500 steps (laboratory/results/fixed_point/pilots.jsonl).
    "workstation": Scale(128, 16, 128, 3000, 6e-3, gradient=4, first_length=4),
    "paper": replace(_TRACKING_SCALES["paper"], seeds=(0, 1, 2, 3)),
}
# The largest and the smallest say most.
_BUDGETS = (16, 2, 8, 6, 12, 10, 14)


def budget_entries(_: str, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of fp-budget: what the iterations allowed in training are worth."""
    scale = _BUDGET_SCALES[size]
    task = words(_BUDGET_GROUP, _BUDGET_LENGTH, size)
    # There are too few shorter words of two generators for a test.
    least = 15 if size == "laptop" else 0
    entries = []
    for budget in _BUDGETS:
        published = {n: number for n, number in ITERATION_BUDGETS[budget].items() if n >= least}
        layer = fp_mamba(1, scale, d_conv=0, max_iterations=budget)
        runs = scale.runs(task, layer, list(published), bos=True)
        model = f"FP-Mamba1 householder 1, at most {budget} iterations"
        more: Any = {"metric": "sequence_accuracy", "published": published}
        column = task.build().title
        entries.append(_entry(size, column, model, layer, runs, _WORDS_OF_PAPER, **more))
    return tuple(entries)


_COPY_SCALES: Scales = {
    "laptop": Scale(64, 16, 64, 1000, 3e-3, warmup_steps=100, test_iterations=256),
    "workstation": Scale(256, 32, 64, 10_000, 1e-3, warmup_steps=300),
    "paper": Scale(1024, 32, 8, 100_000, 1e-4, warmup_steps=300, weight_decay=0.1),
}
_DEPTHS: dict[SizeName, int] = {"laptop": 1, "workstation": 2, "paper": 12}
# Letters of the strings in training, fewest and most. No fixed-point RNN learned those of the paper
# on a laptop, nor up to 12 (laboratory/results/fixed_point/pilots.jsonl).
_LETTERS: dict[SizeName, tuple[int, int]] = {"laptop": (3, 6), "workstation": (5, 20)}
_LETTERS["paper"] = _LETTERS["workstation"]


def _tokens(letters: int) -> int:
    return 2 * letters + 2


def copying_entries(_: str, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of fp-copy: few iterations suffice where no state is tracked."""
    scale = _COPY_SCALES[size]
    fewest, most = _LETTERS[size]
    task = TaskSpec("copying", min_length=_tokens(fewest), length=_tokens(most))
    lengths = [_tokens(letters) for letters in (fewest, 2 * most, 4 * most)]
    iterated = partial(fp_mamba, 1, scale, mixer_inputs="sum")
    layers = {
        "FP-Mamba1 householder 1": iterated(max_iterations=_tokens(most)),
        "FP-Mamba1, one iteration": iterated(max_iterations=1),
        "LSTM": LayerSpec("lstm"),
    }
    column, paper = f"{fewest} to {most} letters", "strings of 5 to 20 letters"
    entries = []
    for model, layer in layers.items():
        runs = scale.runs(task, layer, lengths, num_layers=_DEPTHS[size])
        entries.append(_entry(size, column, model, layer, runs, paper))
    return tuple(entries)


ARCHIVE = "tasks_1-20_v1-2.tar.gz"
_STORY_FOLDER = f"{ARCHIVE}/en-valid-10k"
_STORY_LENGTH = 200
_STORY_SCALES: Scales = {
    "laptop": Scale(32, 4, 16, 500, 2e-3, weight_decay=0.0, test_iterations=256, num_scored=64),
    "workstation": Scale(256, 16, 64, 15_000, 1e-3, weight_decay=0.0),
    "paper": Scale(512, 16, 256, 15_000, 1e-3, weight_decay=0.0),
}
_MOST_IN_TRAINING: dict[SizeName, int] = {"laptop": 16, "workstation": 100, "paper": 100}


def _story_layer(model: str, scale: Scale, most: int) -> LayerSpec:
    """Return the layer of a model by its name in the paper; ``most`` limits its iterations."""
    if model == "Mamba":
        # A single iteration is Mamba with maps of length 1.
        return fp_mamba(1, scale, max_iterations=1)
    mixer = model.removeprefix("FP-Mamba ")
    options = {"mixer": "kronecker"} if mixer == "K" else {"rank": int(mixer[1:])}
    return fp_mamba(1, scale, **options, max_iterations=most)


def story_entries(_: str, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of catbabi: questions about stories."""
    scale = _STORY_SCALES[size]
    task = TaskSpec("catbabi", folder=_STORY_FOLDER, length=_STORY_LENGTH)
    entries = []
    for num_layers, numbers in CATBABI.items():
        column = f"{num_layers} layer" if num_layers == 1 else f"{num_layers} layers"
        for model, number in numbers.items():
            layer = _story_layer(model, scale, _MOST_IN_TRAINING[size])
            runs = scale.runs(task, layer, (), num_layers=num_layers)
            # Other studies train on easier words instead.
            paper = "width 512, 15,000 steps"
            more = {"published": {_STORY_LENGTH: Number(number)}}
            entries.append(_entry(size, column, model, layer, runs, paper, **more))
    return tuple(entries)
