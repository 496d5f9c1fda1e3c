"""AdamW's one group, and the two schedules."""

import pytest
import torch

from statemix.training import RunConfig
from statemix.training.optimizer import build_optimizer, inverse_temperature, learning_rate


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, 1e-3), (1, 9.9994e-4), (50, 8.5502e-4), (100, 5.05e-4), (199, 1.0061e-5)],
)
def test_cosine_falls_per_epoch_to_the_minimum(epoch, expected):
    config = RunConfig()
    for place in range(3):
        rate = learning_rate(config, epoch * 3 + place, 600, steps_per_epoch=3)
        assert rate == pytest.approx(expected, rel=5e-5)


def test_cosine_falls_per_step_on_fresh_examples():
    rates = [learning_rate(RunConfig(), step, 50, steps_per_epoch=1) for step in range(50)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 50


def test_constant_stays_after_a_linear_warmup():
    config = RunConfig(schedule="constant", warmup_steps=4)
    rates = [learning_rate(config, step, 10, steps_per_epoch=1) for step in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_sharpness_rises_linearly_between_half_and_nine_tenths():
    config = RunConfig(sharpen_to=8.0)
    sharpness = [inverse_temperature(config, step, 100) for step in range(100)]
    assert sharpness[:51] == [1.0] * 51
    assert sharpness[60] == pytest.approx(1 + 7 * 0.25)
    assert sharpness[70] == pytest.approx(4.5)
    assert sharpness[90:] == [8.0] * 10


@pytest.mark.parametrize(("start", "expected"), [(0.0, [4.0] * 4), (0.5, [1.0, 1.0, 4.0, 4.0])])
def test_sharpening_may_be_a_step(start, expected):
    config = RunConfig(sharpen_to=4.0, sharpen_start=start, sharpen_end=start)
    assert [inverse_temperature(config, step, 4) for step in range(4)] == expected


def test_one_group_decays_everything():
    config = RunConfig(weight_decay=0.3, betas=(0.8, 0.9))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.RMSNorm(2))
    (group,) = build_optimizer(model, config).param_groups
    assert len(group["params"]) == 3
    assert (group["weight_decay"], group["betas"], group["lr"]) == (0.3, (0.8, 0.9), 1e-3)
