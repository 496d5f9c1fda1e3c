"""Ctrl-C is taken over only where it can be given back."""

import signal
import threading

import pytest

from statemix.training.interrupts import Interrupts


def test_a_handler_that_python_did_not_install_is_left_alone(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("the handler was touched"))
    with Interrupts() as interrupts:
        interrupts.check()


def test_another_thread_does_without():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def use():
        with Interrupts() as interrupts:
            interrupts.check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [before]
