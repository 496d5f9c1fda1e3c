"""The scan of Mamba: the kernel and the differentiable composition against the recurrence."""

import math

import pytest
import torch

from statemix.ops.cpu import loader
from statemix.ops.selective_scan import selective_scan

# Sequences, tokens, columns and channels.
SHAPES = [
    *((2, 5, 3, 7), (1, 1, 1, 1), (3, 9, 16, 40), (1, 33, 4, 17), (2, 4, 5, 64)),
    *((0, 4, 2, 8), (3, 0, 2, 8), (2, 3, 0, 8)),
]


def arguments(shape, dtype=torch.float64, seed=0):
    batch, length, columns, channels = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(sizes, dtype=torch.float64, generator=generator).to(dtype)

    return (
        normal(batch, length, channels).abs(),
        normal(columns, channels).abs(),
        normal(batch, length, channels),
        normal(batch, length, columns),
        normal(batch, length, columns),
        normal(batch, columns, channels),
    )


def recurrence(steps, rates, inputs, b, c, state):
    """H = exp(-A Delta) * H + b x^T and o = H^T c, token by token."""
    outputs = []
    for t in range(inputs.shape[1]):
        decay = torch.exp(-rates * steps[:, t].unsqueeze(1))
        state = decay * state + torch.einsum("bs,bn->bsn", b[:, t], inputs[:, t])
        outputs.append(torch.einsum("bsn,bs->bn", state, c[:, t]))
    return torch.stack(outputs, 1) if outputs else inputs.clone(), state


def outcome(function, given, seed=1):
    """Outputs, final state, and the gradients of all arguments."""
    leaves = [one.detach().clone().requires_grad_() for one in given]
    results = function(*leaves)
    generator = torch.Generator().manual_seed(seed)
    incoming = [
        torch.randn(one.shape, dtype=torch.float64, generator=generator).to(one) for one in results
    ]
    gradients = torch.autograd.grad(results, leaves, incoming, materialize_grads=True)
    return [one.detach() for one in (*results, *gradients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_scan_and_its_gradients_equal_the_recurrence(shape, dtype):
    given = arguments(shape, dtype)
    expected = outcome(recurrence, [one.double() for one in given])
    error = 1e-5 if dtype == torch.float32 else 1e-12
    for found, wanted in zip(outcome(selective_scan, given), expected, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=error, atol=error)


def test_without_kernels_the_scan_equals_the_recurrence(monkeypatch):
    monkeypatch.setattr(loader, "unavailable", lambda: "none here")
    given = arguments((2, 5, 3, 7))
    expected = outcome(recurrence, given)
    for found, wanted in zip(outcome(selective_scan, given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.kernels
def test_the_kernel_reads_any_layout():
    given = arguments((2, 6, 3, 20))
    expected = outcome(selective_scan, given)
    strided = [one.mT.contiguous().mT for one in given]
    leaves = [one.requires_grad_() for one in strided]
    outputs, final = selective_scan(*leaves)
    found = (outputs, final, *torch.autograd.grad(outputs.mT.sum() + final.sum(), leaves))
    ones = [torch.ones_like(outputs), torch.ones_like(final)]
    leaves = [one.detach().clone().requires_grad_() for one in given]
    gradients = torch.autograd.grad(selective_scan(*leaves), leaves, ones)
    assert all(map(torch.equal, found, (*expected[:2], *gradients)))


@pytest.mark.kernels
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_number_of_threads_changes_no_bit(batch, threads):
    given = arguments((batch, 40, 16, 300), torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = outcome(selective_scan, given)
        torch.set_num_threads(threads)
        found = outcome(selective_scan, given)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, found, expected))


@pytest.mark.kernels
def test_the_kernels_run_only_where_nobody_needs_the_states(monkeypatch):
    calls, run = [], loader.selective_scan

    def counted(parts, tensors):
        calls.append("backward" if "d_outputs" in tensors else "forward")
        run(parts, tensors)

    monkeypatch.setattr(loader, "selective_scan", counted)
    given = arguments((2, 3, 4, 8), torch.float32)
    outcome(selective_scan, given)
    assert calls == ["forward", "backward"]
    selective_scan(*(one.bfloat16() for one in given))
    torch.func.vmap(selective_scan)(*(one.unsqueeze(0) for one in given))
    torch.func.grad(lambda x: selective_scan(*given[:2], x, *given[3:])[0].sum())(given[2])
    selective_scan(*(one.to("meta") for one in given))
    monkeypatch.setattr(loader, "unavailable", lambda: "none here")
    selective_scan(*given)
    assert len(calls) == 2


@pytest.mark.kernels
def test_a_second_derivative_is_refused():
    given = [one.requires_grad_() for one in arguments((1, 3, 2, 4))]
    outputs, _ = selective_scan(*given)
    expected = torch.autograd.grad(outputs.sum(), given[:3], retain_graph=True)
    found = torch.autograd.grad(outputs.sum(), given[:3], create_graph=True)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="the recurrence cannot be differentiated again"):
        torch.autograd.grad(found[2].sum(), given[2])


@pytest.mark.kernels
def test_numbers_that_are_not_finite_stay_in_their_channel():
    given = arguments((1, 4, 3, 20), torch.float32)
    given[2][0, 1, 5] = math.nan
    outputs, final, d_steps, *_ = outcome(selective_scan, given)
    assert outputs.isnan().nonzero().tolist() == [[0, t, 5] for t in (1, 2, 3)]
    assert final.isnan().nonzero()[:, 2].tolist() == [5, 5, 5]
    assert set(d_steps.isnan().nonzero()[:, 2].tolist()) == {5}
