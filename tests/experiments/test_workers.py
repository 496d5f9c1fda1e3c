"""Workers that die or fail are told of in words, whatever happened to them."""

import contextlib
import multiprocessing
import signal
import threading

import pytest

from statemix.experiments import workers


@pytest.fixture
def jobs(tiny, tmp_path):
    return tiny.jobs(tmp_path)


def quiet(job, event):
    pass


@pytest.mark.parametrize(
    "death", ["before its job", "with its job unread", "in its job", "after its job"]
)
def test_a_worker_that_dies_is_named_by_its_run(jobs, monkeypatch, death):
    ours, theirs = multiprocessing.Pipe()

    @contextlib.contextmanager
    def one_worker(count):
        if death == "before its job":
            theirs.close()
        yield [ours]
        ours.close()

    wait = workers.wait

    def die_then_wait(connections):
        if death in ("in its job", "after its job"):
            assert theirs.recv() == jobs[0]
        if death == "after its job":
            theirs.send(None)
        theirs.close()
        return wait(connections)

    monkeypatch.setattr(workers, "_workers", one_worker)
    monkeypatch.setattr(workers, "wait", die_then_wait)
    name = jobs[1 if death == "after its job" else 0].name
    with pytest.raises(RuntimeError, match=f"^{name} must end by itself, but its process died$"):
        workers.train_all(jobs, 2, quiet)


def test_processes_that_end_at_once_are_no_raw_error(jobs, monkeypatch):
    monkeypatch.setattr(workers, "_serve", id)
    with pytest.raises(RuntimeError, match="must end by itself, but its process died"):
        workers.train_all(jobs, 2, quiet)


@pytest.mark.parametrize("error", [AssertionError("odd"), KeyError("odd"), MemoryError("odd")])
def test_an_unexpected_error_comes_with_its_traceback(jobs, monkeypatch, error):
    def fail(config, folder, on_event):
        raise error

    monkeypatch.setattr(workers, "train", fail)
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=workers._serve, args=(theirs,))
    thread.start()
    try:
        ours.send(jobs[0])
        assert ours.poll(60)
        told = ours.recv()
    finally:
        ours.close()
        thread.join()
        theirs.close()
    assert type(told) is RuntimeError
    assert str(told).startswith(f"{jobs[0].name} must train without an error, got:\nTraceback")
    assert "in fail\n" in str(told)
    assert f"{type(error).__name__}: " in str(told)


def test_workers_may_be_started_from_any_thread(jobs, monkeypatch):
    raised = []

    def use():
        try:
            workers.train_all(jobs, 2, quiet)
        except RuntimeError as error:
            raised.append(str(error))

    monkeypatch.setattr(workers, "_serve", id)
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "its process died" in raised[0]


def test_a_handler_that_python_did_not_install_is_left_alone(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("the handler was touched"))
    with workers._interrupts_ignored():
        pass
