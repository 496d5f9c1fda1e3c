"""Runs of a study that ``statemix train`` cannot make, such as language models."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from statemix.training import Event, RunConfig


class StudyRun(ABC):
    """What a run is asked to be, and how it is trained. It is pickled for worker processes."""

    seed: int
    num_threads: int | None

    @abstractmethod
    def asked(self) -> dict[str, Any]:
        """Return the request as JSON data, which identifies the run."""

    @abstractmethod
    def train(
        self, folder: Path, on_event: Callable[[Event], None], checkpoint_every_s: float | None
    ) -> None:
        """Train or resume the run in its folder; raise what :func:`statemix.training.fit` does."""

    @abstractmethod
    def seconds(self) -> float | None:
        """Return the predicted seconds of the run on this machine; None if they are not known."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return "layers" and "task" of its row in a results store."""

    @abstractmethod
    def results(self, folder: Path) -> dict[str, Any]:
        """Return what the row of a finished run holds further."""

    @abstractmethod
    def ending(self, folder: Path) -> str:
        """Say in a few words what a finished run has achieved."""


Runnable = RunConfig | StudyRun
"""What a job trains."""


def configured(run: Runnable) -> RunConfig:
    """Return a run of a study whose runs are all those of ``statemix train``."""
    assert isinstance(run, RunConfig)
    return run
