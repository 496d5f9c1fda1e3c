"""Values with channels: one set of gates for C columns of a block's state."""

import pytest
import torch
from tests.ops.conftest import in_pairs, usable
from torch.func import grad, vmap

from statemix import ops

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SHAPES = {
    "odd sizes": {"length": 7, "blocks": 3, "size": 3, "channels": 5},
    "whole vectors and a rest": {"length": 3, "blocks": 21, "size": 4, "channels": 8},
    "a large block": {"length": 3, "blocks": 2, "size": 9, "channels": 2},
    "blocks of one": {"length": 4, "blocks": 17, "size": 1, "channels": 3},
    "one step": {"length": 1, "channels": 2},
    "one channel": {"channels": 1},
    "no steps": {"length": 0, "channels": 2},
    "no channels": {"channels": 0},
    "packed": {"lengths": (3, 0, 1, 4), "channels": 3},
    "packed, of one channel": {"lengths": (2, 3), "channels": 1},
    "packed, all empty": {"lengths": (0, 0), "channels": 3},
}


COLUMNS = ("values", "initial_state", "d_states", "d_final_state")


def column(p, c):
    """The problem of one channel by itself."""
    return p.replace(**{name: getattr(p, name)[..., c] for name in COLUMNS})


def oracle(p, gate):
    """The outcome of the reference in float64, channel by channel; the gates are shared."""
    exact = p.to(torch.float64)
    channels = range(p.values.shape[-1])
    each = [column(exact, c).outcome(gate, backend="reference") for c in channels]
    if not each:
        return exact.outcome(gate, backend="reference")
    found = {name: torch.stack([one[name] for one in each], -1) for name in each[0]}
    return found | {"d_gates": found["d_gates"].sum(-1)}


@in_pairs(shape=list(SHAPES), gate=list(ops.GATES), dtype=DTYPES, **usable())
def test_states_and_all_gradients_are_those_of_the_equation(
    problem, agree, tolerances_of, shape, gate, dtype, backend
):
    p = problem("blocks", gate=gate, **SHAPES[shape]).to(dtype)
    found = p.outcome(gate, backend=backend)
    assert found["states"].dtype == found["d_gates"].dtype == dtype
    agree(found, oracle(p, gate), tolerances_of(backend, dtype))


@in_pairs(dtype=DTYPES[:3], lengths=[None, (2, 0, 3)], gate=list(ops.GATES), **usable())
def test_one_channel_is_bit_identical_to_none(problem, identical, dtype, lengths, gate, backend):
    p = problem("blocks", blocks=21, lengths=lengths, gate=gate).to(dtype)
    one = p.replace(**{name: getattr(p, name).unsqueeze(-1) for name in COLUMNS})
    found = one.outcome(gate, backend=backend)
    d_gates = found.pop("d_gates")
    expected = p.outcome(gate, backend=backend)
    identical(d_gates, expected.pop("d_gates"))
    identical({name: tensor.squeeze(-1) for name, tensor in found.items()}, expected)


@in_pairs(exponent=[-30, 30], gate=list(ops.GATES), **usable())
def test_gradients_of_large_and_small_values_are_those_of_the_equation(
    problem, agree, exponent, gate, backend
):
    p = problem("blocks", blocks=21, channels=3, gate=gate).to(torch.float32)
    factor = 10.0**exponent
    p = p.replace(values=p.values * factor, initial_state=p.initial_state * factor)
    agree(p.outcome(gate, backend=backend), oracle(p, gate))


def test_given_transitions_serve_all_channels(problem, agree, backend):
    p = problem("blocks", gate="none", channels=3)
    A, b = p.gates[..., :-1], p.values
    states, final = ops.block_scan(A, b, p.initial_state, backend=backend)
    each = [ops.block_scan(A, b[..., c], p.initial_state[..., c]) for c in range(3)]
    wanted = [torch.stack(parts, -1) for parts in zip(*each, strict=True)]
    agree(dict(enumerate((states, final))), dict(enumerate(wanted)))
    h_t, after = ops.block_step(A[:, 0], b[:, 0], p.initial_state, backend=backend)
    agree({"states": h_t.unsqueeze(1)}, {"states": states[:, :1]})
    assert torch.equal(h_t, after)


def test_transforms_see_channels(problem, registered_backend):
    p = problem("blocks", channels=3)
    several = [torch.stack([leaf, 2 * leaf, -leaf]) for leaf in p.leaves]

    def loss(gates, values, state):
        states, final = ops.bd_lru(gates, values, initial_state=state, backend=registered_backend)
        return (states * p.d_states).sum() + (final * p.d_final_state).sum()

    gradient = grad(loss, argnums=(0, 1, 2))
    found = vmap(gradient)(*several)
    for n in range(3):
        expected = gradient(*(one[n] for one in several))
        torch.testing.assert_close(tuple(one[n] for one in found), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"initial_state": (2, 3, 3, 1)}, r"\(N=2, H=3, m=3, C=4\), got \(2, 3, 3, 1\)"),
        ({"values": (2, 7, 3, 2, 4)}, r"gates must have shape \(B=2, T=7, H=3, m=2, m\+1=3\), got"),
        ({"values": (2, 7, 3, 3, 4, 1)}, r"values must have shape \(B, T, H, m\), got \(2, 7"),
        ({"values": (2, 7, 3, 3)}, r"initial_state must have shape \(N=2, H=3, m=3\), got"),
    ],
)
def test_shapes_that_disagree_are_named(problem, changed, message):
    p = problem("blocks", channels=4)
    arguments = {"gates": p.gates, "values": p.values, "initial_state": p.initial_state}
    arguments |= {name: torch.zeros(shape, dtype=torch.float64) for name, shape in changed.items()}
    with pytest.raises(ValueError, match=message):
        ops.bd_lru(**arguments)
    # A state of a step has the channels of its values.
    with pytest.raises(ValueError, match=r"state must have shape \(B=2, H=3, m=3, C=4\), got"):
        ops.bd_lru_step(p.gates[:, 0], p.values[:, 0], p.initial_state[..., 0])
    with pytest.raises(ValueError, match=r"state must have shape \(B=2, H=3, m=3, C=4\), got"):
        ops.block_step(p.gates[:, 0, ..., :-1], p.values[:, 0], p.initial_state[..., :1])
