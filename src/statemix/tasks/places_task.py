"""Common part of the tasks with a head for each place: objects, chess and the cube."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from statemix.tasks import addressing
from statemix.tasks.drawn import DrawnTask
from statemix.tasks.task import Examples


class PlacesTask(DrawnTask):
    """A drawn task that asks for the content of each of the first places after every token."""

    @property
    def num_classes(self) -> int:
        """Largest number of classes of a head."""
        return max(self.heads.values())

    @property
    def guessing(self) -> float:
        return 1 / self.num_classes

    @property
    def chance(self) -> dict[str, float]:
        return {head: 1 / classes for head, classes in self.heads.items()}

    def _labelled(self, tokens: NDArray[np.int64], contents: NDArray[np.int64]) -> Examples:
        """Return examples from tokens, shape (N, T), and contents, shape (N, T, places)."""
        targets = {
            head: np.ascontiguousarray(contents[..., place])
            for place, head in enumerate(self.heads)
        }
        return Examples(tokens, targets)

    def _pictured(
        self,
        index: int,
        split: addressing.Split,
        *,
        unit: str,
        per_line: int,
        picture: Callable[[NDArray[np.int64]], str],
    ) -> str:
        """Return an example as text: its tokens, and a picture of the contents after the last."""
        tokens, targets, _ = self.examples(split, index, index + 1)
        words = [self.word(token) for token in tokens[0].tolist()]
        lines = [f"{split} example {index} of {self.title}, {self.length} {unit}"]
        lines += ["  " + " ".join(words[n : n + per_line]) for n in range(0, len(words), per_line)]
        last = picture(np.array([classes[0, -1] for classes in targets.values()]))
        return "\n".join(lines + ["  " + line for line in last.splitlines()])
