"""Norms of vectors of every length against float64."""

import pytest
import torch

from statemix.layers.padded import rms_norm, unit_length

LENGTHS = [0.0, 1e-30, 1.0, 1e9, 1e19, 1e37]


def vectors(length, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 5, generator=generator).to(dtype) * length


def exact_unit_length(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def exact_rms_norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def both(function, x, *others):
    """Values, and gradients times the length of the vectors."""
    x = x.clone().requires_grad_()
    y = function(x, *others)
    d_y = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    (d_x,) = torch.autograd.grad(y, x, d_y)
    return y.double(), d_x.double() * x.detach().double().abs().amax().clamp(min=1e-3)


@pytest.mark.parametrize("length", LENGTHS)
def test_vectors_of_any_length_are_divided_by_it(length):
    x, weight = vectors(length), torch.linspace(0.5, 2, 5)
    for function, exact, others in [
        (unit_length, exact_unit_length, ()),
        (rms_norm, exact_rms_norm, (weight,)),
    ]:
        expected = both(exact, x.double(), *(other.double() for other in others))
        torch.testing.assert_close(both(function, x, *others), expected, rtol=1e-5, atol=1e-5)


def test_derivatives_equal_differences():
    x = vectors(1.0, torch.float64).requires_grad_()
    weight = torch.linspace(0.5, 2, 5, dtype=torch.float64, requires_grad=True)
    scale = torch.linspace(0.1, 1, 6, dtype=torch.float64).view(2, 3, 1)
    assert torch.autograd.gradcheck(unit_length, x)
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, scale), (x, weight))
