"""Change the code at random places and check that the tests notice.

A mutant is one small change of the code of a part of the package (``selection.PARTS``): an
operator, a number or a condition replaced, a statement, a decorator or a keyword argument removed
(``operators.py``). The script draws a sample of all mutants, and judges each in a
copy of the working tree by the tests that execute the changed lines (``selection.py``). Of these
only a random draw of ``--seconds`` recorded seconds is run, and no test of another package, so that
the true number of survivors can only be lower. A mutant that no test executes survives.
Files of ``ops/triton`` are not drawn: the lines of kernels cannot be recorded, so ``make
test-triton``, ``make test-compiled`` and the faults that their suites plant judge these files.

Each mutant has its place in an order that the seed determines, whatever happens to other lines, and
the sample is the beginning of it. The output has one row per mutant; the same command continues
where it was interrupted. It judges again where the source file or, for a survivor, the tests have
changed. The exit code is 1 if a survivor is not explained in ``survivors.toml``.

    python tests/mutation/run.py [--sample 600] [--seed 1] [--output mutants.jsonl]
"""

import argparse
import ast
import difflib
import itertools
import json
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import Result, Work, run_all
from operators import Mutant, mutants
from selection import PARTS, Record, Selection, checksum, digest, test_files
from tree import ROOT, Tree, say

EXPLAINED = Path(__file__).with_name("survivors.toml")
IDENTITY = ("file", "operator", "before", "after", "number")
# A test is slower beside others and on a first compilation.
SLACK, SPARE_S = 10.0, 60.0


@dataclass(frozen=True)
class Change:
    """A drawn mutant and what it does to the text of its file."""

    mutant: Mutant
    old: str
    new: str

    def row(self) -> dict[str, Any]:
        """What is known before it is judged."""
        before, after = _difference(self.old, self.new)
        return {
            "file": self.mutant.file,
            "line": self.mutant.line,
            "operator": self.mutant.operator,
            "before": before,
            "after": after,
            "number": self.mutant.number,
            "source": checksum(self.old),
        }

    def insert(self, tree: Tree) -> None:
        (tree.folder / self.mutant.file).write_text(self.new)

    def remove(self, tree: Tree) -> None:
        (tree.folder / self.mutant.file).write_text(self.old)


