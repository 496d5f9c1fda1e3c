"""Help texts, stored in files: showing one imports no library that its command needs.

``python -m statemix.cli.help_text`` writes the files from the options of the commands.
"""

import contextlib
import io
import json
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from statemix.cli.commands import commands, parse, stored_help


class HelpText(TypedDict):
    """The help of a command: paragraphs, and pairs of a name or flags and their text."""

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
    width, indent = _width(), " " * 6

    def paragraphs(texts: list[str]) -> list[str]:
        return ["\n" + textwrap.fill(one, width, break_on_hyphens=False) for one in texts]

    lines = [f"usage: {text['usage']}", *paragraphs(text["description"])]
    if text["parts"]:
        longest = max(len(name) for name, _ in text["parts"])
        lines += ["\ncommands:", *(f"  {name:<{longest}}  {doc}" for name, doc in text["parts"])]
    lines.append("\noptions:")
    for flags, doc in (("-h, --help", "Show this text."), *text["options"]):
        filled = textwrap.fill(doc, width, initial_indent=indent, subsequent_indent=indent)
        lines += [f"  {flags}", filled]
    print("\n".join([*lines, *paragraphs(text["epilog"])]))


def _width() -> int:
    return max(shutil.get_terminal_size().columns, 40)


def stored(arguments: Sequence[str]) -> HelpText | None:
    """Return the stored help that a command line asks for; None if the command must answer."""
    name, *rest = arguments
    if rest[-1:] not in (["-h"], ["--help"]) or "--imports" in rest:
        return None
    texts = _read(stored_help(name))
    if name in texts and texts[name]["parts"] and len(rest) > 1:
        name = f"{name} {rest[0]}"
    return texts.get(name)


def _read(file: Path | None) -> dict[str, HelpText]:
    texts: dict[str, HelpText] = json.loads(file.read_text(encoding="utf-8")) if file else {}
    return texts


def _all_texts() -> dict[str, HelpText]:
    """Return every help, by the words that name it. Commands without a stored help are asked."""
    texts: dict[str, HelpText] = {}
    known = commands()
    for name in known:
        if name not in texts:
            texts |= _read(stored_help(name)) or _texts_of(name)
    return {name: text for name, text in texts.items() if name.split()[0] in known}


def summaries() -> str:
    """Return a line for each command, with the first sentence of its help."""
    texts = {name: text for name, text in _all_texts().items() if " " not in name}
    lines = []
    for name, text in texts.items():
        sentence, *_ = re.split(r"(?<=\.) ", text["description"][0])
        lines += textwrap.wrap(f"  {name:<12}  {sentence}", _width(), subsequent_indent=" " * 16)
    return "\n".join(lines)


def completions(line: str) -> list[str]:
    """Return what the last word of a command line may be: commands and their flags.

    Bash completes with ``complete -o default -C 'statemix --complete' statemix``.
    """
    *words, last = line.split(" ")[1:] or [""]
    texts = _all_texts()
    choices = {name for name in texts if " " not in name}
    for depth in (1, 2):
        text = texts.get(" ".join(words[:depth])) if words[depth - 1 : depth] else None
        if text is not None:
            flags = re.findall(r"--[\w.-]+", " ".join(flags for flags, _ in text["options"]))
            choices = {*(name for name, _ in text["parts"]), *flags, "--help"}
    return sorted(choice for choice in choices if choice.startswith(last))


def texts_of_files() -> dict[Path, dict[str, HelpText]]:
    """Return what each file of stored texts must hold: words that name a command -> its help."""
    files: dict[Path, dict[str, HelpText]] = {}
    for name in commands():
        if (file := stored_help(name)) is not None:
            files[file] = files.get(file, {}) | _texts_of(name)
    return files


def _texts_of(command: str) -> dict[str, HelpText]:
    def ask(*words: str) -> HelpText:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                parse(command, [*words, "--help"])
        except HelpShown as shown:
            return shown.text
        raise RuntimeError(f"{command} has shown no help")

    text = ask()
    return {command: text} | {f"{command} {name}": ask(name) for name, _ in text["parts"]}


if __name__ == "__main__":
    # The commands raise the class of the imported module.
    from statemix.cli import help_text

    for file, texts in help_text.texts_of_files().items():
        # A pair of flags and their text has one line.
        lines = re.sub(r'\[\n +(".*"),\n +(".*")\n +\]', r"[\1, \2]", json.dumps(texts, indent=1))
        file.write_text(lines + "\n", encoding="utf-8")
