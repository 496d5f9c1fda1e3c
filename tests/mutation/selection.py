"""Which tests can notice a change of a line: those that execute it, the nearest first.

One run of the suite, file by file, records the lines that each test executes and how long it takes.
The record is kept in ``build/mutants`` and that of a file of tests is repeated when the file, a
``conftest.py`` or a source file that its tests execute has changed.
"""

import ast
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from children import Work, run_all
from tree import ROOT, Tree

PARTS = ("ops", "layers", "models", "proofs", "training", "tasks", "lm")
# Tests that build documents or packages, tests of what no mutated file is part of, and tests of the
# fuzzer, whose kills depend on the load of the machine.
OTHERS = (
    "tests/test_build.py",
    "tests/test_documents.py",
    "tests/test_files.py",
    "tests/test_fuzz.py",
)
RECORD = ROOT / "build" / "mutants" / "record.json"
# A single test that takes longer would leave no time for the others.
LONGEST_TEST_S = 15.0


def test_files() -> list[str]:
    """The files of tests that judge: those of the mutated parts, by folder, and doctests."""
    folders = [path for part in PARTS for path in (ROOT / "tests" / part).rglob("test_*.py")]
    top = [path for path in (ROOT / "tests").glob("test_*.py") if _name(path) not in OTHERS]
    sources = [path for part in PARTS for path in (ROOT / "src" / "statemix" / part).rglob("*.py")]
    doctests = [path for path in sources if ">>> " in path.read_text()]
    return sorted(map(_name, folders + top + doctests))


class Record:
    """What each test executes, and its seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.files = json.loads(RECORD.read_text()) if RECORD.exists() else {}

    def update(self, trees: list[Tree]) -> None:
        """Run the tests whose record is missing or older than the code."""
        stale = [file for file in test_files() if not self._is_fresh(file)]
        for file in set(self.files) - set(test_files()):
            del self.files[file]
        works = [Work((file,), record=True, limit_s=3600, tag=file) for file in stale]
        for number, (work, result) in enumerate(run_all(works, trees), 1):
            if result.red is not None:
                raise SystemExit(f"a test fails without a mutant: {result.red}\n{result.output}")
            executed = (test.get("lines", ()) for nodeid, test in result.tests.items() if nodeid)
            files = {file for lines in executed for file in lines}
            needs = sorted({work.tag, *files, *_conftests()})
            self.files[work.tag] = {
                "needs": {file: digest(file) for file in needs},
                "tests": result.tests,
            }
            RECORD.parent.mkdir(parents=True, exist_ok=True)
            RECORD.write_text(json.dumps(self.files))
            self.say(f"{number:3}/{len(works)} recorded {result.seconds:5.0f} s  {work.tag}")

    def select(self, file: str, text: str, line: int, limit_s: float, seed: str) -> "Selection":
        """The tests for a change of ``line``, of at most ``limit_s`` recorded seconds.

        Tests of the folder that mirrors the file are drawn first, then others. For lines that are
        executed at import, all tests that execute any line of the file follow, or all of the
        mirrored folder if no test does.
        """
        lines = statement(text, line)
        at_import = not set(lines) <= _inside_functions(text)
        direct, indirect = {}, {}
        for tests in (entry["tests"] for entry in self.files.values()):
            for nodeid, test in tests.items():
                executed = test.get("lines", {}).get(file, ())
                hit = not set(lines).isdisjoint(executed)
                if nodeid == "":
                    at_import |= hit
                elif hit:
                    direct[nodeid] = test["seconds"]
                elif executed or _mirrors(nodeid, file):
                    indirect[nodeid] = test["seconds"]
        found = direct | (indirect if at_import else {})
        draw = random.Random(seed)
        # Quick tests come first more often, so that there are more of them.
        order = sorted(found, key=lambda nodeid: draw.random() * (found[nodeid] + 0.1))
        order.sort(key=lambda nodeid: (nodeid not in direct, not _mirrors(nodeid, file)))
        chosen: dict[str, float] = {}
        left = limit_s
        for nodeid in order:
            if found[nodeid] <= min(left, LONGEST_TEST_S):
                chosen[nodeid] = found[nodeid]
                left -= found[nodeid]
        known = (nodeid for entry in self.files.values() for nodeid in entry["tests"])
        return Selection(chosen, tuple(known))

    def _is_fresh(self, file: str) -> bool:
        needs = self.files.get(file, {}).get("needs", {})
        return bool(needs) and all(digest(name) == value for name, value in needs.items())


@dataclass(frozen=True)
class Selection:
    """The tests chosen for a mutant, with their recorded seconds, and all that are known."""

    tests: dict[str, float]
    known: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(nodeid.partition("::")[0] for nodeid in self.tests))

    @property
    def seconds(self) -> float:
        return sum(self.tests.values())


def digest(file: str) -> str:
    """A checksum of a file of the working tree, "" if there is none."""
    path = ROOT / file
    return checksum(path.read_text()) if path.is_file() else ""


def checksum(text: str) -> str:
    """The beginning of a SHA-256 checksum."""
    return sha256(text.encode()).hexdigest()[:16]


def statement(text: str, line: int) -> range:
    """The lines of the innermost statement at ``line``; of a compound one, those of its head."""
    best = range(line, line + 1)
    size = None
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.stmt | ast.ExceptHandler)
            and node.lineno <= line <= node.end_lineno
        ):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            end = max(end, node.lineno)
            if line <= end and (size is None or node.end_lineno - node.lineno < size):
                best, size = range(node.lineno, end + 1), node.end_lineno - node.lineno
    return best


@cache
def _inside_functions(text: str) -> set[int]:
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, node.end_lineno + 1)
    }


def _conftests() -> list[str]:
    return ["conftest.py", *map(_name, (ROOT / "tests").rglob("conftest.py"))]


def _mirrors(nodeid: str, file: str) -> bool:
    part = Path(file).parts[2]
    return nodeid.startswith((f"tests/{part}/", f"src/statemix/{part}/"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
