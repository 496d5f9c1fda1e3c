"""Chess without flags: kinds by pieces, the network of three parts, its proof and its demo."""

import dataclasses
import json
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from laboratory.tests.studies.chess_networks import exact_original, exact_reader

from statemix.cli.main import main
from statemix_lab.cli import tracker_demo
from statemix_lab.studies import original_chess, place_tracker
from statemix_lab.studies.original_chess import prove_original, wrong_kinds
from statemix_lab.studies.place_tracker import alike
from statemix_lab.tasks import chess_games
from statemix_lab.tasks.chess_games import Chess, world_model_games
from statemix_lab.tasks.chess_moves import (
    HEADS,
    KINDS,
    PIECES,
    SQUARES,
    all_moves,
    chess_rules,
    kinds_by_pieces,
    moves_without_kinds,
    numbers_by_kind,
    rules_without_kinds,
    tokens_without_kinds,
)

chess = pytest.importorskip("chess", reason="games need python-chess")

KIND_OF = np.array([KINDS.index(move.kind) for move in all_moves()])
# A capture en passant, castling, and a rook that moves from e1 to g1.
GAME = "e4 a6 e5 d5 exd6 Nc6 Nf3 Bg4 Be2 e6 O-O Bxd6 Re1 Kf8 Kh1 Rb8 Rg1"


def test_tokens_without_kinds_are_those_of_the_task():
    task, plain = Chess(form="original"), moves_without_kinds()
    assert len(plain) == task.vocab_size == tokens_without_kinds().max() + 1
    for move, token in zip(all_moves(), tokens_without_kinds().tolist(), strict=True):
        assert plain[token] == move._replace(kind="plain")
        assert plain[token].text == task.word(token)
    # A token and a kind are a move.
    numbers = numbers_by_kind()[tokens_without_kinds(), KIND_OF]
    assert numbers.tolist() == list(range(len(all_moves())))
    # No bishop castles: a kind that a move never has is not told apart from none.
    a1b2 = [move.text for move in plain].index("a1b2")
    assert {all_moves()[number].text for number in numbers_by_kind()[a1b2]} == {"a1b2"}


def test_rules_without_kinds_are_right_where_the_position_has_a_piece():
    """Every token, from the rules alone: the first part of the proof of ``prove_original``."""
    whole, blind = chess_rules(), rules_without_kinds()
    stocks = blind.num_places - 66
    places = [*range(64), *range(whole.num_places - stocks, whole.num_places)]
    numbers = {place: 2 + number for number, place in enumerate(places)}
    assert blind.start[2:].tolist() == whole.start[places].tolist()
    # Squares where no pawn comes to en passant, and no king castles to.
    goals = {move.end for move in all_moves() if move.kind != "plain"}
    passed = {"e1g1": "f1", "e1c1": "d1", "e8g8": "f8", "e8c8": "d8"}
    for number, move in enumerate(all_moves()):
        sources = blind.sources[tokens_without_kinds()[number]]
        for place in places:
            source, own = whole.sources[number, place], sources[numbers[place]]
            if own == (numbers[source] if source >= 0 else -1):
                continue
            assert place not in goals
            if source >= 0:
                # Another piece than a king passes over the square, which is therefore empty.
                assert (source, SQUARES[place]) == (place, passed[move.text])
        assert sources[:2].tolist() == [numbers[move.start], numbers[move.end]]


def test_kinds_follow_from_the_pieces_that_rules_without_kinds_tell():
    games = Chess(seed=5).examples("train", 0, 60, 80).tokens
    tokens = tokens_without_kinds()[games]
    moved, taken, *_ = np.moveaxis(rules_without_kinds().contents(tokens), -1, 0)
    np.testing.assert_array_equal(kinds_by_pieces()[tokens, moved, taken], KIND_OF[games])
    assert set(np.unique(KIND_OF[games])) == {0, 1, 2}


