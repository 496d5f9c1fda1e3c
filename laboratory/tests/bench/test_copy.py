"""The copy that rooflines are measured by."""

import pytest
import torch

from statemix.layers import LayerSpec
from statemix_lab.bench import compared_layers, harness, layer_timing, step_timing
from statemix_lab.bench.harness import Measurement, Spread
from statemix_lab.bench.timed_devices import Cpu


@pytest.mark.parametrize("times", [1, 3])
def test_a_copy_moves_its_bytes_so_many_times_by_buffers_that_are_reused(
    monkeypatch, copied, times
):
    monkeypatch.setattr(harness, "_BUFFER_BYTES", 4 * 64)
    sizes = copied(harness.copy_provider(8 * 150, "cpu", times))
    assert sizes == [64, 64, 22] * times


def test_a_roofline_is_the_time_of_a_copy_of_ones_own_bytes_over_ones_own():
    case = compared_layers.LayerCase(8, 2, 5)
    ratios = {harness.COPY: Spread(2.0, 4.0, 8.0)}
    measured = Measurement("a", "", "measured", ratios=ratios)
    row = harness.timed_row("layers", case, measured, torch.float32, 5, 10)
    assert row["roofline"] == {"p20": 1 / 16, "p50": 1 / 8, "p80": 1 / 4}
    copy = Measurement(harness.COPY, "", "measured")
    assert harness.timed_row("layers", case, copy, torch.float32, 10, 10)["roofline"] is None


def test_copies_beside_steps_and_layers_move_what_these_must(copied):
    case = step_timing.StepCase("bd_lru", 2, 6, 3)
    *_, copy = step_timing.providers(case)
    assert 8 * sum(copied(copy)) == case.steps_per_call * case.moved_bytes(torch.float32)
    training = compared_layers.LayerCase(hidden_size=8, batch_size=2, length=5)
    listed = compared_layers.entries({"lstm": LayerSpec("lstm")}, training, torch.float32, Cpu())
    moved = layer_timing.copied_bytes(listed, training, torch.float32)
    *_, copy = layer_timing.providers(listed, training, torch.float32)
    assert 8 * sum(copied(copy)) == moved
