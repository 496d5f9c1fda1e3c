"""The demos of chess and the cube: train networks, prove them, and show what they follow."""

import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from statemix import files
from statemix.errors import RunsFailedError
from statemix.models import TokenClassifier
from statemix.place_rules import PlaceRules
from statemix.proofs import prove_by_structure
from statemix.proofs.structure import structure_tables
from statemix.tasks.addressing import Split
from statemix.training.folder import remove_runs, save_weights
from statemix.training.progress import log_console, shown
from statemix_lab.studies.original_chess import OriginalChess, prove_original, train_original
from statemix_lab.studies.place_tracker import FollowedWords, alike, follow, train_tracker
from statemix_lab.tasks import chess_moves, cube
from statemix_lab.tasks.chess_games import Chess, world_model_games

# Training words that are drawn at once; their labels take memory.
_AT_ONCE = 100


@dataclass(frozen=True)
class Subject:
    """What a demo follows."""

    # One word, words, tokens, and contents: "game", "games", "plies", "positions".
    names: tuple[str, str, str, str]
    # Names of the tokens, and of the contents of the first place.
    letters: Sequence[str]
    answers: Sequence[str]
    # The places, the heads of the first ones, and features of the tokens, (tokens, features).
    rules: PlaceRules
    heads: dict[str, int]
    features: NDArray[np.float32]
    # Training words, tokens of each, and optimiser steps.
    num_words: int
    length: int
    num_steps: int
    # Split, first index, last index, length -> words (N, T).
    draw: Callable[[Split, int, int, int], NDArray[np.int64]]
    # Moves of a user -> a word (T,).
    read: Callable[[str], NDArray[np.int64]]
    # Contents of all heads -> lines.
    text: Callable[[NDArray[np.int64]], str]
    # Tokens after which contents are shown; the last number is the length of test words.
    shown: tuple[int, ...]
    # Test words of the proven network.
    num_tests: int


SHORT_WORDS, SHORT_TOKENS = 100, 200
"""Test words of the network as it was trained, and their tokens."""


def chess_subject(seed: int) -> Subject:
    """Return the positions of random games."""
    task = Chess(seed=seed)
    return Subject(
        ("game", "games", "plies", "positions"),
        [task.word(token) for token in range(task.vocab_size)],
        chess_moves.PIECES,
        chess_moves.chess_rules(),
        chess_moves.HEADS,
        chess_moves.move_features(),
        num_words=1600,
        length=128,
        num_steps=300,
        draw=lambda split, start, stop, length: task.examples(split, start, stop, length).tokens,
        read=lambda moves: task.game(moves.split()).tokens[0],
        text=chess_moves.board_text,
        shown=(10, 100, 1_000, 100_000),
        num_tests=1,
    )


def cube_subject(seed: int) -> Subject:
    """Return the colours of a cube after random turns."""
    task, size = cube.Cube(seed=seed), len(cube.TURNS)
    return Subject(
        ("scramble", "scrambles", "turns", "cubes"),
        cube.TURNS,
        cube.COLOURS,
        cube.cube_rules(),
        task.heads,
        np.eye(size, dtype=np.float32),
        num_words=200,
        length=64,
        num_steps=150,
        draw=task.words,
        read=cube.read_turns,
        text=cube.cube_text,
        shown=(2, 20, 100_000),
        num_tests=10,
    )


SUBJECTS = {"chess": chess_subject, "cube": cube_subject}
"""Name -> subject for a seed."""


