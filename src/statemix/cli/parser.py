"""Command lines: the fields of a command's class are its options."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from statemix.cli.help_text import HelpShown, HelpText, show
from statemix.cli.options import bare, head_of, read_words, takes_many, text_of, words_of
from statemix.errors import RequestError, suggestion
from statemix.registry import Spec
from statemix.training.settings import Assignments, checked, import_modules

C = TypeVar("C")

# Flags as they were written, each with the words that follow it.
Groups = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Argument:
    """The word for the value of a field in the help, its flag, and whether it has no flag."""

    metavar: str = ""
    name: str = ""
    positional: bool = False


@dataclass(frozen=True)
class Option:
    """A field of a command; ``default`` may be ``dataclasses.MISSING``."""

    field: str
    annotation: Any
    default: Any
    doc: str
    argument: Argument = Argument()

    @property
    def flag(self) -> str:
        if self.argument.positional:
            return self.argument.metavar or self.field
        return "--" + (self.argument.name or self.field).replace("_", "-")


def options_of_class(kind: type) -> list[Option]:
    """Return the options of a command: the fields of its dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    docs: dict[str, str] = {}
    # In the source of a class, the text about a field follows it.
    for parent in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        body: list[ast.stmt] = tree.body  # type: ignore[attr-defined]
        for field, doc in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                docs[ast.unparse(field.target)] = ast.literal_eval(doc.value)
    options = []
    for each in dataclasses.fields(kind):
        marks = [mark for mark in get_args(hints[each.name]) if isinstance(mark, Argument)]
        options.append(
            Option(each.name, hints[each.name], each.default, docs.get(each.name, ""), *marks)
        )
    return options


def split_flags(arguments: Sequence[str]) -> Groups:
    """Split a command line at its flags; words before the first one, or after "--", have ""."""
    groups: Groups = [("", [])]
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*groups, ("", [*arguments[place + 1 :]])]
        if argument == "-h":
            argument = "--help"
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            groups.append((flag, [value] if equals else []))
        else:
            groups[-1][1].append(argument)
    return groups


def normal(name: str) -> str:
    """Return the name of a flag as that of a field; a dash before a number is its sign."""
    return re.sub(r"(?<=\w)-(?=\w)", "_", name.removeprefix("--"))


def parse_class(kind: type[C], arguments: Sequence[str], prog: str) -> C:
    """Parse the words after ``prog``, such as "statemix tasks", into a command's dataclass."""
    options = options_of_class(kind)
    groups = split_flags(arguments)
    if ("--help", []) in groups:
        show_help(prog, kind.__doc__ or "", options)
    try:
        return kind(**read_fields(options, groups))
    except RequestError as error:
        raise RequestError(_with_advice(str(error), prog)) from error


def parse_part(
    parts: Mapping[str, type[C]], arguments: Sequence[str], prog: str, description: str
) -> C:
    """Parse a command line whose first word names one of several classes."""
    name, *rest = arguments or [""]
    if name in ("-h", "--help"):
        show_help(prog, description, (), parts=parts)
    if name not in parts:
        text = f"{prog} must be followed by one of {list(parts)}, got {name!r}"
        raise RequestError(_with_advice(text + suggestion(name, parts), prog))
    return parse_class(parts[name], rest, f"{prog} {name}")


def _with_advice(text: str, prog: str) -> str:
    return text if text.endswith("?") else f"{text}; see {prog} --help"


def read_fields(options: Sequence[Option], groups: Groups) -> dict[str, Any]:
    """Return the values of a command's fields."""
    flags = {option.flag: option for option in options if not option.argument.positional}
    free: list[str] = []
    words: dict[str, list[str]] = {}
    for flag, given in groups:
        if not flag:
            free += given
            continue
        name = "--" + normal(flag).replace("_", "-")
        option = flags.get(name) or flags.get(name.replace("--no-", "--", 1))
        if option is None or (option.flag != name and bare(option.annotation) is not bool):
            advice = suggestion(name, flags)
            raise RequestError(f"option must be one of {', '.join(flags)}, got {flag}{advice}")
        if option.field in words:
            raise RequestError(f"{flag} must be given once")
        if bare(option.annotation) is bool and given[:1] not in (["true"], ["false"]):
            given = ["true" if option.flag == name else "false", *given]
        if not given and option.default == () and takes_many(option.annotation):
            raise RequestError(f"{flag} must have a value, got none")
        count = len(given) if takes_many(option.annotation) else 1
        words[option.field] = given[:count]
        free += given[count:]
    for option in options:
        if option.argument.positional and free:
            count = len(free) if takes_many(option.annotation) else 1
            words[option.field], free = free[:count], free[count:]
    if free:
        raise RequestError(f"words must follow an option that takes them, got {' '.join(free)}")
    import_modules(words.get("imports", ()))
    values = {}
    for option in options:
        if option.field in words:
            plain = read_words(option.annotation, words[option.field], option.flag)
            values[option.field] = checked(option.annotation, plain, option.field)
        elif option.default is dataclasses.MISSING:
            raise RequestError(f"{option.flag} must be given")
    return values


def show_help(
    prog: str,
    description: str,
    options: Sequence[Option],
    epilog: str = "",
    parts: Mapping[str, type] = MappingProxyType({}),
) -> NoReturn:
    """Print the help of a command, and of ``parts``, the classes of its subcommands; exit."""
    positional = [option.flag for option in options if option.argument.positional]
    end = ["COMMAND"] * bool(parts) + positional + ["[OPTIONS]"]
    text = HelpText(
        usage=" ".join([prog, *end]),
        description=_paragraphs(description),
        parts=[[name, _paragraphs(part.__doc__ or "")[0]] for name, part in parts.items()],
        options=[[_flags(option), _text(option)] for option in options],
        epilog=_paragraphs(epilog),
    )
    show(text)
    raise HelpShown(text)


def _paragraphs(text: str) -> list[str]:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph]


def _flags(option: Option) -> str:
    if bare(option.annotation) is not bool:
        metavar = option.argument.metavar or _metavar(option.annotation)
        return option.flag if option.argument.positional else f"{option.flag} {metavar}"
    if not option.default and "." not in option.field:
        return option.flag
    head, dot, last = option.flag.removeprefix("--").rpartition(".")
    return f"{option.flag}, --{head}{dot}no-{last}"


def _text(option: Option) -> str:
    text = " ".join(option.doc.split())
    if option.argument.positional and get_origin(bare(option.annotation)) is Literal:
        text += f" One of {_metavar(option.annotation).replace('|', ', ')}."
    if option.default is dataclasses.MISSING:
        text += " (required)"
    elif option.default not in (None, (), False):
        text += f" (default: {_shown(option.default)})"
    return text


def _shown(value: Any) -> str:
    if isinstance(value, Spec):
        return " ".join(words_of(value.asked(), "name"))
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return str(value) if isinstance(value, Path) else text_of(value)


def _metavar(annotation: Any) -> str:
    kind = bare(annotation)
    if get_origin(kind) is tuple:
        return f"[{_metavar(get_args(kind)[0])} ...]"
    if get_origin(kind) is Literal:
        return "|".join(map(text_of, get_args(kind)))
    head = head_of(kind)
    if head is not None:
        return f"{head.upper()} [OPTION=VALUE ...]"
    if kind is Assignments:
        return "[NAME=VALUE ...]"
    return {int: "INT", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")
