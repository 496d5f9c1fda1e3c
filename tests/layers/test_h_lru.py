"""HLRU against its equations, written out step by step."""

import itertools

import pytest
import torch

from statemix import ops
from statemix.layers import HLRU

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
GATES = [name for name, family in ops.GATES.items() if not family.blocks_only]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def by_the_equations(layer, x, state):
    """The equations of the class docstring, one channel and one step at a time."""
    H, m = layer.num_channels, layer.order
    raw, values = layer.gate_proj(x), layer.value_proj(x)
    outputs = torch.zeros(*x.shape[:2], layer.hidden_size, dtype=x.dtype)
    final = state.clone()
    for b, c in itertools.product(range(x.shape[0]), range(H)):
        s = list(state[b, c])
        for t in range(x.shape[1]):
            row = torch.stack([raw[b, t, j * H + c] for j in range(m + 1)])
            a, a_0 = ops.normalize(row, layer.gate)
            write = a_0 * values[b, t, c]
            if layer.realization == "controller":
                s = [sum(a[i] * s[i] for i in range(m)) + write, *s[:-1]]
            else:
                after = [*s[1:], torch.zeros((), dtype=x.dtype)]
                s = [a[k] * s[0] + after[k] + (write if k == 0 else 0) for k in range(m)]
            read = s if layer.readout == "lags" else s[:1]
            for k, entry in enumerate(read):
                outputs[b, t] += layer.out_proj.weight[:, k * H + c] * entry
        final[b, c] = torch.stack(s)
    return outputs, final


@pytest.mark.parametrize(("number", "gate"), list(enumerate(GATES * 2)))
def test_layer_computes_its_equations(number, gate):
    realization = ("controller", "observer")[number % 2]
    readout, order = ("lags", "current", "current", "lags")[number % 4], (2, 1, 4)[number % 3]
    options = {"order": order, "gate": gate, "realization": realization, "readout": readout}
    layer = HLRU(5, num_channels=3, dtype=torch.float64, **options)
    layer.reset_parameters(generator())
    x = torch.randn(2, 7, 5, generator=generator(1), dtype=torch.float64)
    state = torch.randn(2, 3, order, generator=generator(2), dtype=torch.float64)
    if gate == "none":
        state = state / 10  # nothing bounds these gates
    with torch.no_grad():
        torch.testing.assert_close(layer(x, state), by_the_equations(layer, x, state), **TIGHT)
