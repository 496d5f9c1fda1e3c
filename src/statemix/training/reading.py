"""Reading of configuration files, and import of the user's modules."""

import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

from statemix.errors import RequestError, SettingError


def import_modules(names: Any) -> None:
    """Import the user's modules, which register layers and tasks.

    Raises:
        SettingError: if a module cannot be found.
    """
    for name in checked_names(names):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise SettingError(
                "imports", f"must name importable modules ({error})", name
            ) from error


def checked_names(names: Any) -> tuple[str, ...]:
    """Return the names of modules as a tuple.

    Raises:
        SettingError: if the value is not a list of names.
    """
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
        for name in names
    ):
        raise SettingError("imports", "must be a list of module names", names)
    return tuple(names)


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
