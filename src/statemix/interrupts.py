"""Handling of Ctrl-C and SIGTERM that waits until everything is consistent."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that request a stop: Ctrl-C, and the first signal of Slurm and Kubernetes."""

Handler = Callable[[int, FrameType | None], object] | signal.Handlers

IGNORE_SIGNALS: Mapping[signal.Signals, Handler] = dict.fromkeys(SIGNALS, signal.SIG_IGN)
"""Handlers of a process whose parent decides when it ends."""

TERMINABLE: Mapping[signal.Signals, Handler] = {signal.SIGTERM: signal.default_int_handler}
"""Handlers that end a process by SIGTERM as by Ctrl-C, so that its workers have time to save."""


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Set handlers, and restore those of all signals on exit, whatever code inside has set.

    The context does nothing outside the main thread, or where Python did not install a handler.
    """
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or None in previous.values():
        yield
        return
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


class Interrupts:
    """A context that only notes the first signal, so that :meth:`check` raises later.

    A second signal raises at once: it is ``forced``, and the state may be inconsistent. The context
    does nothing where :func:`handled` does nothing.
    """

    def __init__(self) -> None:
        self.noted = self.forced = False
        self._handled = ExitStack()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self.noted:
            raise KeyboardInterrupt

    def __enter__(self) -> "Interrupts":
        self._handled.enter_context(handled(dict.fromkeys(SIGNALS, self._note)))
        return self

    def __exit__(self, *_: object) -> None:
        self._handled.close()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.noted:
            self.forced = True
            raise KeyboardInterrupt
        self.noted = True
