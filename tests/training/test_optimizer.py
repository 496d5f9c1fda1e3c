"""AdamW's groups and its state as named tensors."""

import pytest
import torch

from statemix.errors import SettingError
from statemix.training import OptimizerConfig, ParameterGroup
from statemix.training.schedules import build_optimizer


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.RMSNorm(2))


def test_one_group_decays_everything(model):
    config = OptimizerConfig(weight_decay=0.3, betas=(0.8, 0.9))
    (group,) = build_optimizer(model, config).param_groups
    assert len(group["params"]) == 3
    assert (group["weight_decay"], group["betas"], group["lr"]) == (0.3, (0.8, 0.9), 1e-3)


def test_the_first_pattern_that_matches_counts(model):
    groups = (
        ParameterGroup("*.bias", learning_rate_factor=0.5, weight_decay=0.0),
        ParameterGroup("0.*", learning_rate_factor=3.0),
    )
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3, groups=groups))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        ([names[id(p)] for p in g["params"]], g["weight_decay"], g["rate_factor"])
        for g in optimizer.param_groups
    ]
    assert found == [
        (["1.weight"], 0.3, 1.0),
        (["0.bias"], 0.0, 0.5),
        (["0.weight"], 0.3, 3.0),
    ]


def test_groups_may_hold_every_parameter(model):
    optimizer = build_optimizer(model, OptimizerConfig(groups=(ParameterGroup("*"),)))
    assert [len(group["params"]) for group in optimizer.param_groups] == [3]


@pytest.mark.parametrize(
    ("patterns", "place"), [(["gate*"], 0), (["*", "*.bias"], 1), (["*.bias", "0.BIAS"], 1)]
)
def test_a_pattern_that_matches_nothing_is_named(model, patterns, place):
    config = OptimizerConfig(groups=tuple(map(ParameterGroup, patterns)))
    message = rf"^optimizer.groups.{place}.parameters must match at least one parameter"
    with pytest.raises(SettingError, match=message):
        build_optimizer(model, config)
