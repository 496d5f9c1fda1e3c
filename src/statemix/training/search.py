"""Attempts from new weights until one passes a test."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from statemix.training.config import SearchConfig

# Decay per step of the moving average of the loss.
_DECAY = 0.97


@dataclass(frozen=True)
class Attempt:
    """Training from new weights, up to the test that has passed it or failed it.

    Attributes:
        began: steps done before it.
        left: steps done when its loss had left the plateau; None if it has not.
        ended: steps done at its last test, or when it was given up; None if it goes on.
        accuracy: token accuracy in its last test; None without a test.
        passed: whether that was enough.
    """

    began: int
    left: int | None = None
    ended: int | None = None
    accuracy: float | None = None
    passed: bool = False


class Search:
    """Attempts one after another. Steps are counted from the first attempt's beginning.

    Attributes:
        attempts: the attempts so far; empty if none is asked for.
    """

    def __init__(self, config: SearchConfig) -> None:
        self._config = config
        self.attempts = [] if config.attempts is None else [Attempt(0)]
        # Of this attempt's losses: the first one, and their moving average.
        self._first = self._average = 0.0

    @property
    def most_steps(self) -> int:
        """Steps after which the search has ended, however it goes."""
        each = self._config.max_steps + self._config.every * self._config.tests
        return (self._config.attempts or 0) * each

    @property
    def began(self) -> int:
        """Steps done when the present weights were new."""
        return self.attempts[-1].began if self.attempts else 0

    @property
    def on_plateau(self) -> bool:
        """Return whether the attempt's loss has yet to leave its plateau."""
        return self.origin is None and self.attempts[-1].left is None

    @property
    def origin(self) -> int | None:
        """Steps done when the search ended, which is where schedules begin; None before."""
        if not self.attempts:
            return 0
        last = self.attempts[-1]
        over = last.passed or len(self.attempts) == self._config.attempts
        return last.ended if over else None

    def saw(self, step: int, loss: float) -> None:
        """Take note of the loss of a step, when ``step`` steps are done."""
        if self.origin is not None:
            return
        now = self.attempts[-1]
        if step == now.began + 1:
            self._first = self._average = loss
        self._average = _DECAY * self._average + (1 - _DECAY) * loss
        if now.left is None and self._average < self._config.plateau * self._first:
            self._change(left=step)

    def due(self, step: int) -> bool:
        """Return whether the attempt is to be tested after ``step`` steps."""
        if self.origin is not None or step == 0:
            return False
        now = self.attempts[-1]
        if now.left is None:
            return step - now.began >= self._config.max_steps
        return step > now.left and (step - now.left) % self._config.every == 0

    def judge(self, step: int, accuracy: float) -> None:
        """Take note of a test; the attempt that fails its last one has ended."""
        now = self.attempts[-1]
        last = now.left is None or step - now.left >= self._config.every * self._config.tests
        passed = accuracy >= (self._config.accept_last if last else self._config.accept)
        self._change(accuracy=accuracy, passed=passed, ended=step if last or passed else None)

    def gives_up(self, step: int) -> bool:
        """Return whether the attempt has ended because it diverged, and another one is left."""
        if self.origin is not None or len(self.attempts) == self._config.attempts:
            return False
        self._change(ended=step)
        return True

    def restart(self, step: int) -> None:
        """Begin the next attempt."""
        self.attempts.append(Attempt(step))

    def _change(self, **changes: Any) -> None:
        self.attempts[-1] = dataclasses.replace(self.attempts[-1], **changes)

    def to_plain(self) -> dict[str, Any]:
        """Return everything that changes with the steps, as plain data."""
        attempts = [dataclasses.asdict(attempt) for attempt in self.attempts]
        return {"attempts": attempts, "first": self._first, "average": self._average}

    def restore(self, stored: dict[str, Any]) -> None:
        """Undo :meth:`to_plain`."""
        self.attempts = [Attempt(**attempt) for attempt in stored["attempts"]]
        self._first, self._average = stored["first"], stored["average"]


def seed_of(seed: int, attempt: int) -> int:
    """Return the seed of an attempt's weights: the run's own for the first one."""
    if attempt == 0:
        return seed
    return int(np.random.SeedSequence([seed, attempt]).generate_state(1, np.uint64)[0] >> 1)
