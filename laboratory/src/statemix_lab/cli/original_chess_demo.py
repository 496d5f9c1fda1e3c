"""The demo of chess in the original form: moves without kinds, and the games of a benchmark."""

import time
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from statemix.errors import RunsFailedError
from statemix.training.folder import remove_runs, save_weights
from statemix.training.progress import shown
from statemix_lab.cli.tracker_demo import (
    chess_subject,
    counts_text,
    finish,
    open_console,
    show_contents,
    training_words,
)
from statemix_lab.studies.original_chess import OriginalChess, prove_original, train_original
from statemix_lab.studies.place_tracker import FollowedWords
from statemix_lab.tasks.chess_games import world_model_games

# Test games that are followed at once, and by the network as it was trained.
_AT_ONCE = 100
# Games after which a line tells how far the command is.
_SAID = 1_000
# Plies after which positions are shown.
_SHOWN = (10, 100)


def demo_original_chess(
    folder: Path, seed: int, moves: str | None, num_games: int, *, fresh: bool
) -> None:
    """Train, prove, and follow the first games of the random split of Chess-World-Model.

    Other arguments are those of :func:`demo_tracker`.
    """
    began, console = time.monotonic(), open_console()
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
    some = list(islice(tests, _AT_ONCE))
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
    while some := list(islice(left, _AT_ONCE)):
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
