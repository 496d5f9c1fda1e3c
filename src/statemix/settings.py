"""Frozen settings that are checked against their types."""

import dataclasses
import dis
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast, get_type_hints

from statemix.errors import RequestError, SettingError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def checked(annotation: Any, value: object, path: str) -> Any:
    """Check a value against a type, strictly: True is no integer, and 1 no string.

    Args:
        annotation: the type, possibly with bounds: ``Annotated[int, Ge(1)]``.
        value: value to check.
        path: dotted name of the setting, for the message.

    Returns:
        The value; an integer is converted where the type is float.

    Raises:
        SettingError: if the value is not of this type.

    Example:
        >>> checked(int, True, "hidden_size")
        Traceback (most recent call last):
        ...
        statemix.errors.SettingError: hidden_size must be a valid integer, got True
    """
    # Importing a layer must not wait for pydantic.
    from pydantic import ValidationError

    try:
        return _adapter(annotation).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # For a union, "loc" also names the branches tried; they are not parts of the name.
        inner = [str(part) for part in first["loc"] if isinstance(part, int)]
        condition = first["msg"].replace("Input should", "must", 1)
        if not condition.startswith("must"):
            condition = f"must be valid ({condition})"
        raise SettingError(".".join([path, *inner]), condition, first["input"]) from None


def built(part: str, build: Any, *arguments: Any, **named: Any) -> Any:
    """Call a constructor with arguments from the user, and turn its refusals into RequestErrors.

    Raises:
        RequestError: if the constructor refuses an argument; the message names the part of the
            configuration. A defect of the constructor keeps its error.
    """
    try:
        return build(*arguments, **named)
    except SettingError as error:
        raise error if error.path else error.below(part) from None
    except RequestError:
        raise
    except (ValueError, TypeError) as error:
        if not is_refusal(error):
            raise
        raise RequestError(f"{part}: {error}") from error


_LIBRARIES = {*sys.stdlib_module_names, "numpy", "torch"}
_RAISE = dis.opmap["RAISE_VARARGS"]


def is_refusal(error: ValueError | TypeError) -> bool:
    """Return whether a part raised an error to refuse an argument; otherwise it is a defect.

    A part refuses an argument by a ``raise`` statement of its own. If an operator, a builtin or a
    library below fails instead, such as ``None + 1`` or ``torch.zeros("x")``, the part has a
    defect, because it should have checked its arguments first.

    Args:
        error: an error that was caught.
    """
    where = error.__traceback__
    if where is None:
        return False
    while where.tb_next is not None:
        where = where.tb_next
    module = str(where.tb_frame.f_globals.get("__name__"))
    if module.partition(".")[0] in _LIBRARIES:
        return False
    code = where.tb_frame.f_code.co_code
    return where.tb_lasti in range(len(code)) and code[where.tb_lasti] == _RAISE


@cache
def _adapter(annotation: Any) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, TypeAdapter

    if isinstance(annotation, type) and hasattr(annotation, "__get_pydantic_core_schema__"):
        return TypeAdapter(annotation)
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(annotation, config=config)


class ByInstance:
    """A class that pydantic checks by ``isinstance`` alone: its constructor checks the rest."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)


class Settings(ByInstance):
    """Base of frozen dataclasses whose fields are checked against their types.

    Conditions that no type can express belong in :meth:`check`.

    Raises:
        SettingError: if a field is invalid; the message names it.
    """

    def __post_init__(self) -> None:
        for name, annotation in field_types(cast(Any, type(self))).items():
            object.__setattr__(self, name, checked(annotation, getattr(self, name), name))
        self.check()

    def check(self) -> None:
        """Check conditions that connect several fields.

        Raises:
            SettingError: if a condition does not hold.
        """


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """Return field -> annotation of a dataclass of settings."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


class Assignments(ByInstance, Mapping[str, Any]):
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
    def from_plain(cls, value: object, path: str) -> Self:
        """Build the mapping from plain data.

        Raises:
            SettingError: if the value is not a table.
        """
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise SettingError(path, "must be a table of names and values", value)
        return cls({name: getattr(item, "natural", item) for name, item in value.items()})
