"""The model of times on a GPU, against numbers that can be checked by hand."""

import pytest

from statemix.bench.compiled import Variant, _pass_of
from statemix.bench.predicted import KERNELS, Pass, issued_s, moved_s, predicted, problem_of


def test_a_pass_takes_the_time_of_its_bytes_and_of_its_instructions():
    # docs/kernels.md derives these bytes: 528 MB for 16,384 tokens at m = 4.
    forward, backward = (
        _pass_of(Variant("block", f"local_{way}", 4)) for way in ("forward", "backward")
    )
    assert moved_s(forward) == pytest.approx(16_384 * 10_752 / 4.3e12)
    assert moved_s(forward) + moved_s(backward) == pytest.approx(123e-6, rel=2e-3)
    # 1,103 instructions for the 160 bytes that a step of a map reads at m = 8.
    step = Pass(1, 160, 0)
    assert issued_s(step, 1103) / moved_s(step) == pytest.approx(1, rel=1e-3)


def test_maps_are_those_of_all_chunks_but_one_and_are_written():
    problem = problem_of("block", 4)
    assert (problem.chunk, problem.maps, problem.steps) == (64, 1536 * 31, 1536 * 2048)
    maps = _pass_of(Variant("block", "chunk_forward", 4))
    assert (maps.steps, maps.step_bytes, maps.other_bytes) == (1536 * 31 * 64, 48, 1536 * 31 * 80)
    carried = _pass_of(Variant("block", "carries", 4))
    assert (carried.steps, carried.step_bytes) == (1536 * 31, 80 + 16)


@pytest.mark.parametrize(("operator", "size", "one_pass"), [("lag", 4, True), ("block", 4, False)])
def test_a_layer_takes_its_projections_and_its_scan(operator, size, one_pass):
    """Here all kernels take twice the time of their bytes, and all move equal bytes."""
    rows = [
        {"operator": operator, "size": size, "kernel": kernel, "roofline_us": 1, "predicted_us": 2}
        for kernel in KERNELS
    ]
    found = predicted(rows, operator, size)
    assert (found.whole, found.chunked) == (2, 6)
    # performance model: projections take 4.1 ms, and bytes of the scan 0.74 ms.
    scan = found.whole if one_pass else found.chunked
    assert found.layer == pytest.approx(16.384 / (4.107 + 0.737 * scan), rel=2e-3)
    with pytest.raises(ValueError, match=rf"rows must have .*'carries_back'.* of {operator} at"):
        predicted(rows[:-1], operator, size)
