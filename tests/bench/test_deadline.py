"""The deadline of what comes before the timed calls."""

import signal
import threading
import time

import pytest

from statemix.bench.deadline import Deadline, OutOfTime


def test_work_under_way_is_given_up_even_if_something_ignores_the_first_alarm():
    def ignoring():
        try:
            time.sleep(20)
        except OutOfTime:
            time.sleep(20)

    start = time.monotonic()
    with pytest.raises(OutOfTime), Deadline(0.1).enforced():
        ignoring()
    assert time.monotonic() - start < 10


def test_any_number_of_seconds_will_do():
    with Deadline(1e30).enforced():
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1e6
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_the_callers_alarm_comes_back():
    def mine(*_):
        pass

    before = signal.signal(signal.SIGALRM, mine)
    try:
        with Deadline(60).enforced():
            assert signal.getsignal(signal.SIGALRM) is not mine
        assert signal.getsignal(signal.SIGALRM) is mine
    finally:
        signal.signal(signal.SIGALRM, before)


def test_in_another_thread_it_is_looked_at_only_at_the_beginning():
    found = []

    def work():
        with Deadline(60).enforced():
            found.append("ran")
        try:
            with Deadline(0).enforced():
                found.append("ran late")
        except OutOfTime:
            found.append("refused")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["ran", "refused"]
