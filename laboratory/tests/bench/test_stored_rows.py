"""Rows carry their provenance and are only ever appended."""

import json
from pathlib import Path

import pytest
import torch

from statemix import provenance
from statemix.ops import cpu
from statemix_lab.bench import harness as rows


def test_process_says_where_and_how():
    process = rows.describe_process()
    assert process.items() >= provenance.describe().items()
    assert process["threads"] == torch.get_num_threads()
    assert process["started_utc"].endswith("+00:00")
    assert {"command", "omp_proc_bind"} <= process.keys()
    json.dumps(process, allow_nan=False)


def test_rows_hold_the_instruction_set_of_the_kernels(tmp_path):
    path = tmp_path / "ops.jsonl"
    rows.append_rows(path, [{"x": 1}], rows.describe_process())
    expected = cpu.instruction_set() if cpu.CPU.unavailable() is None else None
    assert json.loads(path.read_text())["backends"]["cpu"] == expected


def test_a_write_that_fails_names_the_file():
    path = Path("/dev/full")
    with pytest.raises(OSError, match="'/dev/full'"):
        rows.append_rows(path, [{"x": 1}], {})


def test_rows_are_appended(tmp_path):
    path = tmp_path / "ops.jsonl"
    rows.append_rows(path, [{"x": 1}], {"commit": "c"})
    rows.append_rows(path, [{"x": 2}, {"x": 3}], {"commit": "d"})
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["x"], row["commit"]) for row in read] == [(1, "c"), (2, "d"), (3, "d")]
    assert all(row["measured_utc"].endswith("+00:00") for row in read)
