"""Chess moves as tokens, and what each token does to the squares, the side to move and rights."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.place_rules import PlaceRules

MoveKind = Literal["plain", "castling", "en passant"]

KINDS: tuple[MoveKind, ...] = get_args(MoveKind)
"""Names of the kinds of moves."""

SQUARES = tuple(f"{file}{rank}" for rank in "12345678" for file in "abcdefgh")
"""Names of the squares in the order of their numbers: a1, b1, ..., h8."""

PIECES = ".PNBRQKpnbrqk"
"""Contents of a square: empty, then the pieces of White and of Black."""

RIGHTS = ("white_short", "white_long", "black_short", "black_long")
"""Names of the rights to castle."""

SIDE = "side"
"""Name of the side to move: 0 for White, 1 for Black."""

HEADS = {**dict.fromkeys(SQUARES, len(PIECES)), SIDE: 2, **dict.fromkeys(RIGHTS, 2)}
"""What a position consists of -> number of contents."""

MOVED, TAKEN = "moved", "taken"
"""Names of what stood on the two squares of the last move before it."""

_EMPTY = _LOST = 0
_PROMOTIONS = "NBRQ"
# Places without a head: the side that waits, and a stock of each piece that a pawn becomes.
_WAITING = len(HEADS)
_STOCKS = {piece: _WAITING + 1 + n for n, piece in enumerate(_PROMOTIONS + _PROMOTIONS.lower())}
# The home squares of kings and rooks, and the rights that end when the piece leaves or is captured.
# Kings are never captured: after a move to e1, White has no right that could end.
_HOMES = {
    "e1": RIGHTS[:2],
    "h1": RIGHTS[:1],
    "a1": RIGHTS[1:2],
    "e8": RIGHTS[2:],
    "h8": RIGHTS[2:3],
    "a8": RIGHTS[3:],
}
# Where a king castles to -> where the rook moves from and to.
_ROOKS = {"g1": ("h1", "f1"), "c1": ("a1", "d1"), "g8": ("h8", "f8"), "c8": ("a8", "d8")}


class ChessMove(NamedTuple):
    """A move by the numbers of its squares, and what a pawn becomes: one of "NBRQ", or nothing."""

    start: int
    end: int
    promotion: str = ""
    kind: MoveKind = "plain"

    @property
    def text(self) -> str:
        """The move in the notation of UCI, with its kind unless it is plain."""
        text = SQUARES[self.start] + SQUARES[self.end] + self.promotion.lower()
        return text if self.kind == "plain" else f"{text}({self.kind})"


@cache
def all_moves() -> tuple[ChessMove, ...]:
    """Return every move that some position allows, first those without a kind or a promotion."""
    plain = [
        ChessMove(start, end)
        for start in range(64)
        for end in range(64)
        for files, ranks in [tuple(map(abs, _differences(start, end)))]
        # A queen or a knight moves so.
        if start != end and (0 in (files, ranks) or files == ranks or {files, ranks} == {1, 2})
    ]
    castling = [
        ChessMove(SQUARES.index(f"e{king[1]}"), SQUARES.index(king), kind="castling")
        for king in _ROOKS
    ]
    promotions, en_passant = [], []
    for start, end, *_ in plain:
        files, ranks = _differences(start, end)
        if abs(files) > 1 or abs(ranks) != 1:
            continue
        # Pawns of White move up.
        if (start // 8, ranks) in ((6, 1), (1, -1)):
            promotions += [ChessMove(start, end, piece) for piece in _PROMOTIONS]
        if files and (start // 8, ranks) in ((4, 1), (3, -1)):
            en_passant.append(ChessMove(start, end, kind="en passant"))
    return (*plain, *castling, *promotions, *en_passant)


def _differences(start: int, end: int) -> tuple[int, int]:
    """Return by how many files and ranks a square is right of another and above it."""
    return end % 8 - start % 8, end // 8 - start // 8


@cache
def chess_rules() -> PlaceRules:
    """Return what each of :func:`all_moves` does to the places of a position.

    The first places are those of ``HEADS``. Then come the side that does not move, which every
    token exchanges with the side that moves, and a place for each piece that a pawn may become,
    which no token changes.
    """
    moves = all_moves()
    index = {head: place for place, head in enumerate(HEADS)}
    start = [PIECES.index(piece) for piece in "RNBQKBNR" + "P" * 8 + "." * 32 + "p" * 8]
    start += [PIECES.index(piece) for piece in "rnbqkbnr"]
    start += [0, *[1] * len(RIGHTS), 1, *(PIECES.index(piece) for piece in _STOCKS)]
    sources = np.tile(np.arange(len(start)), (len(moves), 1))
    for move, places in zip(moves, sources, strict=True):
        places[move.end] = move.start
        places[move.start] = -1 - _EMPTY
        if move.promotion:
            white = move.end > move.start
            places[move.end] = _STOCKS[move.promotion if white else move.promotion.lower()]
        if move.kind == "en passant":
            places[move.start - move.start % 8 + move.end % 8] = -1 - _EMPTY
        if move.kind == "castling":
            before, after = (index[square] for square in _ROOKS[SQUARES[move.end]])
            places[after], places[before] = before, -1 - _EMPTY
        ended = [*_HOMES.get(SQUARES[move.start], ())]
        if SQUARES[move.end][0] != "e":
            ended += _HOMES.get(SQUARES[move.end], ())
        for right in ended:
            places[index[right]] = -1 - _LOST
        places[index[SIDE]], places[_WAITING] = _WAITING, index[SIDE]
    return PlaceRules(np.array(start), sources, len(PIECES), num_hidden=len(start) - len(HEADS))


@cache
def move_features() -> NDArray[np.float32]:
    """Return what each of :func:`all_moves` consists of, as zeros and ones, shape (moves, 156).

    A one stands for the first square, another one for the second square, and one more for what is
    special: each castling, each piece that a pawn of White or Black becomes, and each square of a
    capture en passant.
    """
    return _features(all_moves(), lambda move: move.kind if move.kind != "plain" else None)


def _features(
    moves: Sequence[ChessMove], special: Callable[[ChessMove], str | None]
) -> NDArray[np.float32]:
    """Return a one for each square of a move, and one for what is special."""
    numbers: dict[tuple[str, int], int] = {}
    rows = []
    for move in moves:
        row, name = [move.start, 64 + move.end], move.promotion or special(move)
        if name:
            part = (name, move.end > move.start if move.promotion else move.end)
            row.append(128 + numbers.setdefault(part, len(numbers)))
        rows.append(row)
    found = np.zeros((len(rows), 128 + len(numbers)), dtype=np.float32)
    for number, row in enumerate(rows):
        found[number, row] = 1
    return found


@cache
def tokens_without_kinds() -> NDArray[np.int64]:
    """Return the token in the original form of each of :func:`all_moves`, shape (moves,)."""
    tokens = {move: token for token, move in enumerate(moves_without_kinds())}
    return np.array([tokens[move._replace(kind="plain")] for move in all_moves()])


@cache
def moves_without_kinds() -> tuple[ChessMove, ...]:
    """Return the moves that tokens in the original form name."""
    return tuple(dict.fromkeys(move._replace(kind="plain") for move in all_moves()))


@cache
def rules_without_kinds() -> PlaceRules:
    """Return what each of :func:`moves_without_kinds` tells about the pieces on the squares.

    The first two places hold what stood on the two squares of the last move before it. Then come
    the 64 squares, and the pieces that a pawn may become. A pawn that is captured en passant stays
    where it is. A move from e1 to g1, and each other move of two squares with which a king castles,
    copies the rook's square even if another piece moves. In legal games, a square with a piece
    nevertheless has the right piece, and a square that a pawn may come to en passant is empty if it
    is empty in the position.
    """
    moves, whole = moves_without_kinds(), chess_rules()
    kept = [*range(64), *_STOCKS.values()]
    numbers = {place: 2 + number for number, place in enumerate(kept)}
    start = np.concatenate([[_EMPTY, _EMPTY], whole.start[kept]])
    sources = np.tile(np.arange(len(start)), (len(moves), 1))
    for move, places in zip(moves, sources, strict=True):
        places[:2] = numbers[move.start], numbers[move.end]
        stock = move.promotion if move.end > move.start else move.promotion.lower()
        places[numbers[move.end]] = numbers[_STOCKS[stock] if stock else move.start]
        places[numbers[move.start]] = -1 - _EMPTY
        if is_jump_of_king(move):
            before, after = (SQUARES.index(square) for square in _ROOKS[SQUARES[move.end]])
            places[numbers[after]] = numbers[before]
    return PlaceRules(start, sources, len(PIECES), num_hidden=len(start) - 2)


def is_jump_of_king(move: ChessMove) -> bool:
    """Return whether a king that moves so castles."""
    king = SQUARES[move.end]
    return king in _ROOKS and SQUARES[move.start] == f"e{king[1]}"


@cache
def kinds_by_pieces() -> NDArray[np.int64]:
    """Return the kind of a move by the pieces on its squares, as a number in ``KINDS``.

    It is -1 if the piece never moves so; the shape is (moves without kinds, contents of the first
    square, contents of the second square). The second content is free, except that a pawn changes
    its file only to capture, no pawn captures a king, and a king castles to an empty square.
    """
    found = np.full((len(moves_without_kinds()), len(PIECES), len(PIECES)), -1)
    for move, kinds in zip(moves_without_kinds(), found, strict=True):
        files, ranks = (abs(steps) for steps in _differences(move.start, move.end))
        moved = {"B": files == ranks, "R": 0 in (files, ranks), "N": {files, ranks} == {1, 2}}
        moved["Q"] = moved["B"] or moved["R"]
        moved["K"] = max(files, ranks) == 1
        for piece in PIECES[1:]:
            own = kinds[PIECES.index(piece)]
            if piece in "Pp":
                _of_pawn(move, piece, own)
            elif not move.promotion:
                if moved[piece.upper()]:
                    own[:] = KINDS.index("plain")
                if piece == "Kk"[move.start > 31] and is_jump_of_king(move):
                    own[_EMPTY] = KINDS.index("castling")
    return found


def _of_pawn(move: ChessMove, pawn: str, kinds: NDArray[np.int64]) -> None:
    """Set the kinds of a move of a pawn, by what stands on the second square."""
    files, ranks = _differences(move.start, move.end)
    # The ranks from the pawn's side of the board.
    begin = move.start // 8 if pawn == "P" else 7 - move.start // 8
    steps = ranks if pawn == "P" else -ranks
    if begin == 0 or bool(move.promotion) != (begin + steps == 7):
        return
    if (not files and steps == 1) or (not files and steps == 2 and begin == 1):
        kinds[:] = KINDS.index("plain")
    if abs(files) == 1 and steps == 1:
        captured = [content for content, piece in enumerate(PIECES) if piece not in ".Kk"]
        kinds[captured] = KINDS.index("plain")
        kinds[_EMPTY] = KINDS.index("en passant") if begin == 4 else -1


@cache
def numbers_by_kind() -> NDArray[np.int64]:
    """Return the number in :func:`all_moves`, shape (moves without kinds, kinds)."""
    numbers = {move: number for number, move in enumerate(all_moves())}
    return np.array(
        [
            [numbers.get(move._replace(kind=kind), numbers[move]) for kind in KINDS]
            for move in moves_without_kinds()
        ]
    )


@cache
def features_without_kinds() -> NDArray[np.float32]:
    """Return what each of :func:`moves_without_kinds` consists of, shape (moves, 140)."""
    return _features(
        moves_without_kinds(), lambda move: "castling" if is_jump_of_king(move) else None
    )


def board_text(contents: NDArray[np.int64]) -> str:
    """Return the contents of ``HEADS`` as eight lines, with the side to move and rights below."""
    pieces = [PIECES[content] for content in contents[:64]]
    lines = [f"{rank + 1}  " + " ".join(pieces[8 * rank : 8 * rank + 8]) for rank in range(8)][::-1]
    side, *rights = contents[64 : len(HEADS)].tolist()
    held = "".join(mark for mark, right in zip("KQkq", rights, strict=True) if right)
    return "\n".join(
        [*lines, "   a b c d e f g h", f"   {'black' if side else 'white'} to move, {held or '-'}"]
    )
