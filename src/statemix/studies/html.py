"""Self-contained HTML pages, rendered from templates.

A suite's template extends ``page.html.j2`` and builds on the parts in ``parts.html.j2``.
"""

import base64
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from statemix.files import write_file
from statemix.studies import number_text as numbers
from statemix.studies.style import DARK, LIGHT


def templates() -> jinja2.Environment:
    """The templates of this package, by path, with the globals that all of them use."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "light": LIGHT,
        "dark": DARK,
        "accuracy_text": numbers.accuracy_text,
        "range_text": numbers.range_text,
        "published_text": numbers.published_text,
    }
    return environment


def _source(name: str) -> str | None:
    path = resources.files("statemix.studies").joinpath(*name.split("/"))
    return path.read_text(encoding="utf-8") if path.is_file() else None


def data_uris(images: Mapping[str, bytes]) -> dict[str, str]:
    """Encode PNG files as data URIs."""
    return {
        name: "data:image/png;base64," + base64.b64encode(image).decode()
        for name, image in images.items()
    }


def environment_parts(environment: Mapping[str, Any]) -> list[str]:
    """Describe the versions and the machine of a run in short phrases.

    Args:
        environment: result of ``provenance.describe`` on that machine.
    """
    packages = environment["packages"]
    return [
        f"Statemix {packages['statemix'] or '(not installed)'}",
        f"PyTorch {packages['torch']}",
        f"Python {environment['python']}",
        f"{environment['cpu']}, {environment['cpu_count']} cores",
    ]


def commit_text(environment: Mapping[str, Any]) -> str:
    """Write seven digits of the commit of a run, and "+" if its code had uncommitted changes.

    Args:
        environment: result of ``provenance.describe`` on that machine.

    Example:
        >>> commit_text({"commit": "0123456789abcdef", "tree_clean": False})
        '0123456+'
    """
    commit = (environment.get("commit") or "")[:7]
    return f"{commit}+" if environment.get("tree_clean") is False else commit


def write(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write each file atomically into an existing folder, and return the paths."""
    paths = []
    for name, content in contents.items():
        path = folder / name
        write_file(path, content)
        paths.append(path)
    return paths
