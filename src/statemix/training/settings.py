"""Settings: frozen models that are checked against their types, and their plain data.

Plain data are nested tables, lists, strings, numbers, booleans and None.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from statemix.errors import ABSENT, OptionError, RequestError, SettingError, suggestion
from statemix.registry import Spec

_CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)

T = TypeVar("T")


class Text(str):
    """Text of a command line; the type of its setting decides how it is read.

    "none" is a gate family where the setting is a string, and None where it may be None.

    Attributes:
        natural: the value that the text has by itself: a number, None, a list, or the text.
    """

    natural: Any

    def __new__(cls, text: str, natural: Any) -> Self:
        made = super().__new__(cls, text)
        made.natural = natural
        return made


class Settings(BaseModel):
    """Base of frozen models whose fields are checked strictly: True is no integer, 1 no string.

    An invalid field is a :class:`SettingError` with its dotted name.
    """

    model_config = ConfigDict(
        **_CONFIG,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def __init__(self, /, *head: Any, **fields: Any) -> None:
        try:
            # The first fields may be given by position: AttributeSchedule("gate_temperature", ...).
            super().__init__(**dict(zip(type(self).model_fields, head, strict=False)), **fields)
        except ValidationError as error:
            raise _setting_error(error, type(self).model_fields) from None
        self.check()

    @pydantic.field_validator("*", mode="wrap")
    @classmethod
    def _read_field(cls, value: Any, validate: pydantic.ValidatorFunctionWrapHandler) -> Any:
        return _read(value, validate)

    def check(self) -> None:
        """Check conditions that no type can express."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields."""
        return type(self)(**{**dict(self), **changes})

    def asked(self) -> dict[str, Any]:
        """Return the request: the fields that differ from their defaults, as nested plain tables.

        Settings with equal results are the same request. A field that a later version adds with a
        default therefore changes no request.
        """
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_plain(self) -> dict[str, Any]:
        """Return every field, as nested plain tables."""
        return self.model_dump(mode="json")


def checked(annotation: Any, value: object, path: str) -> Any:
    """Check a value against a type, strictly, and read it from plain data where necessary.

    The type may have bounds: ``Annotated[int, Ge(1)]``. ``path`` is the name in the message.

    Example:
        >>> checked(int, True, "hidden_size")
        Traceback (most recent call last):
        ...
        statemix.errors.SettingError: hidden_size must be a valid integer, got True
    """
    try:
        return _read(value, _adapter(annotation).validate_python)
    except ValidationError as error:
        raise _setting_error(error, ()).below(path) from None


@cache
def _adapter(annotation: Any) -> "TypeAdapter[Any]":
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return TypeAdapter(annotation)
    return TypeAdapter(_readable(annotation), config=_CONFIG)


def _read(value: Any, validate: Callable[[Any], T]) -> T:
    """Validate plain data: a list stands for a tuple, and a text for what the type admits."""
    natural, text = _untyped(value, natural=True), _untyped(value, natural=False)
    try:
        return validate(natural)
    except ValueError:
        if natural == text:
            raise
        try:
            return validate(text)
        except ValueError:
            pass
        raise


def _untyped(value: Any, *, natural: bool) -> Any:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return tuple(_untyped(item, natural=natural) for item in value)
    if isinstance(value, Text):
        return _untyped(value.natural, natural=natural) if natural else str(value)
    return value


def _setting_error(error: ValidationError, fields: Any) -> SettingError:
    """Return the first error of a validation, with the name of the field that is wrong."""
    first = error.errors(include_url=False)[0]
    # For a union, "loc" also names the branches tried; they are not parts of the name.
    head = first["loc"][:1] if fields else ()
    inner = [part for part in first["loc"][len(head) :] if isinstance(part, int)]
    path, value = ".".join(map(str, [*head, *inner])), first["input"]
    context = first.get("ctx", {})
    inner_error = context.get("error")
    if isinstance(inner_error, SettingError):
        return inner_error.below(path)
    if first["type"] == "extra_forbidden":
        condition = f"must be one of {', '.join(fields)}"
        return SettingError(path, condition, path, advice=suggestion(path, fields))
    if first["type"] == "missing":
        return SettingError(path, "must be given", ABSENT)
    if first["type"] in ("model_type", "dict_type"):
        return SettingError(path, "must be a table", value)
    condition = first["msg"].replace("Input should", "must", 1)
    if not condition.startswith("must"):
        condition = f"must be valid ({condition})"
    advice = ""
    if first["type"] == "literal_error":
        advice = suggestion(value, re.findall("'(.*?)'", context["expected"]))
    return SettingError(path, condition, value, advice=advice)


