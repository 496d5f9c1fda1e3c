"""The scores of a run under way: the last ones, and the best with their weights."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor, nn

from statemix.training.evaluation import accuracy
from statemix.training.outcome import Selection

Best = Literal["best_test", "best_validation"]
BEST: tuple[Best, ...] = get_args(Best)


class Selections:
    """Selections of a run so far.

    Args:
        length: training length, at which the test accuracy counts.

    Attributes:
        found: "last", "best_test" and "best_validation" -> the selection; empty at the beginning.
        weights: "best_test" and "best_validation" -> the weights of that time.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self.found: dict[str, Selection] = {}
        self.weights: dict[str, dict[str, Tensor]] = {}

    def note(self, now: Selection, model: nn.Module) -> None:
        """Take note of an evaluation, and keep the weights if they are the best so far."""
        self.found["last"] = now
        for name in BEST:
            best = self.found.get(name)
            # Of equal accuracies, the first one counts.
            if best is None or self._criterion(name, now) > self._criterion(name, best):
                self.found[name] = now
                self.weights[name] = {
                    key: tensor.detach().clone() for key, tensor in model.state_dict().items()
                }

    def _criterion(self, name: Best, selection: Selection) -> float:
        if name == "best_test":
            return accuracy(selection.test[self._length])
        return accuracy(selection.validation)

    def forget(self) -> None:
        """Begin anew: weights that have failed an attempt are not the run's."""
        self.found, self.weights = {}, {}

    def to_plain(self) -> dict[str, Any]:
        """Return the selections without their weights, as plain data."""
        return {name: found.to_plain() for name, found in self.found.items()}

    def restore(self, stored: dict[str, Any], tensors: Mapping[str, dict[str, Tensor]]) -> None:
        """Restore the result of :meth:`to_plain` and :attr:`weights`."""
        self.found = {name: Selection.from_plain(one) for name, one in stored.items()}
        self.weights = {name: tensors[name] for name in BEST if name in tensors}
