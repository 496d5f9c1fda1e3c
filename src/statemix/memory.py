"""Memory that this process may use, and errors that report a shortage of memory."""

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

# Parameter numbers of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4

_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")

# Messages of RuntimeErrors of PyTorch, its libraries and Triton; other allocators have exceptions
# of their own.
_SHORTAGES = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|^unable to mmap .*Cannot allocate memory"
    r"|^(CUDA|HIP|XPU|MPS backend|C10) out of memory"
    r"|^(CUDA|HIP|Triton Error \[(CUDA|HIP)\])( driver)?( error)?: out of memory"
    r"|^(CUDA|HIP) error: CU(BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_ALLOC_FAILED"
    r"|^cuDNN error: CUDNN_STATUS_ALLOC_FAILED"
    r"|^std::bad_alloc$",
    re.IGNORECASE,
)


def total_bytes() -> int:
    """Return the memory of this machine or of its control group; ``sys.maxsize`` if unknown."""
    machine = sys.maxsize
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _group_limits())])


def available_bytes() -> int:
    """Return the memory that this process can allocate without swapping.

    It is the free memory of the machine, or less if ``ulimit -v`` or a control group (a container,
    a Slurm job) leaves less; ``sys.maxsize`` if unknown.
    """
    if not sys.platform.startswith("linux"):
        return sys.maxsize
    import resource

    free = _kilobytes("/proc/meminfo", "MemAvailable") * 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - _kilobytes("/proc/self/status", "VmSize") * 1024))
    return min([free, *(max(0, limit - used) for limit, used in _group_limits())])


def reuse_freed_memory() -> bool:
    """Keep freed memory in this process, so that each call reuses the outputs of the last.

    By default glibc maps every block above 32 MB anew, and the page faults of writing to it take
    longer than many operators. Returns whether the C library, which must be glibc, accepted.
    """
    # A trim threshold of -1 is the largest possible one.
    return _mallopt({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})


def map_large_blocks() -> bool:
    """Let glibc map blocks above 32 MB again, so that freeing them returns them to the system."""
    return _mallopt({_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 2**25, _M_TRIM_THRESHOLD: 2**26})


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for the next steps of a training, and return it at the end.

    Blocks of many sizes fragment the heap, so the process may hold more memory than it uses.
    """
    reuse_freed_memory()
    try:
        yield
    finally:
        map_large_blocks()
        release()


def release() -> None:
    """Return freed memory to the system, if the C library can."""
    _call_c_library("malloc_trim", 0)


def _mallopt(settings: dict[int, int]) -> bool:
    # Each is set, even if another one is refused.
    accepted = [_call_c_library("mallopt", *setting) for setting in settings.items()]
    return all(accepted)


def _call_c_library(name: str, *arguments: int) -> bool:
    """Call a function of the C library; return whether it exists and did not return 0."""
    linux = sys.platform.startswith("linux")
    function = getattr(ctypes.CDLL(None), name, None) if linux else None
    return function is not None and function(*arguments) != 0


def is_shortage(error: BaseException) -> bool:
    """Return whether an error reports that memory was short."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    import torch

    return isinstance(error, torch.OutOfMemoryError) or bool(_SHORTAGES.search(str(error)))


def gigabytes(number: int) -> str:
    """Write a number of bytes, such as "25.3 GB"."""
    # A larger integer may not fit into a float.
    return f"{number / 1e9:,.1f} GB" if number <= 10**21 else "1,000,000,000,000 GB"


def _group_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the memory in use of each control group that limits this process."""
    if not _MEMBERSHIP.is_file():
        return
    for line in _MEMBERSHIP.read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers:
            root, limited, used, cached = _GROUPS, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, cached = _GROUPS / "memory", "total_"
            limited, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # A limit also holds in all groups below. A container may name a group of its host whose
        # folder it does not see; its own group is then the root.
        group = PurePosixPath(name.lstrip("/"))
        for folder in (root / part for part in (group, *group.parents)):
            try:
                limit = (folder / limited).read_text().strip()
                in_use = int((folder / used).read_text())
                statistics = (folder / "memory.stat").read_text().split()
            except OSError:
                continue
            counts = dict(zip(statistics[::2], statistics[1::2], strict=True))
            # The kernel drops the pages of files when a group reaches its limit.
            in_use -= int(counts.get(f"{cached}active_file", 0))
            in_use -= int(counts.get(f"{cached}inactive_file", 0))
            if limit != "max":
                yield int(limit), in_use


def _kilobytes(path: str, name: str) -> int:
    for line in Path(path).read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{path} has no line {name}")
