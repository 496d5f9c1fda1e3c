"""Registries: entries of one kind by name, with their options and error messages."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

from statemix.errors import ABSENT, SettingError
from statemix.plain import from_plain, to_plain
from statemix.settings import Assignments, ByInstance, checked

Entry = TypeVar("Entry")
"""A class or a record with a ``name``, as users write it."""

REQUIRED: Any = inspect.Parameter.empty
"""Default of an option that must be given."""


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries of one kind by name, in the order of registration.

    Args:
        kind: noun for one entry in messages, such as "layer", "gate" or "backend".
        entries: initial entries.

    Attributes:
        revision: number of changes so far. What was derived from the entries holds as long as it
            stays the same.

    Example:
        >>> from types import SimpleNamespace
        >>> colours = Registry("colour", [SimpleNamespace(name="red")])
        >>> colours.find("blue")
        Traceback (most recent call last):
        ...
        statemix.errors.SettingError: colour must be one of ['red'], got 'blue'
    """

    def __init__(self, kind: str, entries: Iterable[Entry] = ()) -> None:
        self.kind = kind
        self.revision = 0
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            self.register(entry)

    def register(self, entry: Entry) -> Entry:
        """Add an entry and return it; usable as a class decorator.

        Raises:
            ValueError: if the name is already registered.
        """
        name: str = entry.name  # type: ignore[attr-defined]
        if name in self._entries:
            raise ValueError(f"{self.kind} must have a unique name, got a second {name!r}")
        self._entries[name] = entry
        self.revision += 1
        return entry

    def remove(self, name: str) -> None:
        """Remove an entry by name, for instance at the end of a test."""
        del self._entries[name]
        self.revision += 1

    def find(self, name: object) -> Entry:
        """Return an entry by name.

        Raises:
            SettingError: if there is no entry of that name; the message lists the names.
        """
        if not isinstance(name, str) or name not in self._entries:
            raise SettingError("", f"must be one of {list(self)}", name, subject=self.kind)
        return self._entries[name]

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


Factory = TypeVar("Factory", bound=type[Any])


# Resolving annotations takes far longer than anything else that is done with a specification.
@cache
def _parameters(constructor: Callable[..., None]) -> dict[str, tuple[Any, Any]]:
    """Return the annotated parameters: name -> (annotation, default)."""
    hints = get_type_hints(constructor, include_extras=True)
    return {
        parameter.name: (hints[parameter.name], parameter.default)
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.name in hints
    }


class Factories(Registry[Factory]):
    """Classes by name, built from options: the parameters of their constructors.

    A parameter's annotation alone defines the values that the option accepts, and the parameter's
    default is the option's.

    Args:
        kind: as in :class:`Registry`.
        common: constructor parameters that the calling code supplies; they are not options.
        entries: initial classes.
    """

    by_kind: ClassVar[dict[str, "Factories[Any]"]] = {}
    """Every registry of classes by kind; a :class:`Spec` looks up its registry here."""

    def __init__(
        self, kind: str, entries: Iterable[Factory] = (), *, common: tuple[str, ...] = ()
    ) -> None:
        self.common = common
        super().__init__(kind, entries)
        self.by_kind[kind] = self

    def options(self, name: str) -> dict[str, tuple[Any, Any]]:
        """Return the options of an entry: option -> (annotation, default).

        The default is :data:`REQUIRED` where the option must be given.

        Raises:
            SettingError: if there is no entry of that name.
        """
        parameters = _parameters(self.find(name).__init__)
        return {name: option for name, option in parameters.items() if name not in self.common}

    def checked(self, name: str, options: Mapping[str, object], path: str = "") -> dict[str, Any]:
        """Check the names and types of options, and return them in the constructor's order.

        Args:
            name: name of the entry.
            options: arguments for its constructor.
            path: dotted name of these options in the configuration, for messages.

        Raises:
            SettingError: if there is no entry of that name, an option is unknown or missing, or a
                value does not have the option's type.
        """
        known = self.options(name)
        found = {}
        for option, value in options.items():
            if option not in known:
                raise SettingError(
                    path,
                    f"must be among {sorted(known)}",
                    option,
                    subject=f"options of {self.kind} {name!r}",
                )
            found[option] = checked(known[option][0], value, f"{path}.{option}".lstrip("."))
        missing = [
            option
            for option, (_, default) in known.items()
            if default is REQUIRED and option not in options
        ]
        if missing:
            raise SettingError(
                path,
                "must be given",
                ABSENT,
                subject=f"{', '.join(missing)} of {self.kind} {name!r}",
            )
        return {option: found[option] for option in known if option in found}

    def build(self, name: str, /, **arguments: Any) -> Any:
        """Construct an entry.

        Args:
            name: name of the entry.
            **arguments: its options, and the common parameters.

        Raises:
            SettingError: as in :meth:`checked`.
        """
        given = {k: v for k, v in arguments.items() if k not in self.common}
        return self.find(name)(**{**arguments, **self.checked(name, given)})


