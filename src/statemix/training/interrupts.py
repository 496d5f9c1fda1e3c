"""Ctrl-C and SIGTERM that wait for a moment at which everything is consistent."""

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The requests to stop: Ctrl-C, and what Slurm and Kubernetes send first."""


def can_be_handled() -> bool:
    """Whether this thread may handle the signals and restore their handlers afterwards.

    Only the main thread may, and a handler that Python did not install (None) cannot be restored.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and all(signal.getsignal(number) is not None for number in SIGNALS)


class Interrupts:
    """Within this context a first signal is only noted; :meth:`check` then raises.

    A second one raises at once, wherever the program is. Where :func:`can_be_handled` says no,
    this does nothing.

    Attributes:
        forced: whether the second came, after which nothing is consistent any more.
    """

    def __init__(self) -> None:
        self.forced = False
        self._noted = False
        self._previous: dict[signal.Signals, object] = {}

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._noted:
            raise KeyboardInterrupt

    def __enter__(self) -> "Interrupts":
        if can_be_handled():
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._noted:
            self.forced = True
            raise KeyboardInterrupt
        self._noted = True
