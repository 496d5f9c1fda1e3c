"""What tokens do to places: the exact model of tasks with too many states for an automaton."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PlaceRules:
    """Places that hold contents, which tokens move and load.

    After a token, a place holds what another place held before, or a content that the token loads.
    Head p of the task answers with the content of place p. The last ``num_hidden``
    places have no head.

    Attributes:
        start: content of each place before the first token, shape (places,), int64.
        sources: for each token and place, shape (tokens, places), int64: the place whose content
            comes here, or -1 - c if the token loads content c.
        num_contents: number of contents.
        num_hidden: number of places without a head.

    Example:
        >>> exchange = PlaceRules(np.array([0, 1]), np.array([[1, 0], [0, -1]]), 2)
        >>> exchange.contents(np.array([[0, 1, 0]])).tolist()
        [[[1, 0], [1, 0], [0, 1]]]
    """

    start: NDArray[np.int64]
    sources: NDArray[np.int64]
    num_contents: int
    num_hidden: int = 0

    def __post_init__(self) -> None:
        if self.start.ndim != 1 or self.sources.ndim != 2 or not self.sources.size:
            raise ValueError(
                "start and sources must have shapes (places,) and (tokens, places), got "
                f"{self.start.shape} and {self.sources.shape}"
            )
        if self.sources.shape[1] != self.num_places:
            raise ValueError(
                f"sources must have the {self.num_places} places of start, got "
                f"{self.sources.shape[1]}"
            )
        most = self.num_places - 1
        for name, numbers, bounds in (
            ("start", self.start, (0, self.num_contents - 1)),
            ("sources", self.sources, (-self.num_contents, most)),
            ("num_hidden", np.array(self.num_hidden), (0, most)),
        ):
            least, largest = numbers.min(), numbers.max()
            if least < bounds[0] or largest > bounds[1]:
                known = f"{bounds[0]}..{bounds[1]}"
                raise ValueError(f"{name} must be in {known}, got {least}..{largest}")

    @property
    def num_places(self) -> int:
        """Number of places."""
        return len(self.start)

    @property
    def num_heads(self) -> int:
        """Number of places with a head, which are the first ones."""
        return self.num_places - self.num_hidden

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.sources)

    def contents(
        self, tokens: NDArray[np.int64], start: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Return the content of every place after every token.

        Args:
            tokens: words, shape (N, T), int64. They are not checked.
            start: contents before each word, shape (N, places); None means the first ones.

        Returns:
            Shape (N, T, places), int64.
        """
        count, length = tokens.shape
        # Behind the places stand the contents that tokens load: -1 is the last one.
        holds = np.empty((count, self.num_places + self.num_contents), dtype=np.int64)
        holds[:, : self.num_places] = self.start if start is None else start
        holds[:, self.num_places :] = np.arange(self.num_contents)[::-1]
        after = np.empty((length, count, self.num_places), dtype=np.int64)
        indices = self.sources % holds.shape[1]
        for position, letters in enumerate(np.ascontiguousarray(tokens.T)):
            after[position] = np.take_along_axis(holds, indices[letters], axis=1)
            holds[:, : self.num_places] = after[position]
        return after.swapaxes(0, 1)


@runtime_checkable
class HasPlaces(Protocol):
    """A task whose tokens move and load the contents of places."""

    def places(self) -> PlaceRules:
        """Return the rules, with the task's tokens and its heads in order."""
        ...
