"""Frozen settings: checked by their types, written as plain data, identified by what was asked."""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class RequestError(ValueError):
    """What the user asked for cannot be done; the message says why in one line.

    Only requests raise it. A ValueError of another class is a defect of the library.
    """


class RunsFailedError(Exception):
    """The request was right, but some runs have no result; the message says how many."""


class SettingError(RequestError):
    """A setting must be another.

    Args:
        path: dotted name of the setting; empty where there is none.
        condition: what it must be or have, in words that follow "must" inclusive.
        value: what came.
        subject: what the message begins with, in place of ``path``.
    """

    def __init__(self, path: str, condition: str, value: object, *, subject: str = "") -> None:
        self.path, self.condition, self.value, self.subject = path, condition, value, subject
        super().__init__(f"{self._head()} {condition}, got {_shown(value)}")

    def below(self, path: str) -> "SettingError":
        """The same error of a setting whose name begins with ``path``."""
        return SettingError(path, self.condition, self.value, subject=self.subject)

    def _head(self) -> str:
        if self.subject and self.path:
            return f"{self.path}: {self.subject}"
        return self.subject or self.path

    def __reduce__(self) -> Any:
        return _setting_error, (self.path, self.condition, self.value, self.subject)


def _setting_error(path: str, condition: str, value: object, subject: str) -> SettingError:
    return SettingError(path, condition, value, subject=subject)


def _shown(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def checked(annotation: Any, value: object, path: str) -> Any:
    """Check a value against a type, strictly: True is no integer, and 1 no string.

    Args:
        annotation: the type, possibly with bounds: ``Annotated[int, Ge(1)]``.
        value: what is to be of this type.
        path: dotted name of the setting, for the message.

    Returns:
        The value; an integer that is to be a floating-point number as such.

    Raises:
        SettingError: if the value is not of this type.

    Example:
        >>> checked(int, True, "hidden_size")
        Traceback (most recent call last):
        ...
        statemix.settings.SettingError: hidden_size must be a valid integer, got True
    """
    # Importing a layer must not wait for pydantic.
    from pydantic import ValidationError

    try:
        return _adapter(annotation).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # A union names the branches that it tried, which are no parts of the setting's name.
        inner = [str(part) for part in first["loc"] if isinstance(part, int)]
        condition = first["msg"].replace("Input should", "must", 1)
        if not condition.startswith("must"):
            condition = f"must be valid ({condition})"
        raise SettingError(".".join([path, *inner]), condition, first["input"]) from None


@cache
def _adapter(annotation: Any) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, TypeAdapter

    if isinstance(annotation, type) and hasattr(annotation, "__get_pydantic_core_schema__"):
        return TypeAdapter(annotation)
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(annotation, config=config)


class ByInstance:
    """A class that pydantic checks by ``isinstance``: it has checked itself when it was made."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)


class Settings(ByInstance):
    """Base of frozen dataclasses whose fields are checked against their types.

    A condition that no type can state goes into :meth:`check`.

    Raises:
        SettingError: from the constructor, naming the field.
    """

    def __post_init__(self) -> None:
        for name, annotation in _hints(cast(Any, type(self))).items():
            object.__setattr__(self, name, checked(annotation, getattr(self, name), name))
        self.check()

    def check(self) -> None:
        """Check conditions that connect several fields.

        Raises:
            SettingError: if one does not hold.
        """


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


class Assignments(ByInstance, Mapping[str, Any]):
    """Names with values, such as attributes to be set: an immutable, hashable mapping."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._items = {**(items or {}), **more}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {name: to_plain(value) for name, value in self._items.items()}

    @classmethod
    def from_plain(cls, value: object, path: str) -> Self:
        """Undo :meth:`to_plain`.

        Raises:
            SettingError: if the value is no table.
        """
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise SettingError(path, "must be a table of names and values", value)
        return cls(value)


def to_plain(value: Any) -> Any:
    """Settings as data that JSON and TOML can hold: tables, lists, strings, numbers, None."""
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(annotation: Any, value: Any, path: str = "") -> Any:
    """Undo :func:`to_plain`: build what ``annotation`` says from plain data.

    Args:
        annotation: a type: settings, a specification, a tuple of them, or any plain type.
        value: plain data. Fields that are absent take their defaults.
        path: dotted name of the place, for messages.

    Raises:
        SettingError: if the data do not fit, naming the field by its dotted name.
    """
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


def _settings(kind: type[Settings], value: Any, path: str) -> Settings:
    dot = f"{path}." if path else ""
    if not isinstance(value, Mapping):
        raise SettingError(path or kind.__name__, "must be a table", value)
    hints = _hints(cast(Any, kind))
    unknown = [name for name in value if name not in hints]
    if unknown:
        known = ", ".join(hints)
        raise SettingError(f"{dot}{unknown[0]}", f"must be one of {known}", unknown[0])
    for field in dataclasses.fields(cast(Any, kind)):
        if field.default is dataclasses.MISSING and field.name not in value:
            raise SettingError(f"{dot}{field.name}", "must be given", None)
    arguments = {
        name: from_plain(hints[name], item, f"{dot}{name}") for name, item in value.items()
    }
    try:
        return kind(**arguments)
    except SettingError as error:
        raise error.below(f"{dot}{error.path}") from None


def lookup(tree: Any, name: str) -> Any:
    """The value of a dotted name in nested plain tables.

    Raises:
        SettingError: if there is no such place.
    """
    for step in name.split("."):
        tree = _part(tree, step, name)
    return tree


def put(tree: Any, name: str, value: Any) -> None:
    """Set the value of a dotted name in nested plain tables.

    The last part may be new, as an option that a specification leaves to its default; the others
    must be there.

    Raises:
        SettingError: if there is no such place.
    """
    *path, last = name.split(".")
    for step in path:
        tree = _part(tree, step, name)
    if not isinstance(tree, dict):
        raise SettingError(name, "must name a setting", value)
    tree[last] = value


def _part(tree: Any, step: str, name: str) -> Any:
    try:
        return tree[int(step)] if isinstance(tree, list) else tree[step]
    except (LookupError, ValueError, TypeError):
        raise SettingError("name of a setting", "must exist", name) from None


def asked(settings: Any) -> dict[str, Any]:
    """What was asked for: the fields that differ from their defaults, as nested plain tables.

    Two settings are the same request if this is equal for both: a field that a later version adds
    with a default changes nothing.
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


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()
"""The value of a field that a tree does not hold."""


def difference(ours: Any, theirs: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first place at which two trees of plain data differ.

    Returns:
        Its dotted name, our value and theirs (:data:`ABSENT` where there is none); None if the
        trees are equal.
    """
    if ours is ABSENT and isinstance(theirs, Mapping) and theirs:
        ours = {}
    if theirs is ABSENT and isinstance(ours, Mapping) and ours:
        theirs = {}
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        shared = [name for name in ours if name in theirs]
        # Beside nothing, the name of an entry may be the default's: its options come first.
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
