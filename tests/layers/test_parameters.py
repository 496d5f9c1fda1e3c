"""Layers whose parameters are mixed, offloaded, replicated, pruned or watched by hooks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from statemix.layers import BDLRU, HLRU, LSTM, DecodeStep, WholeSequence
from statemix.layers.state import tensors


def tokens(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, 8, generator=generator).to(dtype)


def run_all(layer, x):
    """Whole sequences, packed ones and a step: all outputs and states, as a list of tensors."""
    y, state = layer(x)
    packed, last = layer(x[:1], None, torch.tensor([0, 2, x.shape[1]]))
    y_t, after = layer.step(x[:, 0], state)
    states = [part for carried in (state, last, after) for _, part in tensors(carried)]
    return [y, packed, y_t, *states]


def test_some_parameters_stay_in_float32(make):
    layer = make(dtype=torch.bfloat16)
    ordinary = {id(p) for m in layer.modules() if is_ordinary(m) for p in m.parameters(False)}
    for parameter in layer.parameters():
        if id(parameter) not in ordinary:
            parameter.data = parameter.data.float()
    x = tokens(2, 5, dtype=torch.bfloat16)
    outputs = run_all(layer, x)
    assert [y.dtype for y in outputs[:3]] == [torch.bfloat16] * 3
    assert {part.dtype for part in outputs[3:]} == {torch.float32}
    assert {part.dtype for _, part in tensors(layer.init_state(2))} == {torch.float32}
    sum(y.float().sum() for y in outputs).backward()
    with pytest.raises(TypeError, match=r"^x must have the dtype .*bfloat16.*got torch.float32"):
        layer(x.float())


def is_ordinary(module):
    return isinstance(module, nn.Linear | nn.Conv1d | nn.LSTM)


def test_hooks_may_convert_the_input_of_every_module(make):
    """As layers do whose weights are stored in another dtype than the one they compute in."""
    layer = make(dtype=torch.float32)
    expected = run_all(layer, tokens(2, 5))
    stored = copy.deepcopy(layer).bfloat16()
    for module in stored.modules():
        if is_ordinary(module):
            # The input is not in the dtype of the weights until the hook has run.
            module.register_forward_pre_hook(lambda m, _: m.float() and None)
            module.register_forward_hook(lambda m, *_: m.bfloat16() and None)
    for y, like in zip(run_all(stored, tokens(2, 5)), expected, strict=True):
        torch.testing.assert_close(y.float(), like, rtol=0.1, atol=0.1)


def offload(module):
    """Keep the weights of every module on "meta" except while it runs, as accelerate does."""
    for part in module.modules():
        own = dict(part.named_parameters(recurse=False))

        def fetch(part, _, own=own):
            part._parameters.update(own)

        def drop(part, *_, own=own):
            empty = {n: nn.Parameter(p.detach().to("meta"), False) for n, p in own.items()}
            part._parameters.update(empty)

        if own:
            part.register_forward_pre_hook(fetch)
            part.register_forward_hook(drop)
            drop(part)
    return module


def test_offloaded_weights_are_fetched_by_their_modules(make):
    layer, x = make(), tokens(2, 5)
    with torch.no_grad():
        expected = run_all(layer, x)
        torch.testing.assert_close(run_all(offload(layer), x), expected)


def with_own_gates(name, selective):
    """Return a layer that holds the parameters of its gates itself, not in a projection."""
    options = {"selective": selective, "initial_state": "learned", "dtype": torch.float64}
    if name == "bd_lru":
        return BDLRU(8, num_blocks=8, block_size=2, **options)
    return HLRU(8, num_channels=8, order=2, realization=name.removeprefix("h_lru "), **options)


@pytest.fixture(params=["bd_lru", "h_lru controller", "h_lru observer"])
def own_gates(request):
    return lambda selective: with_own_gates(request.param, selective)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_offloaded_gates_are_fetched_in_steps_as_in_sequences(own_gates, mode):
    x = tokens(2, 5, dtype=torch.float64)
    for layer in (own_gates("pointwise"), own_gates(False)):
        with mode():
            expected = run_all(layer, x)
            torch.testing.assert_close(run_all(offload(layer), x), expected)


@pytest.mark.parametrize(
    ("selective", "mode"),
    [(True, torch.inference_mode), ("pointwise", torch.no_grad), (False, torch.enable_grad)],
)
@pytest.mark.parametrize("change", ["before", "after", "replaced"])
def test_hooks_on_the_layer_itself_see_steps(own_gates, selective, mode, change):
    layer = own_gates(selective)
    layer.gate_noise = 1.0  # Steps have none.
    x, state = tokens(2, dtype=torch.float64), torch.ones(2, 8, 2, dtype=torch.float64)
    with mode():
        y, after = layer.step(x, state)
        if change == "before":
            layer.register_forward_pre_hook(lambda _, given: (2 * given[0], *given[1:]))
            expected = copy.deepcopy(layer)
            expected._forward_pre_hooks.clear()
            y, after = expected.step(2 * x, state)
        elif change == "after":
            layer.register_forward_hook(lambda _, given, result: (3 * result[0], result[1]))
            y = 3 * y
        else:
            forward = layer.forward
            layer.forward = lambda *given, **more: [part + 1 for part in forward(*given, **more)]
            y, after = y + 1, after + 1
        torch.testing.assert_close(layer.step(x, state), (y, after))


@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export")
@pytest.mark.parametrize("kind", [WholeSequence, DecodeStep])
def test_an_exported_lstm_uses_the_weights_by_name(kind):
    torch.manual_seed(0)
    layer = LSTM(hidden_size=8)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
        prune.l1_unstructured(layer.lstm, name, 0.3)
    layer.lstm.weight_ih_l0_orig.data.mul_(2)  # as an optimiser step changes it
    call = kind(layer)
    x = tokens(3, 9) if kind is WholeSequence else tokens(3)
    state = torch.zeros(3, 8), torch.zeros(3, 8)
    program = torch.export.export(call, call.inputs(), dynamic_shapes=call.dynamic_shapes())
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x, *state), call(x, *state))


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float16, False), (torch.float16, True), (torch.bfloat16, True)]
)
def test_gradients_in_16_bits_are_finite(make, dtype, autocast):
    layer = make(dtype=torch.float32 if autocast else dtype)
    x = tokens(2, 12, dtype=torch.float32 if autocast else dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        y, _ = layer(x)
    y.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)