def demo_tracker(name: str, folder: Path, seed: int, moves: str | None, *, fresh: bool) -> None:
    """Train, prove, and print what the network follows; everything is written into a folder."""
    began, console = time.monotonic(), log_console()
    subject = SUBJECTS[name](seed)
    word, words, tokens, _ = subject.names
    own = None if moves is None else subject.read(moves)
    if fresh:
        remove_runs([folder / "run"])
    console.print(
        f"{subject.num_words:,} random {words} of {subject.length} {tokens}, {subject.num_steps} "
        "steps. After Ctrl-C, repeat the command to resume."
    )
    with shown() as show:
        model, trained = train_tracker(
            subject.rules,
            subject.heads,
            subject.features,
            training_words(subject, folder / f"{words}-{seed}.npy"),
            folder / "run",
            num_steps=subject.num_steps,
            seed=seed,
            on_event=lambda event: show(name, event),
        )
    found = prove_by_structure(model, subject.rules)
    numbers: dict[str, Any] = {
        "seed": seed,
        "num_threads": torch.get_num_threads(),
        "training_s": round(trained.time_s, 1),
        "alike": alike(model, subject.rules),
        "certificate": found.to_plain(),
    }
    if found.verdict == "proven":
        count = subject.rules.num_tokens
        console.print(f"proven: right after every sequence of the {count:,} tokens, of any length")
    else:
        console.print(f"{found.verdict}: {found.result.reason}")
    first = subject.num_tests
    short = subject.draw("test", first, first + SHORT_WORDS, SHORT_TOKENS)
    soft = follow(model, subject.rules, short)
    numbers["as_trained"] = _counts(subject, soft)
    text = counts_text(subject, numbers["as_trained"])
    console.print(f"as trained, on test {words} of {SHORT_TOKENS} {tokens}: {text}")
    network = found.model
    assert isinstance(network, TokenClassifier)
    most = subject.shown[-1]
    console.print(f"following long test {words}: {first} of {most:,} {tokens}")
    long = follow(network, subject.rules, subject.draw("test", 0, first, most))
    numbers["hardened"] = _counts(subject, long)
    for count in subject.shown:
        show_contents(console, f"after {count:,} {tokens} of a test {word}", subject, long, count)
    text = counts_text(subject, numbers["hardened"])
    console.print(f"with gates of 0 and 1, on long test {words}: {text}")
    if own is not None:
        followed = follow(network, subject.rules, own[None])
        show_contents(console, f"after your {word}", subject, followed, len(own))
    weights, certificate = folder / "certified.safetensors", folder / "certificate.json"
    numbers["sha256"] = save_weights(folder, weights.name, network.state_dict())
    written = [weights]
    if found.verdict == "proven":
        content = {
            **found.to_plain(),
            "sha256": numbers["sha256"],
            "letters": list(subject.letters),
            "answers": list(subject.answers),
            "places": list(subject.heads),
            "tables": structure_tables(network, subject.rules),
        }
        files.write_file(certificate, json.dumps(content, separators=(",", ":")).encode())
        written.append(certificate)
    finish(console, folder, numbers, began, written)
    if found.verdict != "proven":
        raise RunsFailedError(f"the network is not proven: {found.result.reason}")


def finish(
    console: Console, folder: Path, numbers: dict[str, Any], began: float, written: Sequence[Path]
) -> None:
    """Write the summary of a demo, and say how long it took and what it wrote."""
    summary = folder / "summary.json"
    files.write_file(summary, (json.dumps(numbers, indent=1) + "\n").encode())
    names = ", ".join(map(str, [*written, summary]))
    console.print(f"finished in {time.monotonic() - began:.0f} s; wrote {names}")


def training_words(subject: Subject, file: Path) -> NDArray[np.int64]:
    """Return training words, shape (N, T), from a file if it exists; otherwise, draw and store."""
    if file.exists():
        stored: NDArray[np.int64] = np.load(file).astype(np.int64)
        return stored
    count = subject.num_words
    parts = [
        subject.draw("train", start, min(start + _AT_ONCE, count), subject.length)
        for start in range(0, count, _AT_ONCE)
    ]
    words = np.concatenate(parts)
    content = io.BytesIO()
    np.save(content, words.astype(np.int16))
    files.write_file(file, content.getvalue())
    return words


def _counts(subject: Subject, followed: FollowedWords) -> dict[str, int]:
    exact, (_, words, tokens, _) = followed.exact, subject.names
    return {
        words: len(exact),
        tokens: exact.size,
        f"exact_{tokens}": int(exact.sum()),
        f"exact_{words}": int(exact.all(1).sum()),
    }


def counts_text(subject: Subject, counts: dict[str, int]) -> str:
    """Return how many contents and words are exact, as text."""
    _, words, tokens, contents = subject.names
    return (
        f"{counts[f'exact_{tokens}']:,} of {counts[tokens]:,} {contents} exact, "
        f"{counts[f'exact_{words}']:,} of {counts[words]:,} {words}"
    )


