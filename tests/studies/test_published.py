"""The papers' numbers as data."""

import pytest

from statemix.studies.higher_order.paper_tables import published_table


def test_tables_hold_every_model_under_our_label():
    table = published_table("table4_permutation")
    assert len(table) == 20
    assert table["BD-LRU m=3"]["s3_250"] == 1.0
    assert {"LSTM", "DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]"} <= set(table)
    assert all("overall" not in numbers for numbers in table.values())


def test_unknown_tables_are_named():
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'table5'"):
        published_table("table5")
