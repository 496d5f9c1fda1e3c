"""Registries: entries of one kind by name, and specifications of entries with their options."""

import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

from statemix.errors import ABSENT, SettingError, suggestion

Entry = TypeVar("Entry")
"""A class or a record with a ``name``, as users write it."""

REQUIRED: Any = inspect.Parameter.empty
"""Default of an option that must be given."""


def installed(group: str) -> list[Any]:
    """Return the entry points of a group, but not those of the working directory.

    ``python -m statemix`` also searches that, and may be called in a folder of strangers.
    """
    # Slow to import.
    from importlib.metadata import entry_points

    def is_here(point: Any) -> bool:
        with suppress(OSError):
            return os.path.samefile(point.dist.locate_file(""), ".")
        return False

    return [point for point in entry_points(group=group) if not is_here(point)]


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries of one kind by name, in the order of registration.

    Entries that are classes have options: the annotated parameters of their constructors. Installed
    distributions add entries by entry points of the group "statemix.layers" (or another kind). They
    are loaded when a name is not found, and behind the other entries when all are listed.

    Args:
        kind: noun for one entry in messages, such as "layer", "gate" or "backend".
        entries: initial entries.
        common: constructor parameters that the calling code supplies; they are not options.

    Attributes:
        revision: number of changes so far. What was derived from the entries holds as long as it
            stays the same.
    """

    by_kind: ClassVar[dict[str, "Registry[Any]"]] = {}
    """Every registry by its kind; a :class:`Spec` looks up its registry here."""

    def __init__(
        self, kind: str, entries: Iterable[Entry] = (), *, common: tuple[str, ...] = ()
    ) -> None:
        self.kind = kind
        self.common = common
        self.revision = 0
        self._entries: dict[str, Entry] = {}
        self._has_installed = False
        for entry in entries:
            self.register(entry)
        self.by_kind[kind] = self

    def register(self, entry: Entry) -> Entry:
        """Add an entry and return it; usable as a class decorator."""
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
        """Return an entry by name; the SettingError for an unknown name lists the known ones."""
        if not isinstance(name, str) or (name not in self._entries and name not in self._all()):
            advice = suggestion(name, self)
            condition = f"must be one of {list(self)}"
            raise SettingError("", condition, name, subject=self.kind, advice=advice)
        return self._entries[name]

    def options(self, name: object) -> dict[str, tuple[Any, Any]]:
        """Return the options of an entry: option -> (annotation, default or REQUIRED)."""
        entry: Any = self.find(name)
        parameters = _parameters(entry.__init__)
        return {name: option for name, option in parameters.items() if name not in self.common}

    def check_options(self, name: str, given: Collection[str]) -> None:
        """Refuse unknown options and missing ones with a SettingError."""
        known, entry = self.options(name), self.find(name)
        # Options that are replaced by others before they come here.
        replaced = [*getattr(entry, "replaced", ())]
        replaced += ["preset"] if getattr(entry, "presets", ()) else []
        subject = f"of {self.kind} {name!r}"
        for option in given:
            if option in replaced:
                condition = f"must be an option of a {self.kind} specification, which replaces it"
                raise SettingError("", condition, ABSENT, subject=f"{option} {subject}")
            if option not in known:
                condition = f"must be among {sorted([*known, *replaced])}"
                advice = suggestion(option, [*known, *replaced])
                subject = f"options {subject}"
                raise SettingError("", condition, option, subject=subject, advice=advice)
        absent = (o for o in known if known[o][1] is REQUIRED and o not in given)
        if missing := ", ".join(absent):
            advice = f", or {' or '.join(replaced)}" if replaced else ""
            subject = f"{missing} {subject}"
            raise SettingError("", "must be given", ABSENT, subject=subject, advice=advice)

    def build(self, name: str, /, **arguments: Any) -> Any:
        """Construct an entry from its options and the common parameters."""
        self.check_options(name, [option for option in arguments if option not in self.common])
        entry: Any = self.find(name)
        return entry(**arguments)

    def _all(self) -> dict[str, Entry]:
        """Return the entries, with those of installed distributions."""
        if not self._has_installed:
            self._has_installed = True
            for point in installed(f"statemix.{self.kind}s"):
                try:
                    entry = point.load()
                except ImportError as error:
                    said = f"{self.kind} {point.name!r} is not usable: {error}"
                    warnings.warn(said, stacklevel=3)
                    continue
                # Its module may have registered it.
                if self._entries.get(entry.name) is not entry:
                    self.register(entry)
        return self._entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name] if name in self._entries else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        # A search that ends among the registered entries loads nothing: torch.compile cannot trace
        # the loading.
        registered = list(self._entries)
        yield from registered
        yield from [name for name in self._all() if name not in registered]

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"Registry of {self.kind}s: {', '.join(self)}"


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


class Spec:
    """The name of a registry entry and its options: immutable, hashable, comparable.

    Each registry of classes has its own subclass, which sets ``kind``. As plain data, a
    specification is one table that holds the name and the options. Layers nest: an option whose
    parameter is annotated with such a subclass is itself a specification. The names of the options
    are checked here, their values by the entry's constructor.
    """

    kind: ClassVar[str]

    name: str
    options: Mapping[str, Any]
    __slots__ = ("name", "options")

    def __init__(self, name: str, /, **options: Any) -> None:
        options = self.with_contents(name, options)
        self.registry().check_options(name, options)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", MappingProxyType(options))

    @classmethod
    def registry(cls) -> Registry[Any]:
        """Return the registry of this kind."""
        return Registry.by_kind[cls.kind]

    @classmethod
    def with_contents(cls, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return options that hold the contents of files in place of their names.

        A run must not depend on a file that may change. An entry that reads a file has a static
        method of this name, which gets the options alone. Its attribute ``replaced`` names options
        that only this method knows: option -> the option in its place.
        """
        read = getattr(cls.registry().find(name), "with_contents", None)
        return options if read is None else dict(read(options))

    def build(self, **common: Any) -> Any:
        """Construct the entry with its options and the registry's common parameters."""
        return self.registry().build(self.name, **common, **self.options)

    def complete(self) -> Self:
        """Return the same specification with every option written out, defaults included."""
        known = self.registry().options(self.name)
        defaults = {o: default for o, (_, default) in known.items() if default is not REQUIRED}
        return type(self)(self.name, **{**defaults, **self.options})

    def asked(self) -> dict[str, Any]:
        """Return plain data without the options that equal their defaults."""
        known = self.registry().options(self.name)
        return {"name": self.name} | {
            option: _plain(value, Spec.asked)
            for option, value in self.options.items()
            if not _same(value, known[option][1])
        }

    def to_plain(self) -> dict[str, Any]:
        """Return the name and the options as one table of plain data."""
        return {"name": self.name, **{k: _plain(v, Spec.to_plain) for k, v in self.options.items()}}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        # Specifications are equal even if only one of them writes out a default.
        if not isinstance(other, Spec) or self.kind != other.kind:
            return False
        return _same(self.asked(), other.asked())

    def __hash__(self) -> int:
        return hash((self.kind, self.name))

    def __repr__(self) -> str:
        given = "".join(f", {option}={value!r}" for option, value in self.options.items())
        return f"{type(self).__name__}({self.name!r}{given})"

    def __reduce__(self) -> tuple[Callable[[], "Spec"], tuple[()]]:
        return partial(type(self), self.name, **self.options), ()


def _plain(value: Any, table: Callable[[Spec], dict[str, Any]]) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, table) for item in value]
    return table(value) if isinstance(value, Spec) else value


def _same(value: Any, other: Any) -> bool:
    # Python treats 1, 1.0 and True as equal; as options they differ.
    if type(value) is not type(other) or value != other:
        return False
    if isinstance(value, dict):
        return all(_same(item, other[name]) for name, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_same, value, other))


def passed_on(arguments: Mapping[str, Any], base: type) -> dict[str, Any]:
    """Return those arguments of a constructor that the constructors of its bases have, too.

    Called with ``locals()``, it spares a constructor a second list of its options.
    """
    constructors = (vars(kind).get("__init__") for kind in base.__mro__)
    names = {name for each in constructors for name in getattr(each, "__annotations__", ())}
    # torch.compile annotates the constructor of nn.Module.
    return {name: value for name, value in arguments.items() if name in names - {"self"}}
