"""``statemix compile``: write a proven network as look-ups in tables, for C and NumPy."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from statemix.cli.certify import counted
from statemix.cli.parser import Argument
from statemix.errors import RequestError
from statemix.files import read_json, write_file
from statemix.proofs import EntryMachine, StateMachine
from statemix.proofs.check_certificate import Invalid
from statemix.training.certificates import certificate_paths, explore_run
from statemix.training.folder import lock_folder
from statemix.training.outcome import WEIGHT_FILES, Outcome, Weights, load_outcome

# What the comment of a program says.
_MARK = b"Written by Statemix."


@dataclass(frozen=True)
class Compile:
    """Write a proven network as a small program, which needs table look-ups instead of gates.

    The program gives the same answers as the proven network of "statemix certify", at every length.
    A network that is proven by search becomes the smallest state machine with its answers, with
    one look-up for each token. A network that is proven by structure becomes index maps, with one
    look-up for each entry that an answer needs. For a run on traces, which have no automaton to
    compare with, the program is the trained network with gates of 0 and 1; the command prints its
    accuracy on the test traces. Two files are written to the run's folder, or to --output:

    NAME.c: C99 without dependencies, with the functions NAME_step and NAME_run, and for index maps
    NAME_begin and NAME_answer;
    NAME.npz: the arrays of statemix.proofs.StateMachine or EntryMachine for NumPy.

    statemix compile runs/s3 --name s3
    """

    folder: Annotated[Path, Argument("RUN", positional=True)]
    """Folder of a run that statemix certify has proven, or of a run on traces."""

    name: str = "machine"
    """Name of the files, and prefix of the C functions."""

    weights: Weights = "last"
    """Weights of the network that is proven."""

    output: Path | None = None
    """Folder for the files (the run's folder if not given)."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers or tasks."""

    def run(self) -> None:
        """Read the certificate, write the files, and print their names."""
        target, name = self.output or self.folder, "folder" if self.output is None else "output"
        written = target / f"{self.name}.c", target / f"{self.name}.npz"
        if written[0].is_file() and _MARK not in written[0].read_bytes():
            raise RequestError(f"{written[0]} must not exist: it is another program")
        outcome = None
        # A certificate is enough without its run.
        with contextlib.suppress(RequestError):
            outcome = load_outcome(self.folder)
        if outcome is not None and outcome.config.task.name == "traces":
            with counted("states") as show:
                found = explore_run(self.folder, self.weights, on_progress=show)
            machine: StateMachine | EntryMachine = found.machine
            names = {"letters": found.letters, "answers": found.answers}
            verdict = (
                f"no automaton to compare with: {found.accuracy:.4f} of the answers on test traces "
                "are right"
            )
        else:
            machine, names = self._proven(outcome)
            verdict = "proven at every length"
        lines = [verdict]
        for kind, each in names.items():
            if each != list(map(str, range(len(each)))):
                lines.append(f"{kind}: {', '.join(f'{n} {name}' for n, name in enumerate(each))}")
        try:
            source = machine.to_c(self.name, "\n".join(lines))
        except ValueError as error:
            raise RequestError(str(error)) from error
        arrays = io.BytesIO()
        np.savez(arrays, **vars(machine))
        try:
            with lock_folder(target, name):
                write_file(written[0], source.encode())
                write_file(written[1], arrays.getvalue())
        except OSError as error:
            message = f"{name} must be writable, got {target}: {error.strerror}"
            raise RequestError(message) from error
        print("\n".join(lines))
        print(machine.summary)
        print(f"written: {', '.join(map(str, written))}")

    def _proven(
        self, outcome: Outcome | None
    ) -> tuple[StateMachine | EntryMachine, dict[str, list[str]]]:
        """Return the machine of the certificate, and the names of letters, answers and places."""
        path, _ = certificate_paths(self.folder, self.weights, soft=False)
        option = "" if self.weights == "last" else f" --weights {self.weights}"
        advice = f"run 'statemix certify {self.folder}{option}' first"
        if not path.exists():
            # A run that cannot be loaded is the better reason.
            load_outcome(self.folder)
            raise RequestError(f"{path} must exist; {advice}")
        certificate = read_json(path, "a certificate")
        if "tables" not in certificate:
            reason = certificate.get("without_tables") or advice
            raise RequestError(f"{path} must hold the tables of a proof, got none: {reason}")
        given = {name: certificate.get(name) for name in ("letters", "answers", "places")}
        # JSON may name a letter by half of a surrogate pair, which no file can hold.
        names = {
            kind: [str(name).encode(errors="backslashreplace").decode() for name in each]
            for kind, each in given.items()
            if isinstance(each, list)
        }
        tables = certificate["tables"]
        by_structure = isinstance(tables, dict) and tables.get("format") == 2
        try:
            machine = (EntryMachine if by_structure else StateMachine).from_tables(tables)
        except Invalid as error:
            raise RequestError(f"{path} must hold the tables of a proof, got: {error}") from error
        except (ValueError, OverflowError) as error:
            raise RequestError(f"{path} cannot be compiled: {error}") from error
        trained = None if outcome is None else outcome.weights.get(WEIGHT_FILES[self.weights])
        if outcome is not None and certificate.get("weights_sha256") != trained:
            raise RequestError(f"{path} must be about the weights of the run; {advice}")
        return machine, names
