"""The repaired published scan equals the definition, in states and every gradient."""

from functools import partial

import pytest
import torch

from statemix import ops

SIZES = [1, 2, 3, 4, 5, 8]
LENGTHS = [0, 1, 2, 3, 16, 37]  # empty, single, even, odd, power of two, ragged
SCANS = {
    "blocks": partial(ops.block_scan, backend="associative"),
    "lags": partial(ops.lag_scan, backend="associative"),
}


def block_loop(transitions, inputs, initial_state):
    h, states = initial_state, [inputs[:, :0]]
    for t in range(inputs.shape[1]):
        h = torch.einsum("bhij,bhj->bhi", transitions[:, t], h) + inputs[:, t]
        states.append(h.unsqueeze(1))
    return torch.cat(states, dim=1), h


def lag_loop(coefficients, inputs, initial_state):
    newest_first = list(initial_state.unbind(-1))
    order = len(newest_first)
    states = [inputs[:, :0]]
    for t in range(inputs.shape[1]):
        h_t = inputs[:, t] + sum(coefficients[:, t, :, i] * newest_first[i] for i in range(order))
        newest_first = [h_t, *newest_first[:-1]]
        states.append(h_t.unsqueeze(1))
    return torch.cat(states, dim=1), torch.stack(newest_first, dim=-1)


LOOPS = {"blocks": block_loop, "lags": lag_loop}


def problem(kind, length, size, *, batch=2, seed=0):
    """Random gates whose rows sum to less than one, so that nothing grows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    if kind == "blocks":
        gates = normal(length, 3, size, size + 1).softmax(-1)[..., :-1]
        return gates, normal(length, 3, size), normal(3, size)
    return normal(length, 3, size + 1).softmax(-1)[..., :-1], normal(length, 3), normal(3, size)


def loss_of(states, final):
    return states.square().sum() + final.sin().sum()


@pytest.mark.parametrize("kind", SCANS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", LENGTHS)
def test_states_and_gradients_match_the_definition(kind, size, length):
    def run(scan):
        leaves = [tensor.requires_grad_() for tensor in problem(kind, length, size)]
        states, final = scan(*leaves)
        grads = torch.autograd.grad(loss_of(states, final), leaves, materialize_grads=True)
        return states, final, *grads

    torch.testing.assert_close(run(SCANS[kind]), run(LOOPS[kind]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", SCANS)
@pytest.mark.parametrize("used", ["states", "final"])
def test_gradients_match_when_only_one_result_is_used(kind, used):
    def run(scan):
        leaves = [tensor.requires_grad_() for tensor in problem(kind, 5, 3)]
        states, final = scan(*leaves)
        return torch.autograd.grad((states if used == "states" else final).sin().sum(), leaves)

    torch.testing.assert_close(run(SCANS[kind]), run(LOOPS[kind]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", SCANS)
def test_gradients_match_finite_differences(kind):
    leaves = [tensor.requires_grad_() for tensor in problem(kind, 4, 2, batch=1)]
    assert torch.autograd.gradcheck(SCANS[kind], leaves)
    assert torch.autograd.gradgradcheck(SCANS[kind], leaves)


@pytest.mark.parametrize("kind", SCANS)
def test_empty_batch_keeps_shapes_and_graph(kind):
    leaves = [tensor.requires_grad_() for tensor in problem(kind, 4, 3, batch=0)]
    states, final = SCANS[kind](*leaves)
    assert states.shape == leaves[1].shape
    assert final.shape == leaves[2].shape
    grads = torch.autograd.grad(loss_of(states, final), leaves)
    assert [grad.shape for grad in grads] == [leaf.shape for leaf in leaves]


@pytest.mark.parametrize("kind", SCANS)
def test_strides_do_not_matter(kind):
    arguments = problem(kind, 7, 3)
    scattered = [tensor.movedim(2, -1).contiguous().movedim(-1, 2) for tensor in arguments[:2]]
    actual = SCANS[kind](*scattered, arguments[2])
    torch.testing.assert_close(actual, SCANS[kind](*arguments), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", SCANS)
def test_vmap_of_gradient_equals_a_loop_over_gradients(kind):
    problems = [problem(kind, 5, 2, seed=seed) for seed in range(3)]
    gradient = torch.func.grad(lambda *leaves: loss_of(*SCANS[kind](*leaves)), argnums=(0, 1, 2))
    stacked = [torch.stack(tensors) for tensors in zip(*problems, strict=True)]
    actual = torch.func.vmap(gradient)(*stacked)
    expected = tuple(map(torch.stack, zip(*(gradient(*p) for p in problems), strict=True)))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
