"""The memory roofline: a copy of as many bytes as must move, timed in the same rounds."""

from collections.abc import Callable
from functools import partial

import torch

from statemix.bench.harness import Measurement, Provider, Spread
from statemix.bench.timed_devices import DeviceName

COPY = "copy"
"""Name of the provider that copies."""

# The copy reuses buffers of at most this size until it has moved its bytes. They are much larger
# than the caches, so it costs as much as one large copy.
_BUFFER_BYTES = 2**28


def copying(moved_bytes: int, device: DeviceName, times: int = 1) -> Callable[[], None]:
    """Return a function that reads and writes a number of bytes in all, several times.

    Each time uses the same buffers, which may stay in the caches.
    """
    # torch copies floats faster than bytes.
    total = max(1, moved_bytes // 2 // torch.float32.itemsize)
    size = min(total, _BUFFER_BYTES // torch.float32.itemsize)
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    repeats, rest = divmod(total, source.numel())

    def copy() -> None:
        for _ in range(times):
            for _ in range(repeats):
                target.copy_(source)
            if rest:
                target[:rest].copy_(source[:rest])

    return copy


def fraction(measurement: Measurement, share: float) -> Spread | None:
    """Return the fraction of the memory roofline that a provider reaches: 1 is as fast as a copy.

    ``share`` is the bytes that the provider has to move, divided by those of the copy. The copy
    itself has no fraction.
    """
    ratio = measurement.ratios.get(COPY)
    return ratio and Spread(share / ratio.p80, share / ratio.p50, share / ratio.p20)


def copy_provider(moved_bytes: int, device: DeviceName, times: int = 1) -> Provider:
    """Return the provider of a copy. Arguments are those of :func:`copying`."""
    note = "reads and writes as many bytes as the computation must"
    return Provider(COPY, partial(copying, moved_bytes, device, times), note=note)
