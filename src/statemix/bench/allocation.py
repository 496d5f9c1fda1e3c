"""Memory of a benchmark's process: allocated by a call, kept for the backward, reused, limited."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from statemix.errors import RequestError
from statemix.memory import available_bytes, gigabytes

# Parameter numbers of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
# The rest of the free memory is for other processes.
_USABLE_SHARE = 0.8


def reuse_freed_memory() -> bool:
    """Keep freed memory in this process, so that each call reuses the outputs of the last.

    By default glibc maps every block above 32 MB anew and returns it to the system when freed; the
    page faults of writing to it then cost more than the measured kernels. This function turns off
    mapping and trimming until ``map_large_blocks``, so use it in benchmarks only. A heap with many
    large blocks of different sizes may grow to a few times the memory in use.

    Returns:
        True if the C library accepted both settings (False without glibc).
    """
    # A trim threshold of -1 is the largest possible one.
    return _mallopt({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})


def map_large_blocks() -> bool:
    """Let glibc map blocks above 32 MB again, so that freeing them returns them to the system.

    Returns:
        True if the C library accepted both settings (False without glibc).
    """
    return _mallopt({_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 2**25})


def release() -> None:
    """Return freed memory to the system, if the C library can."""
    malloc_trim = _of_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _mallopt(settings: dict[int, int]) -> bool:
    mallopt = _of_c_library("mallopt")
    if mallopt is None:
        return False
    accepted = [mallopt(*setting) == 1 for setting in settings.items()]
    return all(accepted)


def _of_c_library(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)


@contextmanager
def limited() -> Iterator[None]:
    """Make allocations beyond the free memory raise an error instead of ending the process.

    Only Linux enforces the limit, and a stricter one that is already set stays.
    """
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


def check_fits(name: str, value: object, needed: int, total: int) -> None:
    """Check that the value of an option needs no more bytes than a device has in total.

    Raises:
        RequestError: otherwise.
    """
    if needed > total:
        raise RequestError(
            f"{name} must fit into memory ({gigabytes(total)}), got {value}, which needs "
            f"{gigabytes(needed)}"
        )


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak tensor memory of ``call``, including its results but not its inputs.

    It counts allocations through torch's CPU allocator during the call. The kernels of this library
    allocate tensors only through it.
    """
    # Keep the profiler from writing its stages to stderr, into the progress display.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    session = profiler.profiler
    assert session is not None
    assert session.kineto_results is not None
    events = [event for event in session.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def saved_bytes(call: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Return the bytes that ``call`` keeps for its backward, without those of ``parameters``.

    Tensors that share memory count once, and with all of that memory.
    """
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
