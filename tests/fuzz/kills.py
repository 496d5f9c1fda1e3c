"""Runs killed or interrupted at random moments: resumed, they end with the same weights."""

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from cases import COMPUTED, line, require
from commands import TINY, words_of

from statemix.cli.main import main

NAME = "kills"
SHARE = 2
LIMIT_S = 120.0

_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Dozens of steps, so that a signal finds the run at work.
_LONGER = {"--schedules.epochs": ["12"], "--evaluation.every": ["3"]}
_VARIANTS = (
    {"--model.layers": ["lstm"], "--evaluation.lengths": ["6", "9"]},
    {"--batches.packed": [], "--batches.accumulate": ["2"], "--optimizer.clip-norm": ["0.1"]},
    {"--schedules.attributes": ["gate_temperature", "end=0.1"], "--evaluation.stop-at": ["0.9"]},
)


def prepare(folder: Path) -> None:
    """Train every variant without interruption, and note the time that it takes."""
    main(_command(folder / "warm", {}))
    for number, variant in enumerate(_VARIANTS):
        began = time.monotonic()
        if main(_command(folder / str(number), variant | {"--checkpoint-every-s": ["0"]})):
            raise SystemExit("the tiny run must train")
        (folder / f"{number}.seconds").write_text(str(time.monotonic() - began))


def _command(folder: Path, variant: dict[str, list[str]]) -> list[str]:
    return ["train", "--folder", str(folder), *words_of(TINY | _LONGER | variant)]


def run(r: random.Random, folder: Path, prepared: Path) -> str:
    """End a run again and again, then let it finish."""
    number = r.randrange(len(_VARIANTS))
    here = folder / "run"
    every = {"--checkpoint-every-s": [r.choice(["0", "0.02"])]}
    arguments = _command(here, _VARIANTS[number] | every)
    seconds = float((prepared / f"{number}.seconds").read_text())
    said = []
    for _ in range(r.choice([1, 1, 2, 4])):
        chosen = r.choice(_SIGNALS)
        delay = r.random() * seconds
        said.append(f"{chosen.name} after {delay:.3f} s")
        code, err = _ended(arguments, folder, chosen, delay)
        words = ", ".join(said)
        # Before the command handles signals, they end the process.
        expected = (0, -chosen, 130 if chosen != signal.SIGKILL else 0)
        require(code in expected, f"{words}: exit code {code}: {line(err[-400:])}")
        require("Traceback" not in err or code < 0, f"{words}: {line(err[-400:])}")
    code, err = _ended(arguments, folder, None, LIMIT_S / 2)
    words = f"variant {number}, {', '.join(said)}"
    require(code == 0, f"{words}, then exit code {code}: {line(err[-400:])}")
    folders = here, prepared / str(number)
    for name in ("model", "best_validation", "best_test"):
        found, wanted = ((path / f"{name}.safetensors").read_bytes() for path in folders)
        require(found == wanted, f"{words}: {name} weights differ")
    rows = [(path / "metrics.jsonl").read_text().splitlines() for path in folders]
    # Times differ.
    found, wanted = ([json.loads(text) | {"time_s": 0} for text in texts] for texts in rows)
    require(found == wanted, f"{words}: metrics differ")
    left = sorted(path.name for path in here.iterdir() if "tmp" in path.name)
    require(not left and not (here / "checkpoints").exists(), f"{words}: files left: {left}")
    return COMPUTED


def _ended(
    arguments: list[str], folder: Path, chosen: signal.Signals | None, delay: float
) -> tuple[int, str]:
    """Run a command in a fork of this process and send it a signal after a time."""
    record = folder / "stderr"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with record.open("w") as sys.stderr, contextlib.redirect_stdout(io.StringIO()):
                code = main(arguments)
                sys.stderr.flush()
        except KeyboardInterrupt:
            # The signal came before or after the command itself.
            code = 130
        finally:
            os._exit(code)
    until = time.monotonic() + delay
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), record.read_text()
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, chosen or signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, record.read_text() if record.exists() else ""