def test_kinds_exist_for_the_moves_that_a_board_allows():
    """Each piece on a board with nothing but kings and what it captures, by python-chess."""
    kinds, plain = kinds_by_pieces(), moves_without_kinds()
    tokens = {move.text: token for token, move in enumerate(plain)}
    for content, symbol in enumerate(PIECES[1:], 1):
        piece = chess.Piece.from_symbol(symbol)
        allowed = set()
        for start in chess.SQUARES:
            if symbol in "Pp" and start // 8 in (0, 7):
                continue
            board = chess.Board(None)
            board.turn = piece.color
            board.set_piece_at(start, piece)
            for end in {*chess.SQUARES} - {start}:
                other = board.copy()
                other.set_piece_at(end, chess.Piece(chess.QUEEN, not piece.color))
                allowed |= {
                    move.uci() for move in other.pseudo_legal_moves if move.to_square == end
                }
            allowed |= {move.uci() for move in board.pseudo_legal_moves}
        found = {text for text, token in tokens.items() if (kinds[token, content] == 0).any()}
        assert found == allowed
        special = {text for text, token in tokens.items() if (kinds[token, content] > 0).any()}
        expected = {
            move.text.partition("(")[0]
            for move in all_moves()
            if (move.kind == "castling" and symbol == ("k" if move.start > 31 else "K"))
            or (move.kind == "en passant" and symbol == ("p" if move.end < 32 else "P"))
        }
        assert special == expected
        # They depend on an empty second square.
        assert (kinds[:, content, 1:] <= 0).all()


@pytest.fixture(scope="module")
def proof():
    network = exact_original()
    assert alike(network.first, rules_without_kinds()) == 1
    return prove_original(network)


@pytest.fixture
def without(proof):
    """A proof of a network that does not know a kind."""

    def make(kind):
        reader = exact_reader()
        with torch.no_grad():
            reader.kinds.weight[KINDS.index(kind)] = 0
        network = proof.network._replace(reader=reader)
        return proof._replace(network=network, wrong_kinds=wrong_kinds(reader))

    return make


def test_the_network_is_proven_and_follows_games_without_kinds(proof):
    assert (proof.reason, proof.wrong_kinds) == ("", 0)
    assert proof.first.verdict == proof.second.verdict == "proven"
    own = np.array([_numbers(GAME)])
    assert {1, 2} <= set(KIND_OF[own[0]])
    games = np.concatenate([own, Chess(seed=1).examples("test", 0, 4, own.shape[1]).tokens])
    followed = proof.network.follow(games)
    np.testing.assert_array_equal(followed.right, chess_rules().contents(games)[..., : len(HEADS)])
    np.testing.assert_array_equal(followed.answers, followed.right)


def _numbers(moves):
    return Chess().game(moves.split()).tokens[0].tolist()


@pytest.mark.parametrize(("kind", "count"), [("castling", 4), ("en passant", 28)])
def test_kinds_that_are_not_told_are_counted_and_seen_in_positions(without, kind, count):
    found, game = without(kind), _numbers(GAME)
    assert found.wrong_kinds == count
    assert found.reason == f"the reader names {count} wrong kinds"
    exact = found.network.follow(np.array([game])).exact[0]
    first = [all_moves()[number].kind for number in game].index(kind)
    assert exact[:first].all()
    assert not exact[first]


def test_a_tracker_that_is_not_proven_is_named(proof):
    lost = SimpleNamespace(verdict="open", result=SimpleNamespace(reason="no entry follows place"))
    assert proof._replace(second=lost).reason == "second tracker: no entry follows place"


def test_the_reader_learns_kinds_from_games(tmp_path):
    games = Chess(seed=2).examples("train", 0, 100, 64).tokens
    reader = original_chess.train_reader(games, tmp_path / "reader", seed=0)[0]
    tokens = tokens_without_kinds()[games]
    moved, taken, *_ = np.moveaxis(rules_without_kinds().contents(tokens), -1, 0)
    assert (reader.table()[tokens, moved, taken] == KIND_OF[games]).all()


