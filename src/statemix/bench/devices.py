"""The device of a benchmark: when a call has ended, and how much memory it took."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch

from statemix.bench import memory
from statemix.errors import RequestError
from statemix.memory import is_shortage
from statemix.ops import BackendUnavailableError

DeviceName = Literal["cpu", "cuda"]
Call = Callable[[], Any]

# Calls before a graph is captured: kernels are compiled and buffers allocated in the first ones.
_CALLS_BEFORE_CAPTURE = 3


class BenchDevice(ABC):
    """A device, as the harness needs it.

    Attributes:
        name: name of the device in PyTorch.
        model: name of the product.
        graphs: whether calls are replayed as CUDA graphs.
    """

    name: DeviceName
    model: str
    graphs: bool = False

    @abstractmethod
    def waiting(self, call: Call) -> Call:
        """Return a call that ends when its work has ended."""

    @abstractmethod
    def release(self) -> None:
        """Give back freed memory."""

    @abstractmethod
    def usable_bytes(self) -> int:
        """Return the memory that can be allocated."""

    @abstractmethod
    def total_bytes(self) -> int:
        """Return the memory of the device."""

    @abstractmethod
    def peak_bytes(self, call: Call) -> int:
        """Return the peak memory of a call, with its results and without its inputs."""

    @abstractmethod
    def allocator(self, *, keeps: bool) -> Callable[[], bool]:
        """Return a function that makes the allocator keep freed memory, or not if it must not.

        The function returns whether the setting was accepted.
        """


class Cpu(BenchDevice):
    """The processor."""

    name = "cpu"
    model = "cpu"

    def waiting(self, call: Call) -> Call:
        return call

    def release(self) -> None:
        memory.release()

    def usable_bytes(self) -> int:
        return memory.available_bytes()

    def total_bytes(self) -> int:
        return memory.total_bytes()

    def peak_bytes(self, call: Call) -> int:
        return memory.peak_bytes(call)

    def allocator(self, *, keeps: bool) -> Callable[[], bool]:
        return memory.reuse_freed_memory if keeps else memory.map_large_blocks


class Cuda(BenchDevice):
    """The current GPU, whose allocator always keeps freed memory.

    Matrix products and cuDNN's LSTM compute float32 without TF32, whose results are not those of
    float32.

    Args:
        graphs: replay calls as CUDA graphs, which leaves out what launching kernels costs.
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

    def usable_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0]

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

    def allocator(self, *, keeps: bool) -> Callable[[], bool]:
        del keeps
        return lambda: True


def device_of(name: DeviceName, *, graphs: bool) -> BenchDevice:
    """Return a device.

    Args:
        name: name of the device in PyTorch.
        graphs: see :class:`Cuda`.

    Raises:
        RequestError: if there is no GPU, or graphs are asked of a CPU.
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
        BackendUnavailableError: if the call does what no graph can, such as waiting for the device.
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

    def replay() -> Any:
        graph.replay()
        return result

    return replay
