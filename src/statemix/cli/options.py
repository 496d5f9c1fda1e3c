"""Settings on a command line: specifications, tables and dotted names."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast, get_args, get_origin

import tyro

from statemix.errors import RequestError
from statemix.plain import Text, from_plain, to_plain
from statemix.registry import Spec
from statemix.settings import Assignments, Settings

_WORDS = {"none": None, "true": True, "false": False}
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?")


def value_of(text: str) -> Any:
    """Read a typed value: none, true, false, a number or other JSON, otherwise a string.

    Example:
        >>> [value_of(text) for text in ("S_3", "16", "none", "1e-3", ".5", "True")]
        ['S_3', 16, None, 0.001, 0.5, True]
    """
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if _DECIMAL.fullmatch(word):
        # JSON wants digits on both sides of the point.
        return float(word)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def text_of(value: Any) -> str:
    """Write a value as text that :func:`value_of` reads back."""
    if isinstance(value, str):
        return value if value_of(value) == value else json.dumps(value)
    return "none" if value is None else json.dumps(to_plain(value))


def options_of(assignments: Iterable[str]) -> dict[str, Text]:
    """Read words of the form "option=value"; the types of the options will decide the values.

    Raises:
        RequestError: if a word has another form, or an option is repeated.

    Example:
        >>> options_of(["group=S_3", "length=16"])["length"].natural
        16
    """
    options: dict[str, Text] = {}
    for assignment in assignments:
        option, equals, text = assignment.partition("=")
        if not (option and equals and text):
            raise RequestError(f"an option must have the form option=value, got {assignment!r}")
        if option in options:
            raise RequestError(f"option {option!r} must be given once, got {assignment!r} as well")
        options[option] = Text(text, value_of(text))
    return options


def tables_of(words: Sequence[str], head: str) -> list[dict[str, Any]]:
    """Read tables: a word without "=" begins a table, and its options follow.

    Args:
        words: words of the command line.
        head: key under which a table stores its first word.

    Raises:
        RequestError: if the first word is an option, or an option is malformed or repeated.

    Example:
        >>> tables_of(["bd_lru", "num_blocks=4", "block_size=2", "lstm"], "name")
        [{'name': 'bd_lru', 'num_blocks': '4', 'block_size': '2'}, {'name': 'lstm'}]
    """
    groups: list[list[str]] = []
    for word in words:
        if "=" not in word:
            groups.append([word])
        elif not groups:
            raise RequestError(f"a {head} must come before its options, got {word!r}")
        else:
            groups[-1].append(word)
    return [{head: first, **options_of(rest)} for first, *rest in groups]


def words_of(table: dict[str, Any], head: str) -> list[str]:
    """Write one table as words for :func:`tables_of`; entries that are None are left out."""
    options = [f"{k}={text_of(v)}" for k, v in table.items() if k != head and v is not None]
    return [str(table[head]), *options]


def registry() -> tyro.constructors.ConstructorRegistry:
    """Rules with which tyro reads settings of several words."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def read(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        return _rule(info.type)

    return rules


def _rule(annotation: Any) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    members = [one for one in get_args(annotation) if one not in (type(None), ...)]
    many = get_origin(annotation) is tuple
    kind = members[0] if members else annotation
    if kind is Assignments:
        return _primitive(
            "[NAME=VALUE ...]",
            lambda words: Assignments.from_plain(options_of(words), ""),
            lambda value: [f"{k}={text_of(v)}" for k, v in value.items()],
        )
    if not isinstance(kind, type) or not issubclass(kind, Spec | Settings):
        return None
    if issubclass(kind, Settings) and not many:
        return None  # Its fields are flags of their own.
    head = "name" if issubclass(kind, Spec) else dataclasses.fields(cast(Any, kind))[0].name
    shown = f"{head.upper()} [OPTION=VALUE ...]"

    def several(words: Sequence[str]) -> Any:
        return from_plain(tuple[kind, ...], tables_of(words, head))  # type: ignore[valid-type]

    def one(words: Sequence[str]) -> Any:
        if annotation is not kind and [word.lower() for word in words] == ["none"]:
            return None
        tables = tables_of(words, head)
        if len(tables) != 1:
            raise RequestError(f"one {head} must be given, got {len(tables)}")
        return from_plain(kind, tables[0])

    def write(value: Any) -> list[str]:
        plain = [to_plain(item) for item in (value if many else [value]) if item is not None]
        return [word for table in plain for word in words_of(table, head)] or ["none"] * (not many)

    return _primitive(f"[{shown} ...]" if many else shown, several if many else one, write)


def _primitive(
    metavar: str, read: Callable[[Sequence[str]], Any], write: Callable[[Any], list[str]]
) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    def checked(words: list[str]) -> Any:
        try:
            return read(words)
        except RequestError as error:
            # tyro puts the name of the flag before the message of a ValueError.
            raise ValueError(str(error)) from error

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=checked,
        is_instance=lambda value: not isinstance(value, str),
        str_from_instance=write,
    )


def split_overrides(
    arguments: Sequence[str], roots: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Separate flags for parts of a specification or a list from the other arguments.

    tyro knows only the flags of fields. The parts of a specification or a list are known once the
    other settings are read: ``--task.group S_3``, ``--model.layers.1.block_size=4``.

    Args:
        arguments: the command line.
        roots: dotted names of fields that hold specifications, lists or tables.

    Returns:
        rest: the other arguments.
        overrides: dotted name -> text of its value.

    Raises:
        RequestError: if a flag has no value.
    """
    rest: list[str] = []
    overrides: dict[str, str] = {}
    waiting = iter(arguments)
    for argument in waiting:
        flag, equals, text = argument.partition("=")
        # A dash within a word stands for an underscore, one before a number is its sign.
        name = re.sub(r"(?<=\w)-(?=\w)", "_", flag.removeprefix("--"))
        if not flag.startswith("--") or not any(name.startswith(f"{root}.") for root in roots):
            rest.append(argument)
            continue
        if not equals:
            text = next(waiting, "")
        if not text or text.startswith("--"):
            raise RequestError(f"{flag} must have a value, got none")
        overrides[name] = text
    return rest, overrides


def split_values(text: str) -> list[Text]:
    """Split a list at its commas, except those within brackets, braces and quotes.

    Example:
        >>> split_values("1,[2,3],S_3")
        ['1', '[2,3]', 'S_3']
    """
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [Text(part, value_of(part)) for part in parts]