def draw(seed: int) -> Iterator[Change]:
    """Every mutant in the order of the seed, without those that Python rejects or cannot tell."""
    package = ROOT / "src" / "statemix"
    paths = [path for part in PARTS for path in (package / part).rglob("*.py")]
    paths = [path for path in paths if not path.is_relative_to(package / "ops" / "triton")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    population = [mutant for file, text in texts.items() for mutant in mutants(text, file)]
    say(f"{len(population)} possible mutants of {len(paths)} files")
    seen = set()
    for mutant in sorted(population, key=lambda mutant: mutant.key(seed)):
        old = texts[mutant.file]
        new = mutant.applied(old)
        try:
            meaning = ast.dump(ast.parse(new))
            compile(new, mutant.file, "exec", dont_inherit=True)
        except SyntaxError:
            continue
        if (mutant.file, meaning) not in seen and meaning != ast.dump(ast.parse(old)):
            seen.add((mutant.file, meaning))
            yield Change(mutant, old, new)


def main() -> int:
    """Judge a sample of the mutants."""
    parser = argparse.ArgumentParser(description="Check that the tests notice random changes.")
    parser.add_argument("--sample", type=int, default=600, help="how many mutants to judge")
    parser.add_argument("--seed", type=int, default=1, help="which mutants to draw")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests per mutant at most")
    parser.add_argument("--workers", type=int, default=2, help="mutants judged side by side")
    parser.add_argument("--only", default="", help="only files whose name contains this text")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutants" / "rows.jsonl")
    arguments = parser.parse_args()
    # Ended by a signal, it still ends its children and removes its copies of the tree.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    drawn = (change for change in draw(arguments.seed) if arguments.only in change.mutant.file)
    changes = list(itertools.islice(drawn, arguments.sample))
    tests = checksum(repr([(file, digest(file)) for file in test_files()]))
    terms = {"seed": arguments.seed, "tests": tests, "limit_s": arguments.seconds}
    rows = _rows_to_keep(arguments.output, changes, terms)
    todo = [change for change in changes if _identity(change.row()) not in rows]
    say(f"{len(changes)} mutants drawn with seed {arguments.seed}, {len(todo)} of them to judge")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    if todo:
        with tempfile.TemporaryDirectory(prefix="statemix-mutants-") as folder:
            trees = [Tree(Path(folder) / str(number)) for number in range(arguments.workers)]
            record = Record(say)
            record.update(trees)
            works = (_work(record, change, arguments) for change in todo)
            with arguments.output.open("a") as output:
                for number, (work, result) in enumerate(run_all(works, trees), 1):
                    change, selection = work.tag
                    row = change.row() | _verdict(selection, result) | terms
                    rows[_identity(row)] = row
                    output.write(json.dumps(row) + "\n")
                    output.flush()
                    verdict = "caught  " if row["caught"] else "SURVIVED"
                    say(
                        f"{number:4}/{len(todo)} {verdict} {row['seconds']:5.1f} s  "
                        f"{row['file']}:{row['line']} {row['operator']}  <- {row['test']}"
                    )
    return _summary(rows)


def _work(record: Record, change: Change, arguments: argparse.Namespace) -> Work:
    mutant = change.mutant
    seed = mutant.key(arguments.seed)
    selection = record.select(mutant.file, change.old, mutant.line, arguments.seconds, seed)
    return Work(
        files=selection.files,
        seconds=selection.tests,
        known=selection.known,
        limit_s=SLACK * selection.seconds + SPARE_S,
        prepare=change.insert,
        tidy=change.remove,
        tag=(change, selection),
    )


def _verdict(selection: Selection, result: Result) -> dict[str, Any]:
    return {
        "caught": result.red is not None,
        "test": result.red,
        "tests_selected": len(selection.tests),
        "seconds_selected": round(selection.seconds, 1),
        "seconds": round(result.seconds, 1),
    }


def _rows_to_keep(
    output: Path, changes: list[Change], terms: dict[str, Any]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows that still hold: same source and, for survivors, same terms."""
    if not output.exists():
        return {}
    drawn = {_identity(row): row["source"] for row in (change.row() for change in changes)}
    rows = {_identity(row): row for row in map(json.loads, output.read_text().splitlines())}
    return {
        identity: row
        for identity, row in rows.items()
        if drawn.get(identity) == row["source"]
        and (row["caught"] or {name: row[name] for name in terms} == terms)
    }


def _summary(rows: dict[tuple[Any, ...], dict[str, Any]]) -> int:
    """Print how many were caught and the survivors; 1 if one of them is not explained."""
    explained = {}
    if EXPLAINED.exists():
        entries = tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
        explained = {_identity(entry): entry["reason"] for entry in entries}
    survivors = [row for row in rows.values() if not row["caught"]]
    unexplained = [row for row in survivors if _identity(row) not in explained]
    for row in sorted(survivors, key=lambda row: (row["file"], row["line"])):
        reason = explained.get(_identity(row), "NOT EXPLAINED")
        say(f"\n{row['file']}:{row['line']} {row['operator']}: {reason}")
        say(f"  - {row['before']}\n  + {row['after']}".replace("\n    ", "\n      "))
    share = 100 * (len(rows) - len(survivors)) / max(len(rows), 1)
    say(
        f"{len(rows) - len(survivors)} of {len(rows)} mutants caught ({share:.1f} %), "
        f"{len(survivors)} survivors, {len(unexplained)} of them not explained"
    )
    return 1 if unexplained else 0


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


def _difference(old: str, new: str) -> tuple[str, str]:
    """The lines that a change replaces and those that replace them."""
    a, b = old.splitlines(), new.splitlines()
    changed = [
        code
        for code in difflib.SequenceMatcher(None, a, b, False).get_opcodes()
        if code[0] != "equal"
    ]
    first, last = changed[0], changed[-1]
    return "\n".join(a[first[1] : last[2]]).strip(), "\n".join(b[first[3] : last[4]]).strip()


if __name__ == "__main__":
    sys.exit(main())
