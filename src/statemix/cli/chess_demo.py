"""The demo of chess: train a network, prove it, and show positions of a long game."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from statemix import files
from statemix.cli.progress import shown
from statemix.errors import RunsFailedError
from statemix.models import TokenClassifier
from statemix.proofs import prove_by_structure
from statemix.studies.chess_results import PlayedGames, play
from statemix.studies.chess_tracker import NUM_GAMES, NUM_PLIES, NUM_STEPS, alike, train_chess
from statemix.tasks.chess_games import Chess
from statemix.tasks.chess_moves import board_text, chess_rules
from statemix.training.folder import remove_runs, save_weights

SHOWN = (10, 100, 1_000, 100_000)
"""Plies after which positions are shown."""

SHORT_GAMES, SHORT_PLIES = 100, 200
"""Test games of the network as it was trained, and their plies."""


def demo_chess(folder: Path, seed: int, moves: str | None, *, fresh: bool) -> None:
    """Train, prove, and print positions.

    Args:
        folder: folder of everything that is written; it must exist.
        seed: seed of games and weights.
        moves: a game whose last position is shown, too.
        fresh: remove the existing run first.

    Raises:
        RequestError: if python-chess is missing, or the folder holds another run.
        OptionError: if ``moves`` cannot be read or are illegal.
        RunsFailedError: if the network is not proven.
        KeyboardInterrupt: after Ctrl-C; the same call resumes.
    """
    console = Console(highlight=False, markup=False)
    console.soft_wrap = not console.is_terminal
    task = Chess(seed=seed)
    own = None if moves is None else task.game(moves.split())
    if fresh:
        remove_runs([folder / "run"])
    began = time.monotonic()
    console.print(
        f"{NUM_GAMES:,} random games of {NUM_PLIES} plies, {NUM_STEPS} steps. "
        "After Ctrl-C, repeat the command to resume."
    )
    with shown() as show:
        model, trained = train_chess(folder, seed, on_event=lambda event: show("chess", event))
    rules = chess_rules()
    found = prove_by_structure(model, rules)
    numbers: dict[str, Any] = {
        "seed": seed,
        "num_threads": torch.get_num_threads(),
        "training_s": round(trained.time_s, 1),
        "alike": alike(model, rules),
        "certificate": found.to_plain(),
    }
    if found.verdict == "proven":
        console.print(
            f"proven: right after every sequence of the {rules.num_tokens:,} tokens, of any length"
        )
    else:
        console.print(f"{found.verdict}: {found.result.reason}")
    short = play(model, task.examples("test", 1, 1 + SHORT_GAMES, SHORT_PLIES))
    numbers["as_trained"] = _counts(short)
    console.print(f"as trained, on test games of {SHORT_PLIES} plies: {_text(short)}")
    network = found.model
    assert isinstance(network, TokenClassifier)
    long = play(network, task.examples("test", 0, 1, max(SHOWN)))
    numbers["hardened"] = _counts(long)
    for plies in SHOWN:
        _show(console, f"after {plies:,} plies of a test game", long, plies)
    console.print(f"with gates of 0 and 1, on this game: {_text(long)}")
    if own is not None:
        _show(console, "after your game", play(network, own), own.tokens.shape[1])
    path, summary = folder / "certified.safetensors", folder / "summary.json"
    numbers["sha256"] = save_weights(folder, path.name, network.state_dict())
    files.write_file(summary, (json.dumps(numbers, indent=1) + "\n").encode())
    console.print(f"finished in {time.monotonic() - began:.0f} s; wrote {path} and {summary}")
    if found.verdict != "proven":
        raise RunsFailedError(f"the network is not proven: {found.result.reason}")


def _counts(played: PlayedGames) -> dict[str, int]:
    exact = played.exact
    return {
        "games": len(exact),
        "plies": exact.size,
        "exact_plies": int(exact.sum()),
        "exact_games": int(exact.all(1).sum()),
    }


def _text(played: PlayedGames) -> str:
    numbers = _counts(played)
    return (
        f"{numbers['exact_plies']:,} of {numbers['plies']:,} positions exact, "
        f"{numbers['exact_games']} of {numbers['games']} games"
    )


def _show(console: Console, title: str, played: PlayedGames, plies: int) -> None:
    """Print the right position and the answer side by side."""
    boards = [
        board_text(contents[0, plies - 1].astype(np.int64)).splitlines()
        for contents in (played.right, played.answers)
    ]
    wrong = int((played.right != played.answers)[0, plies - 1].sum())
    verdict = "all right" if not wrong else f"{wrong} of {played.right.shape[-1]} wrong"
    console.print(f"\n{title}: {verdict}\n{'right':<36}network")
    for right, answer in zip(*boards, strict=True):
        console.print(f"{right:<36}{answer}")
