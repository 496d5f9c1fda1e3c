"""The papers' numbers, read from the data and never retyped."""

import pytest

from statemix.experiments import published


def test_permutation_column_holds_the_networks_of_the_library():
    rows = published.permutation("s3_250", "S_3 from 250 examples")["rows"]
    accuracy = {(row["model"], row["m"]): row["accuracy"] for row in rows}
    assert accuracy["bd_lru", 1] == 0.38
    assert accuracy["bd_lru", 2] == 0.49
    assert accuracy["bd_lru", 3] == 1.0
    assert accuracy["lstm", None] == 0.32
    assert accuracy["h_lru", 16] == 0.26
    assert {model for model, _ in accuracy} == {"bd_lru", "h_lru", "lstm"}


def test_columns_differ():
    rows = published.permutation("s5_100k", "S_5 from 100,000 examples")["rows"]
    assert {"model": "bd_lru", "m": 4, "accuracy": 0.88} in rows


def test_unknown_column_is_named():
    with pytest.raises(ValueError, match=r"column must be one of \['s3_10k', .*got 's6'"):
        published.permutation("s6", "")
