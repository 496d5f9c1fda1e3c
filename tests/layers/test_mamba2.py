"""Mamba-2 against its equations, token by token."""

import pytest
import torch
from tests.layers.conftest import check_equation, tokens
from torch.nn.functional import silu, softplus

from statemix.layers import Mamba2
from statemix.layers.chunks import CHUNK_SIZE


def reference(layer, x):
    """The equations of the docstring for one sequence x (T, hidden_size)."""
    P, N, H = layer.head_dim, layer.d_state, layer.num_heads
    z, mixed, raw = (x @ layer.in_proj.weight.T).split([H * P, H * P + 2 * N, H], -1)
    if layer.d_conv:
        taps = layer.conv.weight
        past = torch.cat([mixed.new_zeros(len(taps) - 1, mixed.shape[1]), mixed])
        mixed = layer.conv.bias + torch.stack(
            [(taps * past[t : t + len(taps)]).sum(0) for t in range(len(x))]
        )
    values, B, C = silu(mixed).split([H * P, N, N], -1)
    steps = softplus(raw + layer.dt_bias)
    S, outputs = [x.new_zeros(P, N) for _ in range(H)], []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            v = values[t, h * P : (h + 1) * P]
            decay = (-layer.A_log[h].exp() * steps[t, h]).exp()
            S[h] = decay * S[h] + steps[t, h] * torch.outer(v, B[t])
            heads.append(S[h] @ C[t] + layer.D[h] * v)
        o = torch.cat(heads) * silu(z[t])
        o = o / (o.square().mean() + 1e-5).sqrt() * layer.norm_weight
        outputs.append(o @ layer.out_proj.weight.T)
    return torch.stack(outputs), torch.stack(S)


def drawn(seed=0, dtype=torch.float64, **options):
    layer = Mamba2(6, **({"d_state": 5, "head_dim": 4} | options), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    layer.reset_parameters(generator)
    for parameter in (layer.norm_weight, layer.D):
        torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    torch.nn.init.uniform_(layer.A_log, -2, 2, generator=generator)
    torch.nn.init.uniform_(layer.dt_bias, -1, 1, generator=generator)
    return layer


@pytest.mark.parametrize("options", [{}, {"d_conv": 0, "head_dim": 6}, {"d_conv": 2, "expand": 4}])
def test_layer_is_the_recurrence_over_tokens(options):
    check_equation(drawn(**options), reference, tokens(1, CHUNK_SIZE + 5))


def test_initial_steps_and_rates_fill_their_intervals():
    layer = Mamba2(64, head_dim=1, expand=8)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    steps, rates = softplus(layer.dt_bias), layer.A_log.exp()
    for found, least, most in [(steps, 1e-3, 1e-1), (rates, 1, 16)]:
        assert least * 0.999 <= found.min() < least * 1.2
        assert most * 0.8 < found.max() <= most * 1.001
    assert 0.008 < steps.median() < 0.0125  # log-uniform
    assert 7.5 < rates.median() < 9.5  # uniform
    assert (layer.D == 1).all()
