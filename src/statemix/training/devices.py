"""Where a run computes: the device and its precision, and how many CPU threads."""

import contextlib
from collections.abc import Iterator

import torch
from lightning_fabric import Fabric

from statemix.training.config import Device, Precision


def build_fabric(device: Device, precision: Precision) -> Fabric:
    """Lightning Fabric on one device.

    Raises:
        ValueError: if there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be available, got 'cuda' without a GPU that PyTorch can use")
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
