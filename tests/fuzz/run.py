"""Try random requests for some minutes and look for broken promises of the library.

Each case is addressed by a seed, a kind and an index. A finding is printed as the command that
repeats it. The exit code is 1 if there was any.

    python tests/fuzz/run.py [--minutes N | --count N] [--seed N] [--only KIND [--case INDEX]]
        [--output FILE]
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

# Before PyTorch is imported: a process with more threads cannot fork safely.
os.environ["OMP_NUM_THREADS"] = "1"

import commands
import folders
import forks
import functions
import kills
from cases import COMPUTED, FINDING, REFUSED

from statemix import provenance

KINDS: dict[str, ModuleType] = {kind.NAME: kind for kind in (functions, commands, folders, kills)}
# A batch of one kind ends after this time, so that the kinds alternate.
BATCH_S = 10.0


class Fuzzer:
    """Runs cases of one kind in a folder, prints what it finds, and counts verdicts."""

    def __init__(self, seed: int, kind: ModuleType, folder: Path) -> None:
        self.seed, self.kind, self._folder = seed, kind, folder
        self.next, self.seconds, self._batches = 0, 0.0, 0
        self.counts = dict.fromkeys((COMPUTED, REFUSED, FINDING), 0)
        self._prepared = folder / f"prepared-{kind.NAME}"
        self._prepared.mkdir()
        forks.call(lambda: kind.prepare(self._prepared), folder / f"preparing-{kind.NAME}")

    def batch(self, stop: int, until: float = float("inf")) -> None:
        """Try the next cases up to an index, or a time, or one that ends the process."""
        began = time.monotonic()
        self._batches += 1
        folder = self._folder / f"{self.kind.NAME}-batch-{self._batches}"
        indices = range(self.next, stop)
        for row in forks.batch(self.kind, self.seed, indices, folder, self._prepared, until):
            self.next = row.index + 1
            self.counts[row.verdict] += 1
            if row.verdict == FINDING:
                address = f"--seed {self.seed} --only {self.kind.NAME} --case {row.index}"
                say(f"python tests/fuzz/run.py {address}  # {row.text}")
        self.seconds += time.monotonic() - began

    def row(self) -> dict[str, object]:
        """The totals as plain data."""
        found = {f"{name}s" if name == FINDING else name: n for name, n in self.counts.items()}
        return {"cases": sum(self.counts.values()), **found, "seconds": round(self.seconds, 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description="Look for broken promises with random requests.")
    parser.add_argument("--minutes", type=float, default=10.0, help="time to try cases for")
    parser.add_argument("--count", type=int, help="try this many cases of each kind instead")
    parser.add_argument("--seed", type=int, help="seed of all cases (a fresh one if not given)")
    parser.add_argument("--only", choices=KINDS, help="try only this kind of case")
    parser.add_argument("--case", type=int, help="try only the case of this index")
    parser.add_argument("--output", type=Path, help="append the totals to this JSON-lines file")
    chosen = parser.parse_args(arguments)
    if chosen.case is not None and (chosen.only is None or chosen.seed is None):
        parser.error("--case needs --seed and --only")
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    kinds = [KINDS[chosen.only]] if chosen.only else list(KINDS.values())
    say(f"seed {seed}")
    measured = provenance.describe()
    with tempfile.TemporaryDirectory(prefix="statemix-fuzz-") as folder:
        fuzzers = [Fuzzer(seed, kind, Path(folder).resolve()) for kind in kinds]
        if chosen.case is not None:
            fuzzers[0].next = chosen.case
            fuzzers[0].batch(chosen.case + 1)
        elif chosen.count is not None:
            for fuzzer in fuzzers:
                while fuzzer.next < chosen.count:
                    fuzzer.batch(chosen.count)
        else:
            end = time.monotonic() + 60 * chosen.minutes
            while time.monotonic() < end:
                # Each kind for its share of the time.
                least = min(fuzzers, key=lambda fuzzer: fuzzer.seconds / fuzzer.kind.SHARE)
                least.batch(10**9, min(end, time.monotonic() + BATCH_S))
    rows = {fuzzer.kind.NAME: fuzzer.row() for fuzzer in fuzzers}
    for name, row in rows.items():
        say(f"{name:<10} " + ", ".join(f"{value} {key}" for key, value in row.items()))
    if chosen.output is not None:
        with chosen.output.open("a") as file:
            file.write(json.dumps({"seed": seed, "kinds": rows, **measured}) + "\n")
    return 1 if any(fuzzer.counts[FINDING] for fuzzer in fuzzers) else 0


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
