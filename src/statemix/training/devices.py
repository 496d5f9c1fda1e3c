"""Where a run computes: the device and its precision, and how many CPU threads."""

import contextlib
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


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Compute with so many CPU threads: sums are split among them, so results depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
