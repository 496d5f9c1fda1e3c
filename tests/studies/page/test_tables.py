"""Tables gather the numbers of their rows."""

from statemix.studies.table_text import Cell, Entry, Pivot, comparison, missing_lines


def test_cells_gather_the_runs_of_their_line_and_column():
    pivot = Pivot(
        [
            Entry("b", "x", 0.5),
            Entry("a", "x", 0.25),
            Entry("b", "x", None, "diverged"),
            Entry("b", "y", 1.0),
            Entry("b", "x", 0.75),
        ]
    )
    assert (pivot.lines, pivot.columns) == (["b", "a"], ["x", "y"])
    assert pivot["b", "x"] == Cell((0.5, 0.75), ("diverged",))
    assert pivot["a", "y"] == Cell()


def test_cells_say_how_runs_ended_that_have_no_result():
    assert Cell((0.5, 0.6), ("failed", "diverged", "failed")).missing_text == (
        "2 of 5 failed, 1 of 5 diverged"
    )
    assert Cell((0.5,), ("failed",)).text == ".500"
    assert Cell((), ("diverged", "diverged")).text == "diverged"
    assert Cell((), ("failed", "diverged")).text == "1 of 2 failed, 1 of 2 diverged"
    assert Cell((0.5,)).missing_text == ""


def test_comparison_puts_papers_and_missing_runs_below_their_line():
    entries = [
        Entry("LSTM", "S_3", 0.5),
        Entry("LSTM", "S_3", None, "diverged"),
        Entry("LSTM", "S_5", 0.25),
        Entry("ours", "S_3", 1.0),
    ]
    table = comparison(Pivot(entries), "network", {("LSTM", "S_5"): 0.32})
    assert table.head == ("network", "S_3", "S_5")
    assert [line.cells for line in table.lines] == [
        ("LSTM", ".500", ".250"),
        ("  missing", "1 of 2 diverged", ""),
        ("  paper", "–", ".32"),
        ("ours", "1.000", "–"),
    ]
    assert [line.quiet for line in table.lines] == [False, True, True, False]


def test_runs_without_a_result_are_named_with_their_reason():
    rows = [
        ("a", "done", ""),
        ("b", "failed", "disk full"),
        ("c", "interrupted", ""),
        ("d", "missing", "not trained yet"),
    ]
    assert missing_lines(rows) == [
        "b failed: disk full",
        "c was interrupted",
        "d is missing: not trained yet",
    ]
