"""The commands by name: those of the library, and those of other distributions by entry points."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

# An entry point names a command and, as "module:object", what reads its command line: a frozen
# dataclass whose fields are the options, or a function of the words.
GROUP = "statemix.commands"

OWN = {
    "learn": "statemix.cli.learn:Learn",
    "train": "statemix.cli.train:parse",
    "evaluate": "statemix.cli.evaluate:Evaluate",
    "certify": "statemix.cli.certify:Certify",
    "refute": "statemix.cli.refute:Refute",
    "compile": "statemix.cli.compile:Compile",
    "tasks": "statemix.cli.tasks:Tasks",
    "doctor": "statemix.cli.doctor:parse",
    "lm": "statemix.cli.lm:parse",
    "conform": "statemix.cli.conform:Conform",
}

# A message names their distribution where it is not installed.
LABORATORY = ("demo", "inspect", "reproduce", "report", "bench")


class Command(Protocol):
    """Interface of a command: a frozen dataclass whose fields are the options.

    A command that continues after an interruption has an attribute ``resumes``, which is true.
    """

    def run(self) -> None:
        """Run the command and print its result."""


def commands() -> Mapping[str, str]:
    """Return all commands: name -> where it is, as "module:object". This is slow."""
    from statemix.registry import installed

    others = {entry.name: entry.value for entry in installed(GROUP)}
    return OWN | others | OWN


def find_command(name: str) -> str | None:
    """Return where a command is; None if there is none of the name."""
    return OWN.get(name) or commands().get(name)


def parse(name: str, arguments: Sequence[str]) -> Command:
    """Parse the words after the name of a command into the command with its options."""
    module, _, attribute = commands()[name].partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    if isinstance(found, type):
        from statemix.cli.parser import parse_class

        found = functools.partial(parse_class, found, prog=f"statemix {name}")
    read: Callable[[Sequence[str]], Command] = found
    return read(arguments)


def stored_help(name: str) -> Path | None:
    """Return the help.json in the folder of a command, without an import; None if it has none."""
    package, *folders = (find_command(name) or "").partition(":")[0].split(".")[:-1] or [""]
    found = importlib.util.find_spec(package) if package else None
    places = (found and found.submodule_search_locations) or ()
    files = (Path(place, *folders, "help.json") for place in places)
    return next((file for file in files if file.is_file()), None)