def built(part: str, build: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call a constructor with arguments from the user.

    A refused argument is a RequestError that names the part of the configuration. A defect of the
    constructor keeps its error.
    """
    try:
        return build(*arguments, **named)
    except SettingError as error:
        raise error if error.path else error.below(part) from None
    except OptionError as error:
        raise RequestError(f"{part}: {error}") from error


S = TypeVar("S", bound=Spec)


def read_spec(kind: type[S], value: object) -> S:
    """Read a specification from a table of name and options, a name, or a specification."""
    table: Any = value
    if isinstance(value, kind):
        table = {"name": value.name, **value.options}
    elif isinstance(value, str):
        table = {"name": str(value)}
    if not isinstance(table, Mapping) or "name" not in table:
        raise SettingError("", "must be a table with a name", value)
    name = table["name"]
    given = {str(option): item for option, item in table.items() if option != "name"}
    try:
        known = kind.registry().options(name)
    except SettingError as error:
        raise error.below("name") from None
    given = kind.with_contents(name, given)
    kind.registry().check_options(name, given)
    options = {o: checked(known[o][0], given[o], o) for o in known if o in given}
    return kind(str(name), **options)


class _SpecField:
    def __get_pydantic_core_schema__(self, kind: type[Spec], handler: Any) -> CoreSchema:
        def plain(spec: Spec, info: core_schema.SerializationInfo) -> dict[str, Any]:
            return spec.asked() if info.exclude_defaults else spec.to_plain()

        serialization = core_schema.plain_serializer_function_ser_schema(plain, info_arg=True)
        return core_schema.no_info_plain_validator_function(
            partial(read_spec, kind), serialization=serialization
        )


SPEC = _SpecField()
"""Annotation of a field that is read as a specification: ``Annotated[LayerSpec, SPEC]``."""


def _readable(annotation: Any) -> Any:
    """Return a type whose specifications are read from plain data, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return Annotated[annotation, SPEC]
    members: Any = tuple(map(_readable, get_args(annotation)))
    if get_origin(annotation) in (Union, UnionType):
        return Union[members]  # noqa: UP007  the members are known at run time only
    return tuple[members] if get_origin(annotation) is tuple else annotation


class Assignments(Mapping[str, Any]):
    """Immutable, hashable mapping of names to values, such as attributes to set."""

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

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.no_info_plain_validator_function(
            cls._checked, serialization=serialization
        )

    @classmethod
    def _checked(cls, value: object) -> Self:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise SettingError("", "must be a table of names and values", value)
        items = {name: getattr(item, "natural", item) for name, item in value.items()}
        for name, item in items.items():
            if not isinstance(item, bool | int | float | str):
                raise SettingError(name, "must be a number, a string or a truth value", item)
        return cls(items)


def to_plain(value: Any) -> Any:
    """Return dataclasses, settings and specifications as plain data."""
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def plain_number(value: Any) -> Any:
    """Return a scalar of PyTorch or NumPy as a number of Python, alone or in a tuple."""
    if isinstance(value, tuple):
        return tuple(map(plain_number, value))
    return value.item() if getattr(value, "ndim", None) == 0 else value


def finite(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinities, for which JSON has no words."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lookup(tree: Any, name: str) -> Any:
    """Return the value of a dotted name in nested plain tables."""
    for step in name.split("."):
        key: Any = step if isinstance(tree, dict) and step in tree else _index(tree, step, name)
        tree = tree[key]
    return tree


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set the value of a dotted name in nested plain tables.

    A table that does not exist is made, and a name in the place of a table becomes one: it is the
    name of a specification whose options follow.
    """
    *path, last = name.split(".")
    place: Any = tree
    for step in path:
        if isinstance(place, dict):
            place.setdefault(step, {})
        key: Any = step if isinstance(place, dict) else _index(place, step, name)
        if isinstance(place[key], str):
            place[key] = {"name": place[key]}
        place = place[key]
    place[last if isinstance(place, dict) else _index(place, last, name)] = value


def _index(items: Any, step: str, name: str) -> int:
    """Return the place of a list that a part of a dotted name gives."""
    if isinstance(items, list) and step in map(str, range(len(items))):
        return int(step)
    raise SettingError("setting", "must exist", name)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted name, our value and theirs where plain data differ; absent ones are ABSENT."""
    if ours is ABSENT and isinstance(theirs, Mapping) and theirs:
        ours = {}
    if theirs is ABSENT and isinstance(ours, Mapping) and ours:
        theirs = {}
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            below = f"{path}.{name}".lstrip(".")
            yield from differences(ours.get(name, ABSENT), theirs.get(name, ABSENT), below)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}.{place}")
    elif ours != theirs or type(ours) is not type(theirs):
        yield path, ours, theirs


def import_modules(names: Any) -> None:
    """Import the modules that the user names, which register layers and tasks.

    They may be in the working directory, as with ``python -m``. Without a name, nothing is imported
    from there, not even in place of a library that is not installed.
    """
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
        for name in names
    ):
        raise SettingError("imports", "must be a list of module names", names)
    with contextlib.suppress(FileNotFoundError):
        if names and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            condition = f"must name importable modules ({error})"
            raise SettingError("imports", condition, name) from error


def source_digests(names: Iterable[str]) -> dict[str, str]:
    """Return a digest of the source of each imported module, or of all files of a package."""
    found = {}
    for name in names:
        path = Path(getattr(sys.modules[name], "__file__", None) or "")
        files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
        digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files if file.is_file()))
        found[f"source of {name}"] = digest.hexdigest()[:16]
    return found


def read_tree(path: Path) -> dict[str, Any]:
    """Read a configuration file, TOML or JSON by its suffix, as nested plain tables."""
    if path.exists() and not path.is_file():
        # Some devices and pipes never end.
        raise RequestError(f"{path} must be a regular file")
    is_toml = path.suffix.lower() == ".toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree = tomllib.loads(text) if is_toml else json.loads(text)
    except OSError as error:
        raise RequestError(f"{path} must be readable, got: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise RequestError(f"{path} must be {kind}, got: {error}") from error
    if not isinstance(tree, dict):
        raise RequestError(f"{path} must hold a table of settings, got {type(tree).__name__}")
    return tree
