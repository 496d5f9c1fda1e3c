"""The model of times on a GPU, against numbers that can be checked by hand."""

import pytest

from statemix.bench.predicted import (
    KERNELS,
    Code,
    Problem,
    moved_s,
    predicted,
    problem_of,
    times_of,
)


def code(kernel, size=4, **choices):
    """A kernel of blocks in bfloat16, with one lane of a thread."""
    wanted = {
        "lanes": 32, "steps": 1, "rows": size, "columns": 0, "registers": 64, "loads": 40,
        "in_flight": 40, "instructions": 10.0, "functions": 0.0,
    }  # fmt: skip
    return Code("block", kernel, size, 2, **(wanted | choices))


def test_a_pass_takes_the_time_of_its_bytes():
    # docs/kernels.md derives these bytes: 528 MB for 16,384 tokens at m = 4.
    problem = problem_of("block", 4)
    forward, backward = (
        moved_s("block", f"local_{way}", 4, 2, problem) for way in ("forward", "backward")
    )
    assert forward == pytest.approx(16_384 * 10_752 / 4.3e12)
    assert forward + backward == pytest.approx(123e-6, rel=2e-3)


def test_maps_are_those_of_all_chunks_but_one_and_are_written():
    problem = problem_of("block", 4)
    assert problem == (1536, 2048, 64)
    assert problem.maps == 31
    of_chunk = 64 * 48 + 80
    maps = moved_s("block", "chunk_forward", 4, 2, problem)
    assert maps == pytest.approx(1536 * 31 * of_chunk / 4.3e12)
    followed = moved_s("block", "carries", 4, 2, problem)
    assert followed == pytest.approx(1536 * 31 * (80 + 16) / 4.3e12)


def test_many_short_sequences_are_one_pass():
    problem = problem_of("lag", 16, full=True)
    assert problem == (8192 * 768, 128, 128)
    assert problem.maps == 0


def test_a_pass_takes_the_time_of_its_instructions():
    # 1,103 instructions for the 160 bytes that a step of a map reads at m = 8.
    lanes = 132 * 4 * 32 * 1000
    found = times_of(code("local_forward", 8, instructions=1103 / 72), Problem(lanes, 10, 10))
    # A scheduler has 1000 warps of 10 steps.
    assert found.issued == pytest.approx(1000 * 10 * 1103 / 1.755e9)
    assert found.issued / (lanes * 10 * 160 / 4.3e12) == pytest.approx(1, rel=1e-3)


def test_special_functions_take_eight_times_as_long_as_to_issue_them():
    """A processor begins 16 of them in a clock, and issues for 128 lanes."""
    lanes = 132 * 4 * 32 * 1000
    found = times_of(code("local_forward", functions=2.0), Problem(lanes, 10, 10))
    # Two for each of the 20 gates of a step.
    assert found.special == pytest.approx(1000 * 10 * 2 * 20 * 8 / 1.755e9)
    assert found.special == pytest.approx(8 * 2 / 10 * found.issued)


@pytest.mark.parametrize(
    ("choices", "turns", "wait"),
    [
        # 32 warps of a processor, one of each of its programs: all wait at the same time.
        ({}, 1, 0.8e-6),
        # Two steps are read at once.
        ({"steps": 2}, 1, 0.4e-6),
        # Two rows of four: each step waits twice.
        ({"rows": 2}, 1, 1.6e-6),
        # 65,536 registers are enough for 16 warps of 128 each, and 121 are as many.
        ({"registers": 121}, 2, 0.8e-6),
        ({"registers": 65}, 32 / 28, 0.8e-6),
    ],
)
def test_a_pass_waits_once_for_all_that_a_thread_reads_at_once(choices, turns, wait):
    problem = Problem(132 * 32 * 32, 100, 100)
    found = times_of(code("local_forward", **choices), problem)
    of_warp = 10 * 20 / 1.755e9
    assert found.waited == pytest.approx(turns * 100 * (wait + of_warp))


