"""Break the code in known ways and check that the tests notice every fault.

The script copies the working tree into a temporary folder. There it inserts the faults of
``faults.py`` one at a time, rebuilds the kernels if the fault is in them, and runs the tests that
the fault names. The exit code is 1 unless every fault makes a test fail.

    python tests/faults/run.py [--output faults.jsonl] [--only WORDS] [--list]
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tree import KERNELS, ROOT, Tree

from faults import FAULTS, Fault
from statemix import provenance


def broken(fault: Fault, text: str) -> str:
    """The text of a file with the fault inserted."""
    if text.count(fault.old) != 1:
        raise SystemExit(
            f"fault {fault.name!r} must match {fault.file} exactly once, "
            f"got {text.count(fault.old)} matches of {fault.old!r}"
        )
    return text.replace(fault.old, fault.new)


def caught_by(tree: Tree, fault: Fault) -> str | None:
    """Insert a fault, run its tests and remove it; return the first test that failed, or None."""
    path, library = tree.folder / fault.file, tree.folder / KERNELS / "kernels.so"
    whole = path.read_text()
    spare = library.with_suffix(".spare")
    shutil.copy2(library, spare)
    try:
        path.write_text(broken(fault, whole))
        if KERNELS in path.relative_to(tree.folder).parents and path.suffix != ".py":
            tree.build()
        return tree.first_red(fault.tests, interpreted=fault.interpreted)
    finally:
        path.write_text(whole)
        spare.replace(library)


def main() -> int:
    """Run or list the chosen faults."""
    parser = argparse.ArgumentParser(description="Check that the tests notice seeded faults.")
    parser.add_argument("--output", type=Path, help="write a JSON line per fault to this file")
    parser.add_argument("--only", default="", help="run only faults whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if arguments.only in fault.name]
    if not chosen:
        parser.error(f"--only must occur in the name of a fault, got {arguments.only!r}")
    for fault in chosen:
        broken(fault, (ROOT / fault.file).read_text())  # Fails early.
    if arguments.list:
        say("\n".join(f"{fault.name}  [{fault.file}]" for fault in chosen))
        return 0

    rows = []
    measured = provenance.describe()
    with tempfile.TemporaryDirectory(prefix="statemix-faults-") as folder:
        tree = Tree(Path(folder))
        tree.build()
        tree.check_import()
        say("without a fault ...")
        for interpreted in sorted({fault.interpreted for fault in chosen}):
            same = [fault for fault in chosen if fault.interpreted == interpreted]
            tests = tuple(dict.fromkeys(test for fault in same for test in fault.tests))
            red = tree.first_red(tests, interpreted=interpreted)
            if red is not None:
                raise SystemExit(f"a test fails without any fault: {red}")
        for number, fault in enumerate(chosen, 1):
            start = time.monotonic()
            test = caught_by(tree, fault)
            row = {"name": fault.name, "file": fault.file, "caught": test is not None, "test": test}
            rows.append(row | measured)
            seconds = time.monotonic() - start
            verdict = "MISSED" if test is None else "caught"
            say(f"{number:3}/{len(chosen)} {verdict} {seconds:5.0f} s  {fault.name}  <- {test}")
            if arguments.output is not None:
                arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    missed = [row["name"] for row in rows if not row["caught"]]
    say(f"{len(rows) - len(missed)} of {len(rows)} faults caught")
    for name in missed:
        say(f"MISSED: {name}")
    return 1 if missed else 0


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
