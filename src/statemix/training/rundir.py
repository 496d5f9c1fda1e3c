"""The folder of a run: what is in it, who may write to it, and how it is read back."""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from statemix import provenance
from statemix.files import naming
from statemix.models import SyntheticModel
from statemix.tasks import Task
from statemix.training.checkpoint import tensor_bytes, write_file
from statemix.training.config import RunConfig, load_config
from statemix.training.evaluation import Scores

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
_LOCK = ".lock"

Weights = Literal["last", "best_validation", "best_test"]
_WEIGHT_FILES: dict[Weights, str] = {
    "last": "model.safetensors",
    "best_validation": "best_validation.safetensors",
    "best_test": "best_test.safetensors",
}


@dataclass(frozen=True)
class Selection:
    """One moment of a run and its scores.

    Attributes:
        step: optimiser steps made.
        epoch: epochs made; None on fresh examples.
        validation: scores on the validation split.
        test: scores on the test split by length in tokens.
    """

    step: int
    epoch: int | None
    validation: Scores
    test: dict[int, Scores]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: lengths are strings there."""
        stored = dataclasses.asdict(self)
        return stored | {"test": {str(length): row for length, row in stored["test"].items()}}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Selection":
        """The inverse of :meth:`to_dict`."""
        return cls(
            step=stored["step"],
            epoch=stored["epoch"],
            validation=Scores(**stored["validation"]),
            test={int(length): Scores(**row) for length, row in stored["test"].items()},
        )


@dataclass(frozen=True)
class Outcome:
    """What a finished run found.

    Attributes:
        folder: the run's folder.
        config: its whole configuration.
        last: scores at the end, the only ones at the further lengths.
        best_test: the first evaluation with the highest test token accuracy. It is selected on the
            test set, as the papers do.
        test_at_best_validation: the first evaluation with the highest validation token accuracy,
            the honest choice.
        num_parameters: trained parameters of the model.
        time_s: seconds of training and evaluation, interruptions left out.
    """

    folder: Path
    config: RunConfig
    last: Selection
    best_test: Selection
    test_at_best_validation: Selection
    num_parameters: int
    time_s: float


_SELECTIONS = ("last", "best_test", "test_at_best_validation")


@contextlib.contextmanager
def claimed(folder: Path, config: RunConfig) -> Iterator[RunConfig]:
    """Hold a run's folder for writing; make it if it is not there.

    Args:
        folder: the run's folder.
        config: what to run. Threads that it leaves open are those of the run in the folder.

    Yields:
        The run's whole configuration.

    Raises:
        ValueError: if the folder holds another run or something else, is in use, or cannot be
            written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("a")
    except OSError as error:
        raise ValueError(f"folder must be writable, got {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"folder must not be in use, got {folder}, where another process trains"
            ) from error
        yield _settle(folder, config.resolved(), threads_open=config.num_threads is None)


def _settle(folder: Path, config: RunConfig, *, threads_open: bool) -> RunConfig:
    path = folder / CONFIG
    if not path.exists():
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.name != _LOCK)
        # A run that was killed before its configuration was whole leaves these behind.
        begun = (ENVIRONMENT, f"{ENVIRONMENT}.tmp", f"{CONFIG}.tmp")
        strangers = [name for name in strangers if name not in begun]
        if strangers:
            raise ValueError(
                f"folder must be empty or hold a run, got {folder} with {strangers[0]!r}"
            )
        environment = json.dumps(describe_environment(config), indent=2) + "\n"
        write_file(folder / ENVIRONMENT, environment.encode())
        write_file(path, config.to_json().encode())
        return config
    stored = load_config(path)
    if threads_open:
        config = dataclasses.replace(config, num_threads=stored.num_threads)
    for field in dataclasses.fields(RunConfig):
        ours, theirs = getattr(config, field.name), getattr(stored, field.name)
        if ours != theirs:
            raise ValueError(
                f"folder must hold a run of the same configuration, got {folder} with "
                f"{field.name}={theirs!r}, not {ours!r}; choose another folder"
            )
    return stored


