"""``statemix learn``: learn a machine from a log, some of whose labels are wrong."""

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from statemix import learning
from statemix.cli.parser import Argument
from statemix.errors import RequestError, RunsFailedError
from statemix.files import read_json, sha256_of, write_file
from statemix.learning import (
    FoundMachine,
    LearnedMachine,
    Log,
    Options,
    learning_report,
    machine_texts,
)
from statemix.learning.learning_report import PropertyVerdict, check_property, read_property
from statemix.training.folder import LOCK, lock_folder
from statemix.training.progress import log_console

_Work = tuple[Log, int, Options]

_REQUEST, _FORMAT = "request.json", 1


@dataclass(frozen=True)
class Learn:
    """Learn a state machine from a log of events and labels, some of which may be wrong.

    The log is JSON lines or CSV. A row is a trace: a sequence of events, and a label for each event
    or one label for the last event. With a column of case identifiers, a row is an event. The
    number of states and the share of wrong labels are estimated.

    The learner searches for the smallest machine that explains the labels, several times on nine of
    ten traces, and continues the best search on all of them. The tenth trace is for the accuracy.
    The folder then holds:

    machine.json, machine.dot, machine.svg: the machine, as text, for Graphviz, and as a picture;
    machine.c, machine.py: programs that answer one event after the other;
    contradictions.jsonl: the labels that are not the machine's answers;
    report.html: all about the machine, with the transitions that were seen too rarely to trust.

    The exit code is 1 if a property is refuted.

    statemix learn traces.jsonl --output learned
    """

    traces: Annotated[Path, Argument("TRACES", positional=True)]
    """Log that ends with .jsonl, .ndjson, .json or .csv, and maybe .gz."""

    output: Path = Path("learned")
    """Folder for the machine and the report."""

    events: str | None = None
    """Column of events (found by its name if not given)."""

    labels: str | None = None
    """Column of labels (found by its name if not given)."""

    case: str | None = None
    """Column of case identifiers (found by its name if not given; without one, a row is a
    trace)."""

    property: tuple[Path, ...] = ()
    """Files with safety properties to prove or refute (the page "Automata as input" describes
    them)."""

    states: int = 64
    """Maximum number of states."""

    noise: float | None = None
    """Share of wrong labels (estimated if not given)."""

    workers: int = 1
    """Number of processes."""

    seed: int = 0
    """Seed of the search."""

    resumes = True

    def run(self) -> None:
        """Read, search, write and print."""
        for name in ("states", "workers"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.noise is not None and not 0 <= self.noise < 0.5:
            raise RequestError(f"noise must be at least 0 and below 0.5, got {self.noise:g}")
        if self.seed < 0:
            raise RequestError(f"seed must be at least 0, got {self.seed}")
        console = log_console()
        log = learning.read_log(self.traces, self.events, self.labels, self.case)
        # A property that cannot be read must not wait for the search.
        properties = [(str(path), read_property(path, log)) for path in self.property]
        console.print(
            f"{log.num_traces:,} traces, {len(log.tokens):,} events, {len(log.events)} of them "
            f"different, {len(log.labels)} labels"
        )
        with lock_folder(self.output, "output"):
            self._begin()
            learned = learning.finish(
                log, self._attempts(log), on_progress=shown("all traces"), **self._options()
            )
            verdicts = [check_property(learned, *each) for each in properties]
            self._write(log, learned, verdicts)
        console.print(
            f"{learned.machine.num_states} states; its answers are {learned.accuracy:.4f} of the "
            f"labels of held-out traces; {len(learned.contradictions):,} labels contradict it "
            f"({learned.noise:.2%} of all)"
        )
        for verdict in verdicts:
            console.print(verdict.sentence)
        console.print(f"written: {self.output / 'report.html'}")
        if refuted := [verdict.name for verdict in verdicts if verdict.verdict == "refuted"]:
            raise RunsFailedError(f"refuted: {', '.join(refuted)}")

    def _options(self) -> Options:
        return {"num_states": self.states, "noise": self.noise, "seed": self.seed}

    def _begin(self) -> None:
        """Store the request in a new folder, or check that the folder holds the same one."""
        options = {
            name: getattr(self, name)
            for name in ("states", "noise", "seed", "events", "labels", "case")
        }
        digest = sha256_of(self.traces)
        asked = {"format": _FORMAT, "traces": digest, **options}
        path = self.output / _REQUEST
        if not path.exists():
            begun = (LOCK, f"{_REQUEST}.tmp")
            if others := sorted(one.name for one in self.output.iterdir() if one.name not in begun):
                raise RequestError(
                    f"output must be empty or hold a learned machine, got {self.output} with "
                    f"{others[0]!r}"
                )
            write_file(path, json.dumps(asked).encode())
        elif (before := read_json(path, "a request")) != asked:
            changed = ", ".join(sorted(name for name in asked if asked[name] != before.get(name)))
            raise RequestError(
                f"{self.output} holds a machine of another request ({changed} differs); choose "
                "another folder by --output"
            )

    def _attempts(self, log: Log) -> list[FoundMachine]:
        """Make and store the attempts that are not stored yet, and return all in their order."""
        paths = [self.output / f"attempt-{number}.json" for number in range(learning.ATTEMPTS)]
        due = [
            (log, number, self._options())
            for number in range(learning.ATTEMPTS)
            if not paths[number].exists()
        ]
        for number, attempt in in_processes(self.workers, due):
            write_file(paths[number], json.dumps(asdict(attempt)).encode())
        return [FoundMachine(**read_json(path, "an attempt")) for path in paths]

    def _write(
        self, log: Log, learned: LearnedMachine, verdicts: Sequence[PropertyVerdict]
    ) -> None:
        wrong = learning_report.contradictions(learned, log)
        texts = {
            "machine.json": machine_texts.to_json(learned),
            "machine.dot": machine_texts.to_dot(learned),
            "machine.svg": machine_texts.to_svg(learned),
            "machine.c": learned.machine.to_c("machine", machine_texts.legend(learned)),
            "machine.py": machine_texts.to_python(learned),
            "contradictions.jsonl": "".join(json.dumps(row) + "\n" for row in wrong),
            "report.html": learning_report.to_html(learned, log, wrong, verdicts),
        }
        for name, text in texts.items():
            write_file(self.output / name, text.encode())


def in_processes(num_workers: int, due: Sequence[_Work]) -> Iterator[tuple[int, FoundMachine]]:
    """Make attempts in this process, or in others; return the number of each with its result."""
    if min(num_workers, len(due)) < 2:
        yield from map(_search, due)
        return
    # A process that starts afresh shares no threads and locks with this one.
    pool = multiprocessing.get_context("spawn").Pool(
        min(num_workers, len(due)), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    # Leaving the context ends the processes.
    with pool:
        yield from pool.imap_unordered(_search, due)


def _search(work: _Work) -> tuple[int, FoundMachine]:
    log, number, options = work
    return number, learning.search(
        log, number, on_progress=shown(f"attempt {number + 1}"), **options
    )


def shown(what: str) -> Callable[[int, float], None]:
    """Return a function that prints the states and the score of a search."""
    return lambda states, score: print(f"{what}: {states} states, score {score:,.1f}", flush=True)
