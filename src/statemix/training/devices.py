"""The device of a run, its precision and its number of CPU threads."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from statemix import provenance
from statemix.errors import SettingError
from statemix.training.config import Device, Precision, RuntimeConfig, chosen_device

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def build_fabric(device: Device, precision: Precision) -> "Fabric":
    """Build Lightning Fabric for one device that is available."""
    # It imports the compiler of PyTorch, which takes as long as everything else together.
    from lightning_fabric import Fabric

    return Fabric(accelerator=chosen_device(device), devices=1, precision=precision)


def check_device(path: str, device: Device) -> None:
    """Check that a device is available.

    Args:
        path: dotted name of the setting, for the message.
        device: device to check.

    Raises:
        SettingError: if there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingError(path, "must be available (PyTorch cannot use a GPU here)", device)


# Results depend on the number of threads, so a request may exceed the number of processors, but
# many more threads would freeze the machine.
_THREADS_PER_PROCESSOR = 4


def check_threads(path: str, number: int) -> None:
    """Check that a number of CPU threads or processes is reasonable on this machine.

    Args:
        path: dotted name of the setting, for the message.
        number: number of threads or processes.

    Raises:
        SettingError: if the number is below 1 or several times the number of processors.
    """
    processors = os.cpu_count() or 1
    most = _THREADS_PER_PROCESSOR * processors
    if not 1 <= number <= most:
        condition = f"must be in 1..{most} (this machine has {processors} processors)"
        raise SettingError(path, condition, number)


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Use this many CPU threads; sums are split among them, so results depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def own_random_numbers(device: Device) -> Iterator[None]:
    """Leave PyTorch's global generators as they were."""
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def environment(runtime: RuntimeConfig) -> dict[str, Any]:
    """Describe software and machine of a run, whose device and threads are chosen."""
    return {
        **provenance.describe(),
        "num_threads": runtime.num_threads,
        "device": torch.cuda.get_device_name() if runtime.device == "cuda" else "cpu",
    }
