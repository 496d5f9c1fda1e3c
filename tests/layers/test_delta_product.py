"""DeltaNet and DeltaProduct against their equations, token by token."""

import pytest
import torch
from tests.layers.conftest import check_equation, tokens
from torch.nn.functional import silu, softplus

from statemix.layers import DeltaNet, DeltaProduct
from statemix.layers.chunks import CHUNK_SIZE

LENGTH = CHUNK_SIZE + 5


def reference(layer, x):
    """The equations of the docstring for one sequence x (T, hidden_size)."""
    H, n, K = layer.num_heads, layer.num_householder, layer.head_dim
    V = K * layer.expand_v
    mixed = x @ layer.qkv_proj.weight.T
    if layer.conv_size:
        taps = layer.conv.weight
        past = torch.cat([mixed.new_zeros(len(taps) - 1, mixed.shape[1]), mixed])
        mixed = torch.stack([(taps * past[t : t + len(taps)]).sum(0) for t in range(len(x))])
    q, k, v = silu(mixed).split([H * K, n * H * K, n * H * V], -1)
    q, k, v = q.view(-1, H, K), k.view(-1, n, H, K), v.view(-1, n, H, V)
    q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
    beta = (x @ layer.b_proj.weight.T).sigmoid().view(-1, n, H)
    beta = beta * (2 if layer.allow_neg_eigval else 1)
    S, outputs = [x.new_zeros(K, V) for _ in range(H)], []
    for t in range(len(x)):
        heads = []
        for h in range(H):
            if layer.use_forget_gate:
                step = softplus((x[t] @ layer.a_proj.weight.T)[h] + layer.dt_bias[h])
                S[h] = S[h] * (-layer.A_log[h].exp() * step).exp()
            for j in range(n):
                key, strength = k[t, j, h], beta[t, j, h]
                S[h] = S[h] - strength * torch.outer(key, key) @ S[h]
                S[h] = S[h] + strength * torch.outer(key, v[t, j, h])
            o = S[h].T @ q[t, h] / K**0.5
            heads.append(o / (o.square().mean() + 1e-5).sqrt() * layer.norm_weight)
        o = torch.cat(heads)
        if layer.use_output_gate:
            o = o * silu(x[t] @ layer.g_proj.weight.T)
        outputs.append(o @ layer.out_proj.weight.T)
    return torch.stack(outputs), torch.stack(S)


def drawn(kind=DeltaProduct, seed=0, **options):
    layer = kind(6, num_heads=2, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(seed)
    layer.reset_parameters(generator)
    torch.nn.init.uniform_(layer.norm_weight, 0.5, 1.5, generator=generator)
    return layer


@pytest.mark.parametrize(
    "options",
    [
        {"num_householder": 1},
        {"num_householder": 1, "use_forget_gate": True},
        {"num_householder": 3, "allow_neg_eigval": False, "conv_size": 0},
        {"use_forget_gate": True, "use_output_gate": True, "head_dim": 2, "expand_v": 2},
    ],
)
def test_layer_is_the_recurrence_over_tokens(options):
    length = CHUNK_SIZE + 5 if options.get("num_householder") == 1 else 37
    check_equation(drawn(**options), reference, tokens(1, length))


def test_single_precision_is_accurate_where_keys_repeat():
    """Strengths near 2 on one key: the memory is reflected at every token."""
    exact = drawn(num_householder=1, conv_size=0)
    with torch.no_grad():
        exact.b_proj.weight.abs_()
    x = tokens(1, 1).abs().expand(1, LENGTH, 6) * 5
    layer = DeltaProduct(6, num_heads=2, num_householder=1, conv_size=0)
    layer.load_state_dict(exact.state_dict())
    y, state = layer(x.float())
    torch.testing.assert_close(state.memory.double(), exact(x)[1].memory, rtol=1e-4, atol=2e-5)
    assert torch.isfinite(y).all()


def test_one_update_per_token_is_delta_net():
    net, product = drawn(DeltaNet), drawn(DeltaProduct, num_householder=1)
    x = tokens(2, 9)
    torch.testing.assert_close(net(x), product(x), rtol=0, atol=0)
