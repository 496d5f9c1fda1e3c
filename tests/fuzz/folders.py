"""Run folders damaged at random: the right answer or an error of one clear line."""

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from cases import COMPUTED, REFUSED, FindingError, line, require
from commands import TINY, fields_of, within, words_of

from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.training import load_model, load_outcome, train
from statemix.training.outcome import load_asked

NAME = "folders"
SHARE = 2
LIMIT_S = 60.0

_WEIGHTS = ("model", "best_validation", "best_test")
_JSON = ("config.json", "summary.json", "status.json", "environment.json", "manifest.json")
_SHARPENED = ("--schedules.attributes", "gate_temperature", "end=0.5")
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "x", [], [1], {},
    {"name": "lstm"}, "../x", "ü", "a" * 10_000,
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Make a finished run, and the same run unfinished, with two checkpoints."""
    if main(["train", "--folder", str(folder / "done"), *words_of(TINY), *_SHARPENED]):
        raise SystemExit("the tiny run must train")
    config = load_asked(folder / "done")

    def interrupt(event: Any) -> None:
        if event.kind == "step" and event.step == 3:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train(config, folder / "begun", on_event=interrupt, checkpoint_every_s=0.0)


def run(r: random.Random, folder: Path, prepared: Path) -> str:
    """Damage a copy of a run, then resume or read it."""
    config = load_asked(prepared / "done")
    here = folder / "run"
    shutil.copytree(prepared / r.choice(["done", "begun"]), here)
    damages = [_damage(r, here) for _ in range(r.choice([1, 1, 1, 2, 3]))]
    edited = any("config.json" in text or "summary.json" in text for text in damages)
    action = r.choice(["train", "train", "outcome", "model", "evaluate", "train command"])
    words = f"{action} after {'; '.join(damages)}"
    try:
        if action == "train":
            outcome = train(config, here)
            for name in _WEIGHTS:
                found = (here / f"{name}.safetensors").read_bytes()
                wanted = (prepared / "done" / f"{name}.safetensors").read_bytes()
                whole = edited or found == wanted or f"{name}.safetensors" in words
                require(whole, f"{words}: {name} weights differ")
        elif action == "outcome":
            outcome = load_outcome(here)
        elif action == "model":
            weights = r.choice(["last", "best_validation", "best_test"])
            found, wanted = (load_model(path, weights) for path in (here, prepared / "done"))
            pairs = zip(found.state_dict().values(), wanted.state_dict().values(), strict=False)
            require(edited or all(torch.equal(*pair) for pair in pairs), f"{words}: weights differ")
            return COMPUTED
        else:
            command = ["evaluate", str(here), "--lengths", "4"]
            if action == "train command":
                command = ["train", "--folder", str(here), *words_of(TINY), *_SHARPENED]
            return _commanded(command, here, words)
        expected = load_outcome(prepared / "done")
        for name in ("last", "best_test", "test_at_best_validation", "num_parameters"):
            same = edited or getattr(outcome, name) == getattr(expected, name)
            require(same, f"{words}: {name} differs")
    except (RequestError, OSError, FloatingPointError) as error:
        require(len(str(error)) < 2000 or "config" in words, f"{words}: a long message")
        return REFUSED
    except FindingError:
        raise
    except Exception as error:
        raise FindingError(f"{words}: {type(error).__name__}: {line(error)}") from error
    return COMPUTED


def _commanded(command: list[str], here: Path, words: str) -> str:
    code, _, err = within(command, here.parent)
    require("Traceback" not in err, f"{words}: {line(err)}")
    require(code in (0, 2) or "[Errno" in err, f"{words}: exit code {code}: {line(err)}")
    lines = [text for text in err.splitlines() if text.startswith("statemix: ")]
    require(code == 0 or len(lines) == 1, f"{words}: not one line: {line(err)}")
    return REFUSED if code else COMPUTED


def _damage(r: random.Random, here: Path) -> str:
    """Damage one file or folder of a run, and say how."""
    files = sorted(
        path for path in here.rglob("*") if path.is_file() and path.name != ".statemix.lock"
    )
    if not files:
        return "nothing is left"
    path = r.choice(files)
    name = str(path.relative_to(here))
    if path.name in (*_JSON, "state.json") and r.random() < 0.7:
        return f"{name}: {_edited(r, path)}"
    content = path.read_bytes()
    way = r.choice(["flipped", "cut", "removed", "folder", "grown", "dangling", "parent"])
    place = r.randrange(len(content)) if content else 0
    if way == "flipped" and content:
        flipped = bytes([content[place] ^ (1 << r.randrange(8))])
        path.write_bytes(content[:place] + flipped + content[place + 1 :])
    elif way == "cut":
        path.write_bytes(content[:place])
    elif way == "grown":
        path.write_bytes(content + r.choice([b"\0", b"{", b'{"step": 1}\n']))
    elif way == "parent" and path.parent != here:
        shutil.rmtree(path.parent)
    else:
        path.unlink()
        if way == "folder":
            path.mkdir()
        if way == "dangling":
            path.symlink_to("nowhere")
    return f"{name} {way} at {place}"


_LONG = ("epochs", "num_steps", "hidden_size", "train_size", "length")


def _edited(r: random.Random, path: Path) -> str:
    """Change, remove or add one field of a JSON file."""
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, OSError):
        return "already damaged"
    places = list(fields_of(tree)) if isinstance(tree, dict | list) else []
    if not places:
        path.write_text(json.dumps(r.choice(_VALUES)))
        return "replaced"
    table, key = r.choice(places)
    value = r.choice(_VALUES)
    if key in _LONG and isinstance(value, int):
        value = min(value, 3)  # A long run or a wide network is no mistake.
    way = r.random()
    if way < 0.15:
        del table[key]
        text = f"{key} removed"
    else:
        table[key] = value
        text = f"{key}={'10**400' if value == 10**400 else repr(value)[:40]}"
    path.write_text(json.dumps(tree))
    return text
