"""Limits of control groups, and which errors report a shortage of memory."""

import errno
import sys

import numpy as np
import pytest
import torch

from statemix import memory

GB = 10**9
UNLIMITED = 2**63 - 4096  # as version 1 writes it


def write_group(folder, *, limit, used, cached=0, version=2):
    limited, current, prefix = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        2: ("memory.max", "memory.current", ""),
    }[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limited).write_text(f"{limit}\n")
    (folder / current).write_text(f"{used}\n")
    half = cached // 2
    lines = f"{prefix}active_file {half}\n{prefix}inactive_file {cached - half}\n"
    (folder / "memory.stat").write_text(f"anon {used - cached}\n{lines}")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """``groups(lines)`` makes this process a member of groups; returns their root folder."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(memory, "_kilobytes", lambda path, name: 64 * GB // 1024)

    def join(*lines):
        (tmp_path / "membership").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / "cgroup"

    return join


def test_the_lowest_limit_of_a_group_and_those_above_counts(groups):
    root = groups("0::/system/jobs/7")
    assert memory.available_bytes() == 64 * GB // 1024 * 1024
    write_group(root / "system" / "jobs" / "7", limit="max", used=GB)
    write_group(root / "system", limit=8 * GB, used=7 * GB, cached=GB)
    assert (memory.total_bytes(), memory.available_bytes()) == (8 * GB, 2 * GB)
    # More in use than allowed leaves nothing. A container may see only the root.
    write_group(root, limit=4 * GB, used=5 * GB)
    assert (memory.total_bytes(), memory.available_bytes()) == (4 * GB, 0)


def test_a_limit_of_version_1_counts(groups):
    root = groups("5:devices:/", "4:cpu,memory:/jobs/7", "1:name=systemd:/")
    write_group(root / "memory" / "jobs" / "7", limit=2 * GB, used=GB, cached=GB // 2, version=1)
    write_group(root / "memory", limit=UNLIMITED, used=50 * GB, version=1)
    assert (memory.total_bytes(), memory.available_bytes()) == (2 * GB, 3 * GB // 2)


def raised(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the type is the question
        call()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        *map(raised, [lambda: torch.empty(10**13), lambda: np.empty(10**15)]),
        torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.1 GB)"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("unable to mmap 40 bytes from file </a>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_failing_allocations_are_shortages(error):
    assert memory.is_shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        raised(lambda: torch.zeros(3).expand(4, 3).add_(1)),
        raised(lambda: torch.zeros(2, 3, 4).contiguous(memory_format=torch.channels_last)),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("CUDA out of memory"),
    ],
)
def test_other_errors_that_mention_memory_are_not(error):
    assert not memory.is_shortage(error)


def test_every_setting_of_the_allocator_is_made_even_if_others_are_refused(monkeypatch):
    made = []
    monkeypatch.setattr(memory, "_call_c_library", lambda *call: made.append(call))
    assert not memory.reuse_freed_memory()
    assert made == [("mallopt", -4, 0), ("mallopt", -1, -1)]
