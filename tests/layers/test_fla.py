"""Kernels of flash-linear-attention serve the layers' recurrences and agree with ours.

Without a GPU, stand-ins with its arguments and its restrictions take their place.
"""

import sys
from types import ModuleType

import pytest
import torch

from statemix.layers import LAYERS, chunks, fla

HALF = torch.bfloat16
LENGTH = 70


def product(q, k, v, g, beta, num_householder, *, scale, initial_state, output_final_state):
    """S decays once per token, takes n updates, and is read."""
    check_given(q, k, v, initial_state, output_final_state)
    assert k.shape[1] == v.shape[1] == beta.shape[1] == num_householder * q.shape[1]
    assert beta.dtype == torch.float32
    assert g is None or (g.dtype, g.shape) == (torch.float32, q.shape[:3])
    q, k, v = (part.float() for part in (scale * q, k, v))
    k, v, beta = (part.unflatten(1, (-1, num_householder)) for part in (k, v, beta))
    o, S = chunks.delta_rule(q, k, v, beta, g, initial_state)
    return o.to(HALF), S


def check_given(q, k, v, initial_state, output_final_state):
    assert q.dtype == k.dtype == v.dtype == HALF
    assert all(part.is_contiguous() for part in (q, k, v, initial_state))
    assert initial_state.dtype == torch.float32
    assert output_final_state is True


def gated_rule(q, k, v, g, beta, **options):
    return product(q, k, v, g, beta, 1, **options)


def rule(q, k, v, beta, **options):
    return product(q, k, v, None, beta, 1, **options)


def simple_gla(q, k, v, g, *, scale, initial_state, output_final_state):
    check_given(q, k, v, initial_state, output_final_state)
    assert g.dtype == torch.float32
    # Heads share keys and queries.
    C, B = (part[:, :, 0].float() for part in (scale * q, k))
    o, S = chunks.ssd(v.float(), g, B, C, initial_state.mT)
    return o.to(HALF), S.mT


@pytest.fixture
def served(monkeypatch):
    """As on a GPU with flash-linear-attention; the result lists the kernels that were called."""
    called = []
    for module, function in {
        "gated_delta_product": product,
        "gated_delta_rule": gated_rule,
        "delta_rule": rule,
        "simple_gla": simple_gla,
    }.items():

        def serve(*arguments, function=function, module=module, **options):
            called.append(module)
            return function(*arguments, **options)

        found = ModuleType(module)
        setattr(found, f"chunk_{module}", serve)
        monkeypatch.setitem(sys.modules, f"fla.ops.{module}", found)
    real = fla.serves

    def serves(x, dtype, num_keys):
        return real(_OnGpu(x), dtype, num_keys)

    monkeypatch.setattr(fla, "installed", lambda: True)
    monkeypatch.setattr(fla, "serves", serves)
    return called


class _OnGpu:
    is_cuda = True

    def __init__(self, x):
        self.shape = x.shape


LAYERS_SERVED = [
    ("delta_net", {"num_heads": 2}, "delta_rule"),
    ("delta_net", {"num_heads": 2, "use_forget_gate": True, "expand_v": 2}, "gated_delta_rule"),
    (
        "delta_product",
        {"num_heads": 2, "num_householder": 2, "use_forget_gate": True, "use_output_gate": True},
        "gated_delta_product",
    ),
    ("mamba2", {"d_state": 12, "head_dim": 8}, "simple_gla"),
]


def build(name, options, device="cpu"):
    torch.manual_seed(0)
    layer = LAYERS.build(name, hidden_size=32, **options).to(device)
    x = torch.randn(2, LENGTH, 32, device=device)
    return layer, x


def results(layer, x, state=None):
    """Outputs, final state and gradients under autocast, of sequences of unequal lengths."""
    x = torch.cat([x[:1], x[1:, 9:]], 1).requires_grad_()
    cu_seqlens = torch.tensor([0, LENGTH, 2 * LENGTH - 9], device=x.device)
    with torch.autocast(x.device.type, HALF):
        y, final = layer(x, state, cu_seqlens)
    leaves = [x, *layer.parameters()]
    loss = y.float().sin().sum() + sum(part.sin().sum() for part in final)
    return [y, *final, *torch.autograd.grad(loss, leaves)]


def assert_agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        error = (one.float() - other.float()).norm() / other.float().norm()
        assert error < 0.03, error


@pytest.mark.parametrize(("name", "options", "kernel"), LAYERS_SERVED)
def test_layers_hand_over_their_recurrence(served, monkeypatch, name, options, kernel):
    layer, x = build(name, options)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        _, state = layer(x)
    served.clear()
    found = results(layer, x, state)
    assert served == [kernel]
    assert found[0].dtype == HALF
    monkeypatch.setattr(fla, "serves", lambda *_: False)
    assert_agree(found, results(layer, x, state))
    assert served == [kernel]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.skipif(not fla.installed(), reason="flash-linear-attention is not installed")
@pytest.mark.parametrize(("name", "options", "kernel"), LAYERS_SERVED)
def test_its_kernels_agree_with_ours(monkeypatch, name, options, kernel):
    layer, x = build(name, options, "cuda")
    calls = []
    for function in ("delta_rule", "ssd"):
        real = getattr(fla, function)
        monkeypatch.setattr(fla, function, lambda *a, real=real: calls.append(kernel) or real(*a))
    with torch.no_grad(), torch.autocast("cuda", HALF):
        _, state = layer(x)
    found = results(layer, x, state)
    assert calls == [kernel, kernel]
    monkeypatch.setattr(fla, "serves", lambda *_: False)
    assert_agree(found, results(layer, x, state))


def test_they_serve_16_bits_on_a_gpu_and_more_than_one_token(served):
    x = torch.zeros(2, 5, 3)
    assert fla.serves(x, torch.bfloat16, 256)
    assert fla.serves(x, torch.float16, 1)
    assert not fla.serves(x, torch.float32, 16)
    assert not fla.serves(x, torch.bfloat16, 257)
    assert not fla.serves(x[:, :1], torch.bfloat16, 16)
    assert not fla.serves(x[:, :0], torch.bfloat16, 16)
    seen = []
    torch.func.vmap(lambda one: seen.append(fla.serves(x, HALF, 16)) or one)(x)
    assert seen == [False]


def test_they_do_not_serve_on_a_cpu_or_without_the_package(monkeypatch):
    x = torch.zeros(2, 5, 3)
    for is_installed, given in ((True, x), (False, _OnGpu(x))):
        monkeypatch.setattr(fla, "installed", lambda is_installed=is_installed: is_installed)
        assert not fla.serves(given, HALF, 16)


def test_without_the_package_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    assert not fla.installed.__wrapped__()
    assert fla.missing() == "is not installed: pip install 'statemix[peers]'"


@pytest.mark.parametrize(
    "error", [RuntimeError("no driver"), ModuleNotFoundError("no driver", name="einops")], ids=str
)
def test_a_package_that_fails_to_be_imported_says_why(monkeypatch, error):
    def fail(name):
        assert name == "fla.ops"
        raise error

    monkeypatch.setattr(fla.importlib, "import_module", fail)
    assert not fla.installed.__wrapped__()
    assert fla.missing() == "cannot be imported: no driver"
