"""Training: the trainer, its configuration, and runs that survive interruption."""

from statemix.training.config import (
    AttributeSchedule,
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    ParameterGroup,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    SearchConfig,
    config_from_plain,
)
from statemix.training.evaluation import Scores, accuracy, evaluate
from statemix.training.loop import Event, Hook
from statemix.training.outcome import (
    Fitted,
    Outcome,
    Selection,
    load_config,
    load_model,
    load_outcome,
)
from statemix.training.run import fit, train

__all__ = [
    "AttributeSchedule", "BatchConfig", "EvaluationConfig", "Event", "Fitted", "Hook",
    "ModelConfig", "ObjectiveConfig", "OptimizerConfig", "Outcome", "ParameterGroup", "RunConfig",
    "RuntimeConfig", "ScheduleConfig", "Scores", "SearchConfig", "Selection", "accuracy",
    "config_from_plain", "evaluate", "fit", "load_config", "load_model", "load_outcome", "train",
]  # fmt: skip
