"""Help texts, stored in files: showing one imports no library that its command needs.

``python -m statemix.cli.help_text`` writes the files from the options of the commands.
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

from statemix.cli.commands import commands, parse, stored_help


class HelpText(TypedDict):
    """The help of a command, before its lines are wrapped.

    Descriptions and epilogs are paragraphs; ``parts`` has the name and summary of each subcommand,
    and ``options`` the flags and text of each option.
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
    width = max(shutil.get_terminal_size().columns, 40)
    lines = []
    for name, text in texts.items():
        sentence, *_ = re.split(r"(?<=\.) ", text["description"][0])
        first = f"  {name:<12}  "
        lines.append(
            textwrap.fill(sentence, width, initial_indent=first, subsequent_indent=" " * 16)
        )
    return "\n".join(lines)


def completions(line: str) -> list[str]:
    """Return what the last word of a command line may be: commands and their flags.

    Bash completes with ``complete -C 'statemix --complete' statemix``.
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
        file = stored_help(name)
        if file is not None:
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
        file.write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")
