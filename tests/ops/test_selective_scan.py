"""The scan of Mamba: the kernel and the differentiable composition against the recurrence."""

import math

import pytest
import torch
from tests.ops.conftest import in_pairs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from statemix.ops import selective_scan as selective_scan_module
from statemix.ops.cpu import loader
from statemix.ops.selective_scan import selective_scan

# A backward pass that is the first to multiply on a GPU warns, as it has a thread of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
# Sequences, tokens, columns and channels.
SHAPES = [
    *((2, 5, 3, 7), (1, 1, 1, 1), (3, 9, 16, 40), (1, 33, 4, 17), (2, 4, 5, 64), (1, 7, 3, 300)),
    # None of one kind, and the most columns of the layer.
    *((0, 4, 2, 8), (3, 0, 2, 8), (2, 3, 0, 8), (1, 18, 128, 9)),
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


@pytest.fixture
def device(backend, monkeypatch):
    """The device of a backend, whose kernels run there, even on the CPU in an interpreter.

    "loop" stands for a machine without kernels.
    """
    kernels = {"cpu": selective_scan_module._CPU, "triton": selective_scan_module._TRITON}
    if backend == "loop":
        monkeypatch.setattr(selective_scan_module, "_kernels", lambda *_: None)
        return "cpu"
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    if backend == "triton":
        monkeypatch.setattr(loader, "unavailable", lambda: "none here")
    given = [one.to(device) for one in arguments((1, 1, 1, 1))]
    assert selective_scan_module._kernels(*given) is kernels[backend]
    return device


@in_pairs(backend=["cpu", "triton", "loop"], shape=SHAPES, dtype=[torch.float32, torch.float64])
def test_the_scan_and_its_gradients_equal_the_recurrence(backend, shape, dtype, device):
    given = [one.to(device) for one in arguments(shape, dtype)]
    expected = outcome(recurrence, [one.double() for one in given])
    error = 1e-5 if dtype == torch.float32 else 1e-12
    found = outcome(selective_scan, given)
    assert all(one.dtype == dtype for one in found)
    for one, wanted in zip(found, expected, strict=True):
        most = error * (1 if shape[2] < 128 else 10)
        torch.testing.assert_close(one.double(), wanted, rtol=error, atol=most)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_gradients_of_fast_decays_are_right_to_the_last_digits(backend, device):
    """What has decayed to a ten-millionth of what is written decides the gradient of the steps."""
    given = [one.to(device) for one in arguments((2, 20, 2, 5), torch.float32)]
    given[0], given[1] = given[0] / 4 + 2, given[1] / 4 + 8
    expected = outcome(recurrence, [one.double() for one in given])
    for found, wanted in zip(outcome(selective_scan, given), expected, strict=True):
        error = (found.double() - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-5


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_rates_that_forget_everything(backend, device):
    given = [one.to(device) for one in arguments((1, 3, 2, 4), torch.float32)]
    given[1][0, 2] = math.inf
    expected = recurrence(*given)
    for found, wanted in zip(selective_scan(*given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def scaled(given):
    outputs, final_state, kept = selective_scan_module._CPU.forward(given)
    return outputs * 1.001, final_state, kept


def broken(given):
    raise RuntimeError("PassManager::run failed\nand more")


def negative(*arguments):
    d_steps, *others = selective_scan_module._CPU.backward(*arguments)
    return -d_steps, *others


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"forward": scaled}, r"error of outputs 1\.\de-03, tolerance 1e-04"),
        ({"forward": broken}, "RuntimeError: PassManager::run failed"),
        ({"backward": negative}, "error of d_steps"),
    ],
)
def test_kernels_that_are_wrong_are_not_used_and_the_user_is_told_once(changed, message):
    kernels = selective_scan_module._CPU._replace(**changed)
    with pytest.warns(UserWarning, match=message):
        fault = selective_scan_module._fault(kernels, "cpu")
    assert fault
    assert selective_scan_module._fault(kernels, "cpu") == fault
    # Those that are right pass.
    assert selective_scan_module._fault(selective_scan_module._CPU, "cpu") == ""


