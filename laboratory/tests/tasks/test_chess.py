"""Chess games: positions from moves, beside python-chess."""

import sys

import numpy as np
import pytest

from statemix import tasks
from statemix.errors import OptionError, RequestError
from statemix_lab.tasks import chess_games
from statemix_lab.tasks.chess_moves import HEADS, PIECES, all_moves, board_text, chess_rules

chess = pytest.importorskip("chess", reason="games need python-chess")


def position(board):
    """The contents of all heads, by python-chess."""
    squares = [board.piece_at(square) for square in chess.SQUARES]
    return [
        *(PIECES.index(piece.symbol() if piece else ".") for piece in squares),
        int(not board.turn),
        *(
            int(has(color))
            for color in (chess.WHITE, chess.BLACK)
            for has in (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
        ),
    ]


def labels(examples, game):
    return np.stack([classes[game] for classes in examples.targets.values()], axis=-1)


def follow(examples, form="flagged"):
    """Play the games by python-chess; return the kinds of moves that occurred."""
    task, kinds = tasks.build("chess", form=form), set()
    for number, game in enumerate(examples.tokens.tolist()):
        board = chess.Board()
        for token, expected in zip(game, labels(examples, number).tolist(), strict=True):
            move = chess.Move.from_uci(task.word(token).partition("(")[0])
            assert board.is_legal(move)
            rights_end = board.castling_rights >> move.to_square & 1 and board.is_capture(move)
            kinds |= {
                name
                for name, holds in {
                    "castling": board.is_castling(move),
                    "en passant": board.is_en_passant(move),
                    f"promotion {move.promotion}": move.promotion is not None,
                    "rook with right": rights_end,
                }.items()
                if holds
            }
            board.push(move)
            assert expected == position(board)
    return kinds


def test_labels_are_those_of_python_chess_at_every_ply():
    covering = follow(tasks.build("chess").examples("train", 55, 95, 60))
    promotions = {f"promotion {piece}" for piece in (2, 3, 4, 5)}
    assert covering >= {"castling", "en passant", "rook with right", *promotions}
    follow(tasks.build("chess", form="original").examples("test", 0, 2, 300), "original")


def test_every_token_of_a_position_that_the_game_reaches_moves_as_python_chess_does():
    """Also moves that random games rarely have, as the position of python-chess allows them."""
    kings = "4k3/8/8/8/8/8/8/4K3 w - - 0 1"
    rules = chess_rules()
    for number, move in enumerate(all_moves()):
        if not move.promotion:
            continue
        board = chess.Board(kings)
        white = move.end > move.start
        for king, square in ((True, "a3"), (False, "h6")):
            board.remove_piece_at(board.king(king))
            board.set_piece_at(chess.parse_square(square), chess.Piece(chess.KING, king))
        board.set_piece_at(move.start, chess.Piece(chess.PAWN, white))
        if (move.end - move.start) % 8:
            board.set_piece_at(move.end, chess.Piece(chess.KNIGHT, not white))
        board.turn = white
        before = position(board)
        holds = np.concatenate([before, rules.start[len(before) :], np.arange(13)[::-1]])
        board.push(chess.Move.from_uci(move.text))
        after = holds[rules.sources[number]][: len(HEADS)]
        assert after[:64].tolist() == position(board)[:64]


def test_the_original_form_drops_the_flags_and_has_no_places():
    flagged, original = (tasks.build("chess", form=form) for form in ("flagged", "original"))
    assert (flagged.vocab_size, original.vocab_size) == (2000, 1968)
    one, other = (task.examples("train", 0, 20, 60) for task in (flagged, original))
    for game, same in zip(one.tokens.tolist(), other.tokens.tolist(), strict=True):
        assert [flagged.word(token).partition("(")[0] for token in game] == [
            original.word(token) for token in same
        ]
    assert any("(" in flagged.word(token) for token in one.tokens.ravel())
    np.testing.assert_array_equal(labels(one, 7), labels(other, 7))
    with pytest.raises(OptionError, match="form must be 'flagged' to have places, got 'original'"):
        original.places()
    for name in ("form", "moves"):
        with pytest.raises(OptionError, match=f"{name} must be one of .*, got 'short'"):
            tasks.build("chess", **{name: "short"})
    assert (flagged.num_classes, flagged.chance["e4"], flagged.chance["side"]) == (
        13,
        1 / 13,
        1 / 2,
    )


def test_training_games_cover_more_tokens_than_uniform_ones():
    covering, uniform = (
        tasks.build("chess", moves=moves).examples("train", 0, 40, 100).tokens
        for moves in ("covering", "uniform")
    )
    assert len(np.unique(covering)) > 1.03 * len(np.unique(uniform))
    tests = [
        tasks.build("chess", moves=moves).examples("test", 0, 3).tokens
        for moves in ("covering", "uniform")
    ]
    np.testing.assert_array_equal(*tests)


def test_a_game_that_ends_is_drawn_again(monkeypatch):
    """The first game of this address ends before ply 200, by checkmate or stalemate."""
    boards = []

    class Board(chess.Board):
        def __init__(self):
            super().__init__()
            boards.append(self)

    monkeypatch.setattr(chess_games, "_library", lambda: type("Library", (), {"Board": Board}))
    examples = tasks.build("chess").examples("test", 35, 36, 200)
    first, second = boards
    assert first.ply() < 200 == second.ply()
    assert not list(first.legal_moves)
    assert labels(examples, 0)[-1].tolist() == position(second)


def test_a_game_of_the_user_is_read_in_two_notations():
    task = tasks.build("chess")
    game = task.game(["e4", "e7e5", "Nf3", "b8c6", "Bb5", "a6", "O-O"])
    words = [task.word(token) for token in game.tokens[0]]
    assert words == ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5", "a7a6", "e1g1(castling)"]
    text = board_text(labels(game, 0)[-1])
    assert text.splitlines()[-3:] == [
        "1  R N B Q . R K .",
        "   a b c d e f g h",
        "   black to move, kq",
    ]


@pytest.mark.parametrize(
    ("before", "rook", "castling"),
    [
        ("e4 e5 Nf3 Nc6 Bc4 Bc5", "e1h1", ("e1g1", "O-O")),
        ("d4 d5 Nc3 Nc6 Bf4 Bf5 Qd2 Qd7 a3", "e8a8", ("e8c8", "O-O-O")),
    ],
)
def test_a_king_castles_by_its_own_squares_alone(before, rook, castling):
    """python-chess also reads its move onto the rook as castling."""
    task = tasks.build("chess")
    with pytest.raises(OptionError, match=f"moves must be legal, got '{rook}'"):
        task.game([*before.split(), rook])
    board = chess.Board()
    for move in (*before.split(), castling[1]):
        board.push_san(move)
    for text in castling:
        assert labels(task.game([*before.split(), text]), 0)[-1].tolist() == position(board)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([], "moves must be at least one, got none"),
        (
            ["e4", "e4"],
            "moves must be legal, got 'e4' as ply 2 where the legal moves are Na6, Nc6, ",
        ),
        (["e2e5"], "moves must be legal, got 'e2e5' as ply 1"),
        (["e4", "--"], "moves must be legal, got '--' as ply 2"),
        (["e4", 5], "moves must be strings, got 5"),
        *(
            ([text], "moves must be legal, got .* as ply 1")
            for text in ["0000", "P@e5", "e2e4q", "", "e1e1", "e4+"]
        ),
        (["f3", "e5", "g4", "Qh4#", "a3"], "got 'a3' as ply 5 where the legal moves are none"),
    ],
)
def test_illegal_moves_are_named(moves, message):
    with pytest.raises(OptionError, match=message):
        tasks.build("chess").game(moves)


def test_without_python_chess_games_ask_for_it_and_rules_need_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "chess", None)
    task = tasks.build("chess")
    assert task.places().num_tokens == task.vocab_size
    with pytest.raises(RequestError, match=r"pip install 'statemix-lab\[chess\]'"):
        task.examples("train", 0, 1)
    with pytest.raises(RequestError, match=r"pip install 'statemix-lab\[chess\]'"):
        task.game(["e4"])
