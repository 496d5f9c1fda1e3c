"""A run as a generator: it asks for steps and scores, which one or many runs at once may be given.

All control flow of a run stays in one place; whoever drives it decides how steps are computed.
"""

from collections.abc import Callable, Generator
from typing import Any, Literal

from statemix.training.evaluation import Scores, SplitEvaluator

Ask = Literal["step", "test", "evaluate", "lengths"]
"""What a run waits for: the loss of its next optimiser step, after the step is made; a
:data:`Score` for the test of an attempt; one for the run's validation and test sequences; or one
for its further lengths."""

Life = Generator[Ask, Any, Any]
"""A run from its beginning to its end. It is sent what it asks for, or an error is thrown in."""

Score = Callable[[SplitEvaluator], dict[str, Scores]]
"""Returns head -> scores of the run's model, for one of its evaluators."""


def lived(life: Life, answer: Callable[[Ask], Any]) -> Any:
    """Lead a run to its end.

    Args:
        life: the run.
        answer: returns what the run asks for; the run is told its errors.

    Returns:
        The value that the run returns.
    """
    told: Any = None
    error: BaseException | None = None
    while True:
        try:
            ask = life.send(told) if error is None else life.throw(error)
        except StopIteration as end:
            return end.value
        try:
            told, error = answer(ask), None
        except BaseException as raised:  # noqa: BLE001  the run itself decides how it ends
            error = raised
