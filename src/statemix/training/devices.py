"""Where a run computes: the device and its precision, and how many CPU threads."""

import contextlib
import os
from collections.abc import Iterator

import torch
from lightning_fabric import Fabric

from statemix.settings import SettingError
from statemix.training.config import Device, Precision


def build_fabric(device: Device, precision: Precision) -> Fabric:
    """Lightning Fabric on one device; "auto" means a GPU if there is one.

    Raises:
        SettingError: if there is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        condition = "must be available (PyTorch can use no GPU here)"
        raise SettingError("runtime.device", condition, device)
    return Fabric(accelerator=device, devices=1, precision=precision)


# Results depend on the number of threads, so that a few more than processors may be asked for; many
# more take the machine down.
_THREADS_PER_PROCESSOR = 4


def check_threads(path: str, number: int) -> None:
    """Check that so many CPU threads can be asked of this machine.

    Args:
        path: dotted name of the setting, for the message.
        number: threads.

    Raises:
        SettingError: if they are fewer than 1, or several times as many as the processors.
    """
    processors = os.cpu_count() or 1
    most = _THREADS_PER_PROCESSOR * processors
    if not 1 <= number <= most:
        condition = f"must be in 1..{most} (this machine has {processors} processors)"
        raise SettingError(path, condition, number)


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Compute with so many CPU threads: sums are split among them, so results depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
