"""A Ray cluster that trains runs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty
from typing import Any

from statemix import files
from statemix.errors import RequestError
from statemix.interrupts import handled
from statemix.sweeps.study_runs import StudyRun
from statemix.sweeps.worker_processes import (
    GRACE_S,
    Content,
    News,
    Work,
    died,
    line,
    train_job,
)
from statemix.training import Event

# Steps are shown to a person; a small network does a thousand in a second.
_STEP_EVERY_S = 1.0
# Time between two looks at which tasks have died.
_POLL_S = 1.0


class Cluster:
    """Tasks of a Ray cluster, each of which trains a run on one GPU, or on processors."""

    def __init__(
        self, ray: Any, address: str, num_tasks: int | None, every_s: float | None, undo: ExitStack
    ) -> None:
        self._ray, self._address, self._checkpoint_every_s = ray, address, every_s
        # Number of a run in training -> Ray's reference to its task.
        self._busy: dict[int, Any] = {}
        resources = ray.cluster_resources()
        self._has_gpus = resources.get("GPU", 0) >= 1
        if resources.get("CPU", 0) < 1:
            raise RequestError("ray must name a cluster that has processors, this one has none")
        self._most_threads = _most_threads(ray.nodes(), with_gpu=self._has_gpus)
        self._room = num_tasks or int(resources["GPU"] if self._has_gpus else resources["CPU"])
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Another machine may be lost.
        here = ray.get_runtime_context().get_node_id()
        place = NodeAffinitySchedulingStrategy(here, soft=False)
        self._news = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": place})
        undo.callback(self._news.shutdown, force=True)

    def cancel(self) -> None:
        """End all tasks, runs under way with a checkpoint."""
        for task in self._busy.values():
            self._ray.cancel(task)
        self._over(GRACE_S)

    def has_room(self) -> bool:
        """Return whether another run may start."""
        return len(self._busy) < self._room

    def start(self, number: int, work: Work) -> None:
        """Submit a task that trains a run."""
        asked, folder = work
        # The machines of a cluster have working directories of their own.
        folder = folder.resolve()
        if isinstance(asked, StudyRun):
            threads = asked.num_threads or 1
        else:
            threads = asked["runtime"]["num_threads"] or 1
        options = {
            "num_cpus": min(threads, self._most_threads),
            "num_gpus": 1 if self._has_gpus else 0,
            # A run that has killed its process would do so again.
            "max_retries": 0,
        }
        train = self._ray.remote(**options)(_train)
        files.make_folder("folder", folder.parent)
        work = (asked, folder)
        self._busy[number] = train.remote(number, work, self._news, self._checkpoint_every_s)

    def receive(self, timeout_s: float | None) -> Iterator[News]:
        """Wait for news of the tasks; there may be none."""
        # Whatever these tasks have told is in the queue already.
        over = self._over(0.0)
        wait_s = 0.0 if over else _POLL_S
        if timeout_s is not None:
            wait_s = max(0.0, min(wait_s, timeout_s))
        for number, content in self._told(wait_s):
            if not isinstance(content, Event):
                del self._busy[number]
            yield number, content
        for number, task in list(self._busy.items()):
            if task in over:
                del self._busy[number]
                yield number, died(self._reason(task))

    def _told(self, wait_s: float) -> list[tuple[int, Content]]:
        from ray.exceptions import RayError

        try:
            news: list[tuple[int, Content]] = []
            # A wait of 0 seconds would end before the queue is asked.
            if wait_s > 0:
                with suppress(Empty):
                    news.append(self._news.get(timeout=wait_s))
            news += self._news.get_nowait_batch(self._news.qsize())
        except RayError as error:
            text = f"ray has lost the cluster {self._address!r}: {line(error)}"
            raise RequestError(f"{text}; the same call goes on") from error
        return news

    def _over(self, timeout_s: float) -> list[Any]:
        """Wait until all tasks are over, for so long at most, and return those that are."""
        tasks = list(self._busy.values())
        over: list[Any] = []
        if tasks:
            over, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=timeout_s)
        return over

    def _reason(self, task: Any) -> str:
        """Return why a task has died; raise what shows that no run can be trained there."""
        from ray.exceptions import RayError, RayTaskError

        try:
            self._ray.get(task)
        except RequestError as error:
            raise RequestError(line(error.args[0])) from None
        except RayTaskError as error:
            return f": {line(error.cause)}"
        except RayError as error:
            return f": {type(error).__name__}"
        return ""


@contextmanager
def cluster(
    address: str, num_tasks: int | None, checkpoint_every_s: float | None
) -> Iterator[Cluster]:
    """Connect to a cluster, and end its tasks on exit, runs under way with a checkpoint.

    There are ``num_tasks`` tasks at a time; None means as many as GPUs, or processors without GPUs.
    """
    with connected(address) as ray, ExitStack() as undo:
        tasks = Cluster(ray, address, num_tasks, checkpoint_every_s, undo)
        try:
            yield tasks
        finally:
            tasks.cancel()


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect this process to a cluster, unless it is connected already; leave it on exit.

    Yields the package ``ray``.
    """
    try:
        import ray
    except ImportError as error:
        text = "ray needs the package of that name: pip install 'statemix[sweep]'"
        raise RequestError(text) from error
    if ray.is_initialized():
        yield ray
        return
    try:
        # Ray handles SIGTERM by itself, without a checkpoint.
        with handled({}):
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        text = f"ray must be 'auto', 'local' or the address of a cluster, got {address!r}"
        raise RequestError(f"{text}: {line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _most_threads(nodes: Sequence[Mapping[str, Any]], *, with_gpu: bool) -> int:
    """Return the processors of the largest machine; a task that needs more would wait for ever."""
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if with_gpu:
        machines = [machine for machine in machines if machine.get("GPU", 0) >= 1]
    return max(int(machine.get("CPU", 0)) for machine in machines)


def _train(
    number: int,
    work: Work,
    news: Any,
    checkpoint_every_s: float | None,
) -> None:
    """Train a run on a machine of the cluster, and report its events and its ending."""
    from ray.exceptions import RayError

    parent = work[1].parent
    if not parent.exists():
        text = f"the machines of a cluster must share the folder {parent}, one does not"
        raise RequestError(text)
    reported = 0.0

    def report(content: Content) -> None:
        nonlocal reported
        if isinstance(content, Event) and content.kind == "step":
            if time.monotonic() - reported < _STEP_EVERY_S:
                return
            reported = time.monotonic()
        try:
            news.put((number, content))
        except RayError as error:
            # Ray cancels what a cancelled task waits for, or the caller is gone: save and end.
            raise KeyboardInterrupt from error

    report(train_job(work, report, checkpoint_every_s))