def test_columns_of_maps_are_warps_of_their_own():
    problem = Problem(132 * 32 * 32, 128, 64)
    whole, parts = (times_of(code("chunk_forward", columns=columns), problem) for columns in (5, 3))
    assert parts.issued == whole.issued
    # Two groups of columns: twice the warps, each with half of the instructions.
    of_warp = 10 * 20 / 1.755e9
    assert whole.waited == pytest.approx(64 * (0.8e-6 + of_warp))
    assert parts.waited == pytest.approx(2 * 64 * (0.8e-6 + of_warp / 2))


def test_loads_that_are_put_off_wait_one_after_another():
    problem = Problem(132 * 32 * 32, 64, 64)
    at_once, put_off = (
        times_of(code("local_forward", instructions=0.0, in_flight=count), problem).waited
        for count in (40, 10)
    )
    assert put_off == pytest.approx(4 * at_once) == pytest.approx(4 * 64 * 0.8e-6)


def test_what_leaves_a_chunk_is_one_column():
    problem = Problem(1000, 2048, 64)
    # Gates and gradients of states of 31 chunks, and the four numbers that leave each.
    moved = times_of(code("chunk_backward"), problem).moved
    assert moved == pytest.approx(1000 * 31 * (64 * 2 * (20 + 4) + 4 * 4) / 4.3e12)
    maps = times_of(code("chunk_forward", columns=5), problem).moved
    assert maps == pytest.approx(1000 * 31 * (64 * 2 * (20 + 4) + 4 * 20) / 4.3e12)
    # All chunks but one of each sequence.
    issued = times_of(code("chunk_backward"), problem).issued
    assert issued == pytest.approx(1000 * 31 * 64 * 10 * 20 / 32 / (132 * 4 * 1.755e9))


def test_maps_are_read_ahead():
    problem = Problem(1000, 2048, 64)
    # Fifteen maps are in flight, or the instructions for one take longer.
    assert times_of(code("carries", instructions=1.0), problem).waited == pytest.approx(
        31 * 0.8e-6 / 15
    )
    slow = times_of(code("carries", instructions=100.0), problem)
    assert slow.waited == pytest.approx(31 * 100 * 20 / 1.755e9)


@pytest.mark.parametrize(("operator", "size", "one_pass"), [("lag", 4, True), ("block", 4, False)])
def test_a_layer_takes_its_projections_and_its_scan(operator, size, one_pass):
    """All kernels take no time but that of their bytes."""
    rows = [
        {
            "operator": operator, "size": size, "kernel": kernel, "dtype": "bfloat16",
            "full": full, "lanes": 64, "steps": 1000, "rows": size, "columns": 0,
            "registers": 32, "loads": 1, "in_flight": 1, "instructions": 0.0, "functions": 0.0,
        }
        for kernel in KERNELS
        for full in (False, True)
    ]  # fmt: skip
    found = predicted(rows, operator, size)
    assert found.whole == pytest.approx(1)
    # Gates and values are read twice: 48 bytes of 56 forward and 112 backward, and maps.
    assert found.chunked > 1 + 2 * 48 / 168 * (31 / 32 if operator == "block" else 7 / 8)
    # Projections take 4.1 ms, and the bytes of the scan 0.74 ms.
    if one_pass:
        assert found.layer == pytest.approx(16.384 / (4.107 + 0.737), rel=2e-3)
    else:
        # Four chunks of 9,208 lanes.
        scan = 1 + 2 * 48 / 168 * 3 / 4
        assert found.layer == pytest.approx(16.384 / (4.107 + 0.737 * scan), rel=2e-3)
    with pytest.raises(ValueError, match=rf"rows must have .*'carries_back'.* of {operator} at"):
        predicted(rows[:-2], operator, size)
    with pytest.raises(ValueError, match=r"rows must have \['local_backward'\]"):
        predicted(
            [row for row in rows if row["kernel"] != "local_backward" or not row["full"]],
            operator,
            size,
        )
