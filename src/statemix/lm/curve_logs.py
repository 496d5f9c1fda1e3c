"""Curves of language training in TensorBoard and in Weights & Biases."""

import importlib.util
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statemix.errors import RequestError
from statemix.training.checkpoint import TensorFiles
from statemix.training.hooks import Event, Hook
from statemix.training.loop import Loop


class CurveLog(Hook):
    """A hook that logs the numbers of the events of a run."""

    changes_results = False

    def note(self, event: Event) -> None:
        """Log the numbers of an event; called after :meth:`on_start`."""
        raise NotImplementedError

    def on_stop(self, loop: Loop) -> None:
        self.on_end(loop)


class TensorBoardCurves(CurveLog):
    """Writes the curves for TensorBoard into a folder; a resumed run has each point once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def on_start(self, loop: Loop) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=loop.step + 1)

    def note(self, event: Event) -> None:
        for name, value in curve_points(event).items():
            self._writer.add_scalar(name, value, event.step)

    def state_dict(self) -> dict[str, Any]:
        # Points before a checkpoint are not logged again.
        if self._writer is not None:
            self._writer.flush()
        return {}

    def on_end(self, loop: Loop) -> None:
        del loop
        if self._writer is not None:
            self._writer.close()


class WandbCurves(CurveLog):
    """Logs the curves of a run's folder to Weights & Biases; a resumed run continues them there."""

    def __init__(self, project: str, folder: Path) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise RequestError("wandb must be installed: pip install wandb")
        self._project, self._folder = project, folder
        self._id = uuid.uuid4().hex
        self._run: Any = None

    def on_start(self, loop: Loop) -> None:
        del loop
        import wandb

        names = {"project": self._project, "id": self._id, "name": self._folder.name}
        try:
            self._run = wandb.init(**names, dir=str(self._folder), resume="allow")
        except wandb.Error as error:
            raise RequestError(f"wandb cannot open {self._project!r}: {error}") from error

    def note(self, event: Event) -> None:
        points = curve_points(event)
        # The points after a checkpoint are there already when a run resumes from it.
        if points and event.step >= self._run.step:
            self._run.log(points, step=event.step)

    def state_dict(self) -> dict[str, Any]:
        return {"wandb_run": self._id}

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:
        del tensors
        self._id = state.get("wandb_run", self._id)

    def on_end(self, loop: Loop) -> None:
        del loop
        if self._run is not None:
            self._run.finish()


def curve_points(event: Event) -> dict[str, float]:
    """Return the numbers of an event by the names of their curves; {} if it has none."""
    if event.kind == "step" and event.loss is not None:
        return {"train/loss": event.loss}
    if event.kind != "evaluated" or event.row is None:
        return {}
    points = {f"held_out/{name}": value for name, value in event.row["scores"].items()}
    for name in ("learning_rate", "tokens_per_s", "utilisation"):
        points[f"training/{name}"] = event.row[name]
    return points
