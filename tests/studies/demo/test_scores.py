"""The table shows the numbers of the runs."""

import io

import pytest
from rich.console import Console

from statemix.studies.demo import demo_scores as scores
from statemix.studies.number_text import Spread


def test_cells_hold_mean_and_range_over_seeds(summary):
    cells = scores.pivot(summary)
    assert cells.lines == ["BD-LRU m=3", "BD-LRU m=2", "BD-LRU m=1", "LSTM"]
    assert cells["BD-LRU m=2", "16"].spread == Spread(0.525, 0.5, 0.55)
    assert cells["BD-LRU m=3", "16384"].spread == Spread(1.0, 1.0, 1.0)
    assert cells["LSTM", "16"].total == 2


def test_networks_without_a_published_number_get_a_dash(summary):
    summary["published"]["rows"] = [{"network": "Mamba2", "accuracy": 0.3}]
    assert scores.table(summary).lines[1].cells == ("  paper", "–", "–", "–", "–")


def test_without_a_paper_there_is_no_line_of_it(summary):
    summary["published"] = None
    assert [line.cells[0] for line in scores.table(summary).lines][:2] == ["16", "64"]


def test_plain_lines_hold_every_length_and_network(summary):
    lines = scores.table(summary).as_text().splitlines()
    assert lines[0].split("  ")[0] == "length"
    assert lines[1].split() == ["16", "1.000", ".525", "(.500–.550)", ".275", "(.250–.300)",
                                ".425", "(.400–.450)"]  # fmt: skip
    assert lines[2].split() == ["paper", "1.00", ".49", ".38", ".32"]
    assert [line.split()[0] for line in lines[3:]] == ["64", "256", "1,024", "4,096", "16,384"]


def test_terminal_table_holds_the_same_cells_within_eighty_columns(summary):
    console = Console(width=80, file=io.StringIO())
    table = scores.table(summary)
    console.print(table.as_rich("a title"))
    printed = console.file.getvalue()
    assert "…" not in printed
    for cells in (table.head, *(line.cells for line in table.lines)):
        for cell in cells:
            assert cell.strip() in printed


def test_runs_without_a_result_are_left_out_of_means_and_counted(summary, lose):
    assert scores.missing(summary) == []
    lose(summary["runs"][7], "diverged", "loss is nan")
    lines = [line.cells for line in scores.table(summary).lines]
    assert lines[0][4] == ".400"
    assert lines[-1] == ("  runs", "2 of 2", "2 of 2", "2 of 2", "1 of 2")
    assert scores.missing(summary) == ["LSTM, seed 1 diverged: loss is nan"]


@pytest.mark.parametrize("status", ["diverged", "failed", "missing"])
def test_a_network_without_any_result_says_how_its_runs_ended(summary, lose, status):
    for run in summary["runs"][3::4]:
        lose(run, status, "reason")
    lines = [line.cells for line in scores.table(summary).lines]
    assert [line[4] for line in lines] == [status, ".32", *[status] * 5, "0 of 2"]


def test_a_suite_without_any_result_still_has_a_table(summary, lose):
    for run in summary["runs"]:
        lose(run, "failed", "disk full")
    assert scores.table(summary).as_text().count("failed") == 4 * 6
