"""Rows of results: one line of JSON per measurement, with everything needed to judge it."""

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from statemix import files, provenance
from statemix.settings import RequestError


def describe_process() -> dict[str, Any]:
    """Where and how this process measures: provenance, command, threads, time of its start."""
    return {
        **provenance.describe(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "threads": torch.get_num_threads(),
        "omp_proc_bind": os.environ.get("OMP_PROC_BIND"),
        "started_utc": _now(),
    }


def open_for_append(path: Path) -> None:
    """Create ``path`` if need be and make sure that rows can be appended, before measuring.

    Raises:
        RequestError: if they cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise RequestError(
            f"output must be a file that can be written, got {str(path)!r} ({error.strerror})"
        ) from error


def append(path: Path, rows: Iterable[Mapping[str, Any]], process: Mapping[str, Any]) -> None:
    """Append rows, each with the clock time and ``process``; nothing is ever overwritten."""
    context = {"measured_utc": _now(), **process}
    text = "".join(json.dumps({**row, **context}, allow_nan=False) + "\n" for row in rows)
    files.append(path, text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
