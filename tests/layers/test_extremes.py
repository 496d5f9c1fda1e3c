"""Every layer in float32 with inputs of any size, against the same layer in float64."""

import pytest
import torch
from tests.layers.conftest import tokens

from statemix.layers import FPRNN, Attention, DeltaProduct, FPMamba1, FPMamba2, Mamba2
from statemix.layers.state import tensors

# Rounding may keep iterates in float32 from meeting the tolerance of those in float64.
pytestmark = pytest.mark.filterwarnings("ignore:.*not converged:UserWarning")
SCALES = [1e4, 1e7, 1e9, 1e12, 1e15, 1e18, 1e30]


def limits(layer):
    """The largest inputs for which a layer promises outputs and gradients, as its class says."""
    if isinstance(layer, Mamba2):
        return 1e12, 1e7
    if isinstance(layer, FPRNN):
        return 1e7, 1e4
    if isinstance(layer, (FPMamba1, FPMamba2)):
        return 1e9, 1e4
    if isinstance(layer, Attention):
        return 1e18, 1e9
    if isinstance(layer, DeltaProduct) and layer.use_output_gate:
        # Where a memory is both forgotten and erased, almost nothing is left to normalise.
        vanishes = layer.use_forget_gate and not layer.allow_neg_eigval
        return 1e30, 1e4 if vanishes else 1e15
    return 1e30, 1e30


def scaled(scale):
    return tokens(3, 9, dtype=torch.float32) * scale


def in_both(build):
    single, double = build(torch.float32), build(torch.float64)
    double.load_state_dict(single.state_dict())
    return single, double


def results(layer, x):
    """Outputs and final states of a sequence and of its steps."""
    with torch.no_grad():
        y, state = layer(x)
        outputs, after = [], layer.init_state(len(x))
        for x_t in x.unbind(1):
            y_t, after = layer.step(x_t, after)
            outputs.append(y_t)
    found = {"y": y, "y of steps": torch.stack(outputs, 1)}
    return found | dict(tensors(state)) | dict(tensors(after, "state of steps"))


def gradients(layer, x):
    x = x.clone().requires_grad_()
    y, _ = layer(x)
    d_y = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad(y, [x, *parameters.values()], d_y.to(y.dtype), allow_unused=True)
    return {k: v for k, v in zip(["x", *parameters], found, strict=True) if v is not None}


def check(actual, exact, relative, terms):
    """Check all entries that fit; errors are relative to the tensor, and to the terms added."""
    for name, wanted in exact.items():
        fits = wanted.abs() <= torch.finfo(torch.float32).max
        found, wanted = actual[name].double()[fits], wanted[fits]
        assert found.isfinite().all(), name
        if len(found):
            allowed = relative * float(wanted.abs().max()) + terms[name]
            assert float((found - wanted).abs().max()) <= allowed, name


def promised(most):
    return [scale for scale in SCALES if scale <= most]


def test_large_inputs_equal_double_precision(build_first):
    single, double = in_both(build_first)
    for scale in promised(limits(single)[0]):
        x = scaled(scale)
        exact = results(double, x.double())
        # At 1e4 there are gates that are neither 0 nor 1; a sigmoid has a quarter of the rounding
        # error of its input. At the other scales all gates are saturated.
        gates = torch.finfo(torch.float32).eps * scale / 4 if scale == 1e4 else 0
        check(results(single, x), exact, 1e-4 + gates, dict.fromkeys(exact, 0.0))


def test_gradients_of_large_inputs_equal_double_precision(build):
    single, double = in_both(build)
    for scale in promised(limits(single)[1]):
        x = scaled(scale)
        exact = gradients(double, x.double())
        largest = max(float(part.abs().max()) for name, part in exact.items() if name != "x")
        if isinstance(single, Attention):
            # Where one token wins, the gradient of its score is a difference of equal terms,
            # outputs times their gradients, which multiplies a key or a query.
            largest = scale**3
        terms = {name: 1e-5 * largest / (scale if name == "x" else 1) for name in exact}
        check(gradients(single, x), exact, 1e-2, terms)
