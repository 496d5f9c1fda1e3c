"""A deadline for what comes before the timed calls: compiling, first calls and checks."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# An alarm cannot be set much later.
_LONGEST_S = 1e8


class OutOfTime(BaseException):
    """The deadline has passed. Handlers of errors do not catch it."""


class Deadline:
    """A time after which no more work may begin, and work that has begun is given up.

    Args:
        limit_s: seconds from now; None means no deadline.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._end_s = math.inf if limit_s is None else time.monotonic() + limit_s

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise when the deadline passes inside the context.

        Outside the main thread, and without POSIX signals, it raises only at the beginning.

        Raises:
            OutOfTime: if the deadline has passed.
        """
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        in_main_thread = threading.current_thread() is threading.main_thread()
        if left_s == math.inf or not in_main_thread or not hasattr(signal, "setitimer"):
            yield
            return
        before = signal.signal(signal.SIGALRM, _ring)
        # Again every second, because a callback that ignores exceptions may be what it interrupts.
        signal.setitimer(signal.ITIMER_REAL, min(left_s, _LONGEST_S), 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise OutOfTime
