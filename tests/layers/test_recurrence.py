"""The recurrence that a layer writes out, against the states that its steps return."""

import pytest
import torch
from tests.layers.conftest import tokens

from statemix.layers import BDLRU
from statemix.layers.state import tensors

LINEAR = {"bd_lru", "h_lru", "delta_net", "delta_product", "mamba2"}
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def unrolled(found):
    """h_t = A_t h_{t-1} + B_t v_t, one step at a time: shape (T, B, H, m, P)."""
    h, states = found.initial_state, []
    for A, B, v in zip(*(part.unbind(1) for part in found[:3]), strict=True):
        h = torch.einsum("bhij,bhjp->bhip", A, h) + torch.einsum("bhir,bhrp->bhip", B, v)
        states.append(h)
    return torch.stack(states)


@torch.no_grad()
def test_the_recurrence_gives_the_states_of_the_steps(build):
    layer, x = build(), tokens(2, 7)
    found = layer.recurrence(x)
    assert (found is not None) == (layer.name in LINEAR)
    if found is None:
        return
    state, states = layer.init_state(len(x)), []
    for x_t in x.unbind(1):
        _, state = layer.step(x_t, state)
        states.append(next(tensors(state))[1])
    expected = unrolled(found)
    torch.testing.assert_close(expected, torch.stack(states).view_as(expected), **TIGHT)
    batch, length, units, size, values = found.input_maps.shape
    assert found.transitions.shape == (batch, length, units, size, size)
    assert found.values.shape[:4] == (batch, length, units, values)
    assert found.initial_state.shape == (batch, units, size, found.values.shape[4])


@torch.no_grad()
def test_the_gates_are_the_rows_that_share_a_normalisation(build_gated):
    layer, x = build_gated(), tokens(2, 7)
    found = layer.recurrence(x)
    if layer.gate == "column_softmax":
        columns, shares = found.gates[..., :-1, :-1], found.gates[..., -1, :-1]
        torch.testing.assert_close(columns.mT, found.transitions, rtol=0, atol=0)
        torch.testing.assert_close(shares.diag_embed(), found.input_maps)
    elif isinstance(layer, BDLRU):
        torch.testing.assert_close(found.gates[..., :-1], found.transitions, rtol=0, atol=0)
        torch.testing.assert_close(found.gates[..., -1].diag_embed(), found.input_maps)
    else:
        assert found.gates.shape[-2] == 1
        torch.testing.assert_close(found.gates[..., 0, -1], found.input_maps[..., 0, 0])
    if layer.gate in ("softmax", "sigmoid", "column_softmax"):
        torch.testing.assert_close(found.gates.sum(-1), torch.ones_like(found.gates[..., 0]))
    sharp = build_gated()
    sharp.gate_temperature = 0.25
    if layer.gate not in ("relu", "signed"):  # their scale does not matter
        assert not torch.allclose(sharp.recurrence(x).gates, found.gates)


def test_a_recurrence_can_be_differentiated_and_may_be_empty(build_first):
    layer = build_first()
    x = tokens(2, 7).requires_grad_()
    found = layer.recurrence(x)
    if found is not None:
        sum(part.sum() for part in found[:3]).backward()
        assert x.grad.abs().sum() > 0
        assert layer.recurrence(x[:, :0]).transitions.shape[1] == 0
        with pytest.raises(ValueError, match=r"x must have shape \(B, T, hidden_size=6\)"):
            layer.recurrence(x[..., 1:])
