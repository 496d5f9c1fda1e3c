"""The papers' numbers as data."""

from statemix_lab.studies.higher_order.paper_tables import published_table


def test_tables_hold_every_model_under_our_label():
    table = published_table("table4_permutation")
    assert len(table) == 20
    assert table["BD-LRU m=3"]["s3_250"] == 1.0
    assert {"LSTM", "DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]"} <= set(table)
    assert all("overall" not in numbers for numbers in table.values())
