"""Rows of results: one line of JSON per measurement, with its provenance."""

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
from statemix.bench.timed_devices import Cpu


def describe_process(device: Cpu | None = None) -> dict[str, Any]:
    """Describe this process: provenance, command, device, threads and the time of this call.

    Args:
        device: what is measured; None means the processor.
    """
    device = device or Cpu()
    return {
        **provenance.describe(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "device": device.model,
        "graphs": device.graphs,
        "threads": torch.get_num_threads(),
        "omp_proc_bind": os.environ.get("OMP_PROC_BIND"),
        "started_utc": _now(),
    }


def append(path: Path, rows: Iterable[Mapping[str, Any]], process: Mapping[str, Any]) -> None:
    """Append rows, each with the current time and ``process``; never overwrite any."""
    context = {"measured_utc": _now(), **process}
    text = "".join(json.dumps({**row, **context}, allow_nan=False) + "\n" for row in rows)
    files.append(path, text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
