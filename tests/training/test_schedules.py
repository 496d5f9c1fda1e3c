"""The groups of AdamW; schedules of the learning rate and of attributes that layers declare."""

import pytest
import torch
from torch import nn

from statemix.errors import SettingError
from statemix.layers import LayerSpec
from statemix.training import AttributeSchedule, OptimizerConfig, ParameterGroup, ScheduleConfig
from statemix.training.schedules import Schedules, attributes_set, build_optimizer, scheduled_value


def rates(config, num_steps, steps_per_epoch=1):
    lengths = {"num_steps": num_steps, "steps_per_epoch": steps_per_epoch}
    made = Schedules(config, 1e-3, nn.Identity(), **lengths)
    return [made.learning_rate(step) for step in range(num_steps)]


def following(model, *schedules, num_steps=4):
    return Schedules(ScheduleConfig(attributes=schedules), 1e-3, model, num_steps=num_steps)


def test_rates_fall_per_step_on_fresh_examples_or_stay_after_a_linear_warmup():
    found = rates(ScheduleConfig(), 50)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 50
    config = ScheduleConfig(learning_rate="constant", warmup_steps=4)
    assert rates(config, 6) == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize(("begin", "expected"), [(0.0, [0.25] * 4), (0.5, [1.0, 1.0, 0.25, 0.25])])
def test_a_change_may_be_a_step(begin, expected):
    step = AttributeSchedule("gain", end=0.25, begin=begin, finish=begin, curve="reciprocal")
    assert [scheduled_value(step, 1.0, n, 4) for n in range(4)] == expected


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ("linear", [4.0, 3.25, 2.5, 1.75, 1.0]),
        ("reciprocal", [4.0, 16 / 7, 1.6, 16 / 13, 1.0]),
        ("geometric", [4.0, 8**0.5, 2.0, 2**0.5, 1.0]),
    ],
)
@pytest.mark.parametrize("start", [None, 4.0])
def test_curves_change_the_value_its_reciprocal_or_its_logarithm_evenly(curve, expected, start):
    config = AttributeSchedule("gain", end=1.0, start=start, curve=curve)
    initial = 4.0 if start is None else 99.0
    values = [scheduled_value(config, initial, step, 8) for step in (0, 2, 4, 6, 8)]
    assert values == pytest.approx(expected)


def layers(*specs):
    return nn.Sequential(*(spec.build(hidden_size=4) for spec in specs))


@pytest.fixture
def model(toys):
    gated = LayerSpec("bd_lru", num_blocks=2, block_size=2, gate_temperature=0.5)
    return layers(LayerSpec("solver"), gated, LayerSpec("solver", iterations=3, gain=2.0))


def test_every_layer_that_declares_an_attribute_follows_from_its_own_value(model):
    schedules = following(
        model,
        AttributeSchedule("iterations", end=6.0),
        AttributeSchedule("gain", end=0.0, start=1.0),
        AttributeSchedule("gate_temperature", end=0.125, curve="geometric"),
    )
    assert schedules.attributes(0)["1.gate_temperature"] == 0.5
    assert (model[0].iterations, model[2].iterations) == (1, 3)
    expected = {"0.iterations": 4, "2.iterations": 4, "0.gain": 0.5, "2.gain": 0.5}
    assert schedules.attributes(2) == expected | {"1.gate_temperature": 0.25}
    # 3.5 and 4.5 are rounded: an integer stays one.
    assert (model[0].iterations, model[2].iterations) == (4, 4)
    assert type(model[2].iterations) is int
    assert (model[0].gain, model[1].gate_temperature) == (0.5, 0.25)
    schedules.attributes(9)
    assert (model[0].iterations, model[2].gain, model[1].gate_temperature) == (6, 0.0, 0.125)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (AttributeSchedule("heat", end=1.0), "attribute must be schedulable .*'gain'.* got 'heat'"),
        (AttributeSchedule("iterations", end=0.0), r"end must suit iterations \(.*at least 1.*"),
        (AttributeSchedule("gate_temperature", end=1.0, start=-1.0), "start must suit .*positive"),
    ],
)
def test_what_a_layer_refuses_is_named_and_changes_nothing(model, schedule, message):
    with pytest.raises(SettingError, match=f"^schedules.attributes.0.{message}"):
        following(model, schedule)
    assert (model[0].iterations, model[1].gate_temperature, model[2].iterations) == (1, 0.5, 3)


@pytest.mark.parametrize(("curve", "gain"), [("reciprocal", 0.0), ("geometric", -1.0)])
def test_a_curve_cannot_begin_at_a_value_of_the_layer_that_it_does_not_reach(toys, curve, gain):
    model = layers(LayerSpec("solver", gain=gain))
    schedule = AttributeSchedule("gain", end=1.0, curve=curve)
    with pytest.raises(SettingError, match=r"^schedules.attributes.0.start must be given and abo"):
        following(model, schedule)
    following(model, AttributeSchedule("gain", end=1.0))
    following(model, AttributeSchedule("gain", end=1.0, start=0.5, curve=curve))


def values(model):
    return [model[0].iterations, model[2].iterations, model[1].gate_temperature]


def test_attributes_have_another_value_within_and_their_own_afterwards(model):
    with attributes_set(model, {"iterations": 7, "gate_temperature": 0.25}):
        assert values(model) == [7, 7, 0.25]
    assert values(model) == [1, 3, 0.5]
    with pytest.raises(KeyError), attributes_set(model, {"iterations": 7}):
        raise KeyError
    assert values(model) == [1, 3, 0.5]


def test_values_that_a_layer_refuses_in_evaluation_are_named(model):
    for wanted, message in (
        ({"heat": 1}, "heat must be schedulable"),
        ({"gate_temperature": 0.25, "iterations": 0}, "iterations must suit"),
    ):
        message = f"^evaluation.attributes.{message}"
        with pytest.raises(SettingError, match=message), attributes_set(model, wanted):
            pass
        assert values(model) == [1, 3, 0.5]


@pytest.fixture
def two_parts():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.RMSNorm(2))


def test_the_first_pattern_that_matches_counts(two_parts):
    groups = (
        ParameterGroup("*.bias", learning_rate_factor=0.5, weight_decay=0.0),
        ParameterGroup("0.*", learning_rate_factor=3.0),
    )
    config = OptimizerConfig(weight_decay=0.3, betas=(0.8, 0.9), groups=groups)
    optimizer = build_optimizer(two_parts, config)
    assert {(group["betas"], group["lr"]) for group in optimizer.param_groups} == {
        ((0.8, 0.9), 1e-3)
    }
    names = {id(parameter): name for name, parameter in two_parts.named_parameters()}
    found = [
        ([names[id(p)] for p in g["params"]], g["weight_decay"], g["rate_factor"])
        for g in optimizer.param_groups
    ]
    assert found == [(["1.weight"], 0.3, 1.0), (["0.bias"], 0.0, 0.5), (["0.weight"], 0.3, 3.0)]


@pytest.mark.parametrize(
    ("patterns", "place"), [(["gate*"], 0), (["*", "*.bias"], 1), (["*.bias", "0.BIAS"], 1)]
)
def test_a_pattern_that_matches_nothing_is_named(two_parts, patterns, place):
    config = OptimizerConfig(groups=tuple(map(ParameterGroup, patterns)))
    message = rf"^optimizer.groups.{place}.parameters must match at least one parameter"
    with pytest.raises(SettingError, match=message):
        build_optimizer(two_parts, config)