class Spec(ByInstance):
    """The name of a registry entry and its options: immutable, hashable, comparable.

    Each registry of classes has its own subclass, which sets ``kind``. As plain data, a
    specification is one table that holds the name and the options. Layers nest: an option whose
    parameter is annotated with such a subclass is itself a specification.

    Args:
        name: name of the entry.
        **options: options that differ from the defaults, or are required.

    Raises:
        SettingError: if there is no such entry, or the options do not fit it.
    """

    kind: ClassVar[str]

    name: str
    options: Mapping[str, Any]
    __slots__ = ("name", "options")

    def __init__(self, name: str, /, **options: Any) -> None:
        object.__setattr__(self, "options", Assignments(self.registry().checked(name, options)))
        object.__setattr__(self, "name", name)

    @classmethod
    def registry(cls) -> Factories[Any]:
        """Return the registry of this kind."""
        return Factories.by_kind[cls.kind]

    def build(self, **common: Any) -> Any:
        """Construct the entry with its options and the registry's common parameters."""
        return self.registry().build(self.name, **common, **self.options)

    def complete(self) -> Self:
        """Return the same specification with every option written out, defaults included."""
        defaults = {
            option: default
            for option, (_, default) in self.registry().options(self.name).items()
            if default is not REQUIRED
        }
        return type(self)(self.name, **{**defaults, **self.options})

    def asked(self) -> dict[str, Any]:
        """Return plain data without the options that equal their defaults."""
        known = self.registry().options(self.name)
        return {"name": self.name} | {
            option: value.asked() if isinstance(value, Spec) else to_plain(value)
            for option, value in self.options.items()
            if not _same(value, known[option][1])
        }

    def to_plain(self) -> dict[str, Any]:
        """Return the name and the options as one table of plain data."""
        return {"name": self.name, **{k: to_plain(v) for k, v in self.options.items()}}

    @classmethod
    def from_plain(cls, value: object, path: str) -> "Spec":
        """Undo :meth:`to_plain`; a bare name stands for an entry without options.

        Raises:
            SettingError: if the value is not such a table or does not fit the entry.
        """
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or "name" not in table:
            raise SettingError(path, "must be a table with a name", value)
        try:
            known = cls.registry().options(table["name"])
        except SettingError as error:
            raise error.below(f"{path}.name".lstrip(".")) from None
        options = {
            str(option): from_plain(known[option][0], item, f"{path}.{option}".lstrip("."))
            if option in known
            else item
            for option, item in table.items()
            if option != "name"
        }
        try:
            return cls(str(table["name"]), **options)
        except SettingError as error:
            raise error.below(".".join(filter(None, [path, error.path]))) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        # Specifications are equal even if only one of them writes out a default.
        return isinstance(other, Spec) and self.kind == other.kind and self.asked() == other.asked()

    def __hash__(self) -> int:
        return hash((self.kind, self.name))

    def __repr__(self) -> str:
        given = "".join(f", {option}={value!r}" for option, value in self.options.items())
        return f"{type(self).__name__}({self.name!r}{given})"

    def __reduce__(self) -> tuple[Callable[..., "Spec"], tuple[Any, ...]]:
        return _rebuilt, (type(self), self.name, dict(self.options))


def _rebuilt(kind: type[Spec], name: str, options: dict[str, Any]) -> Spec:
    return kind(name, **options)


def _same(value: object, default: object) -> bool:
    # Python treats 1, 1.0 and True as equal; as options they differ.
    return type(value) is type(default) and value == default
