"""``statemix``: run a command and turn its errors into one line and an exit code."""

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from statemix.cli import help_text
from statemix.cli.commands import LABORATORY, commands, find_command, parse
from statemix.errors import OptionError, RequestError, RunsFailedError, suggestion
from statemix.files import naming
from statemix.interrupts import TERMINABLE, handled

DONE, FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130

# Time after which a finalizer has ended, and most characters of a message.
_AGAIN_S, _LONGEST = 0.01, 1000

_HELP = """\
usage: statemix COMMAND [OPTIONS]

Structured linear recurrent networks: H-LRU, BD-LRU and their kernels.

commands:
{commands}

options:
  -h, --help    show this text; `statemix COMMAND --help` explains a command and its options
  --version     show the version

tab completion in Bash: complete -o default -C 'statemix --complete' statemix

exit codes: 0 success, 1 failure, 2 invalid request, 130 interrupted (repeat a demo, learn, train,
lm train or reproduce command to resume it)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, the words after the program's name, and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    output = sys.stdout
    if output is None:
        return _fail("standard output is closed", FAILED)
    if isinstance(output, io.TextIOWrapper):
        # A character that the terminal cannot show must not end a run. (Standard error escapes it.)
        output.reconfigure(errors="replace")
    try:
        stdout = contextlib.redirect_stdout(cast(TextIO, _Output(output)))
        with stdout, handled(TERMINABLE), _insistent():
            code = _dispatch(arguments)
            # Flush now: a full disk must show before the exit code is chosen.
            sys.stdout.flush()
    except OSError as error:
        if error.filename == str(_Output.path):
            # Python would flush again at exit and print a message of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
            if isinstance(error, BrokenPipeError):
                # The reader, such as `head`, has read enough.
                return FAILED
        return _fail(str(error), FAILED)
    return code


@contextlib.contextmanager
def _insistent() -> Iterator[None]:
    """Interrupt again if Python drops an interrupt, as it does with every error of a finalizer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def report(dropped: "sys.UnraisableHookArgs") -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            # A true signal: it ends a wait, too.
            timers.append(threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGTERM)))
            timers[-1].start()
        else:
            before(dropped)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP.format(commands=help_text.summaries()), end="")
        return DONE if arguments else WRONG_REQUEST
    if arguments[0] == "--version":
        # It takes longer than everything else here, and Ctrl-C during an import shows a traceback.
        from importlib.metadata import version

        print(version("statemix"))
        return DONE
    name, *rest = arguments
    if name == "--complete":
        print("\n".join(help_text.completions(os.environ.get("COMP_LINE", ""))))
        return DONE
    if find_command(name) is None:
        if name in LABORATORY:
            needed = f"{name} comes with statemix-lab: in a clone, pip install ./laboratory"
            return _fail(needed, WRONG_REQUEST)
        known = ", ".join(commands())
        advice = suggestion(name, commands())
        return _fail(f"command must be one of {known}, got {name!r}{advice}", WRONG_REQUEST)
    text = help_text.stored(arguments)
    if text is not None:
        help_text.show(text)
        return DONE
    try:
        return _run(name, rest)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)


def extra_with(package: str) -> str | None:
    """Return the extra of Statemix or its laboratory that brings a package: "statemix[lm]"."""
    from importlib.metadata import PackageNotFoundError, requires

    for distribution in ("statemix", "statemix-lab"):
        with contextlib.suppress(PackageNotFoundError):
            for stated in requires(distribution) or []:
                found = re.match(r"([\w.-]+).*extra == \"(.*?)\"", stated)
                if found and found[1].replace("-", "_") == package:
                    return f"{distribution}[{found[2]}]"
    return None


def _run(name: str, arguments: list[str]) -> int:
    # Import PyTorch only now, so that --help and --version answer at once.
    from statemix.memory import is_shortage
    from statemix.ops import BackendUnavailableError

    try:
        try:
            command = parse(name, arguments)
        except SystemExit:
            return DONE
        try:
            command.run()
        except KeyboardInterrupt:
            resumes = getattr(command, "resumes", False) and not getattr(command, "dry_run", False)
            advice = "; repeat the command to resume" if resumes else ""
            return _fail(f"interrupted{advice}", INTERRUPTED)
    except (RequestError, OptionError, BackendUnavailableError, PermissionError) as error:
        return _fail(str(error), WRONG_REQUEST)
    except (FloatingPointError, RunsFailedError) as error:
        return _fail(str(error), FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = extra_with(package)
        if extra is None:
            raise
        if name in ("lm", "conform") and extra == "statemix[train]":
            # The extra "lm" also has what "train" has.
            extra = "statemix[lm]"
        return _fail(f"{name} needs {package}: pip install '{extra}'", WRONG_REQUEST)
    except (MemoryError, RuntimeError) as error:
        # Other errors are defects: they keep their traceback, and Python exits with 1.
        if is_shortage(error):
            return _fail(f"out of memory: {error}", FAILED)
        raise
    return DONE


class _Output:
    """Standard output whose errors carry its name, as the errors of a file do."""

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
    # Drop the C++ stack frames that PyTorch appends. Other lines stay: they may give the reason.
    message = message.partition("\nException raised from ")[0]
    message = " ".join(message.split())
    if len(message) > _LONGEST:
        # The middle of a long message is an argument that it quotes.
        half = _LONGEST // 2
        message = f"{message[:half]} … {message[-half:]}"
    print(f"statemix: {message}", file=sys.stderr)
    return code
