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
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

# Before PyTorch is imported: a process with more threads cannot fork safely.
os.environ["OMP_NUM_THREADS"] = "1"

import commands
import folders
import forks
import functions
import kills
from cases import COMPUTED, FINDING, REFUSED, Row

from statemix import provenance

KINDS: dict[str, ModuleType] = {kind.NAME: kind for kind in (functions, commands, folders, kills)}
# A batch of one kind ends after this time, so that the kinds alternate.
BATCH_S = 10.0
_ALL = 10**9


@dataclass
class Totals:
    """What happened to the cases of one kind."""

    kind: ModuleType
    next: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))

    @property
    def cases(self) -> int:
        """Number of cases."""
        return sum(self.counts.values())

    def row(self) -> dict[str, object]:
        """The totals as plain data."""
        found = {f"{name}s" if name == FINDING else name: n for name, n in self.counts.items()}
        return {"cases": self.cases, **found, "seconds": round(self.seconds, 1)}


VERDICTS = (COMPUTED, REFUSED, FINDING)


class Fuzzer:
    """Runs cases of several kinds and prints what it finds.

    Args:
        seed: seed of all cases.
        kinds: kinds to try.
        folder: an empty folder for the cases.
    """

    def __init__(self, seed: int, kinds: Sequence[ModuleType], folder: Path) -> None:
        self.seed = seed
        self.totals = [Totals(kind) for kind in kinds]
        self._folder = folder
        self._batches = 0
        for kind in kinds:
            prepared = self._prepared(kind)
            prepared.mkdir()
            forks.call(lambda kind=kind, to=prepared: kind.prepare(to), folder / "preparing")

    def for_minutes(self, minutes: float) -> None:
        """Try new cases until the time is over, each kind for its share of it."""
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            least = min(self.totals, key=lambda totals: totals.seconds / totals.kind.SHARE)
            self.batch(least, _ALL, min(until, time.monotonic() + BATCH_S))

    def for_count(self, count: int) -> None:
        """Try the first cases of each kind."""
        for totals in self.totals:
            while totals.next < count:
                self.batch(totals, count, float("inf"))

    def batch(self, totals: Totals, stop: int, until: float) -> None:
        """Try the next cases of a kind up to an index or a time."""
        began = time.monotonic()
        self._batches += 1
        folder = self._folder / f"batch-{self._batches}"
        indices = range(totals.next, stop)
        for row in forks.batch(
            totals.kind, self.seed, indices, folder, self._prepared(totals.kind), until
        ):
            totals.next = row.index + 1
            totals.counts[row.verdict] += 1
            if row.verdict == FINDING:
                self._report(totals.kind, row)
        totals.seconds += time.monotonic() - began

    def _prepared(self, kind: ModuleType) -> Path:
        return self._folder / f"prepared-{kind.NAME}"

    def _report(self, kind: ModuleType, row: Row) -> None:
        say(
            f"python tests/fuzz/run.py --seed {self.seed} --only {kind.NAME} --case {row.index}"
            f"  # {row.text}"
        )


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
        fuzzer = Fuzzer(seed, kinds, Path(folder).resolve())
        if chosen.case is not None:
            fuzzer.totals[0].next = chosen.case
            fuzzer.batch(fuzzer.totals[0], chosen.case + 1, float("inf"))
        elif chosen.count is not None:
            fuzzer.for_count(chosen.count)
        else:
            fuzzer.for_minutes(chosen.minutes)
    rows = {totals.kind.NAME: totals.row() for totals in fuzzer.totals}
    for name, row in rows.items():
        say(f"{name:<10} " + ", ".join(f"{value} {key}" for key, value in row.items()))
    if chosen.output is not None:
        with chosen.output.open("a") as file:
            file.write(json.dumps({"seed": seed, "kinds": rows, **measured}) + "\n")
    return 1 if any(totals.counts[FINDING] for totals in fuzzer.totals) else 0


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
