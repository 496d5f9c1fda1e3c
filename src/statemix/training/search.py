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
        ended: steps done when the schedules began, or when it had failed; None if it goes on.
        accuracy: token accuracy in its last test before the schedules; None without a test.
        passed: whether it has passed all its tests so far.
        confirmed: token accuracy in the test after the schedules; None without it.
    """

    began: int
    left: int | None = None
    ended: int | None = None
    accuracy: float | None = None
    passed: bool = False
    confirmed: float | None = None


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

    def most_steps(self, scheduled: int) -> int:
        """Return the steps after which the last schedules begin, however the search goes.

        Args:
            scheduled: steps of the schedules.
        """
        attempts = self._config.attempts or 0
        each = self._config.max_steps + self._config.every * self._config.tests
        again = 0 if self._config.confirm is None else scheduled * (attempts - 1)
        return attempts * each + again

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
        """Steps done when the schedules began; None while the search goes on."""
        if not self.attempts:
            return 0
        last = self.attempts[-1]
        return last.ended if last.passed or self._is_last else None

    @property
    def _is_last(self) -> bool:
        return len(self.attempts) == self._config.attempts

    @property
    def unconfirmed(self) -> bool:
        """Return whether the attempt is to be tested when the schedules have ended."""
        asked = self._config.confirm is not None and self.attempts[-1].passed
        return asked and self.attempts[-1].confirmed is None

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

    def confirm(self, step: int, accuracy: float) -> None:
        """Take note of the test after the schedules, when ``step`` steps are done."""
        assert self._config.confirm is not None
        self._change(confirmed=accuracy)
        if accuracy < self._config.confirm:
            self._fail(step)

    def gives_up(self, step: int) -> bool:
        """Return whether the attempt has failed because it diverged, and another one is left."""
        if self._is_last or (self.origin is not None and self._config.confirm is None):
            return False
        self._fail(step)
        return True

    def _fail(self, step: int) -> None:
        # After the last attempt nothing begins anew, so its schedules stay where they are.
        self._change(passed=False, ended=self.origin if self._is_last else step)

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
