"""The device of a benchmark: when a call has ended, and how much memory it used."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from statemix.errors import RequestError
from statemix.memory import (
    available_bytes,
    gigabytes,
    is_shortage,
    release,
    reuse_freed_memory,
    total_bytes,
)
from statemix.ops import BackendUnavailableError

# The rest of the free memory is for other processes.
_USABLE_SHARE = 0.8


def check_fits(name: str, value: object, needed: int, total: int) -> None:
    """Raise a RequestError if an option's value needs more bytes than a device has in total."""
    if needed > total:
        raise RequestError(
            f"{name} must fit into memory ({gigabytes(total)}), got {value}, which needs "
            f"{gigabytes(needed)}"
        )


def saved_bytes(call: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Return the bytes that ``call`` saves for the backward pass, except ``parameters``."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # A freed tensor could leave its address to the next.
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call()
    del result
    for parameter in parameters:
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


DeviceName = Literal["cpu", "cuda"]
Call = Callable[[], Any]

# Calls before a graph is captured: kernels are compiled and buffers allocated in the first ones.
_CALLS_BEFORE_CAPTURE = 3


class Cpu:
    """The processor: its name in PyTorch and that of the product; a GPU may replay graphs."""

    name: DeviceName = "cpu"
    model = "cpu"
    graphs = False

    # How calls keep freed memory, how it goes back to the system, and how much memory there is.
    reuse_freed_memory = staticmethod(reuse_freed_memory)
    release = staticmethod(release)
    total_bytes = staticmethod(total_bytes)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Make allocations beyond the free memory raise an error instead of ending the process."""
        if not sys.platform.startswith("linux"):
            yield
            return
        import resource

        before, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # The limit counts the private memory that a process has reserved, VmData in pages.
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = pages * resource.getpagesize() + int(_USABLE_SHARE * available_bytes())
        if before != resource.RLIM_INFINITY:
            most = min(most, before)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (before, hard))

    def peak_bytes(self, call: Call) -> int:
        """Return the peak tensor memory of a call, including its results but not its inputs."""
        # Keep the profiler from writing its stages to stderr, into the progress display.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            result = call()
        del result
        assert profiler.profiler is not None
        results = profiler.profiler.kineto_results
        assert results is not None
        events = [event for event in results.events() if event.name() == "[memory]"]
        ordered = sorted(events, key=lambda event: event.start_ns())
        return int(max(accumulate((event.nbytes() for event in ordered), initial=0)))

    def waiting(self, call: Call) -> Call:
        """Return a call that ends when its work has ended."""
        return call


class Cuda(Cpu):
    """The current GPU; calls may be replayed as graphs, which excludes the launches of kernels.

    Matrix products and cuDNN's LSTM compute float32 without TF32, which has fewer digits.
    """

    name = "cuda"

    def __init__(self, *, graphs: bool) -> None:
        self.graphs = graphs
        self.model = torch.cuda.get_device_name()
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False

    def waiting(self, call: Call) -> Call:
        run = _captured(call) if self.graphs else call

        def waited() -> Any:
            result = run()
            torch.cuda.synchronize()
            return result

        return waited

    release = staticmethod(torch.cuda.empty_cache)

    @contextmanager
    def limited(self) -> Iterator[None]:
        yield

    @staticmethod
    def total_bytes() -> int:
        return torch.cuda.mem_get_info()[1]

    def peak_bytes(self, call: Call) -> int:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        del result
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    @staticmethod
    def reuse_freed_memory() -> bool:
        return True


def device_of(name: DeviceName, *, graphs: bool) -> Cpu:
    """Return a device by its name in PyTorch. :class:`Cuda` describes ``graphs``."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise RequestError("device must be available (PyTorch cannot use a GPU here), got cuda")
        return Cuda(graphs=graphs)
    if graphs:
        raise RequestError("graphs must be used with --device cuda, got cpu")
    return Cpu()


def _captured(call: Call) -> Call:
    """Return a call that replays another one as a graph, and returns its results."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_CALLS_BEFORE_CAPTURE):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = call()
    except RuntimeError as error:
        if is_shortage(error):
            raise
        raise BackendUnavailableError(f"cannot be replayed as a CUDA graph: {error}") from error

    def replay() -> Any:
        graph.replay()
        return result

    # The call owns the inputs, whose memory the graph reads.
    replay.inputs = call  # type: ignore[attr-defined]
    return replay
