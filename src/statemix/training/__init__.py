"""Training of synthetic tasks: one loop, its configuration, and runs that survive interruption."""

from statemix.training.config import Options, RunConfig, load_config
from statemix.training.evaluation import Scores, evaluate
from statemix.training.events import Event
from statemix.training.grid import best_by_validation, grid
from statemix.training.loop import train
from statemix.training.rundir import Outcome, Selection, load_model, load_outcome

__all__ = [
    "Event",
    "Options",
    "Outcome",
    "RunConfig",
    "Scores",
    "Selection",
    "best_by_validation",
    "evaluate",
    "grid",
    "load_config",
    "load_model",
    "load_outcome",
    "train",
]
