"""How much of a suite each size runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statemix.layers import LayerSpec
from statemix.studies.study_entries import SizeName, Trials
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

# The paper's code trains until three quarters of a batch have converged.
_TRAINED = 0.75
_EVALUATIONS = 5


@dataclass(frozen=True)
class Scale:
    """The training of every model of a suite.

    Attributes:
        hidden_size: width of the model.
        d_state: columns of the state of FP-Mamba.
        batch_size: sequences per step.
        num_steps: optimiser steps.
        learning_rate: the first of a cosine to 0.
        seeds: seeds of every condition.
        warmup_steps: steps of a linear warm-up.
        weight_decay: that of AdamW.
        test_iterations: iterations of a test; by default as many as the paper's code allows.
        num_scored: sequences of a test, and of a validation.
    """

    hidden_size: int
    d_state: int
    batch_size: int
    num_steps: int
    learning_rate: float
    seeds: tuple[int, ...]
    warmup_steps: int = 0
    weight_decay: float = 0.01
    test_iterations: int = 1000
    num_scored: int = 512

    def runs(
        self,
        task: TaskSpec,
        layer: LayerSpec,
        lengths: Sequence[int],
        *,
        bos: bool = False,
        num_layers: int = 1,
        hidden_size: int | None = None,
        num_steps: int | None = None,
    ) -> Trials:
        """Return one setting, with a run for each seed.

        A layer that iterates stops in training when three quarters of a batch have converged, and
        in tests when all have. A layer of a single iteration is tested as such.

        Args:
            task: the task.
            layer: the sequence layer.
            lengths: further test lengths, in tokens.
            bos: whether a learned token precedes each sequence.
            num_layers: number of such layers.
            hidden_size: width of the model; None means that of the scale.
            num_steps: optimiser steps; None means those of the scale.
        """
        steps = num_steps or self.num_steps
        options: Mapping[str, object] = layer.options
        iterates = options.get("max_iterations", 1) != 1
        config = RunConfig(
            task=task,
            model=ModelConfig(
                layers=(layer,),
                num_layers=num_layers,
                hidden_size=hidden_size or self.hidden_size,
                bos=bos,
            ),
            batches=BatchConfig(size=self.batch_size),
            optimizer=OptimizerConfig(
                learning_rate=self.learning_rate, weight_decay=self.weight_decay, clip_norm=1.0
            ),
            schedules=ScheduleConfig(
                num_steps=steps,
                warmup_steps=self.warmup_steps,
                learning_rate="cosine",
                min_learning_rate=0.0,
            ),
            evaluation=EvaluationConfig(
                every=-(-steps // _EVALUATIONS),
                test_size=self.num_scored,
                validation_size=self.num_scored,
                lengths=tuple(lengths),
                attributes=Assignments(max_iterations=self.test_iterations, quantile=1.0)
                if iterates
                else Assignments(),
            ),
            # One thread: two runs side by side are faster than one with two threads.
            runtime=RuntimeConfig(num_threads=1),
        )
        return Trials.seeded(config, self.seeds)


def words(group: str, length: int, size: SizeName) -> TaskSpec:
    """Return the task of words over a group, of all lengths from 2.

    On a laptop words are over two generators. No fixed-point RNN learns words of all elements there
    (results/LOG.md, 2026-11-23).

    Args:
        group: name of the group.
        length: elements of the longest words in training.
        size: size of the suite.
    """
    options = {"group": group, "length": length, "min_length": 2}
    return TaskSpec("permutation", **options, **({"generators": True} if size == "laptop" else {}))


def fp_mamba(version: int, scale: Scale, **options: object) -> LayerSpec:
    """FP-Mamba as the paper trains it: within 10% of its fixed point.

    Args:
        version: 1 or 2.
        scale: gives the columns of its state.
        options: of the layer.
    """
    usual: dict[str, object] = {"d_state": scale.d_state, "tolerance": 0.1, "quantile": _TRAINED}
    return LayerSpec(f"fp_mamba{version}", **{**usual, **options})


Scales = Mapping[SizeName, Scale]
"""Size -> the training of a suite."""
