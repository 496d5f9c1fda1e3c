"""Steps in batches of one size: products of fewer or more rows may be rounded otherwise."""

from collections.abc import Iterator

import torch
from torch import Tensor

from statemix.layers import BDLRU
from statemix.models import ReadoutModel

ROWS = 256
"""Rows of every step."""


def fixed_batches(count: int, device: torch.device | str) -> Iterator[tuple[Tensor, int]]:
    """Yield the numbers of rows in batches of ``ROWS``, and how many count: others repeat these.

    Example:
        >>> [(rows[:3].tolist(), used) for rows, used in fixed_batches(258, "cpu")]
        [([0, 1, 2], 256), ([256, 257, 256], 2)]
    """
    for start in range(0, count, ROWS):
        used = min(ROWS, count - start)
        yield start + torch.arange(ROWS, device=device) % used, used


def gates_and_values(model: ReadoutModel, layer: BDLRU) -> tuple[Tensor, Tensor]:
    """Return the gates and values of every token, and of the learned one at the end.

    The gates of the first layer must see the token alone. Gates have shape (tokens, H, rows, m+1),
    values (tokens, H, m, C), or (tokens, H, m) without channels.
    """
    x = model.backbone.blocks[0].norm(model.backbone.embedding.weight)
    gates, values = [], []
    for rows, used in fixed_batches(len(x), x.device):
        recurrence = layer.recurrence(x[rows].unsqueeze(1))
        assert recurrence.gates is not None
        gates.append(recurrence.gates[:used, 0])
        values.append(recurrence.values[:used, 0])
    return torch.cat(gates), torch.cat(values)
