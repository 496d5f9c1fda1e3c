"""Chess: follow the position of a game from its moves."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.errors import OptionError, RequestError
from statemix.place_rules import PlaceRules
from statemix.tasks import addressing
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import PlacesTask, Raw
from statemix_lab.tasks import example_picture
from statemix_lab.tasks.chess_moves import (
    HEADS,
    MoveKind,
    all_moves,
    board_text,
    chess_rules,
    tokens_without_kinds,
)

if TYPE_CHECKING:
    import chess

MoveForm = Literal["flagged", "original"]
MoveChoice = Literal["covering", "uniform"]

# Raw values of a game's stream that are drawn at once.
_CHUNK = 256
# Weights of moves in training games: 200,000 plies then have every token (three seeds checked).
_PAWN, _SPECIAL, _STRAIGHT_PROMOTION, _CAPTURING_PROMOTION = 4, 20, 10, 120

# The least plies of a game of Chess-World-Model.
_FEWEST_PLIES = 20


class Chess(PlacesTask):
    r"""Follow the position of a chess game from its moves.

    A game starts in the initial position, and its moves are drawn from the legal ones. It has no
    rule that ends it but checkmate and stalemate: no draw by repetition, by the rule of 50 or 75
    moves, or by missing material. A game that ends before the last ply is drawn again.

    After every ply, the task asks for the contents of the 64 squares (13 classes), the side to
    move, and the four rights to castle. In the flagged form a token is a pair of squares, with the
    piece that a pawn becomes, and whether the move castles or captures en passant. What a token
    does to the position is then known from the token alone. The original form leaves out the two
    flags.

    Needs python-chess, which is under the GPL: ``pip install 'statemix-lab[chess]'``.

    Args:
        form: "flagged" or "original".
        moves: choice of the moves in training games. "uniform": all legal moves are equally
            likely. "covering": long moves, pawn moves, castling, en passant and promotions are more
            likely, so that every token comes early enough. Validation and test games are uniform.
        length: plies of a training game; tests may go beyond.
    """

    name: ClassVar[str] = "chess"
    title = "chess"

    def __init__(
        self,
        *,
        form: MoveForm = "flagged",
        moves: MoveChoice = "covering",
        length: int = 16,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(length=length, train_size=train_size, seed=seed)
        addressing.check_choice("form", form, get_args(MoveForm))
        addressing.check_choice("moves", moves, get_args(MoveChoice))
        self.form, self.moves = form, moves
        self._tokens = np.arange(len(all_moves())) if form == "flagged" else tokens_without_kinds()

    @property
    def vocab_size(self) -> int:  # type: ignore[override]  # the form decides
        return int(self._tokens.max()) + 1

    @property
    def heads(self) -> dict[str, int]:
        return dict(HEADS)

    def places(self) -> PlaceRules:
        """Return what moves do to the places of a position."""
        if self.form != "flagged":
            raise OptionError(f"form must be 'flagged' to have places, got {self.form!r}")
        return chess_rules()

    def word(self, token: int) -> str:
        return all_moves()[int(np.flatnonzero(self._tokens == token)[0])].text

    def describe(self, index: int, split: addressing.Split = "train") -> str:
        """Return one game as text: its moves, and the position after the last one."""
        return example_picture(self, index, split, unit="plies", per_line=12, picture=board_text)

    def game(self, moves: Sequence[str]) -> Examples:
        """Return a game of the user as one example."""
        board, tokens = _library().Board(), []
        if not moves:
            raise OptionError("moves must be at least one, got none")
        for text in moves:
            if not isinstance(text, str):
                raise OptionError(f"moves must be strings, got {text!r}")
        for ply, text in enumerate(moves, 1):
            move = _legal(board).get(text)
            if move is None:
                legal = sorted(board.san(legal) for legal in board.legal_moves)
                raise OptionError(
                    f"moves must be legal, got {text!r} as ply {ply} where the legal moves are "
                    f"{', '.join(legal) or 'none'} (position {board.fen()})"
                )
            tokens.append(_number(board, move))
            board.push(move)
        return self._of(np.array([tokens]))

    def _count(self, length: int) -> int:
        del length
        return 2

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        covers = split == "train" and self.moves == "covering"
        games = [_game(key, length, covers=covers) for key in raw]
        return self._of(np.array(games, dtype=np.int64).reshape(len(raw), length))

    def _of(self, games: NDArray[np.int64]) -> Examples:
        return self._labelled(self._tokens[games], chess_rules().contents(games))


def world_model_games(seed: int = 0) -> Iterator[list[int]]:
    """Yield games as the random split of Chess-World-Model draws them.

    All legal moves are equally likely, in the order of python-chess. A game ends when its result is
    known or a player may claim a draw, and is left out if it has fewer than 20 plies. The published
    split has the first 10,000 games of seed 0. A game is a list of numbers in ``all_moves()``.

    Source: Walker and Lyons, 2605.30100.
    """
    library, draw = _library(), random.Random(seed)
    while True:
        board, game = library.Board(), list[int]()
        while not board.is_game_over(claim_draw=True):
            legal = list(board.legal_moves)
            move = legal[draw.randrange(len(legal))]
            game.append(_number(board, move))
            board.push(move)
        if len(game) >= _FEWEST_PLIES:
            yield game


def _library() -> ModuleType:
    """Return python-chess, which only games need."""
    try:
        import chess
    except ImportError as error:
        raise RequestError(
            "chess games need python-chess: pip install 'statemix-lab[chess]'"
        ) from error
    return chess


@cache
def _numbers() -> dict[tuple[int, int, int, MoveKind], int]:
    """Return squares, piece type of python-chess and kind -> number in ``all_moves()``."""
    types = {"": 0, "N": 2, "B": 3, "R": 4, "Q": 5}
    return {
        (start, end, types[promotion], kind): number
        for number, (start, end, promotion, kind) in enumerate(all_moves())
    }


def _number(board: "chess.Board", move: "chess.Move") -> int:
    """Return the number of a legal move in ``all_moves()``."""
    start, end = move.from_square, move.to_square
    kind: MoveKind = "plain"
    if end == board.ep_square and board.pawns >> start & 1 and (end - start) % 8:
        kind = "en passant"
    elif board.kings >> start & 1 and abs(end - start) == 2:
        kind = "castling"
    return _numbers()[start, end, move.promotion or 0, kind]


def _game(key: Raw, length: int, *, covers: bool) -> list[int]:
    """Draw a game of ``length`` plies: the first one of a stream that does not end before."""
    new_board = _library().Board
    values = _stream(key)
    board, game = new_board(), list[int]()
    while len(game) < length:
        legal = list(board.legal_moves)
        if not legal:
            board, game = new_board(), []
            continue
        value = next(values)
        sums = list(accumulate(_weight(board, move) if covers else 1 for move in legal))
        move = legal[bisect_right(sums, value * sums[-1] >> 64)]
        game.append(_number(board, move))
        board.push(move)
        # The moves would cost memory, and nothing is taken back.
        board.clear_stack()
    return game


def _stream(key: Raw) -> Iterator[int]:
    """Yield uniform 64-bit values without end."""
    generator = np.random.Philox(key=key)
    while True:
        yield from generator.random_raw(_CHUNK).tolist()


def _weight(board: "chess.Board", move: "chess.Move") -> int:
    start, end = move.from_square, move.to_square
    files = abs(start % 8 - end % 8)
    if move.promotion:
        return _CAPTURING_PROMOTION if files else _STRAIGHT_PROMOTION
    distance = max(files, abs(start // 8 - end // 8))
    if board.pawns >> start & 1:
        return _SPECIAL * _PAWN if end == board.ep_square and files else _PAWN * distance
    return _SPECIAL if distance == 2 and board.kings >> start & 1 else distance


def _legal(board: "chess.Board") -> "dict[str, chess.Move]":
    """Return each legal move by its UCI and algebraic notations."""
    found = dict[str, "chess.Move"]()
    for move in board.legal_moves:
        name = board.san(move)
        found |= dict.fromkeys((move.uci(), name, name.rstrip("+#")), move)
    return found
