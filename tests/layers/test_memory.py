"""Layers that remember from the start, and layers that learn to track."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import statemix
from statemix.errors import OptionError
from statemix.layers import BDLRU, HLRU, LSTM

GATES = ["softmax", "householder", "column_softmax"]


def built(kind, size, **options):
    sizes = {BDLRU: ("num_blocks", "block_size"), HLRU: ("num_channels", "order")}[kind]
    return kind(5, **dict(zip(sizes, size, strict=True)), dtype=torch.float64, **options)


@given(
    kind=st.sampled_from([BDLRU, HLRU]),
    units=st.integers(1, 5),
    size=st.integers(1, 4),
    shortest=st.floats(1, 100),
    ratio=st.floats(1, 100),
    gate=st.sampled_from(GATES),
    temperature=st.floats(0.1, 4),
    selective=st.sampled_from([True, False]),
)
def test_units_forget_as_fast_as_the_formula_says(
    kind, units, size, shortest, ratio, gate, temperature, selective
):
    gate = "softmax" if kind is HLRU else gate
    options = {"memory": (shortest, shortest * ratio), "gate_temperature": temperature}
    layer = built(kind, (units, size), gate=gate, selective=selective, **options)
    if selective:
        layer.zero_biases()
    else:
        with torch.no_grad():
            layer.gate_bias[..., :-1] = 0
    # After some tokens, every state shrinks by the same factor per token.
    x = torch.zeros(1, 200, 5, dtype=torch.float64)
    _, before = layer(x, torch.ones(1, units, size, dtype=torch.float64))
    _, after = layer(x[:, :1], before / before.norm(dim=-1)[..., None])
    spans = shortest * ratio ** ((torch.arange(units) + 0.5) / units)
    expected = torch.exp(-1 / spans).expand(1, -1)
    torch.testing.assert_close(after.norm(dim=-1).float(), expected, rtol=1e-4, atol=0)


def test_a_tracker_starts_in_a_learned_or_unit_state_with_closed_input_gates():
    layer = BDLRU.tracker(8, num_blocks=4, block_size=2, gate="householder", initial_std=0.5)
    assert (layer.gate, layer.initial_state, layer.initial_std) == ("householder", "learned", 0.5)
    assert layer.input_gate_bias == -6.0
    assert layer.learned_state.abs().min() > 0
    layer = BDLRU.tracker(8, num_blocks=4, block_size=3, gate="column_softmax")
    assert (layer.initial_state, layer.input_gate_bias) == ("unit", -6.0)
    assert layer.init_state(2).tolist() == [[[1.0, 0.0, 0.0]] * 4] * 2


@pytest.mark.parametrize("kind", [BDLRU, HLRU])
def test_a_unit_state_is_saved_and_comes_back_with_new_parameters(kind):
    layer = built(kind, (3, 2), initial_state="unit")
    first = layer.init_state(1)
    assert first.tolist() == [[[1.0, 0.0]] * 3]
    y, _ = layer(torch.zeros(1, 1, 5, dtype=torch.float64))
    same, _ = layer(torch.zeros(1, 1, 5, dtype=torch.float64), first)
    assert torch.equal(y, same)
    assert y.any()
    layer.unit_state.zero_()
    emptied = built(kind, (3, 2), initial_state="unit")
    emptied.load_state_dict(layer.state_dict())
    assert not emptied.init_state(1).any()
    emptied.reset_parameters()
    assert torch.equal(emptied.init_state(1), first)


def test_sharpening_lowers_every_temperature_along_the_curve():
    model = torch.nn.Sequential(
        BDLRU(8, num_blocks=4, block_size=2), torch.nn.ReLU(), HLRU(8, num_channels=4, order=2)
    )
    for progress, temperature in [(0, 1), (0.5, 1), (0.7, 1 / 4.5), (0.9, 1 / 8), (1.0, 1 / 8)]:
        assert statemix.sharpen(model, progress) == pytest.approx(temperature)
        assert model[0].gate_temperature == pytest.approx(temperature)
        assert model[2].gate_temperature == pytest.approx(temperature)


def test_bad_progress_and_models_without_gates_that_sharpen_are_refused():
    for progress in (float("nan"), float("inf"), torch.tensor(0.7), True):
        with pytest.raises(OptionError, match=r"progress must be (finite|a number), got"):
            statemix.sharpen(BDLRU(8, num_blocks=4, block_size=2), progress)
    with pytest.raises(ValueError, match="model must contain a layer with a gate temperature"):
        statemix.sharpen(LSTM(8), 0.5)
    sharp = BDLRU(8, num_blocks=4, block_size=2)
    for gate in ("signed", "relu", "none", "tanh", "sigmoid"):
        model = torch.nn.Sequential(sharp, HLRU(8, num_channels=4, order=2, gate=gate))
        with pytest.raises(OptionError, match=f"gate of a layer to sharpen must .*, got '{gate}'"):
            statemix.sharpen(model, 1.0)
    assert sharp.gate_temperature == 1
