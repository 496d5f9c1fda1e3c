"""How long runs will take on this machine, from a few steps of each network."""

import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from statemix.sweeps.runner import Runnable, StudyRun
from statemix.training import OptimizerConfig, RunConfig
from statemix.training.devices import build_fabric, threads
from statemix.training.evaluation import SplitEvaluator
from statemix.training.loop import Loop
from statemix.training.run import parts_of
from statemix.training.schedules import attributes_set

# Calls that are timed, and seconds after which no further call is: a table has dozens of networks.
# The fastest call counts, as other programs only slow down.
_CALLS, _ENOUGH_S = 4, 0.5
# Tokens of a step: enough that its overhead does not count.
_TOKENS = 2048
_Measured = TypeVar("_Measured")


class _Price(NamedTuple):
    """Seconds per token of an optimiser step, and of an evaluation."""

    step: float
    evaluation: float


class Forecast:
    """Predicts the time of runs from the time that each network takes per token.

    Each network is measured once, on the first data that it meets. The prediction ignores early
    stopping, further test lengths, and whatever else uses the machine. A search is expected to take
    as long as an attempt that never leaves its plateau.

    After ``limit_s`` seconds of measuring, no further network is measured; None means all are.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self._known: dict[str, _Price] = {}
        self._left_s = math.inf if limit_s is None else limit_s

    def seconds(self, config: Runnable) -> float | None:
        """Return the seconds that a run will take; None if its network is not measured."""
        if isinstance(config, StudyRun):
            return self._measured(config.seconds) if self._left_s > 0 else None
        config = config.resolved()
        task, evaluation = config.build_task(), config.evaluation
        per_epoch = 1 if task.train_size is None else -(-task.train_size // config.batches.size)
        steps = config.schedules.num_steps or (config.schedules.epochs or 0) * per_epoch
        if config.search.attempts is not None:
            steps += config.search.max_steps
        evaluations = -(-steps // ((evaluation.every or 1) * per_epoch))
        if (price := self._price(config)) is None:
            return None
        trained = steps * min(config.batches.size, task.train_size or config.batches.size)
        scored = evaluations * (evaluation.test_size + evaluation.validation_size)
        length, schedules = float(task.length), config.schedules
        if schedules.first_length is not None:
            cut = min(schedules.first_length, task.length)
            length += schedules.first_share * (cut - length)
        return trained * length * price.step + scored * task.length * price.evaluation

    def _price(self, config: RunConfig) -> _Price | None:
        plain = config.to_plain()
        parts = [plain[name] for name in ("model", "batches", "runtime")]
        network = json.dumps([*parts, plain["evaluation"]["attributes"]])
        if network not in self._known and self._left_s > 0:
            with threads(config.runtime.num_threads), warnings.catch_warnings():
                # Layers that iterate say so, and untrained ones rarely converge.
                warnings.filterwarnings("ignore", message=".* has not converged")
                self._known[network] = self._measured(lambda: _measure(config))
        return self._known.get(network)

    def _measured(self, measure: Callable[[], _Measured]) -> _Measured:
        """Return a measurement, whose time is taken from what is left."""
        began = time.perf_counter()
        result = measure()
        self._left_s -= time.perf_counter() - began
        return result


def _measure(config: RunConfig) -> _Price:
    task = config.build_task()
    fabric = build_fabric(config.runtime.device, config.runtime.precision)
    batches = config.batches
    count = min(batches.size, max(_TOKENS // task.length, batches.accumulate))
    schedules = config.schedules.replace(learning_rate="constant", first_length=None)
    # A run may have fewer steps than are timed.
    length = "num_steps" if schedules.epochs is None else "epochs"
    more = {length: max(getattr(schedules, length) or 0, _CALLS)}
    # Weights that hardly move, so that no learning rate diverges here.
    still = config.replace(
        batches=batches.replace(size=count),
        optimizer=OptimizerConfig(learning_rate=1e-12, weight_decay=0.0),
        schedules=schedules.replace(**more),
    )
    parts = parts_of(still, task, Path())
    model, loop = parts["model"], Loop(**parts, fabric=fabric)
    evaluator = SplitEvaluator(task, "test", count, batch_size=count)
    tokens = task.length * count
    step = _fastest(lambda: loop.train_step(loop.step))
    with attributes_set(model, config.evaluation.attributes):
        evaluation = _fastest(lambda: evaluator(model, autocast=fabric.autocast))
    return _Price(step / tokens, evaluation / tokens)


def _fastest(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few calls."""
    times: list[float] = []
    while len(times) < _CALLS and sum(times) < _ENOUGH_S:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
