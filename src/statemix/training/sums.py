"""Sums of numbers between two evaluations, kept on the device: reading them would wait for it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Sums:
    """Sums by name since the last :meth:`means`, and how often each was added to.

    Attributes:
        totals: name -> scalar tensor, float64.
        counts: name -> number of terms.
    """

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def collect(
        self, parts: Sequence[Mapping[str, Tensor]], reports: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Add the losses of a step and the numbers that layers reported.

        Args:
            parts: losses of each of the step's batches. They add up to one loss per step, so they
                count once.
            reports: reported numbers of each forward pass.
        """
        for name in parts[0]:
            self.add(f"loss/{name}", *(losses[name] for losses in parts))
        for numbers in reports:
            for name, number in numbers.items():
                self.add(name, number)

    def add(self, name: str, *numbers: Tensor) -> None:
        """Add numbers that count as one term."""
        for number in numbers:
            number = number.detach().double()
            self.totals[name] = self.totals[name] + number if name in self.totals else number
        self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Return and forget the means: "loss" (the sum over heads) and every name; {} if empty."""
        if not self.totals:
            return {}
        means = {name: value / self.counts[name] for name, value in self._values().items()}
        self.totals, self.counts = {}, {}
        losses = [value for name, value in means.items() if name.startswith("loss/")]
        return {"loss": math.fsum(losses), **means}

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"sums": self._values(), "counts": dict(self.counts)}

    def restore(self, stored: Mapping[str, Any], device: torch.device) -> None:
        """Undo :meth:`to_plain`."""
        self.counts = dict(stored["counts"])
        self.totals = {
            name: torch.tensor(value, dtype=torch.float64, device=device)
            for name, value in stored["sums"].items()
        }

    def _values(self) -> dict[str, float]:
        values = torch.stack(list(self.totals.values())).tolist() if self.totals else []
        return dict(zip(self.totals, values, strict=True))
