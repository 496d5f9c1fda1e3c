"""Values on a command line: words become plain data, whose types the settings decide."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from statemix.errors import RequestError
from statemix.registry import Spec
from statemix.training.settings import Assignments, Settings, Text, put, to_plain

_WORDS = {"none": None, "true": True, "false": False}
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?")


def value_of(text: str) -> Any:
    """Read a typed value: none, true, false, a number or other JSON, otherwise a string.

    Parentheses stand for the brackets of JSON, as tuples are written in Python.

    Example:
        >>> [value_of(text) for text in ("S_3", "16", "none", "1e-3", ".5", "True", "(1, 50)")]
        ['S_3', 16, None, 0.001, 0.5, True, [1, 50]]
    """
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if _DECIMAL.fullmatch(word):
        # JSON wants digits on both sides of the point.
        return float(word)
    is_tuple = word[:1] == "(" and word[-1:] == ")"
    try:
        return json.loads(f"[{text[1:-1]}]" if is_tuple else text)
    except (ValueError, RecursionError):
        return text


def text_of(value: Any) -> str:
    """Write a value as text that :func:`value_of` reads back."""
    if isinstance(value, str):
        return value if value_of(value) == value else json.dumps(value)
    return "none" if value is None else json.dumps(to_plain(value))


def typed(text: str) -> Text:
    """Return a word of a command line with its natural value."""
    return Text(text, value_of(text))


def options_of(assignments: Iterable[str]) -> dict[str, Any]:
    """Read words "option=value"; a dotted option is part of a nested table.

    Example:
        >>> options_of(["group=S_3", "inner=lstm", "inner.size=4"])
        {'group': 'S_3', 'inner': {'name': 'lstm', 'size': '4'}}
    """
    options: dict[str, Any] = {}
    given: set[str] = set()
    for assignment in assignments:
        option, _, text = assignment.partition("=")
        if not (option and text):
            raise RequestError(f"an option must have the form option=value, got {assignment!r}")
        if option in given:
            raise RequestError(f"option {option!r} must be given once, got {assignment!r} as well")
        given.add(option)
        put(options, option, typed(text))
    return options


def tables_of(words: Sequence[str], head: str) -> list[dict[str, Any]]:
    """Read tables: a word without "=" begins a table, which stores it under ``head``.

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


def split_values(text: str) -> list[Text]:
    """Split a list at its commas, except those within brackets, braces and quotes."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [typed(part) for part in parts]


def bare(annotation: Any) -> Any:
    """Return a type without its bounds and without None."""
    if get_origin(annotation) is Annotated:
        return bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return bare(members[0]) if len(members) == 1 else annotation
    return annotation


def head_of(kind: Any) -> str | None:
    """Return the key of a table's first word, or None if values of this type are no tables."""
    if not isinstance(kind, type) or not issubclass(kind, Spec | Settings):
        return None
    return "name" if issubclass(kind, Spec) else next(iter(kind.model_fields))


def takes_many(annotation: Any) -> bool:
    """Return whether a flag of this type takes all words that follow it."""
    kind = bare(annotation)
    return get_origin(kind) is tuple or kind is Assignments or head_of(kind) is not None


def read_words(annotation: Any, words: Sequence[str], name: str) -> Any:
    """Return the words of one flag as plain data for a value of this type."""
    kind = bare(annotation)
    try:
        if kind is Assignments:
            return options_of(words)
        is_list = get_origin(kind) is tuple
        member = bare(get_args(kind)[0]) if is_list else kind
        head = head_of(member)
        if is_list:
            if len(words) == 1 and isinstance(value_of(words[0]), list):
                return typed(words[0])
            if head is None:
                return [_read_word(member, word) for word in words]
            return tables_of(words, head)
        if head is not None and len(words) != 1:
            tables = tables_of(words, head)
            if len(tables) != 1:
                raise RequestError(f"one {head} must be given, got {len(tables)}")
            return tables[0]
        if len(words) == 1:
            return _read_word(kind, words[0])
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from error
    if not words:
        raise RequestError(f"{name} must have a value, got none")
    raise RequestError(f"{name} must have one value, got {', '.join(words)}")


def _read_word(kind: Any, word: str) -> Any:
    if kind is str and value_of(word) is not None:
        return word
    if kind is not Path:
        return typed(word)
    if not word or "\0" in word:
        # An empty path would be the working directory.
        raise RequestError(f"a path must be neither empty nor with a null byte, got {word!r}")
    return Path(word)
