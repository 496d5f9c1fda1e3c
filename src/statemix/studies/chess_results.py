"""What a trained chess tracker gets right: its answers after each ply of games."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from statemix.models import TokenClassifier
from statemix.tasks.chess_moves import HEADS
from statemix.tasks.task import Examples

# Raw gates take most memory: 25 kB for each token.
_TOKENS_AT_ONCE = 2048


class PlayedGames(NamedTuple):
    """Positions of games.

    Attributes:
        right: contents of all heads after each ply, shape (games, plies, heads).
        answers: answers of a network, same shape.
    """

    right: NDArray[np.int64]
    answers: NDArray[np.int64]

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Whether the whole position is right, shape (games, plies)."""
        found: NDArray[np.bool_] = (self.right == self.answers).all(-1)
        return found


@torch.no_grad()
def play(model: TokenClassifier, games: Examples) -> PlayedGames:
    """Return the answers of a network to games, piece by piece."""
    tokens = torch.from_numpy(games.tokens)
    pieces = torch.split(tokens, max(1, _TOKENS_AT_ONCE // len(tokens)), dim=1)
    answers = [
        torch.stack([logits[head].argmax(-1) for head in HEADS], dim=-1).to(torch.int8)
        for logits in model.eval().in_pieces(pieces)
    ]
    right = np.stack([games.targets[head] for head in HEADS], axis=-1)
    return PlayedGames(right, torch.cat(answers, dim=1).numpy())
