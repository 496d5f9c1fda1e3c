"""Points are arranged into the panels of Figure 3; panels without curves are named."""

import pytest

from statemix_lab.studies.throughput import speed_panels
from statemix_lab.studies.throughput_rows import read

SCAN = "bd_lru num_blocks=192 block_size=4 backend=associative"
WIDE = {"hidden_size": 768}


@pytest.fixture
def arranged(row, write):
    """Return a function from rows to panels and the names of those that are missing."""
    return lambda rows: speed_panels(read([write(rows)]))


def test_blocks_are_compared_by_their_size(row, arranged):
    rows = [
        row(f"bd_lru num_blocks={blocks} block_size={m} backend={backend}", **sizes)
        for blocks in (128, 64)
        for m in (4, 1)
        for backend in ("loop", "associative", "associative compiled")
        for sizes in [{"hidden_size": 16, "batch_size": 2, "length": 8}]
    ]
    (panel,), missing = arranged(rows)
    assert panel.title == "(A) BD-LRU of 128 blocks\nT = 8, B = 2, width = 16"
    assert [line.name for line in panel.lines] == [
        "BD-LRU, autotuned",
        "BD-LRU, parallel",
        "BD-LRU, sequential",
    ]
    for line in panel.lines:
        assert [(m, point.label) for m, point in line.points.items()] == [
            (1, "BD-LRU m=1"),
            (4, "BD-LRU m=4"),
        ]
    assert missing == [
        f"{name}: fewer than two places were measured"
        for name in (
            "(B) hidden size 768, against length T",
            "(B) hidden size 768, against batch size B",
            "(C) about 33M parameters, against length T",
            "(C) about 33M parameters, against batch size B",
        )
    ]


def test_lengths_and_batches_are_two_panels(row, arranged):
    rows = [
        row(layer, **WIDE, batch_size=batch_size, length=length)
        for layer in ("lstm", SCAN)
        for batch_size, length in ((8, 32), (8, 64), (8, 16), (4, 64), (2, 16), (2, 32))
    ]
    found, missing = arranged(rows)
    # The most places count, then the most points, then the largest sizes.
    assert [panel.title for panel in found] == [
        "(B) hidden size 768\nB = 8",
        "(B) hidden size 768\nT = 64",
    ]
    assert [[list(line.points) for line in panel.lines] for panel in found] == [
        [[16, 32, 64], [16, 32, 64]],
        [[4, 8], [4, 8]],
    ]
    assert [line.name for line in found[0].lines] == ["BD-LRU m=4, parallel", "LSTM"]
    assert len(missing) == 3


def test_a_panel_with_more_places_is_chosen_before_one_with_more_points(row, arranged):
    long = [row("lstm", **WIDE, batch_size=1, length=length) for length in (4, 8, 16)]
    crowded = [
        row(layer, **WIDE, batch_size=2, length=length)
        for layer in ("lstm", "mamba2", "conv")
        for length in (4, 8)
    ]
    found, _ = arranged([*crowded, *long])
    assert found[0].title == "(B) hidden size 768\nB = 1"


@pytest.mark.parametrize(
    ("layer", "width", "parameters", "letters"),
    [
        ("lstm", 768, 1000, "B"),
        ("lstm", 1024, 1000, ""),
        ("lstm", 2048, 33_570_816, "C"),
        ("lstm", 1024, 31_350_000, "C"),
        ("lstm", 1024, 31_349_999, ""),
        ("lstm", 1024, 34_650_001, ""),
        ("lstm", 768, 33_000_000, "BC"),
        ("bd_lru num_blocks=192 block_size=4", 768, 1000, "B"),
        ("bd_lru num_blocks=193 block_size=4", 768, 1000, ""),
        ("bd_lru num_blocks=192 block_size=4", 512, 1000, ""),
        ("h_lru num_channels=768 order=4", 768, 1000, "B"),
        ("h_lru num_channels=192 order=4", 768, 1000, ""),
    ],
)
def test_layers_belong_to_comparisons_by_their_sizes(
    row, arranged, layer, width, parameters, letters
):
    rows = [
        row(layer, hidden_size=width, batch_size=1, length=length, num_parameters=parameters)
        for length in (4, 8)
    ]
    found, _ = arranged(rows)
    assert "".join(panel.letter for panel in found) == letters


def test_points_without_a_time_make_no_panel_but_appear_in_one(row, arranged):
    lost = {"time_s": None, "status": "skipped", "reason": "r", "ratios": {}}
    rows = [row("lstm", **WIDE, batch_size=1, length=length) for length in (4, 8, 16)]
    rows[1] |= lost
    rows[2] |= lost
    found, missing = arranged(rows)
    assert (found, len(missing)) == ([], 5)
    rows[2] = row("lstm", **WIDE, batch_size=1, length=16)
    (panel,), _ = arranged(rows)
    assert [point.missing for point in panel.points] == ["", "skipped: r", ""]


def test_layers_of_one_label_go_by_their_options(row, arranged):
    twins = [SCAN, f"{SCAN} gate=tanh"]
    rows = [row(one, **WIDE, batch_size=1, length=length) for one in twins for length in (4, 8)]
    (panel,), _ = arranged(rows)
    assert [line.name for line in panel.lines] == twins
    assert {point.label for point in panel.points} == {"BD-LRU m=4"}
