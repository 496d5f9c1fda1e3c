"""Rows carry their provenance, are only ever appended, and have a share of a copy's speed."""

import json
from pathlib import Path

import pytest
import torch

from statemix import provenance
from statemix_lab.bench import harness as rows


def test_rows_are_appended_and_say_where_and_how_they_were_measured(tmp_path):
    path, process = tmp_path / "ops.jsonl", rows.describe_process()
    assert process.items() >= provenance.describe().items()
    assert process["threads"] == torch.get_num_threads()
    assert {"command", "omp_proc_bind"} <= process.keys()
    rows.append_rows(path, [{"x": 1}], process)
    rows.append_rows(path, [{"x": 2}, {"x": 3}], process | {"commit": "d"})
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["x"], row["commit"] == "d") for row in read] == [(1, False), (2, True), (3, True)]
    for row in read:
        assert row["measured_utc"].endswith("+00:00")
        assert row["started_utc"] == process["started_utc"]


def test_a_write_that_fails_names_the_file():
    with pytest.raises(OSError, match="'/dev/full'"):
        rows.append_rows(Path("/dev/full"), [{"x": 1}], {})
