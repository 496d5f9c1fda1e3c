"""``statemix bench`` measures, prints a table of at most 100 columns, and stores rows."""

import json

import pytest
import torch
import tyro

from statemix.bench import memory
from statemix.bench.ops import COPY, LOOP, OURS, PAPER
from statemix.cli.bench import Bench
from statemix.settings import RequestError

TINY = ["--shapes", "2x6x4", "3x2x4x5", "--block-sizes", "1", "2", "--orders", "3", "--rounds", "4"]


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_is(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(memory, "reuse_freed_memory", lambda: True)
    monkeypatch.setattr(memory, "map_large_blocks", lambda: True)
    yield
    torch.set_num_threads(threads)


def bench(capsys, *arguments):
    tyro.cli(Bench, args=["ops", *arguments]).run()
    return capsys.readouterr().out


def table_width(text):
    """Width of what is printed before the last line, which holds the path of the rows."""
    *lines, last = text.splitlines()
    assert last.startswith("rows appended to ")
    return max(map(len, lines))


def test_every_case_has_a_row_per_provider_in_a_table_of_100_columns(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    text = bench(capsys, *TINY, "--output", str(path))
    assert table_width(text) <= 100
    # BD-LRU at m = 1, 2 and the shape's own 5, H-LRU at 3 and 5; both directions of each.
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(kept) == 4 * 10
    assert {row["provider"] for row in kept} == {COPY, OURS, LOOP, PAPER}
    for row in kept:
        if row["status"] == "skipped":  # The kernels need a compiler.
            assert row["provider"] == OURS
            continue
        assert row["status"] == "measured"
        assert row["rounds"] == 4
        assert row["time_s"]["p20"] <= row["time_s"]["p50"] <= row["time_s"]["p80"]
        assert (COPY in row["ratios"]) == (row["provider"] != COPY)
        assert row["memory_bytes"] > 0 or row["provider"] == COPY
        assert row["dtype"] == "float32"
        assert {"commit", "command", "packages", "cpu", "backends", "threads"} <= row.keys()
    for title in (
        "BD-LRU, forward, B=2 T=6 H=4",
        "BD-LRU, forward + backward, B=2 T=6 H=4",
        "H-LRU, forward + backward, B=3 T=2 H=4",
    ):
        assert sum(line.strip() == title for line in text.splitlines()) == 1
    assert "[10/10]" in text


def test_rows_of_two_runs_are_both_kept(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    options = ["--shapes", "1x2x2", "--recurrences", "bd_lru", "--block-sizes", "1"]
    for threads in ("1", "2"):
        bench(capsys, *options, "--threads", threads, "--rounds", "3", "--output", str(path))
    kept = [json.loads(line)["threads"] for line in path.read_text().splitlines()]
    assert kept == [1] * 8 + [2] * 8


def test_case_too_large_for_memory_is_skipped_and_says_so(capsys, monkeypatch, tmp_path):
    free = iter([10**12, 10**12, 10**12, 1] * 2)
    monkeypatch.setattr("statemix.bench.memory.available_bytes", lambda: next(free))
    path = tmp_path / "ops.jsonl"
    options = ["--shapes", "1x2x2", "--recurrences", "h_lru", "--orders", "2", "--rounds", "3"]
    text = bench(capsys, *options, "--output", str(path))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    skipped = [row for row in kept if row["provider"] == PAPER]
    assert len(skipped) == 2
    assert all(row["status"] == "skipped" and row["time_s"] is None for row in skipped)
    assert "needs about" in text


def test_quick_run_shortens_what_is_long(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    options = [
        "--shapes",
        "1x256x2",
        "1x5x2",
        "--recurrences",
        "bd_lru",
        "--block-sizes",
        "1",
        "--quick",
    ]
    bench(capsys, *options, "--output", str(path))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["case"]["length"] for row in kept} == {32, 5}
    assert max(row["rounds"] for row in kept) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "8x2048"], "shapes must be BxTxH or BxTxHxm with positive sizes, got"),
        (["--block-sizes", "0"], r"block_sizes must be at least 1, got \(0,\)"),
        (["--orders", "-1"], r"orders must be at least 1, got \(-1,\)"),
        (["--rounds", "0"], r"rounds must be in 1\.\.1000000, got 0"),
        (["--rounds", str(10**12)], r"rounds must be in 1\.\.1000000, got"),
        (["--budget-s", "0"], "budget_s must be positive and finite, got 0.0"),
        (["--budget-s", "nan"], "budget_s must be positive and finite, got nan"),
        (["--budget-s", "inf"], "budget_s must be positive and finite, got inf"),
        (["--threads", "0"], r"threads must be in 1\.\.\d+ .*, got 0"),
        (["--threads", "100000"], r"threads must be in 1\.\.\d+ .*, got 100000"),
        # Requests beyond any machine are refused at once.
        (["--shapes", "1000000x1000000x1000"], "shapes must fit into memory"),
        (["--block-sizes", "100000000"], "shapes must fit into memory"),
        (["--output", "/dev/null/ops.jsonl"], "output must be a writable file, got"),
    ],
)
def test_bad_option_is_named_before_anything_is_measured(arguments, message):
    with pytest.raises(RequestError, match=message):
        tyro.cli(Bench, args=["ops", *arguments]).run()


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["ops", "--dtype", "int8"], ["ops", "--recurrences", "lstm"]]
)
def test_unknown_choice_is_refused_by_the_parser(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        tyro.cli(Bench, args=arguments)
    assert stop.value.code == 2


def test_help_shows_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        tyro.cli(Bench, args=["ops", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in ("recurrences", "shapes", "block-sizes", "orders", "dtype", "compiled", "rounds"):
        assert f"--{option}" in text
    for option in ("budget-s", "threads", "quick", "output"):
        assert f"--{option}" in text


def test_steps_are_timed_against_their_projections(capsys, tmp_path, monkeypatch):
    path = tmp_path / "steps.jsonl"
    options = ["--hidden-sizes", "8", "--batch-sizes", "1", "3", "--rounds", "3", "--threads", "1"]
    tyro.cli(Bench, args=["steps", *options, "--output", str(path)]).run()
    text = capsys.readouterr().out
    assert table_width(text) <= 100
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [
        (row["case"]["recurrence"], row["case"]["batch_size"], row["provider"]) for row in kept
    ] == [
        (recurrence, batch_size, provider)
        for recurrence in ("bd_lru", "h_lru")
        for batch_size in (1, 3)
        for provider in ("projections", "statemix")
    ]
    for row in kept:
        assert (row["status"], row["rounds"], row["threads"]) == ("measured", 3, 1)
        assert (row["provider"] == "statemix") == ("projections" in row["ratios"])
    assert "H-LRU m=4, width 8, B=3" in text
    with pytest.raises(RequestError, match=r"rounds must be in 1\.\.1000000, got 0"):
        tyro.cli(Bench, args=["steps", "--rounds", "0"]).run()
