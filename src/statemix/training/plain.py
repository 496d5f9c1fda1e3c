"""Plain data: nested tables, lists, strings, numbers, booleans and None; and files of these."""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import math
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from statemix.errors import ABSENT, RequestError, SettingError


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


def lookup(tree: Any, name: str) -> Any:
    """Return the value of a dotted name in nested plain tables.

    Raises:
        SettingError: if the name does not exist.
    """
    for step in name.split("."):
        key: Any = step if isinstance(tree, dict) and step in tree else _index(tree, step, name)
        tree = tree[key]
    return tree


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set the value of a dotted name in nested plain tables.

    A table that does not exist is made, and a name in the place of a table becomes one: it is the
    name of a specification whose options follow.

    Raises:
        SettingError: if the name does not fit the tables.
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
    """Yield the places at which two trees of plain data differ.

    Yields:
        The dotted name, our value and theirs (``ABSENT`` where there is none).
    """
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

    Raises:
        SettingError: if the names are no list of names, or a module cannot be found.
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
            raise SettingError(
                "imports", f"must name importable modules ({error})", name
            ) from error


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
    """Read a configuration file, TOML or JSON by its suffix, as nested plain tables.

    Raises:
        RequestError: if the file cannot be read or is not valid.
    """
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
