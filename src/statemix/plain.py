"""Conversion of settings to plain data and back, and comparison of plain data."""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Self, Union, cast, get_args, get_origin

from statemix.errors import ABSENT, SettingError
from statemix.settings import Settings, checked, field_types


class Text(str):
    """Text of a command line; the type of its setting decides how it is read.

    "none" is a gate family where the setting is a string, and None where it may be None.

    Attributes:
        natural: the value that the text has by itself: a number, None, a list, or the text.
    """

    natural: Any

    def __new__(cls, text: str, natural: Any) -> Self:
        """Make a text with its natural value."""
        made = super().__new__(cls, text)
        made.natural = natural
        return made


def to_plain(value: Any) -> Any:
    """Return settings as plain data: tables, lists, strings, numbers, booleans, None."""
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def finite(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinities, for which JSON has no words.

    Example:
        >>> finite({"loss": [0.5, float("nan")]})
        {'loss': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(annotation: Any, value: Any, path: str = "") -> Any:
    """Undo :func:`to_plain`: build a value of type ``annotation`` from plain data.

    Args:
        annotation: a type: settings, a specification, a tuple of them, or any plain type.
        value: plain data. Absent fields have their defaults.
        path: dotted name of the value, for messages.

    Raises:
        SettingError: if the data do not fit; the message gives the field's dotted name.
    """
    if isinstance(value, Text):
        return _read(annotation, value, path)
    if isinstance(annotation, type):
        if hasattr(annotation, "from_plain"):
            return value if isinstance(value, annotation) else annotation.from_plain(value, path)
        if issubclass(annotation, Settings):
            return value if isinstance(value, annotation) else _settings(annotation, value, path)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return from_plain(arguments[0], value, path)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        for member in arguments:
            built = from_plain(member, value, path)
            if built is not value:
                return built
    elif origin is tuple and isinstance(value, list):
        each = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        if len(each) == len(value):
            return tuple(
                from_plain(one, item, f"{path}.{place}")
                for place, (one, item) in enumerate(zip(each, value, strict=True))
            )
        return tuple(value)
    return value


def _read(annotation: Any, text: Text, path: str) -> Any:
    """Read a text as its natural value if the type admits that, otherwise as a string."""
    try:
        return checked(annotation, from_plain(annotation, text.natural, path), path)
    except SettingError as error:
        try:
            return checked(annotation, from_plain(annotation, str(text), path), path)
        except SettingError:
            raise error from None


def _settings(kind: type[Settings], value: Any, path: str) -> Settings:
    dot = f"{path}." if path else ""
    if not isinstance(value, Mapping):
        raise SettingError(path or kind.__name__, "must be a table", value)
    hints = field_types(cast(Any, kind))
    unknown = [name for name in value if name not in hints]
    if unknown:
        known = ", ".join(hints)
        raise SettingError(f"{dot}{unknown[0]}", f"must be one of {known}", unknown[0])
    for field in dataclasses.fields(cast(Any, kind)):
        if field.default is dataclasses.MISSING and field.name not in value:
            raise SettingError(f"{dot}{field.name}", "must be given", ABSENT)
    arguments = {
        name: from_plain(hints[name], item, f"{dot}{name}") for name, item in value.items()
    }
    try:
        return kind(**arguments)
    except SettingError as error:
        raise error.below(f"{dot}{error.path}") from None


def lookup(tree: Any, name: str) -> Any:
    """Return the value of a dotted name in nested plain tables.

    Raises:
        SettingError: if the name does not exist.
    """
    for step in name.split("."):
        tree = _part(tree, step, name)
    return tree


def put(tree: Any, name: str, value: Any) -> None:
    """Set the value of a dotted name in nested plain tables.

    The last part of the name may be new, such as an option that a specification leaves to its
    default; the other parts must exist.

    Raises:
        SettingError: if the name does not fit the tables.
    """
    *path, last = name.split(".")
    for step in path:
        tree = _part(tree, step, name)
    if isinstance(tree, list):
        _part(tree, last, name)
        tree[int(last)] = value
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise SettingError("setting", "must exist", name)


def _part(tree: Any, step: str, name: str) -> Any:
    try:
        if not isinstance(tree, list):
            return tree[step]
        if step.isdecimal() and str(int(step)) == step:
            return tree[int(step)]
    except (LookupError, TypeError):
        pass
    raise SettingError("setting", "must exist", name)


def asked(settings: Any) -> dict[str, Any]:
    """Return the request: the fields that differ from their defaults, as nested plain tables.

    Settings with equal results are the same request. A field that a later version adds with a
    default therefore changes no request.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value, usual = getattr(settings, field.name), field.default
        if type(value) is not type(usual) or value != usual:
            found[field.name] = _asked_plain(value)
    return found


def _asked_plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return asked(value)
    if isinstance(value, tuple):
        return [_asked_plain(item) for item in value]
    return value.asked() if hasattr(value, "asked") else to_plain(value)


def difference(ours: Any, theirs: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first place at which two trees of plain data differ.

    Returns:
        The dotted name, our value and theirs (``ABSENT`` where there is none); None if the trees
        are equal.
    """
    if ours is ABSENT and isinstance(theirs, Mapping) and theirs:
        ours = {}
    if theirs is ABSENT and isinstance(ours, Mapping) and ours:
        theirs = {}
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        shared = [name for name in ours if name in theirs]
        # If one entry is absent, the other's name may equal the default: options come first.
        single = sorted((ours.keys() ^ theirs.keys()), key=lambda name: (name == "name", name))
        for name in [*shared, *single]:
            below = f"{path}.{name}".lstrip(".")
            found = difference(ours.get(name, ABSENT), theirs.get(name, ABSENT), below)
            if found:
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            found = difference(one, other, f"{path}.{place}")
            if found:
                return found
        return None
    return None if ours == theirs and type(ours) is type(theirs) else (path, ours, theirs)
