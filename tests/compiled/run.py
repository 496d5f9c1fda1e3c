"""Compile the Triton kernels ahead of time in every configuration that can be chosen.

``make test-compiled`` continues where the last run stopped, until MINUTES are over: what has been
compiled is kept in ``build/``. It fails if a kernel does not compile, or spills more registers on
sm_90 than :func:`statemix.bench.configurations.spill_limit` says.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from statemix import provenance
from statemix.bench.compiled import (
    TARGETS,
    Variant,
    check_compiler,
    compiled,
    sources,
)
from statemix.bench.configurations import configurations, spill_limit

ROWS = Path(__file__).parents[2] / "build" / "compiled.jsonl"


def main() -> int:
    """Compile until the time is over, print what was found, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    asked = parser.parse_args()
    check_compiler()
    version = {"sources": sources(), "triton": provenance.version("triton")}
    rows = [row for row in kept() if version.items() <= row.items()]
    done = {Variant(**row["variant"]) for row in rows}
    every = [variant for variant in configurations() if variant.target in asked.targets]
    rest = (variant for variant in every if variant not in done)
    stop = time.monotonic() + 60 * asked.minutes
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("a") as file, ProcessPoolExecutor(asked.workers) as pool:
        waiting = {pool.submit(row_of, one) for one in islice(rest, asked.workers)}
        while waiting:
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in ready:
                rows.append(one.result() | version)
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
            more = len(ready) if time.monotonic() < stop else 0
            waiting |= {pool.submit(row_of, one) for one in islice(rest, more)}
    return report(rows, every)


def kept() -> list[dict[str, Any]]:
    """Return the rows of earlier runs."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def row_of(variant: Variant) -> dict[str, Any]:
    """Compile a variant; an error becomes a part of the row."""
    row: dict[str, Any] = {"variant": asdict(variant), "spilled": None, "error": None}
    try:
        found = compiled(variant)
    except Exception as error:  # noqa: BLE001 - a compiler raises what it likes; the others go on
        return row | {"error": f"{type(error).__name__}: {error}"[:500]}
    return row | {"spilled": found.spilled, "registers": found.registers, "seconds": found.seconds}


def report(rows: list[dict[str, Any]], every: list[Variant]) -> int:
    """Print how much was compiled, and what spills; return 1 if something is wrong."""
    wrong = 0
    counts = Counter(row["variant"]["target"] for row in rows)
    spilled = Counter(row["variant"]["target"] for row in rows if row["spilled"])
    for target, total in Counter(variant.target for variant in every).items():
        sys.stdout.write(
            f"{target}: {counts[target]} of {total} compiled, {spilled[target]} spill registers\n"
        )
    for row in rows:
        variant = Variant(**row["variant"])
        bad = variant.target == "sm_90" and (row["spilled"] or 0) > spill_limit(variant)
        if row["error"] or (row["spilled"] and variant.target == "sm_90"):
            sys.stdout.write(f"{variant} spills {row['spilled']} {row['error'] or ''}\n")
        wrong |= bool(bad or row["error"])
    return wrong


if __name__ == "__main__":
    sys.exit(main())
