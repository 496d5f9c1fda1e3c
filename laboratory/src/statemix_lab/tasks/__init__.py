"""Tasks of single studies and demos."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from statemix.tasks.addressing import Split
from statemix.tasks.task_bases import PlacesTask


def example_picture(
    task: PlacesTask,
    index: int,
    split: Split,
    *,
    unit: str,
    per_line: int,
    picture: Callable[[NDArray[np.int64]], str],
) -> str:
    """Return an example as text: its tokens, and a picture of the contents after the last."""
    tokens, targets, _ = task.examples(split, index, index + 1)
    words = [task.word(token) for token in tokens[0].tolist()]
    lines = [f"{split} example {index} of {task.title}, {task.length} {unit}"]
    lines += ["  " + " ".join(words[n : n + per_line]) for n in range(0, len(words), per_line)]
    last = picture(np.array([classes[0, -1] for classes in targets.values()]))
    return "\n".join(lines + ["  " + line for line in last.splitlines()])
