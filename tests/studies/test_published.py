"""The papers' numbers, read from the data and never retyped."""

import pytest

from statemix.studies.higher_order import dubinin as published


def accuracies(column):
    rows = published.permutation(column, "a setting")["rows"]
    return {row["network"]: row["accuracy"] for row in rows}


def test_permutation_column_holds_every_network_under_our_label():
    found = accuracies("s3_250")
    assert found["BD-LRU m=1"] == 0.38
    assert found["BD-LRU m=2"] == 0.49
    assert found["BD-LRU m=3"] == 1.0
    assert found["H-LRU m=16"] == 0.26
    assert found["LSTM"] == 0.32
    assert found["Mamba2"] == 0.28
    assert len(found) == 20


def test_columns_differ():
    assert accuracies("s5_100k")["BD-LRU m=4"] == 0.88


def test_unknown_column_is_named():
    with pytest.raises(ValueError, match=r"column must be one of \['s3_10k', .*got 's6'"):
        published.permutation("s6", "")
