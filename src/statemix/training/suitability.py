"""Which tasks suit the backbone of a model."""

import numpy as np

from statemix.errors import SettingError
from statemix.tasks import IGNORED, Task
from statemix.tasks.addressing import SPLITS
from statemix.training.config import RunConfig

# Examples of each split that show whether a task scores every position.
_TRIED = 32


def check_backbone(config: RunConfig, task: Task) -> None:
    """Check that the backbone suits the task: an autoencoder rebuilds every position.

    Raises:
        SettingError: if the model is an autoencoder, and some positions of the task have no target.
    """
    if config.model.backbone != "autoencoder":
        return
    sizes = {
        "train": task.train_size or _TRIED,
        "validation": config.evaluation.validation_size,
        "test": config.evaluation.test_size,
    }
    for split in SPLITS:
        tokens, targets, lengths = task.examples(split, 0, min(sizes[split], _TRIED))
        present = np.ones_like(tokens, dtype=np.bool_)
        if lengths is not None:
            present = np.arange(tokens.shape[1]) < lengths[:, None]
        if any((classes[present] == IGNORED).any() for classes in targets.values()):
            condition = f"must be 'causal' for a task that leaves positions unscored ({task.name})"
            raise SettingError("model.backbone", condition, config.model.backbone)
