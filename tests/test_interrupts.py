"""Ctrl-C and SIGTERM are handled only where their handlers can be restored."""

import signal
import threading

import pytest

from statemix.interrupts import SIGNALS, Interrupts


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


@pytest.mark.parametrize("number", SIGNALS)
def test_a_first_signal_is_noted_and_a_second_raises_at_once(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interrupts() as interrupts:
        interrupts.check()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        assert not interrupts.forced
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(SIGNALS[0])
        assert interrupts.forced
    assert [signal.getsignal(each) for each in SIGNALS] == before
