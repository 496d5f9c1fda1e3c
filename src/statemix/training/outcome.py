"""The scores and the network of a finished run."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from statemix.errors import ABSENT, RequestError, SettingError
from statemix.memory import is_shortage
from statemix.models import ReadoutModel
from statemix.training import folder as runs
from statemix.training.attempts import Attempt
from statemix.training.checkpoint import remove_checkpoints
from statemix.training.config import SCHEMA, RunConfig, config_from_plain
from statemix.training.devices import whole_tensor
from statemix.training.evaluation import HeadScores, accuracy
from statemix.training.loop import Event, Loop, Row
from statemix.training.schedules import restore_attributes
from statemix.training.settings import checked

Weights = Literal["last", "best_validation", "best_test"]
_MOMENTS: dict[Weights, str] = {
    "last": "last",
    "best_validation": "test_at_best_validation",
    "best_test": "best_test",
}
WEIGHT_FILES: dict[Weights, str] = {
    "last": "model.safetensors",
    "best_validation": "best_validation.safetensors",
    "best_test": "best_test.safetensors",
}


@dataclass(frozen=True)
class Selection:
    """The scores of a run at one step.

    Attributes:
        step: optimiser steps done.
        epoch: epochs done; None on fresh examples.
        attributes: values of the scheduled attributes, by module: "module.attribute" -> value.
        validation: scores on the validation split.
        test: scores on the test split by length in tokens.
    """

    step: int
    epoch: int | None
    attributes: dict[str, float]
    validation: Annotated[HeadScores, MinLen(1)]
    test: Annotated[dict[int, Annotated[HeadScores, MinLen(1)]], MinLen(1)]

    @property
    def validation_accuracy(self) -> float:
        """Token accuracy on the validation split, the mean over heads."""
        return accuracy(self.validation)


@dataclass(frozen=True)
class _Summary:
    last: Selection
    best_test: Selection
    test_at_best_validation: Selection
    num_parameters: int
    time_s: float
    weights: dict[str, str]
    # Absent in runs of older versions.
    cpu_s: float | None = None
    attempts: tuple[Attempt, ...] = ()


# Building it takes longer than reading a summary.
@cache
def _summary_adapter() -> TypeAdapter[_Summary]:
    return TypeAdapter(_Summary)


@dataclass(frozen=True, kw_only=True)
class Outcome(_Summary):
    """The result of a finished run.

    Attributes:
        folder: folder of the run.
        config: whole configuration of the run.
        last: scores at the end; only these include the further lengths.
        best_test: scores of the first evaluation with the highest test accuracy. Like the papers,
            this selects on the test set.
        test_at_best_validation: scores of the first evaluation with the highest validation
            accuracy, the honest choice.
        attempts: attempts from new weights; empty if no search was asked for.
        num_parameters: number of trained parameters.
        time_s: seconds of training and evaluation, without interruptions.
        cpu_s: seconds of all processor cores in this time; None in runs of older versions.
        weights: file of weights -> its SHA-256.
    """

    folder: Path
    config: RunConfig


@dataclass(frozen=True)
class Fitted:
    """What :func:`statemix.training.fit` returns.

    Attributes:
        folder: folder of the run.
        last: last row of the metrics: "step", the numbers of ``evaluate``, and the means of losses.
        best: first row with the best criterion; the last row without a criterion.
        time_s: seconds of training and evaluation, without interruptions.
    """

    folder: Path
    last: Row
    best: Row
    time_s: float


def load_fitted(model: nn.Module, folder: Path) -> Fitted:
    """Read the result of a finished run, and give a model its last weights."""
    summary = runs.read_summary(folder)
    file = "model.safetensors"
    weights = runs.load_weights(folder, file, summary["weights"].get(file, ""))
    try:
        model.load_state_dict(weights)
        last = summary["last"]
        best = summary.get("best", last)
        for row in map(partial(checked, dict[str, Any]), (last, best), ("last", "best")):
            checked(int, row["step"], "step")
            checked(dict[str, float | None], row.get("scores", {}), "scores")
        return Fitted(folder, last, best, checked(float, summary["time_s"], "time_s"))
    except (KeyError, RuntimeError, SettingError) as error:
        if is_shortage(error):
            raise
        raise RequestError(f"{folder} must hold a run of this model, got: {error!r}") from error


def save_outcome(loop: Loop, folder: Path) -> None:
    """Write the weights and the summary of a run, which mark it as done.

    Sharded tensors are gathered one by one, and only the first process keeps them, in its main
    memory and for one file at a time.
    """
    summary: dict[str, Any] = {}
    for hook in loop.hooks:
        summary |= hook.summary(loop)
    hashes: dict[str, str] = {}
    for name, group in loop.tensors().items():
        whole = {}
        for key, tensor in group.items():
            gathered = whole_tensor(tensor)
            if loop.ranks.is_first:
                whole[key] = gathered.cpu()
        file = f"{name}.safetensors"
        hashes[file] = loop.ranks.on_first(partial(runs.save_weights, folder, file, whole))
    state = loop.state_dict()
    summary |= {name: getattr(loop, name) for name in ("num_parameters", "time_s", "cpu_s")}

    def finish() -> None:
        runs.write_summary(folder, {**summary, "weights": hashes}, state)
        remove_checkpoints(folder / runs.CHECKPOINTS)

    loop.ranks.on_first(finish)
    loop.emit("finished", f"finished at step {loop.step}: {folder}")


def load_outcome(folder: Path | str) -> Outcome:
    """Read the result of a finished run."""
    folder = Path(folder)
    config = load_config(folder)
    stored = runs.read_summary(folder)
    try:
        # As JSON, where the names of lengths are strings.
        summary = _summary_adapter().validate_json(json.dumps(stored), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        text = f"{folder / runs.SUMMARY} must hold a run's summary, got: {reason}"
        raise RequestError(text) from error
    return Outcome(folder=folder, config=config, **vars(summary))


def clear_leftovers(folder: Path, step: int, on_event: Callable[[Event], None] | None) -> None:
    """Remove what a finished run that was killed after its summary has left; report its end."""
    remove_checkpoints(folder / runs.CHECKPOINTS)
    # A folder that only others may write needs no tidying.
    with contextlib.suppress(OSError):
        runs.write_status(folder, "done")
    if on_event is not None:
        on_event(Event("finished", step, step, text=f"{folder} holds this run, finished"))


def load_config(folder: Path | str) -> RunConfig:
    """Read the whole configuration of a run."""
    return config_from_stored(Path(folder), _stored(Path(folder)))


def config_from_stored(folder: Path, stored: runs.StoredConfig) -> RunConfig:
    """Build the whole configuration of a run from what its folder holds."""
    runs.check_imported(folder / runs.CONFIG, stored.resolved.get("imports"))
    try:
        config = config_from_plain(stored.resolved)
        for name, value in (
            ("schedules.epochs", config.schedules.epochs or config.schedules.num_steps),
            ("evaluation.every", config.evaluation.every),
            ("runtime.num_threads", config.runtime.num_threads),
        ):
            if value is None:
                raise SettingError(name, "must be given", ABSENT)
    except RequestError as error:
        raise RequestError(f"{folder / runs.CONFIG}: {error}") from error
    return config


def load_asked(folder: Path | str) -> RunConfig:
    """Read the request of a run, with everything else left to defaults."""
    asked = _stored(Path(folder)).asked
    runs.check_imported(Path(folder) / runs.CONFIG, asked.get("imports"))
    return config_from_plain(asked)


def _stored(folder: Path) -> runs.StoredConfig:
    stored = runs.stored_config(folder, SCHEMA)
    if stored is None:
        raise runs.missing_run(folder)
    if "fit" in stored.asked:
        raise RequestError(
            f"{folder} must hold a run of a task, got a run of `fit` or of a language model "
            "(statemix lm evaluate scores language models)"
        )
    return stored


def model_with(tensors: dict[str, Tensor], config: RunConfig, file: Path) -> ReadoutModel:
    """Build the network of a run with the weights of a file, on the CPU, in evaluation mode."""
    model = config.build_model(config.build_task())
    if config.runtime.precision == "64-true":
        model.double()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise RequestError(f"{file} must fit the run's network: {reason}") from error
    return model.eval()


def load_model(folder: Path | str, weights: Weights = "last") -> ReadoutModel:
    """Load the network of a finished run, on the CPU, in evaluation mode."""
    folder = Path(folder)
    if weights not in WEIGHT_FILES:
        raise RequestError(f"weights must be one of {list(WEIGHT_FILES)}, got {weights!r}")
    outcome = load_outcome(folder)
    file = WEIGHT_FILES[weights]
    tensors = runs.load_weights(folder, file, outcome.weights.get(file, ""))
    model = model_with(tensors, outcome.config, folder / file)
    # Attributes that are not weights would otherwise keep their initial values.
    selection: Selection = getattr(outcome, _MOMENTS[weights])
    try:
        restore_attributes(model, selection.attributes)
    except (ValueError, TypeError, AttributeError) as error:
        path = folder / runs.SUMMARY
        raise RequestError(f"{path} must hold attributes of the network: {error}") from error
    return model


def load_weights_of(model: ReadoutModel, source: Path) -> None:
    """Give a model the last weights of a finished run."""
    file = WEIGHT_FILES["last"]
    try:
        sha256 = runs.read_summary(source)["weights"].get(file, "")
        model.load_state_dict(runs.load_weights(source, file, sha256))
    except (RequestError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        condition = f"must be a finished run with weights of this network ({reason})"
        raise SettingError("start_from", condition, str(source)) from error
