"""The step line of a language model in training: loss, speed, utilisation and time left."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from statemix.training.batches import Batches
from statemix.training.hooks import Event, Hook
from statemix.training.loop import Loop

# Steps whose mean speed the line shows.
_RECENT = 20


class TimedBatches:
    """Batches that measure how long they are waited for.

    Args:
        batches: the batches.

    Attributes:
        num_steps: as of the batches.
        steps_per_epoch: as of the batches.
        step: last step that asked for its batches.
        began: time at which it asked.
        wait_s: seconds that the batches took.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.num_steps, self.steps_per_epoch = batches.num_steps, batches.steps_per_epoch
        self.step, self.began, self.wait_s = 0, 0.0, 0.0

    def parts(self, step: int) -> Sequence[Any]:
        """Return the batches of a step."""
        self.step, self.began = step, time.monotonic()
        parts = self._batches.parts(step)
        self.wait_s = time.monotonic() - self.began
        return parts


class _Step(NamedTuple):
    time_s: float
    wait_s: float


class StepLine(Hook):
    """Measures training and describes it in the step line and in the rows of the metrics.

    A row has the means since the row before: "tokens_per_s", "utilisation" (FLOP/s of training over
    those of a matrix product) and "data_wait" (share of the time), all without evaluations and
    checkpoints.

    Args:
        batches: batches of the training.
        tokens_per_step: tokens of an optimiser step.
        flops_per_token: FLOPs of a token in training.
        matmul_speed: FLOP/s of a matrix product on this device.
        bytes_per_token: mean bytes of text of a token; None if unknown.
    """

    changes_results = False

    def __init__(
        self,
        batches: TimedBatches,
        *,
        tokens_per_step: int,
        flops_per_token: float,
        matmul_speed: float,
        bytes_per_token: float | None,
    ) -> None:
        self._batches, self._tokens = batches, tokens_per_step
        self._flops, self._matmul_speed = flops_per_token, matmul_speed
        self._bytes_per_token = bytes_per_token
        self._recent: deque[_Step] = deque(maxlen=_RECENT)
        self._since_row: list[_Step] = []

    def on_start(self, loop: Loop) -> None:
        self._begun = loop.step, time.monotonic()

    def after_step(self, loop: Loop, loss: float) -> None:
        del loop, loss
        step = _Step(time.monotonic() - self._batches.began, self._batches.wait_s)
        self._recent.append(step)
        self._since_row.append(step)

    def row(self, loop: Loop) -> dict[str, Any]:
        del loop
        steps, self._since_row = self._since_row, []
        return self._speeds(steps)

    def bits_per_byte(self, loss: float) -> float | None:
        """Return the training loss, nats per token, in bits per byte; None if bytes are unknown."""
        return None if self._bytes_per_token is None else loss / math.log(2) / self._bytes_per_token

    def describe(self, event: Event) -> Event:
        """Return the event of a step with a line about it; others as they are."""
        if event.kind != "step" or event.loss is None:
            return event
        speeds = self._speeds(self._recent)
        bits = self.bits_per_byte(event.loss)
        parts = [
            f"loss {event.loss:.4f}",
            *([] if bits is None else [f"{bits:.3f} bits per byte"]),
            f"{speeds['tokens_per_s']:,.0f} tokens/s",
            f"utilisation {speeds['utilisation']:.0%}",
            f"data wait {speeds['data_wait']:.0%}",
            f"about {duration(self._left_s(event))} left",
        ]
        return replace(event, text=", ".join(parts))

    def _left_s(self, event: Event) -> float:
        """Return the seconds left at the speed of this process, with evaluations."""
        step, begun = self._begun
        return (time.monotonic() - begun) / (event.step - step) * (event.num_steps - event.step)

    def _speeds(self, steps: Sequence[_Step]) -> dict[str, float]:
        # A resumed run may end without a step.
        time_s = sum(step.time_s for step in steps) or math.inf
        tokens_per_s = len(steps) * self._tokens / time_s
        return {
            "tokens_per_s": tokens_per_s,
            "utilisation": tokens_per_s * self._flops / self._matmul_speed,
            "data_wait": sum(step.wait_s for step in steps) / time_s,
        }


def duration(seconds: float) -> str:
    """Return a time for a reader, in the largest unit of which there are two.

    Example:
        >>> duration(100), duration(1000), duration(10_000)
        ('100 s', '17 min', '2.8 h')
    """
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
