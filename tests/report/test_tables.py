"""The numbers of the table are those of the runs."""

import io

import pytest
from rich.console import Console

from statemix.report import tables
from statemix.report.tables import Spread


def test_rows_hold_mean_range_and_published_number(summary):
    rows = {row.label: row for row in tables.by_model(summary)}
    assert list(rows) == ["BD-LRU m=3", "BD-LRU m=2", "BD-LRU m=1", "LSTM"]
    assert rows["BD-LRU m=2"].accuracy[16] == Spread(0.525, 0.5, 0.55)
    assert rows["BD-LRU m=3"].accuracy[16384] == Spread(1.0, 1.0, 1.0)
    assert [row.published for row in rows.values()] == [1.0, 0.49, 0.38, 0.32]
    assert {row.seeds for row in rows.values()} == {2}


def test_networks_without_a_published_number_get_a_dash(summary):
    summary["published"]["rows"] = []
    assert [row.published for row in tables.by_model(summary)] == [None] * 4
    assert tables.cells(summary)[2] == ["  paper", "–", "–", "–", "–"]


def test_plain_lines_hold_every_length_and_network(summary):
    lines = tables.as_text(summary).splitlines()
    assert lines[0].split("  ")[0] == "length"
    assert lines[1].split() == ["16", "1.000", ".525", "(.500–.550)", ".275", "(.250–.300)",
                                ".425", "(.400–.450)"]  # fmt: skip
    assert lines[2].split() == ["paper", "1.00", ".49", ".38", ".32"]
    assert [line.split()[0] for line in lines[3:]] == ["64", "256", "1,024", "4,096", "16,384"]


def test_terminal_table_holds_the_same_cells_within_eighty_columns(summary):
    console = Console(width=80, file=io.StringIO())
    console.print(tables.as_rich(summary))
    printed = console.file.getvalue()
    assert "…" not in printed
    for line in tables.cells(summary):
        for cell in line:
            assert cell.strip() in printed


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.000"), (1 - 1e-9, ".999"), (0.9994, ".999"), (1 / 6, ".167"), (0.0, ".000")],
)
def test_only_perfection_is_written_as_one(value, text):
    assert tables.accuracy_text(value) == text


def test_mean_of_equal_scores_is_that_score():
    third = 1 / 3
    assert Spread.of([third] * 7) == Spread(third, third, third)
