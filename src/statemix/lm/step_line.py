"""The step line of a language model in training: loss, speed, utilisation and time left."""

import math
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from statemix.training.hooks import Event, Hook
from statemix.training.loop import Loop

# Steps whose mean speed the line shows.
_RECENT = 20


@dataclass(eq=False)
class StepLine(Hook):
    """Describes training in the step line, and by its means since the row before in the metrics.

    "utilisation" is FLOP/s over ``matmul_speed``, without evaluations and checkpoints.
    """

    changes_results = False

    batches: Any
    tokens_per_step: int
    flops_per_token: float
    matmul_speed: float
    bytes_per_token: float | None

    def __post_init__(self) -> None:
        # Seconds of steps.
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._since_row: list[float] = []

    def on_start(self, loop: Loop) -> None:
        self._begun = loop.step, time.monotonic()

    def after_step(self, loop: Loop, loss: float) -> None:
        del loop, loss
        time_s = time.monotonic() - self.batches.began
        self._recent.append(time_s)
        self._since_row.append(time_s)

    def row(self, loop: Loop) -> dict[str, Any]:
        del loop
        times_s, self._since_row = self._since_row, []
        return self._speeds(times_s)

    def describe(self, event: Event) -> Event:
        """Return the event of a step with a line about it; others as they are."""
        if event.kind != "step" or event.loss is None:
            return event
        speeds = self._speeds(self._recent)
        bits = event.loss / math.log(2)
        step, begun = self._begun
        # At the speed of this process, with evaluations.
        left_s = (time.monotonic() - begun) / (event.step - step) * (event.num_steps - event.step)
        parts = [
            f"loss {event.loss:.4f}",
            *([f"{bits / size:.3f} bits per byte"] if (size := self.bytes_per_token) else []),
            f"{speeds['tokens_per_s']:,.0f} tokens/s",
            f"utilisation {speeds['utilisation']:.0%}",
            f"about {duration(left_s)} left",
        ]
        return replace(event, text=", ".join(parts))

    def _speeds(self, times_s: Collection[float]) -> dict[str, float]:
        # A resumed run may end without a step.
        tokens_per_s = len(times_s) * self.tokens_per_step / (sum(times_s) or math.inf)
        utilisation = tokens_per_s * self.flops_per_token / self.matmul_speed
        return {"tokens_per_s": tokens_per_s, "utilisation": utilisation}


def duration(seconds: float) -> str:
    """Return a time for a reader, in the largest unit of which there are two."""
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"
