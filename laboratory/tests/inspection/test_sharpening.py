"""Gates at two temperatures, against powers of the softer ones."""

import copy
import json

import pytest
import torch

from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.tasks import TaskSpec
from statemix.training import AttributeSchedule, ModelConfig, RunConfig, ScheduleConfig
from statemix_lab.inspection.layer_numbers import sharpening, softened
from statemix_lab.inspection.recurrences import entropy, record

CLOSE = {"rel": 1e-3, "abs": 1e-4}


def sharp(model, temperature):
    for layer in ("backbone.blocks.0.mixer", "backbone.blocks.2.mixer"):
        model.get_submodule(layer).gate_temperature = temperature
    return model


def flat(nested):
    return torch.tensor(nested, dtype=torch.float64).flatten().tolist()


def test_sharp_gates_are_powers_of_soft_ones(model, tokens):
    """The first layer reads the tokens alone, so that only its temperature changes its gates."""
    after = record(sharp(model, 0.25), tokens)[0].recurrence().gates
    soft = sharp(copy.deepcopy(model), 1.0)
    first, third = sharpening(soft, model, tokens, [5, 3], units=[1, 3])
    assert (first["layer"], first["shown"]) == (0, [1])
    # An LSTM has no gates of this kind, and layers may have any number of units.
    assert (third["layer"], third["shown"]) == (2, [1, 3])
    assert (first["before"]["temperature"], first["after"]["temperature"]) == (1.0, 0.25)
    # One unit, the start token and five others, three rows of four gates.
    before = torch.tensor(first["before"]["gates"])
    assert before.shape == (1, 6, 3, 4)
    powers = before.double() ** 4
    powers = powers / powers.sum(-1, keepdim=True)
    assert flat(first["after"]["gates"]) == pytest.approx(powers.flatten().tolist(), **CLOSE)
    expected = torch.cat([after[0], after[1, :4]])
    mean = entropy(expected).mean().item()
    assert first["after"]["gate_entropy"] == pytest.approx(mean, **CLOSE)
    assert first["before"]["gate_entropy"] > first["after"]["gate_entropy"]
    json.dumps([first, third], allow_nan=False)


def config(*schedules, **options):
    return RunConfig(
        task=TaskSpec("permutation", group="S_3", train_size=20),
        model=ModelConfig(
            layers=(LayerSpec("bd_lru", num_blocks=2, block_size=3, **options), LayerSpec("lstm")),
            hidden_size=8,
        ),
        schedules=ScheduleConfig(epochs=1, attributes=schedules),
    )


def trained(settings):
    model = TokenClassifier(6, {"product": 6}, 8, settings.model.stack())
    model.backbone.blocks[0].mixer.gate_temperature = 0.125
    model.backbone.blocks[0].mixer.gate_noise = 0.5
    return model


@pytest.mark.parametrize(
    ("start", "options", "temperature"),
    [(None, {}, 1.0), (None, {"gate_temperature": 0.7}, 0.7), (2.0, {}, 2.0)],
)
def test_softened_gates_have_the_temperature_at_which_training_began(start, options, temperature):
    schedule = AttributeSchedule("gate_temperature", end=0.125, start=start)
    settings = config(AttributeSchedule("gate_noise", end=0.5, start=3.0), schedule, **options)
    model = trained(settings)
    soft = softened(model, settings, settings.build_task())
    layer = soft.backbone.blocks[0].mixer
    assert layer.gate_temperature == pytest.approx(temperature)
    # Nothing else changes, and the model does not.
    assert layer.gate_noise == 0.5
    assert model.backbone.blocks[0].mixer.gate_temperature == 0.125
    assert torch.equal(layer.gate_proj.weight, model.backbone.blocks[0].mixer.gate_proj.weight)
