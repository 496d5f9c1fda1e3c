"""Time replicas as one program against the same runs one after another."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import torch

from statemix.bench.harness import Measurement, Provider
from statemix.errors import RequestError
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
from statemix.training.config import Device
from statemix.training.devices import build_fabric
from statemix.training.evaluation import SplitEvaluator
from statemix.training.parts import build_model, build_trainer
from statemix.training.request import check_here
from statemix.training.size import check_run_fits
from statemix.training.stack import Stack
from statemix.training.trainer import Trainer

Work = Literal["step", "evaluation"]
WORKS: tuple[Work, ...] = get_args(Work)

_MOST_REPLICAS = 1000
STACKED, ALONE = "stacked", "alone"
TOLERANCE = 1e-4
"""Losses are means over thousands of terms in float32."""


@dataclass(frozen=True)
class Case:
    """Training runs of one network on permutations, all at once.

    Attributes:
        layer: the sequence layer.
        replicas: number of runs.
        work: what a call does in every run: an optimiser step, or an evaluation.
        hidden_size: width of the network.
        batch_size: sequences of a step.
        length: tokens of a sequence.
        num_scored: sequences of an evaluation.
        device: device of all runs.
    """

    layer: LayerSpec
    replicas: int
    work: Work
    hidden_size: int
    batch_size: int
    length: int
    num_scored: int
    device: Device

    @property
    def config(self) -> RunConfig:
        """The first run; the others differ in their seeds.

        Raises:
            RequestError: if a size or an option is out of range.
        """
        return RunConfig(
            task=TaskSpec(
                "permutation", group="S_5", length=self.length, train_size=4 * self.batch_size
            ),
            model=ModelConfig(layers=(self.layer,), hidden_size=self.hidden_size),
            batches=BatchConfig(size=self.batch_size),
            # Weights that hardly move, so that all calls do the same.
            optimizer=OptimizerConfig(learning_rate=1e-12, weight_decay=0.0),
            schedules=ScheduleConfig(epochs=2**30, learning_rate="constant"),
            evaluation=EvaluationConfig(test_size=self.num_scored, validation_size=self.num_scored),
            runtime=RuntimeConfig(device=self.device),
        ).resolved()


def check_case(case: Case) -> None:
    """Check that the runs are possible and fit into memory, beside the same runs in a stack.

    Raises:
        RequestError: otherwise.
    """
    if case.replicas < 2:
        raise RequestError(f"replicas must be at least 2, got {case.replicas}")
    for name in ("hidden_size", "batch_size", "length", "num_scored"):
        size = getattr(case, name)
        if not 1 <= size < 2**20:
            raise RequestError(f"{name} must be in 1..2^20 - 1, got {size}")
    if case.replicas > _MOST_REPLICAS:
        raise RequestError(f"replicas must be at most {_MOST_REPLICAS}, got {case.replicas}")
    config = case.config
    try:
        check_run_fits(config, check_here(config), replicas=2 * case.replicas)
    except RequestError as error:
        sizes = "replicas, hidden_size, batch_size, length and num_scored"
        raise RequestError(f"{sizes} must fit into memory together: {error}") from error


def providers(case: Case) -> list[Provider]:
    """Return the stack, then the same runs one after another; a call returns all losses."""

    def stacked() -> Callable[[], list[float]]:
        trainers, evaluators = _trainers(case)
        stack = Stack(trainers)
        stack.check()
        if case.work == "step":
            return _synchronised(case, lambda: [_finite(one) for one in stack.train_step()])
        return _synchronised(case, lambda: [_loss(one) for one in stack.score(evaluators)])

    def alone() -> Callable[[], list[float]]:
        trainers, evaluators = _trainers(case)
        if case.work == "step":
            return _synchronised(case, lambda: [trainer.train_step() for trainer in trainers])
        pairs = list(zip(trainers, evaluators, strict=True))
        return _synchronised(case, lambda: [_loss(score(one.model)) for one, score in pairs])  # type: ignore[arg-type]

    def error(losses: list[float]) -> float:
        expected = alone()()
        if not all(map(math.isfinite, losses)):
            return math.inf
        pairs = zip(losses, expected, strict=True)
        return max(abs(one - other) / abs(other) for one, other in pairs)

    return [Provider(STACKED, stacked, error), Provider(ALONE, alone)]


def _trainers(case: Case) -> tuple[list[Trainer], list[SplitEvaluator]]:
    trainers, evaluators = [], []
    for seed in range(case.replicas):
        config = replace(case.config, seed=seed)
        task = config.build_task()
        fabric = build_fabric(config.runtime.device, config.runtime.precision)
        trainers.append(build_trainer(config, task, build_model(config, task), fabric))
        evaluators.append(SplitEvaluator(task, "test", case.num_scored, batch_size=case.batch_size))
    return trainers, evaluators


def _finite(answer: float | FloatingPointError) -> float:
    if isinstance(answer, FloatingPointError):
        raise answer
    return answer


def _loss(scores: dict[str, Any]) -> float:
    (one,) = scores.values()
    return float(one.loss)


def _synchronised(case: Case, call: Callable[[], list[float]]) -> Callable[[], list[float]]:
    """Let a call wait until the device has finished."""
    if case.config.runtime.device != "cuda":
        return call

    def waiting() -> list[float]:
        losses = call()
        torch.cuda.synchronize()
        return losses

    return waiting


def cases(layers: Sequence[LayerSpec], replicas: Sequence[int], **sizes: Any) -> list[Case]:
    """Return a case for every layer, number of replicas and kind of work, checked.

    Raises:
        RequestError: if a case is not possible, or a layer cannot be stacked.
    """
    listed = [
        Case(layer, count, work, **sizes)
        for layer in layers
        for count in replicas
        for work in WORKS
    ]
    for case in listed:
        check_case(case)
    for layer in dict.fromkeys(layers):
        # Whether a layer can be stacked does not depend on the sizes.
        smallest = replace(listed[0], layer=layer, replicas=2, batch_size=1, num_scored=1)
        Stack(_trainers(smallest)[0]).check()
    return listed


def row(case: Case, measurement: Measurement) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance."""
    outcome = asdict(measurement)
    time_s = measurement.time_s
    outcome["time_s"] = time_s and time_s._asdict()
    outcome["ratios"] = {name: ratio._asdict() for name, ratio in measurement.ratios.items()}
    device = case.config.runtime.device
    return {
        "benchmark": "replicas",
        "case": {
            **{name: value for name, value in vars(case).items() if name != "layer"},
            "layer": case.layer.complete().to_plain(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        },
        "dtype": "float32",
        **outcome,
    }
