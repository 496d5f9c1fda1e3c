"""``statemix``: finds the command, runs it, and turns its errors into one line and an exit code."""

import contextlib
import importlib
import importlib.metadata
import io
import itertools
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO, cast

from statemix.files import naming

DONE, FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("Demo", "train four models on permutations and draw what they learn"),
    "train": ("Train", "train one model on one task, resumably, into a folder"),
    "evaluate": ("Evaluate", "score a trained model at any lengths"),
    "tasks": ("Tasks", "show the tasks and examples of them"),
    "doctor": ("Doctor", "show what runs here, on which backend, and why not on a faster one"),
    "bench": ("Bench", "measure speed and memory against baselines"),
}
"""Command -> its class in the module of the same name, and what it does."""

RESUMABLE = ("demo", "train")
"""Commands that continue where they were interrupted; the others begin again."""

_NARROWEST = 40
"""Columns that every terminal is taken to have."""

_HELP = """\
usage: statemix COMMAND [OPTIONS]

Structured linear recurrent networks: H-LRU, BD-LRU and their kernels.

commands:
{commands}

options:
  -h, --help    this text; `statemix COMMAND --help` explains a command, its options and defaults
  --version     the version

exit codes: 0 done, 1 the run failed, 2 the request was wrong, 130 interrupted (demo and train
continue where they stopped when the command is repeated)
"""


class Command(Protocol):
    """What a command's class is: a frozen dataclass whose fields are the options."""

    def run(self) -> None:
        """Do it, and print the answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: without the program's name. None means those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    output = sys.stdout
    if output is None:
        return _fail("standard output must be open, got a closed one", FAILED)
    if shutil.get_terminal_size().columns < _NARROWEST:
        # Libraries that lay text out may never end in less.
        os.environ["COLUMNS"] = str(_NARROWEST)
    if isinstance(output, io.TextIOWrapper):
        # A character that the terminal lacks must not end a run. (Standard error escapes it.)
        output.reconfigure(errors="replace")
    try:
        with contextlib.redirect_stdout(cast(TextIO, _Output(output))), _terminable():
            code = _dispatch(arguments)
            # A full disk under the output shows here at the latest, and not after the exit code.
            sys.stdout.flush()
    except OSError as error:
        if error.filename == str(_Output.path):
            # Python would try once more at exit, and complain in its own way.
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return _fail(str(error), FAILED)
    return code


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM, with which Slurm and Kubernetes ask to stop, as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<12}  {summary}" for name, (_, summary) in COMMANDS.items()]
        print(_HELP.format(commands="\n".join(lines)), end="")
        return DONE if arguments else WRONG_REQUEST
    if arguments[0] == "--version":
        print(importlib.metadata.version("statemix"))
        return DONE
    name, *rest = arguments
    if name not in COMMANDS:
        return _fail(f"command must be one of {', '.join(COMMANDS)}, got {name!r}", WRONG_REQUEST)
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    try:
        return _attempt(name, arguments)
    except KeyboardInterrupt:
        advice = "; the same command continues where it stopped" if name in RESUMABLE else ""
        return _fail(f"interrupted{advice}", INTERRUPTED)


def _attempt(name: str, arguments: list[str]) -> int:
    # PyTorch and the command's own libraries are only imported once they are needed.
    from statemix.ops import BackendUnavailableError
    from statemix.settings import RequestError, RunsFailedError

    try:
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint):
                command = parse(name, arguments)
        except SystemExit as stop:
            # tyro prints and exits: 0 after --help, 2 and a box after a wrong request.
            if stop.code in (None, DONE):
                return DONE
            message = f"{_unboxed(complaint.getvalue())}; see statemix {name} --help"
            return _fail(message, WRONG_REQUEST)
        command.run()
    except (RequestError, BackendUnavailableError, PermissionError) as error:
        return _fail(str(error), WRONG_REQUEST)
    except (FloatingPointError, RunsFailedError) as error:
        return _fail(str(error), FAILED)
    except (MemoryError, RuntimeError) as error:
        # Other errors are defects: they keep their traceback, and Python exits with 1.
        if isinstance(error, MemoryError) or "memory" in str(error):
            return _fail(f"out of memory: {error}", FAILED)
        raise
    return DONE


def _unboxed(box: str) -> str:
    """What a box of tyro's complains of, without its frame, its title and its advice."""
    lines = [line.strip(" │╭╮╰╯") for line in box.splitlines()]
    lines = [line for line in lines if line.strip("─-")]
    said = itertools.takewhile(
        lambda line: not line.startswith(("For full helptext", "Argument helptext")), lines[1:]
    )
    text = " ".join(said) or " ".join(lines)
    # Settings have one name each, whether a flag or a field of a configuration is meant.
    text = re.sub(r"^Error parsing run-config\.(\S+): ", r"\1.", text)
    return re.sub(r"^Error parsing (?:run-config: |(--\S+: )\.?)", r"\1", text)


def parse(name: str, arguments: Sequence[str]) -> Command:
    """The command with its options, typed and with defaults.

    A module may define its own ``parse(arguments)`` where its class alone does not say how.

    Args:
        name: one of ``COMMANDS``.
        arguments: what follows the name on the command line.

    Raises:
        SystemExit: after ``--help`` (0) or if an option is unknown or malformed (2).
    """
    import tyro

    module = importlib.import_module(f"statemix.cli.{name}")
    if hasattr(module, "parse"):
        own: Callable[[Sequence[str]], Command] = module.parse
        return own(arguments)
    command: Callable[..., Command] = getattr(module, COMMANDS[name][0])
    return tyro.cli(command, prog=f"statemix {name}", args=arguments)


class _Output:
    """The standard output; its errors name it, as those of a file name the file."""

    path = Path("standard output")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with naming(self.path):
            return self._stream.write(text)

    def flush(self) -> None:
        with naming(self.path):
            self._stream.flush()


def _fail(message: str, code: int) -> int:
    # Below its message PyTorch may list the frames of its C++ stack. Further lines of other errors
    # stay: they hold the reason.
    message = message.partition("\nException raised from ")[0]
    print(f"statemix: {' '.join(message.split())}", file=sys.stderr)
    return code
