"""Help texts, stored in a file: showing one imports no library that its command needs.

``python -m statemix.cli.help_text`` writes the file from the options of the commands.
"""

import contextlib
import io
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

STORED = Path(__file__).with_name("help.json")


class HelpText(TypedDict):
    """The help of a command, before its lines are wrapped.

    Attributes:
        usage: the command line.
        description: paragraphs above the options.
        parts: name and summary of each subcommand.
        options: flags and text of each option.
        epilog: paragraphs below the options.
    """

    usage: str
    description: list[str]
    parts: list[list[str]]
    options: list[list[str]]
    epilog: list[str]


class HelpShown(SystemExit):
    """The end of a command that has shown this help; the exit code is 0."""

    def __init__(self, text: HelpText) -> None:
        super().__init__(0)
        self.text = text


def show(text: HelpText) -> None:
    """Print a help, wrapped to the width of the terminal."""
    print("\n".join(_lines(text, max(shutil.get_terminal_size().columns, 40))))


def _lines(text: HelpText, width: int) -> Iterator[str]:
    def paragraphs(texts: list[str]) -> Iterator[str]:
        for one in texts:
            yield ""
            yield textwrap.fill(one, width, break_on_hyphens=False)

    yield f"usage: {text['usage']}"
    yield from paragraphs(text["description"])
    if text["parts"]:
        yield from ("", "commands:")
        longest = max(len(name) for name, _ in text["parts"])
        for name, summary in text["parts"]:
            yield f"  {name:<{longest}}  {summary}"
    yield from ("", "options:", "  -h, --help", "      Show this text.")
    for flags, doc in text["options"]:
        yield f"  {flags}"
        yield textwrap.fill(doc, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    yield from paragraphs(text["epilog"])


def stored(arguments: Sequence[str]) -> HelpText | None:
    """Return the stored help that a command line ends with asking for.

    None means that the command itself must answer, as if modules of the user's change the help.
    """
    name, *rest = arguments
    if rest[-1:] not in (["-h"], ["--help"]) or "--imports" in rest:
        return None
    texts: dict[str, HelpText] = json.loads(STORED.read_text(encoding="utf-8"))
    if texts[name]["parts"] and len(rest) > 1:
        name = f"{name} {rest[0]}"
    return texts.get(name)


def completions(line: str) -> list[str]:
    """Return what the last word of a command line may be: commands and their flags.

    Bash completes with ``complete -C 'statemix --complete' statemix``.
    """
    *words, last = line.split(" ")[1:] or [""]
    texts: dict[str, HelpText] = json.loads(STORED.read_text(encoding="utf-8"))
    choices = {name for name in texts if " " not in name}
    for depth in (1, 2):
        text = texts.get(" ".join(words[:depth])) if words[depth - 1 : depth] else None
        if text is not None:
            flags = [
                flag for flags, _ in text["options"] for flag in re.findall(r"--[\w.-]+", flags)
            ]
            choices = {*(name for name, _ in text["parts"]), *flags, "--help"}
    return sorted(choice for choice in choices if choice.startswith(last))


def texts_of_commands() -> dict[str, HelpText]:
    """Return the help of every command and subcommand, by the words that name it."""
    from statemix.cli.main import COMMANDS, parse

    texts: dict[str, HelpText] = {}

    def ask(command: str, *part: str) -> HelpText:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                parse(command, [*part, "--help"])
        except HelpShown as shown:
            texts[" ".join([command, *part])] = shown.text
        return texts[" ".join([command, *part])]

    for command in COMMANDS:
        for name, _ in ask(command)["parts"]:
            ask(command, name)
    return texts


if __name__ == "__main__":
    # The commands raise the class of the imported module.
    from statemix.cli import help_text

    text = json.dumps(help_text.texts_of_commands(), indent=1)
    STORED.write_text(text + "\n", encoding="utf-8")