def describe_environment(config: RunConfig) -> dict[str, Any]:
    """What else a result depends on: versions, machine, threads, commit."""
    return {
        **provenance.describe(),
        "num_threads": config.num_threads,
        "device": torch.cuda.get_device_name() if config.device == "cuda" else "cpu",
    }


def build_model(config: RunConfig, task: Task) -> SyntheticModel:
    """The network of a run, with its initial weights."""
    return SyntheticModel(
        task.vocab_size,
        task.num_classes,
        config.hidden_size,
        config.layer,
        config.layer_options,
        num_layers=config.num_layers,
        bos=config.bos,
        residual=config.residual,
        norm=config.norm,
        channel_mixer=config.channel_mixer,
        seed=config.seed,
    )


def save_weights(folder: Path, weights: Weights, tensors: dict[str, Tensor]) -> None:
    """Write one of the weight files of a finished run."""
    write_file(folder / _WEIGHT_FILES[weights], tensor_bytes(tensors))


def load_model(folder: Path | str, weights: Weights = "last") -> SyntheticModel:
    """Load the network of a finished run, on the CPU, in evaluation mode.

    Args:
        folder: the run's folder.
        weights: "last", "best_validation" or "best_test".

    Raises:
        ValueError: if the folder holds no finished run or its files are damaged.
    """
    folder = Path(folder)
    if weights not in _WEIGHT_FILES:
        raise ValueError(f"weights must be one of {list(_WEIGHT_FILES)}, got {weights!r}")
    config = load_outcome(folder).config
    path = folder / _WEIGHT_FILES[weights]
    model = build_model(config, config.build_task())
    if config.precision == "64-true":
        model.double()
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} must hold the run's weights, got: {reason}") from error
    return model.eval()


def load_outcome(folder: Path | str) -> Outcome:
    """Read what a finished run found.

    Raises:
        ValueError: if the folder holds no run, an unfinished one, or damaged files.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"folder must hold a run, got {folder} without {CONFIG}")
    config = load_config(folder / CONFIG)
    path = folder / SUMMARY
    if not path.is_file():
        raise ValueError(
            f"folder must hold a finished run, got {folder} without {SUMMARY}; "
            "train it again into the same folder to resume it"
        )
    try:
        stored = json.loads(path.read_text())
        selections = {name: Selection.from_dict(stored[name]) for name in _SELECTIONS}
        return Outcome(
            folder, config, **selections,
            num_parameters=stored["num_parameters"], time_s=stored["time_s"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must hold a run's summary, got: {error!r}") from error


def save_outcome(outcome: Outcome) -> None:
    """Write the summary, which marks the run as finished."""
    stored = {name: getattr(outcome, name).to_dict() for name in _SELECTIONS}
    stored |= {"num_parameters": outcome.num_parameters, "time_s": outcome.time_s}
    write_file(outcome.folder / SUMMARY, (json.dumps(stored, indent=2) + "\n").encode())


class MetricsFile:
    """The rows of a run as they come, one JSON object a line."""

    def __init__(self, path: Path, size: int, report: Callable[[str], None]) -> None:
        """Open for appending after the first ``size`` bytes; what follows them is made again."""
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise ValueError(
                f"{path} must have at least {size} bytes, as when the checkpoint was saved, "
                f"got {found}"
            )
        if found > size:
            report(f"{path.name}: rows after the checkpoint are made again")
        self._path = path
        self._file = path.open("ab")
        self._file.truncate(size)
        # Truncating does not move the position, which opening put at the old end.
        self._file.seek(0, os.SEEK_END)

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; it survives the process from here on."""
        with naming(self._path):
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()

    def sync(self) -> int:
        """Bring all rows to the disk and return their size in bytes."""
        with naming(self._path):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        with naming(self._path):
            # What could not be written before is tried once more.
            self._file.close()
