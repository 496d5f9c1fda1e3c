"""The processes of one run, as torchrun starts them, and how they agree."""

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from statemix.errors import RequestError
from statemix.training.config import Device, chosen_device

T = TypeVar("T")

# Preparing a corpus or gathering weights may keep the other processes waiting.
_PATIENCE = timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, and this process among them.

    Every method is a collective: all processes call it together, or it waits for ever. With one
    process nothing is exchanged.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process on its machine, from 0.
        local_size: number of processes on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and reports progress."""
        return self.rank == 0

    def on_first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process, and return its result in every process.

        Raises:
            KeyboardInterrupt: in the other processes, if it is raised in the first.
            RequestError: in the other processes, if the function raises another error in the first.
        """
        if self.size == 1:
            return function()
        sent: list[Any] = [None, None]
        error: BaseException | None = None
        if self.is_first:
            try:
                sent[0] = function()
            except KeyboardInterrupt as caught:
                error, sent[1] = caught, KeyboardInterrupt()
            except BaseException as caught:  # noqa: BLE001 - raised below, when the others know
                error, sent[1] = caught, RequestError(str(caught) or type(caught).__name__)
        dist.broadcast_object_list(sent)
        if error is not None:
            raise error
        if sent[1] is not None:
            raise sent[1]
        result: T = sent[0]
        return result

    def any_of(self, *, flag: bool) -> bool:
        """Return whether the flag of any process is true."""
        if self.size == 1:
            return flag
        flags: list[Any] = [None] * self.size
        dist.all_gather_object(flags, flag)
        return any(flags)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.any_of(flag=False)

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over processes, with the same bits in each."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers


ALONE = Ranks()
"""This process, if it is the only one."""


def ranks_here() -> Ranks:
    """Return the processes of the run by the environment variables that torchrun sets.

    Without ``RANK`` or ``WORLD_SIZE``, this process is alone.
    """
    names = ("RANK", "WORLD_SIZE")
    if any(name not in os.environ for name in names):
        return ALONE
    rank, size = (int(os.environ[name]) for name in names)
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return Ranks(rank, size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def join_ranks(device: Device) -> Ranks:
    """Connect the processes of the run until they end, unless they are connected already.

    Args:
        device: device of the run; GPUs exchange tensors by NCCL, and CPUs by Gloo.
    """
    ranks = ranks_here()
    if ranks.size == 1:
        return ranks
    on_gpu = chosen_device(device) == "cuda"
    if on_gpu:
        torch.cuda.set_device(ranks.local_rank)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE)
        # Processes that have parted cannot meet again, and the next run may need them.
        atexit.register(_part)
    return ranks


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
