"""Comparisons between models, of which the claims of the paper are made."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from statemix_lab.studies.higher_order.contenders import Contender
from statemix_lab.studies.higher_order.protocols import Column
from statemix_lab.studies.tidy import NOISE

LEARNED = 0.95
"""Accuracy from which a task counts as learned."""

Relation = Literal["learns", "fails", "beats", "matches", "is smaller than"]


HOLDS: dict[Relation, Callable[[float, float], bool]] = {
    "learns": lambda ours, _: ours >= LEARNED,
    "fails": lambda ours, _: ours < LEARNED,
    # Rounded, because 1.0 - 0.95 is more than 0.05 in floating point.
    "beats": lambda ours, other: round(ours - other, 6) > NOISE,
    "matches": lambda ours, other: round(other - ours, 6) <= NOISE,
    "is smaller than": lambda ours, other: ours < other,
}
"""Relation -> whether it holds between two accuracies, or numbers of parameters of layers."""


class Comparison(NamedTuple):
    """An inequality that our runs decide.

    Attributes:
        column: data to be learned; its first data set counts.
        model: the model.
        relation: one of :data:`HOLDS`. "is smaller than" needs no runs.
        other: the model to compare with, if any.
        control: a model that must reach ``least`` on the same data for the condition to decide
            anything; None asks for none. Where nothing learns, nothing can be compared.
        least: that accuracy.
    """

    column: Column
    model: Contender
    relation: Relation
    other: Contender | None = None
    control: Contender | None = None
    least: float = LEARNED

    @property
    def models(self) -> tuple[Contender, ...]:
        """The models whose accuracy decides, without the control."""
        if self.relation == "is smaller than":
            return ()
        return (self.model,) if self.other is None else (self.model, self.other)

    @property
    def needed(self) -> tuple[Contender, ...]:
        """All models whose accuracy is needed."""
        return (*self.models, *([self.control] if self.control else ()))


class Claim(NamedTuple):
    """A claim of the paper, as conditions that must all be met; those first that say most."""

    name: str
    statement: str
    conditions: tuple[Comparison, ...]
