"""The device of a benchmark: when a call has ended, and how much memory it used."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch

from statemix.bench import allocation
from statemix.errors import RequestError
from statemix.memory import is_shortage, total_bytes
from statemix.ops import BackendUnavailableError

DeviceName = Literal["cpu", "cuda"]
Call = Callable[[], Any]

# Calls before a graph is captured: kernels are compiled and buffers allocated in the first ones.
_CALLS_BEFORE_CAPTURE = 3


class Cpu:
    """The processor.

    Attributes:
        name: name of the device in PyTorch.
        model: name of the product.
        graphs: whether calls are replayed as CUDA graphs.
    """

    name: DeviceName = "cpu"
    model = "cpu"
    graphs = False

    def waiting(self, call: Call) -> Call:
        """Return a call that ends when its work has ended."""
        return call

    def release(self) -> None:
        """Return freed memory to the system."""
        allocation.release()

    def limited(self) -> AbstractContextManager[None]:
        """Return a context in which too large allocations raise an error."""
        return allocation.limited()

    def total_bytes(self) -> int:
        """Return the memory of the device."""
        return total_bytes()

    def peak_bytes(self, call: Call) -> int:
        """Return the peak memory of a call, with its results and without its inputs."""
        return allocation.peak_bytes(call)

    def allocators(self) -> dict[bool, Callable[[], bool]]:
        """Return the settings of the allocator: whether calls reuse memory -> a function.

        The function makes the setting and returns whether the allocator accepted it.
        """
        return {True: allocation.reuse_freed_memory, False: allocation.map_large_blocks}


class Cuda(Cpu):
    """The current GPU, whose allocator always keeps freed memory.

    Matrix products and cuDNN's LSTM compute float32 without TF32, which has fewer digits.

    Args:
        graphs: replay calls as CUDA graphs, which excludes the cost of launching kernels.
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

    def release(self) -> None:
        torch.cuda.empty_cache()

    def limited(self) -> AbstractContextManager[None]:
        return nullcontext()

    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info()[1]

    def peak_bytes(self, call: Call) -> int:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        del result
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def allocators(self) -> dict[bool, Callable[[], bool]]:
        return {True: lambda: True}


def device_of(name: DeviceName, *, graphs: bool) -> Cpu:
    """Return a device by its name in PyTorch. :class:`Cuda` describes ``graphs``.

    Raises:
        RequestError: if there is no GPU, or graphs are requested on a CPU.
    """
    if name == "cuda":
        if not torch.cuda.is_available():
            raise RequestError("device must be available (PyTorch cannot use a GPU here), got cuda")
        return Cuda(graphs=graphs)
    if graphs:
        raise RequestError("graphs must be used with --device cuda, got cpu")
    return Cpu()


def _captured(call: Call) -> Call:
    """Return a call that replays another one as a graph, and returns its results.

    Raises:
        BackendUnavailableError: if a graph cannot hold the call, for instance because it waits for
            the device.
    """
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

    return partial(_replayed, graph, result, call)


def _replayed(graph: torch.cuda.CUDAGraph, result: Any, call: Call) -> Any:
    # The call owns the inputs, whose memory the graph reads.
    del call
    graph.replay()
    return result
