"""Rows carry their provenance and are only ever appended."""

import json

import pytest

from statemix.bench import rows


def test_provenance_says_where_and_how():
    provenance = rows.provenance()
    assert provenance["versions"].keys() == {"statemix", "torch", "python"}
    assert provenance["device"]["cores"] >= 1
    assert provenance["threads"] >= 1
    assert provenance["commit"] is None or len(provenance["commit"]) == 40
    json.dumps(provenance, allow_nan=False)


def test_rows_are_appended(tmp_path):
    path = tmp_path / "deep" / "ops.jsonl"
    rows.open_for_append(path)
    rows.append(path, [{"x": 1}], {"commit": "c"})
    rows.open_for_append(path)
    rows.append(path, [{"x": 2}, {"x": 3}], {"commit": "d"})
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["x"], row["commit"]) for row in read] == [(1, "c"), (2, "d"), (3, "d")]
    assert all(row["measured_utc"].endswith("+00:00") for row in read)


def test_output_that_cannot_be_written_is_refused_before_measuring(tmp_path):
    with pytest.raises(ValueError, match="output must be a file that can be written, got"):
        rows.open_for_append(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="output must be a file that can be written, got"):
        rows.open_for_append(tmp_path / "file" / "ops.jsonl")
