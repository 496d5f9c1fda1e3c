"""Chess without flags: two trackers, and a small network between them that names kinds of moves."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from statemix.models import TokenClassifier
from statemix.proofs import Certificate, prove_by_structure
from statemix.training import Event, Fitted, fit
from statemix_lab.studies.place_tracker import (
    EvenDraws,
    FollowedWords,
    contents_before,
    follow,
    train_tracker,
)
from statemix_lab.tasks.chess_moves import (
    HEADS,
    KINDS,
    MOVED,
    PIECES,
    TAKEN,
    all_moves,
    chess_rules,
    features_without_kinds,
    kinds_by_pieces,
    move_features,
    numbers_by_kind,
    rules_without_kinds,
    tokens_without_kinds,
)

_HIDDEN = 64
_STEPS, _BATCH, _LEARNING_RATE = 600, 1024, 1e-2


class KindReader(nn.Module):
    r"""Tells the kind of a move by its token and the pieces on its squares.

    .. math:: \mathrm{logits} = W_2 \max(0, W_1 [f_t, e_{moved}, e_{taken}] + b_1) + b_2

    where f_t are the features of the token, and e are unit vectors.
    """

    features: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.from_numpy(features_without_kinds()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.Linear(self.features.shape[1] + 2 * len(PIECES), _HIDDEN)
            self.kinds = nn.Linear(_HIDDEN, len(KINDS))

    def forward(self, tokens: Tensor, moved: Tensor, taken: Tensor) -> Tensor:
        """Return logits of the kinds, shape (..., kinds), for integers of shape (...)."""
        pieces = [functional.one_hot(piece, len(PIECES)).float() for piece in (moved, taken)]
        inputs = torch.cat([self.features[tokens], *pieces], dim=-1)
        logits: Tensor = self.kinds(functional.relu(self.hidden(inputs)))
        return logits

    @torch.no_grad()
    def table(self) -> NDArray[np.int64]:
        """Return its answers, shape (moves without kinds, contents, contents)."""
        pieces = torch.arange(len(PIECES))
        pairs = torch.meshgrid(pieces, pieces, indexing="ij")
        tokens = range(len(self.features))
        logits = [self(torch.full_like(pairs[0], token), *pairs) for token in tokens]
        return torch.stack(logits).argmax(-1).numpy()


class _Plies:
    """Draws plies of games, by the number of a step; all of ``all_moves()`` are equally likely."""

    def __init__(self, games: NDArray[np.int64], seed: int) -> None:
        rules, self._seed, self._draw = chess_rules(), seed, EvenDraws(games)
        before = contents_before(rules, games)
        squares = np.array([(move.start, move.end) for move in all_moves()])[games]
        pieces = np.take_along_axis(before, squares, axis=-1).astype(np.int64)
        kinds = np.array([KINDS.index(move.kind) for move in all_moves()])[games]
        columns = [tokens_without_kinds()[games], pieces[..., 0], pieces[..., 1], kinds]
        self._rows = np.stack([column.ravel() for column in columns], axis=-1)

    def __call__(self, step: int) -> Tensor:
        draw = np.random.default_rng([self._seed, step])
        return torch.from_numpy(self._rows[self._draw(draw, _BATCH)])


class OriginalChess(NamedTuple):
    """A network that follows positions from moves without kinds.

    The first tracker, of ``rules_without_kinds()``, names what stands on the squares of a move. The
    reader names the kind of the move by that. The second tracker, of ``chess_rules()``, follows the
    position by moves with kinds.
    """

    first: TokenClassifier
    reader: KindReader
    second: TokenClassifier

    @torch.no_grad()
    def follow(self, games: NDArray[np.int64]) -> FollowedWords:
        """Return the answers to games beside the right ones."""
        tokens = tokens_without_kinds()[games]
        pieces = follow(self.first, rules_without_kinds(), tokens).answers
        seen = torch.from_numpy(np.stack([tokens, pieces[..., 0], pieces[..., 1]]))
        kinds = self.reader(*seen).argmax(-1).numpy()
        answers = follow(self.second, chess_rules(), numbers_by_kind()[tokens, kinds]).answers
        right = chess_rules().contents(games)[..., : len(HEADS)].astype(np.int8)
        return FollowedWords(right, answers)


class OriginalProof(NamedTuple):
    """The proof of a network with gates of 0 and 1: two certificates, and kinds not told."""

    network: OriginalChess
    first: Certificate
    wrong_kinds: int
    second: Certificate

    @property
    def reason(self) -> str:
        """What is not proven; empty if everything is."""
        for name, part in (("first", self.first), ("second", self.second)):
            if part.verdict != "proven":
                return f"{name} tracker: {part.result.reason}"
        return f"the reader names {self.wrong_kinds:,} wrong kinds" if self.wrong_kinds else ""


def prove_original(network: OriginalChess) -> OriginalProof:
    """Prove that a network follows the position of every legal game.

    The certificates prove that each tracker follows its rules for all tokens. By its rules, the
    first tracker has the right piece on every square that holds a piece. Its squares may hold
    further pieces, but only where no pawn comes to en passant and no king castles to. These pieces
    never move, as no legal move begins on an empty square. So the first piece that the reader gets
    is right, and the second piece, too, where the kind depends on it. The reader is tested on all
    such pieces.
    """
    first = prove_by_structure(network.first, rules_without_kinds())
    second = prove_by_structure(network.second, chess_rules())
    assert isinstance(first.model, TokenClassifier)
    assert isinstance(second.model, TokenClassifier)
    hard = OriginalChess(first.model, network.reader, second.model)
    return OriginalProof(hard, first, wrong_kinds(network.reader), second)


def wrong_kinds(reader: KindReader) -> int:
    """Return the number of moves by pieces whose kind a reader does not tell."""
    right = kinds_by_pieces()
    return int(((reader.table() != right) & (right >= 0)).sum())


def train_original(
    games: NDArray[np.int64],
    folder: Path,
    *,
    num_steps: int,
    seed: int,
    on_event: Callable[[str, Event], None] | None = None,
) -> tuple[OriginalChess, float]:
    """Train the three parts one after the other, or resume an interrupted call."""
    tokens, features = tokens_without_kinds()[games], features_without_kinds()
    blind = dict.fromkeys((MOVED, TAKEN), len(PIECES))
    shared: dict[str, Any] = {"num_steps": num_steps, "seed": seed}

    def told(part: str) -> Callable[[Event], None] | None:
        return on_event and partial(on_event, part)

    place, seen = folder / "first", told("first")
    first, fitted = train_tracker(
        rules_without_kinds(), blind, features, tokens, place, on_event=seen, **shared
    )
    place, seen = folder / "second", told("second")
    second, other = train_tracker(
        chess_rules(), HEADS, move_features(), games, place, on_event=seen, **shared
    )
    reader, read = train_reader(games, folder / "reader", seed=seed, on_event=told("reader"))
    return OriginalChess(first, reader, second), fitted.time_s + read.time_s + other.time_s


def train_reader(
    games: NDArray[np.int64],
    folder: Path,
    *,
    seed: int,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[KindReader, Fitted]:
    """Train a reader on the right pieces of games, or resume an interrupted call."""
    reader = KindReader(seed)
    fitted = fit(
        reader,
        _Plies(games, seed),
        lambda network, plies: functional.cross_entropy(network(*plies[:, :3].T), plies[:, 3]),
        folder,
        num_steps=_STEPS,
        optimizer=torch.optim.AdamW(reader.parameters(), lr=_LEARNING_RATE),
        evaluate_every=_STEPS,
        device="cpu",
        seed=seed,
        settings={"games": list(games.shape)},
        on_event=on_event,
    )
    return reader, fitted
