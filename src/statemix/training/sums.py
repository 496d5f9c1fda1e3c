"""Sums of numbers between two evaluations, kept on the device: reading them would wait for it."""

import math
from collections.abc import Callable, Mapping, Sequence
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


class StackedSums(Sums):
    """The sums of several models, to which one addition adds a number for each.

    The members' totals are views of one vector, so that each can be read and reset by itself.

    Args:
        members: sums of each model.
    """

    def __init__(self, members: Sequence[Sums]) -> None:
        super().__init__()
        self._members = members
        self._views: dict[str, Sequence[Tensor]] = {}

    def add(self, name: str, *numbers: Tensor) -> None:
        """Add vectors with a number for each member."""
        found = [member.totals.get(name) for member in self._members]
        views = self._views.get(name)
        # Members that were read or restored since have other totals, or none.
        if views is None or any(one is not view for one, view in zip(found, views, strict=True)):
            self._gather(name, found, like=numbers[0])
        for number in numbers:
            self.totals[name] += number.detach()
        for member in self._members:
            member.counts[name] = member.counts.get(name, 0) + 1

    def members_kept(self, places: Sequence[int]) -> Callable[[], None]:
        """Return a function that undoes what happens to these members from now on."""
        kept = {
            place: (
                {name: total.clone() for name, total in self._members[place].totals.items()},
                dict(self._members[place].counts),
            )
            for place in places
        }

        def restore() -> None:
            for place, (totals, counts) in kept.items():
                self._members[place].totals, self._members[place].counts = totals, counts

        return restore

    def _gather(self, name: str, found: Sequence[Tensor | None], like: Tensor) -> None:
        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        self.totals[name] = torch.stack([zero if one is None else one for one in found])
        self._views[name] = self.totals[name].unbind()
        for member, view in zip(self._members, self._views[name], strict=True):
            member.totals[name] = view