@pytest.mark.kernels
def test_the_kernel_reads_any_layout():
    given = arguments((2, 6, 3, 20))
    expected = outcome(selective_scan, given)
    # Negated where they are read.
    strided = [one.mT.contiguous().mT for one in given]
    strided[2] = torch._neg_view(-strided[2])
    leaves = [one.requires_grad_() for one in strided]
    outputs, final = selective_scan(*leaves)
    found = (outputs, final, *torch.autograd.grad(outputs.mT.sum() + final.sum(), leaves))
    ones = [torch.ones_like(outputs), torch.ones_like(final)]
    leaves = [one.detach().clone().requires_grad_() for one in given]
    gradients = torch.autograd.grad(selective_scan(*leaves), leaves, ones)
    assert all(map(torch.equal, found, (*expected[:2], *gradients)))


@pytest.mark.kernels
@pytest.mark.parametrize(("batch", "threads"), [(1, 2), (1, 7), (4, 3)])
def test_the_number_of_threads_changes_no_bit(batch, threads):
    given = arguments((batch, 40, 16, 300), torch.float32)
    expected = outcome(selective_scan, given)
    torch.set_num_threads(threads)
    found = outcome(selective_scan, given)
    assert all(map(torch.equal, found, expected))


@pytest.mark.kernels
def test_the_kernels_run_only_where_nobody_watches(monkeypatch):
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
    graph, others = make_fx(selective_scan)(*given), arguments((2, 3, 4, 8), torch.float32, seed=1)
    torch.testing.assert_close(graph(*others), recurrence(*others))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert selective_scan(*given)[0].shape == (2, 3, 8)
    monkeypatch.setattr(loader, "unavailable", lambda: "none here")
    selective_scan(*given)
    assert len(calls) == 2


def test_tangents_are_refused():
    given = arguments((1, 3, 2, 4))
    with forward_ad.dual_level(), pytest.raises(ValueError, match="must have no tangent"):
        selective_scan(*given[:2], forward_ad.make_dual(given[2], given[2]), *given[3:])


def of_dependent(steps, rates, values, b, initial_state):
    """What is written depends on the steps, and what is read with on what is written with."""
    return selective_scan(steps, rates, steps * values, b, b, initial_state)


@pytest.mark.kernels
def test_differentiable_gradients_count_each_path_once_and_refuse_a_second_derivative():
    steps, rates, values, b, _, initial_state = arguments((1, 3, 2, 4))
    leaves = [one.requires_grad_() for one in (steps, rates, values, b, initial_state)]
    total = of_dependent(*leaves)[0].sum()
    expected = torch.autograd.grad(total, leaves, retain_graph=True)
    found = torch.autograd.grad(total, leaves, create_graph=True)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="the recurrence cannot be differentiated again"):
        torch.autograd.grad(found[2].sum(), leaves[2])


@pytest.mark.parametrize(
    ("number", "change", "error", "message"),
    [
        (3, lambda b: b.float(), TypeError, "b and c and initial_state must share one"),
        (5, lambda state: state[:1], ValueError, r"initial_state must have shape \(B=2"),
        (1, lambda rates: rates.mT, ValueError, "rates must have shape"),
    ],
)
def test_arguments_that_disagree_are_named(number, change, error, message):
    given = list(arguments((2, 5, 3, 7)))
    given[number] = change(given[number])
    with pytest.raises(error, match=message):
        selective_scan(*given)


@pytest.mark.kernels
def test_numbers_that_are_not_finite_stay_in_their_channel():
    given = arguments((1, 4, 3, 20), torch.float32)
    given[2][0, 1, 5] = math.nan
    outputs, final, d_steps, *_ = outcome(selective_scan, given)
    assert outputs.isnan().nonzero().tolist() == [[0, t, 5] for t in (1, 2, 3)]
    assert final.isnan().nonzero()[:, 2].tolist() == [5, 5, 5]
    assert set(d_steps.isnan().nonzero()[:, 2].tolist()) == {5}
