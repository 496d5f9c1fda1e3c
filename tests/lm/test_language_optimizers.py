"""Muon beside AdamW: which parameters each one changes, its steps, and exact resumption."""

from dataclasses import replace

import pytest
import torch
from tests.lm.conftest import build_model

from statemix.errors import RequestError
from statemix.lm.language_optimizers import optimizer_of
from statemix.lm.presets import LanguageSettings

SETTINGS = LanguageSettings(4, 3, 20, 1e-2, weight_decay=0.2, optimizer="muon")
MLP = {"gate_proj", "up_proj", "down_proj"}
# Mixer -> its options, and the projections that Muon changes.
MIXERS = {
    "bd_lru": ({"num_blocks": 4, "block_size": 2}, {"value_proj", "out_proj"}),
    "h_lru": ({"num_channels": 16, "order": 3}, {"value_proj", "out_proj"}),
    "delta_net": ({"num_heads": 2, "use_forget_gate": True, "use_output_gate": True}, {"out_proj"}),
    "attention": ({"num_heads": 2}, {"out_proj"}),
    "lstm": ({}, set()),
}


@pytest.mark.parametrize("name", MIXERS)
def test_muon_changes_matrices_but_no_gates(name):
    options, wanted = MIXERS[name]
    mixers = {"name": name, **options}
    model = build_model("bd_lru", mixers=mixers, conv_size=3, output_gate=True)
    muon, matrices, vectors = optimizer_of(model, SETTINGS).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    changed = {names[parameter].split(".", 3)[3] for parameter in muon["params"]}
    in_mixer = {f"mixer.layer.{one}.weight" for one in wanted}
    assert changed == in_mixer | {f"mlp.{one}.weight" for one in MLP}
    assert len(muon["params"]) == 2 * len(changed)
    # Every parameter is in one group.
    groups = [p for group in (muon, matrices, vectors) for p in group["params"]]
    assert sorted(map(id, groups)) == sorted(map(id, names))
    decays = [(group["kind"], group["weight_decay"]) for group in (muon, matrices, vectors)]
    assert decays == [("muon", 0.2), ("adamw", 0.2), ("adamw", 0)]


def steps(model, optimizer, number):
    for seed in range(number):
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_a_step_is_that_of_the_two_optimizers_of_pytorch():
    model, other = build_model("bd_lru"), build_model("bd_lru")
    optimizer = optimizer_of(model, SETTINGS)
    names = {parameter: name for name, parameter in model.named_parameters()}
    muon, *adamw = (
        {"params": [other.get_parameter(names[p]) for p in each["params"]], "weight_decay": decay}
        for each in optimizer.param_groups
        for decay in [each["weight_decay"]]
    )
    for part in (
        torch.optim.Muon([muon], lr=1e-2, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(adamw, lr=1e-2, betas=(0.9, 0.95)),
    ):
        steps(other, part, 3)
    steps(model, optimizer, 3)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name
        assert not torch.equal(parameter, build_model("bd_lru").get_parameter(name))


def test_other_names_are_refused():
    model = build_model("bd_lru")
    with pytest.raises(RequestError, match="must be 'adamw' or 'muon', got 'sgd'"):
        optimizer_of(model, replace(SETTINGS, optimizer="sgd"))
