"""Ctrl-C that waits for a moment at which everything is consistent."""

import signal
import threading
from types import FrameType, TracebackType


def can_be_handled() -> bool:
    """Whether this thread may take over Ctrl-C and give it back afterwards.

    Only the main thread may, and a handler that Python did not install (None) cannot be put back.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is not None


class Interrupts:
    """Within this context a first Ctrl-C only takes note; :meth:`check` then raises.

    A second Ctrl-C raises at once, wherever the program is. Where :func:`can_be_handled` says no,
    this does nothing.

    Attributes:
        forced: whether the second came, after which nothing is consistent any more.
    """

    def __init__(self) -> None:
        self.forced = False
        self._noted = False
        self._installed = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._noted:
            raise KeyboardInterrupt

    def __enter__(self) -> "Interrupts":
        if can_be_handled():
            self._previous = signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._noted:
            self.forced = True
            raise KeyboardInterrupt
        self._noted = True