def show_contents(
    console: Console, title: str, subject: Subject, followed: FollowedWords, count: int
) -> None:
    """Print the right contents and the answer side by side, after some tokens of the first word."""
    texts = [
        subject.text(contents[0, count - 1].astype(np.int64)).splitlines()
        for contents in (followed.right, followed.answers)
    ]
    wrong = int((followed.right != followed.answers)[0, count - 1].sum())
    verdict = "all right" if not wrong else f"{wrong} of {followed.right.shape[-1]} wrong"
    console.print(f"\n{title}: {verdict}\n{'right':<36}network")
    for right, answer in zip(*texts, strict=True):
        console.print(f"{right:<36}{answer}")


# Test games that are followed at once, and by the network as it was trained.
_GAMES_AT_ONCE = 100
# Games after which a line tells how far the command is.
_SAID = 1_000
# Plies after which positions are shown.
_SHOWN = (10, 100)


def demo_original_chess(
    folder: Path, seed: int, moves: str | None, num_games: int, *, fresh: bool
) -> None:
    """Train, prove, and follow the first games of the random split of Chess-World-Model."""
    began, console = time.monotonic(), log_console()
    subject = chess_subject(seed)
    own = None if moves is None else subject.read(moves)
    if fresh:
        remove_runs([folder / part for part in OriginalChess._fields])
    console.print(
        f"{subject.num_words:,} random games of {subject.length} plies, two trackers of "
        f"{subject.num_steps} steps. After Ctrl-C, repeat the command to resume."
    )
    games = training_words(subject, folder / f"games-{seed}.npy")
    with shown() as show:
        network, training_s = train_original(
            games, folder, num_steps=subject.num_steps, seed=seed, on_event=show
        )
    found = prove_original(network)
    numbers: dict[str, Any] = {
        "seed": seed,
        "num_threads": torch.get_num_threads(),
        "training_s": round(training_s, 1),
        "certificates": {"first": found.first.to_plain(), "second": found.second.to_plain()},
        "wrong_kinds": found.wrong_kinds,
    }
    console.print(found.reason or "proven: right after every legal game, of any length")
    console.print(f"following {num_games:,} games of Chess-World-Model")
    tests = islice(world_model_games(), num_games)
    some = list(islice(tests, _GAMES_AT_ONCE))
    numbers["as_trained"], _ = _follow(network, some, console)
    console.print(f"as trained: {counts_text(subject, numbers['as_trained'])}")
    numbers["hardened"], first = _follow(found.network, chain(some, tests), console)
    for count in _SHOWN:
        title = f"after {count:,} plies of the first game"
        show_contents(console, title, subject, first, count)
    console.print(f"with gates of 0 and 1: {counts_text(subject, numbers['hardened'])}")
    if own is not None:
        followed = found.network.follow(own[None])
        show_contents(console, "after your game", subject, followed, len(own))
    numbers["sha256"] = {
        part: save_weights(folder, f"certified-{part}.safetensors", module.state_dict())
        for part, module in found.network._asdict().items()
    }
    finish(console, folder, numbers, began, ())
    if found.reason:
        raise RunsFailedError(f"the network is not proven: {found.reason}")


def _follow(
    network: OriginalChess, games: Iterable[list[int]], console: Console
) -> tuple[dict[str, int], FollowedWords]:
    """Follow games, say from time to time how many are exact; return counts and the first game."""
    left = iter(games)
    counts = dict.fromkeys(("games", "plies", "exact_plies", "exact_games"), 0)
    first = None
    while some := list(islice(left, _GAMES_AT_ONCE)):
        lengths = np.array([len(game) for game in some])
        # After its last ply, a game repeats its first move, which is not counted.
        padded = np.array([game + game[:1] * (lengths.max() - len(game)) for game in some])
        followed = network.follow(padded)
        beyond = np.arange(lengths.max()) >= lengths[:, None]
        exact = followed.exact | beyond
        counts["games"] += len(some)
        counts["plies"] += int(lengths.sum())
        counts["exact_plies"] += int((exact & ~beyond).sum())
        counts["exact_games"] += int(exact.all(1).sum())
        first = first or followed
        if not counts["games"] % _SAID:
            console.print(f"{counts['games']:,} games: {counts['exact_games']:,} exact")
    assert first is not None
    return counts, first
