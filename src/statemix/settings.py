"""Frozen settings, checked by their types, and the errors of requests that cannot be met."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Self,
    cast,
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


def built(part: str, build: Any, *arguments: Any, **named: Any) -> Any:
    """Call a constructor with what the user asked for, and blame its errors on the request.

    Raises:
        RequestError: naming the part of the configuration, if the constructor refuses.
    """
    try:
        return build(*arguments, **named)
    except SettingError as error:
        raise error if error.path else error.below(part) from None
    except RequestError:
        raise
    except (ValueError, TypeError) as error:
        raise RequestError(f"{part}: {error}") from error


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
        for name, annotation in field_types(cast(Any, type(self))).items():
            object.__setattr__(self, name, checked(annotation, getattr(self, name), name))
        self.check()

    def check(self) -> None:
        """Check conditions that connect several fields.

        Raises:
            SettingError: if one does not hold.
        """


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """Field -> annotation of a dataclass of settings."""
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

    @classmethod
    def from_plain(cls, value: object, path: str) -> Self:
        """Build it from plain data.

        Raises:
            SettingError: if the value is no table.
        """
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise SettingError(path, "must be a table of names and values", value)
        return cls(value)
