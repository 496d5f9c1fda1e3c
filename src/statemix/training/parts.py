"""The parts of a run, built from its configuration: network, trainer and evaluators."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from statemix.errors import RequestError
from statemix.models import MODELS, ReadoutModel
from statemix.settings import built
from statemix.tasks import Task
from statemix.training.batches import TaskBatches
from statemix.training.config import RunConfig
from statemix.training.evaluation import SplitEvaluator, sequences_at
from statemix.training.objective import Losses, Objective
from statemix.training.search import seed_of
from statemix.training.trainer import Trainer

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def build_model(config: RunConfig, task: Task, attempt: int = 0) -> ReadoutModel:
    """Build the network of a run, with its initial weights.

    Args:
        config: the run.
        task: its task.
        attempt: number of the attempt whose weights these are (:mod:`statemix.training.search`).

    Raises:
        RequestError: if an option of a layer or a mixer is out of range or has the wrong type.
    """
    model = config.model
    network: ReadoutModel = built(
        "model",
        MODELS[model.backbone],
        task.vocab_size,
        task.heads,
        model.hidden_size,
        model.stack(),
        bos=model.bos,
        residual=model.residual,
        norm=model.norm,
        channel_mixer=model.channel_mixer,
        zero_biases=model.zero_biases,
        linear_init=model.linear_init,
        seed=seed_of(config.seed, attempt),
    )
    return network


def model_with(tensors: dict[str, Tensor], config: RunConfig, file: Path) -> ReadoutModel:
    """Build the network of a run with given weights, on the CPU, in evaluation mode.

    Args:
        tensors: name -> weights.
        config: whole configuration of the run.
        file: where the weights come from, for the message.

    Raises:
        RequestError: if the weights do not fit the network.
    """
    model = build_model(config, config.build_task())
    if config.runtime.precision == "64-true":
        model.double()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{file} must fit the run's network: {reason}") from error
    return model.eval()


def build_trainer(
    config: RunConfig,
    task: Task,
    model: ReadoutModel,
    fabric: "Fabric",
    objective: Objective | None = None,
) -> Trainer:
    """Build the trainer of a run with a resolved configuration.

    Args:
        config: the configuration.
        task: the run's task.
        model: the run's model.
        fabric: device and precision.
        objective: the run's losses; None builds them.

    Raises:
        SettingError: if a schedule, a parameter group or a penalty does not fit the model.
    """
    batches = TaskBatches(
        task, config.batches, config.schedules, seed=config.seed, device=fabric.device
    )
    return Trainer(
        model,
        batches,
        objective or Losses(config.objective, model, task.length),
        optimizer=config.optimizer,
        schedules=config.schedules,
        fabric=fabric,
        seed=config.seed,
    )


class Evaluators:
    """What a run evaluates.

    Attributes:
        validation: evaluator of the validation split.
        test: evaluator of the test split.
        test_at: length in tokens -> evaluator of test sequences.
        validation_at: length in tokens -> evaluator of validation sequences.
        attempt: evaluator of the validation sequences that test an attempt; None without a search.

    Raises:
        RequestError: if the task cannot make sequences of a length.
    """

    def __init__(
        self, config: RunConfig, task: Task, fabric: "Fabric", tick: Callable[[], None]
    ) -> None:
        self._config, self._task, self._fabric, self._tick = config, task, fabric, tick
        asked = config.evaluation
        self.validation = self._evaluator(
            "validation", "evaluation.validation_size", asked.validation_size
        )
        self.test = self._evaluator("test", "evaluation.test_size", asked.test_size)
        self.test_at = {
            length: self._at("test", "lengths", length, asked.test_size) for length in asked.lengths
        }
        self.validation_at = {
            length: self._at("validation", "validation_lengths", length, asked.validation_size)
            for length in asked.validation_lengths
        }
        search = config.search
        self.attempt = (
            None
            if search.attempts is None
            else self._evaluator(
                "validation",
                "search.size" if search.length is None else "search.length",
                search.size,
                search.length,
            )
        )

    def _evaluator(
        self,
        split: Literal["validation", "test"],
        setting: str,
        count: int,
        length: int | None = None,
    ) -> SplitEvaluator:
        evaluator: SplitEvaluator = built(
            setting,
            SplitEvaluator,
            self._task,
            split,
            count,
            length,
            batch_size=self._config.batches.size,
            autocast=self._fabric.autocast,
            tick=self._tick,
        )
        return evaluator

    def _at(
        self, split: Literal["validation", "test"], named: str, length: int, at_most: int
    ) -> SplitEvaluator:
        count = sequences_at(length, at_most=at_most, tokens=self._config.evaluation.tokens)
        return self._evaluator(split, f"evaluation.{named}", count, length)
