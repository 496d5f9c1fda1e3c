"""Events that a run reports while it trains."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    Attributes:
        kind: "started" (or resumed), "step", "evaluated" (a row of metrics), "saved" (a
            checkpoint), "message" (something the user should know), "finished".
        step: optimiser steps done so far.
        num_steps: steps of the whole run.
        loss: training loss of the step, where ``kind`` is "step".
        row: the row of metrics, where ``kind`` is "evaluated".
        text: one line for a reader; empty for "step".
    """

    kind: Literal["started", "step", "evaluated", "saved", "message", "finished"]
    step: int
    num_steps: int
    loss: float | None = None
    row: dict[str, Any] | None = None
    text: str = ""
