"""Memory of this machine."""

import os
import sys
from pathlib import Path


def total_bytes() -> int:
    """Return the memory of this machine (``sys.maxsize`` if unknown)."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Return the memory that this process can allocate without swapping.

    That is the free memory of the machine, or what ``ulimit -v`` leaves to the process if that is
    less; ``sys.maxsize`` if unknown.
    """
    if not sys.platform.startswith("linux"):
        return sys.maxsize
    import resource

    free = _kilobytes("/proc/meminfo", "MemAvailable") * 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - _kilobytes("/proc/self/status", "VmSize") * 1024))
    return free


def is_shortage(error: BaseException) -> bool:
    """Return whether an error says that memory was short, as Python's and PyTorch's do.

    An illegal memory access, as CUDA reports it, is a defect of a kernel.
    """
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "memory" in text and "memory access" not in text
    )


def gigabytes(number: int) -> str:
    """Write a number of bytes.

    Example:
        >>> gigabytes(25_340_000_000), gigabytes(10**400)
        ('25.3 GB', '1,000,000,000,000 GB')
    """
    # A larger integer may not fit into a float.
    return f"{number / 1e9:,.1f} GB" if number <= 10**21 else "1,000,000,000,000 GB"


def _kilobytes(path: str, name: str) -> int:
    for line in Path(path).read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{path} has no line {name}")
