"""The tracker of places: its form, its training segments, its proof and its demos."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from laboratory.tests.studies.chess_networks import exact_tracker

from statemix.cli.main import main
from statemix.place_rules import PlaceRules
from statemix.proofs import prove_by_structure
from statemix.proofs.check_certificate import check_structure
from statemix.training import Fitted
from statemix_lab.cli import tracker_demo
from statemix_lab.studies import place_tracker as trackers
from statemix_lab.studies.place_tracker import (
    SegmentSampler,
    alike,
    follow,
    place_tracker,
    train_tracker,
)
from statemix_lab.tasks import cube

# A move from place 0 to 1, one from 1 to 0, and an exchange of two places, of which one is hidden.
RULES = PlaceRules(
    np.array([2, 0, 1, 0]), np.array([[-1, 0, 2, 3], [1, -1, 2, 3], [0, 1, 3, 2]]), 3, num_hidden=1
)
NAMES = {"first": 3, "second": 3, "third": 2}


def small(sources=RULES.sources):
    """A tracker of the small rules whose gates have been set."""
    return tracker_of(RULES, NAMES, sources)


def tracker_of(rules, heads, sources=None):
    """A tracker whose gates have been set to what tokens do, or to other sources."""
    size, count = rules.num_places, rules.num_tokens
    model = place_tracker(rules, heads, np.eye(count, dtype=np.float32), seed=0)
    projection = model.backbone.blocks[0].mixer.gate_proj
    gates = projection.weight.data.view(size, size + 1, -1)
    for token, row in enumerate(rules.sources if sources is None else sources):
        for entry, source in enumerate(row):
            if source != entry:
                gates[entry, source if source >= 0 else size, token] += 5
    return model


def test_a_new_tracker_keeps_what_it_holds():
    model = place_tracker(RULES, NAMES, np.eye(3, dtype=np.float32), seed=0)
    assert alike(model, RULES) == 0
    model.backbone.blocks[0].mixer.gate_temperature = 1 / 8
    logits = model(torch.zeros(1, 20, dtype=torch.int64))
    assert [one.argmax(-1).unique().item() for one in logits.values()] == [2, 0, 1]
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {f"backbone.blocks.0.mixer.gate_proj.{name}" for name in ("weight", "bias")}
    loading = PlaceRules(np.array([0]), np.array([[-2]]), 2)
    with pytest.raises(ValueError, match="rules must load content 0 alone, got 1"):
        place_tracker(loading, {"one": 2}, np.eye(1, dtype=np.float32), seed=0)


def test_alike_counts_tokens_that_do_everything_as_the_rules():
    assert alike(small(), RULES) == 1
    changed = RULES.sources.copy()
    changed[0, 0], changed[2, 3] = 3, 3
    assert alike(small(changed), RULES) == pytest.approx(1 / 3)
    # The hidden place counts, too.
    found = prove_by_structure(small(), RULES)
    assert (found.verdict, found.network) == ("proven", "pruned")


def test_segments_follow_the_rules_from_positions_of_games_and_from_others():
    games = np.random.default_rng(0).integers(3, size=(6, 10))
    sampler = SegmentSampler(games, RULES, seed=5)
    segments = sampler(7)
    before, after = segments.contents[:, 0].numpy(), segments.contents[:, 1:].numpy()
    tokens = segments.tokens.numpy()
    np.testing.assert_array_equal(after, RULES.contents(tokens, before))
    np.testing.assert_array_equal(tokens, sampler(7).tokens.numpy())
    assert (tokens != sampler(8).tokens.numpy()).any()
    words = {tuple(game[n : n + 3]) for game in games for n in range(8)}
    assert {tuple(word) for word in tokens} <= words
    # About half of the segments begin as no game does, in some places each.
    known = {tuple(row) for row in [RULES.start, *RULES.contents(games).reshape(-1, 4)]}
    others = [row for row in before if tuple(row) not in known]
    assert len(before) / 4 < len(others) < len(before) / 2
    assert all(np.unique([row[place] for row in others]).size == 3 for place in range(4))


def test_answers_are_compared_place_by_place_and_piece_by_piece(monkeypatch):
    """The second word of the small rules is wrong from its fourth token on."""
    words = np.array([[2, 1, 1, 1, 1, 1, 1], [2, 2, 2, 0, 2, 2, 2]])
    changed = RULES.sources.copy()
    changed[0, 0] = 0
    whole = follow(small(changed), RULES, words)
    np.testing.assert_array_equal(whole.right, RULES.contents(words)[..., :3])
    assert whole.exact.tolist() == [[True] * 7, [*[True] * 3, *[False] * 4]]
    # Two tokens of each word at once; then more words than tokens at once.
    for at_once in (4, 1):
        monkeypatch.setattr(trackers, "_TOKENS_AT_ONCE", at_once)
        pieces = follow(small(changed), RULES, words)
        np.testing.assert_array_equal(pieces.right, whole.right)
        np.testing.assert_array_equal(pieces.answers, whole.answers)


@pytest.fixture
def little(monkeypatch):
    """Two steps on a few words, and short words in the demo."""
    changes = {"num_steps": 2, "num_words": 2, "length": 6, "shown": (3, 8)}
    subjects = {
        name: lambda seed, make=make: dataclasses.replace(make(seed), **changes)
        for name, make in tracker_demo.SUBJECTS.items()
    }
    monkeypatch.setattr(tracker_demo, "SUBJECTS", subjects)
    monkeypatch.setattr(trackers, "_SEGMENTS", 4)
    monkeypatch.setattr(tracker_demo, "SHORT_WORDS", 2)
    monkeypatch.setattr(tracker_demo, "SHORT_TOKENS", 4)


@pytest.fixture
def with_chess():
    pytest.importorskip("chess", reason="games need python-chess")


@pytest.mark.parametrize("name", ["chess", "cube"])
def test_words_are_drawn_once(little, with_chess, tmp_path, name):
    subject, file = tracker_demo.SUBJECTS[name](0), tmp_path / "words.npy"
    words = tracker_demo.training_words(subject, file)
    np.testing.assert_array_equal(words, subject.draw("train", 0, 2, 6))
    drawn_once = dataclasses.replace(subject, draw=None)
    np.testing.assert_array_equal(tracker_demo.training_words(drawn_once, file), words)


def test_the_demo_proves_and_shows_positions_side_by_side(
    little, with_chess, tmp_path, printed_by, monkeypatch
):
    model = exact_tracker()
    trained = Fitted(tmp_path, {"step": 2}, {"step": 2}, 1.5)
    monkeypatch.setattr(tracker_demo, "train_tracker", lambda *_, **__: (model, trained))
    arguments = ["demo", "chess", "--output", str(tmp_path), "--moves", "e4 e5 Nf3"]
    out = printed_by(arguments)
    assert "proven: right after every sequence of the 2,000 tokens, of any length" in out
    assert "with gates of 0 and 1, on long test games: 8 of 8 positions exact, 1 of 1 games" in out
    assert "after your game: all right" in out
    row = next(line for line in out.splitlines()[::-1] if line.startswith("3  "))
    assert row.split() == ["3", *[".", ".", ".", ".", ".", "N", ".", "."]] * 2
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["certificate"]["verdict"] == "proven"
    assert summary["hardened"] == {"games": 1, "plies": 8, "exact_plies": 8, "exact_games": 1}
    assert (tmp_path / "certified.safetensors").exists()
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    assert certificate["verdict"] == "proven"
    assert check_structure(certificate["tables"]) == 69
    # A stranger can tell which move a letter is, and which network the tables are of.
    assert len(certificate["letters"]) == len(certificate["tables"]["letters"]) == 2000
    assert (certificate["letters"][0], certificate["answers"][:2]) == ("a1b1", [".", "P"])
    assert certificate["places"][:2] == ["a1", "b1"]
    assert certificate["sha256"] == summary["sha256"]


def test_trained_gates_do_what_the_rules_say(tmp_path):
    words = np.random.default_rng(0).integers(3, size=(20, 12))
    features = np.eye(3, dtype=np.float32)
    model, trained = train_tracker(
        RULES, NAMES, features, words, tmp_path / "run", num_steps=150, seed=0, num_threads=1
    )
    assert trained.last["scores"] == {"alike": 1.0}
    assert prove_by_structure(model, RULES).verdict == "proven"


def test_the_demo_follows_a_cube(little, tmp_path, printed_by, monkeypatch):
    rules, subject = cube.cube_rules(), tracker_demo.SUBJECTS["cube"](0)
    model = tracker_of(rules, subject.heads)
    trained = Fitted(tmp_path, {"step": 2}, {"step": 2}, 1.5)
    monkeypatch.setattr(tracker_demo, "train_tracker", lambda *_, **__: (model, trained))
    arguments = ["demo", "cube", "--output", str(tmp_path), "--seed", "3", "--moves", "R U R' U'"]
    out = printed_by(arguments)
    assert "proven: right after every sequence of the 18 tokens, of any length" in out
    assert "long test scrambles: 80 of 80 cubes exact, 10 of 10 scrambles" in out
    last = out.split("after your scramble: all right\n")[1].splitlines()
    assert last[1].split() == [*"UUL", *"UUL"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["as_trained"] == {
        "scrambles": 2, "turns": 8, "exact_turns": 8, "exact_scrambles": 2,
    }  # fmt: skip


def test_what_is_not_proven_is_named_and_another_seed_needs_fresh(
    little, tmp_path, capsys, refused
):
    arguments = ["demo", "cube", "--output", str(tmp_path)]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert "open: no entry follows place 1" in printed.out
    assert "the network is not proven: no entry follows place 1" in printed.err
    refused([*arguments, "--seed", "1"], "another")
    assert main([*arguments, "--seed", "1", "--fresh"]) == 1
    assert json.loads((tmp_path / "summary.json").read_text())["seed"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chess", "--retry"], "retry must be absent for the subject chess"),
        (["--moves", "e4"], "moves must be absent for the subject groups, got e4"),
        (["chess", "--seed", "-1"], "seed must be in"),
        (["cube", "--moves", "R u"], "moves must be of U, U2, U', "),
        (["chess", "--moves", "e4 e4"], "moves must be legal, got 'e4' as ply 2"),
        (["chess", "--games", "5"], "games must be absent for the subject chess without --form"),
        (["cube", "--form", "original"], "form must be absent for the subject cube, got original"),
        (["chess", "--form", "original", "--games", "10001"], "1..10,000, got 10,001"),
    ],
)
def test_malformed_requests_name_the_option(
    little, with_chess, tmp_path, refused, arguments, message
):
    refused(["demo", *arguments, "--output", str(tmp_path / "out")], message)