def test_games_of_chess_world_model_are_those_of_the_published_rule(monkeypatch):
    """Lengths and last positions of another loop over python-chess with ``random.Random(0)``."""
    games = list(islice(world_model_games(), 3))
    assert [len(game) for game in games] == [607, 138, 75]
    for game in games:
        board = chess.Board()
        for number in game:
            board.push(chess.Move.from_uci(all_moves()[number].text.partition("(")[0]))
        assert board.is_game_over(claim_draw=True)
        board.pop()
        assert not board.is_game_over(claim_draw=True)
    monkeypatch.setattr(chess_games, "_FEWEST_PLIES", 76)
    assert len(list(islice(world_model_games(), 3))[2]) == 509
    assert next(world_model_games(1)) != games[0]


@pytest.fixture
def little(monkeypatch):
    """Two steps of four segments on two short games, and two test games at once."""
    subject = dataclasses.replace(tracker_demo.chess_subject(0), num_steps=2, num_words=2, length=6)
    monkeypatch.setattr(tracker_demo, "chess_subject", lambda seed: subject)
    monkeypatch.setattr(tracker_demo, "_GAMES_AT_ONCE", 2)
    monkeypatch.setattr(tracker_demo, "_SHOWN", (3,))
    monkeypatch.setattr(place_tracker, "_SEGMENTS", 4)
    monkeypatch.setattr(original_chess, "_STEPS", 2)


@pytest.fixture
def trained(monkeypatch):
    """A function of a proof and test games, which the demo then finds."""

    def be(found, games):
        changes = {
            "train_original": lambda *_, **__: (found.network, 1.5),
            "prove_original": lambda _: found,
            "world_model_games": lambda: iter(games),
        }
        for name, function in changes.items():
            monkeypatch.setattr(tracker_demo, name, function)

    return be


def demo(folder, *arguments):
    return main(["demo", "chess", "--form", "original", "--output", str(folder), *arguments])


def test_the_demo_trains_three_parts_and_says_what_is_not_proven(
    little, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(tracker_demo, "world_model_games", lambda: iter([_numbers(GAME)]))
    assert demo(tmp_path, "--games", "1") == 1
    printed = capsys.readouterr()
    assert "first tracker: no entry follows place" in printed.err
    assert all((tmp_path / part / "config.json").exists() for part in ("first", "reader", "second"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["hardened"]["games"] == summary["as_trained"]["games"] == 1
    assert summary["hardened"]["exact_games"] == 0


def test_the_demo_follows_games_of_different_lengths(
    little, trained, proof, tmp_path, capsys, monkeypatch
):
    trained(proof, [_numbers(GAME), _numbers(GAME)[:5], _numbers("e4")])
    monkeypatch.setattr(tracker_demo, "_SHOWN", (11,))
    monkeypatch.setattr(tracker_demo, "_SAID", 2)
    assert demo(tmp_path, "--games", "3", "--moves", "e4") == 0
    out = capsys.readouterr().out
    assert "proven: right after every legal game, of any length" in out
    assert "as trained: 22 of 22 positions exact, 2 of 2 games" in out
    assert "2 games: 2 exact" in out
    assert "with gates of 0 and 1: 23 of 23 positions exact, 3 of 3 games" in out
    assert "after 11 plies of the first game: all right" in out
    assert "after your game: all right" in out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["hardened"] == {"games": 3, "plies": 23, "exact_plies": 23, "exact_games": 3}
    assert (summary["seed"], summary["wrong_kinds"], summary["training_s"]) == (0, 0, 1.5)
    assert set(summary["sha256"]) == {"first", "reader", "second"}


def test_wrong_positions_are_counted_up_to_the_end_of_their_game(
    little, trained, without, tmp_path
):
    """Castling is the 11th of 17 plies; the position is wrong from there on."""
    trained(without("castling"), [_numbers(GAME), _numbers(GAME)[:5]])
    assert demo(tmp_path, "--games", "2") == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["hardened"] == {"games": 2, "plies": 22, "exact_plies": 15, "exact_games": 1}
