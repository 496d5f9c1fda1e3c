"""The recurrences of a model on some tokens: transitions, gates, and what they add up to."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statemix.layers import Layer, Recurrence

TOLERANCE = 1e-6
"""Parts of an eigenvalue, and distances from the unit circle, that are below this count as zero."""


@dataclass(frozen=True)
class Recorded:
    """A sequence layer of a model by its dotted name, and its input (B, T, hidden_size).

    T exceeds the number of tokens by those that the model itself prepends.
    """

    name: str
    layer: Layer
    x: Tensor

    def recurrence(self) -> Recurrence | None:
        """Return the layer's recurrence on this input, detached; None if it runs none."""
        with torch.no_grad():
            return self.layer.recurrence(self.x)


def record(model: nn.Module, tokens: Tensor) -> list[Recorded]:
    """Run a model on tokens (B, T) and return its sequence layers; it stays in evaluation mode."""
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Layer)}
    inputs: dict[str, Tensor] = {}

    def noting(name: str) -> Any:
        def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs[name] = arguments[0].detach()

        return note

    hooks = [layer.register_forward_pre_hook(noting(name)) for name, layer in layers.items()]
    try:
        model.eval()
        with torch.no_grad():
            model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return [Recorded(name, layers[name], inputs[name]) for name in layers if name in inputs]


def eigenvalues(transitions: Tensor) -> Tensor:
    r"""Return the eigenvalues of every transition, those of the largest modulus first.

    .. math:: \det(\lambda I - A_t) = 0

    Source: Dubinin et al., Figure 7. For companion matrices (H-LRU) these are the roots of the
    polynomial in their footnote 2.

    Args:
        transitions: A, shape (..., m, m).

    Returns:
        Shape (..., m), complex128; NaN where a matrix is not finite. An eigenvalue of multiplicity
        k is known to about 1e-16^(1/k), whatever the method.
    """
    matrices = transitions.detach().double()
    finite = matrices.isfinite().all(-1).all(-1)
    found = torch.linalg.eigvals(torch.where(finite[..., None, None], matrices, 0.0))
    found = torch.where(finite[..., None], found, torch.nan)
    order = found.abs().argsort(dim=-1, descending=True, stable=True)
    return found.gather(-1, order)


def spectrum(found: Tensor) -> dict[str, float]:
    """Return the largest and the mean modulus of some eigenvalues, and shares of three kinds."""
    modulus = found.abs()
    return {
        "largest": float(modulus.max()),
        "mean": float(modulus.mean()),
        "negative": float((found.real < -TOLERANCE).double().mean()),
        "complex": float((found.imag.abs() > TOLERANCE).double().mean()),
        "outside": float((modulus > 1 + TOLERANCE).double().mean()),
    }


def entropy(gates: Tensor) -> Tensor:
    r"""Return the entropy of each row of gates, in units of the largest possible one.

    .. math:: -\frac{1}{\ln(m + 1)} \sum_j p_j \ln p_j, \qquad p_j = |a_j| / \sum_k |a_k|

    A row of 0 copies one entry of the state, or its input; a row of 1 averages all of them. A row
    of zeros has 0. Gates have the shape (..., m+1), and entropies (...) in float64.
    """
    weights = gates.detach().double().abs()
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    largest = torch.tensor(float(gates.shape[-1]), dtype=weights.dtype, device=weights.device).log()
    found: Tensor = torch.special.entr(shares).sum(-1) / largest
    return found


def mixing(recurrence: Recurrence) -> Tensor:
    r"""Return the matrices by which inputs contribute to states.

    .. math::
        h_t = \bar A_{t,0} h_0 + \sum_{s=1}^t \bar A_{t,s} v_s, \qquad
        \bar A_{t,s} = A_t A_{t-1} \cdots A_{s+1} B_s

    Source: Dubinin et al., Appendix H, Eq. 24, with states in place of outputs (C = 1). The factors
    printed above it have indices that are one too small: A_2, not A_1, acts on the input at s = 1.

    Args:
        recurrence: a recurrence over T steps.

    Returns:
        Shape (B, T, T, H, m, R), the time t of the state before the time s of the input; zero where
        s > t. Its memory grows as T^2: take a few units and sequences with :func:`part` first.
    """
    A, B = recurrence.transitions, recurrence.input_maps
    batch, length, units, size, values = B.shape
    found = B.new_zeros(batch, length, length, units, size, values)
    for t in range(length):
        if t > 0:
            # Everything that the state before holds passes through the transition of this step.
            found[:, t, :t] = A[:, t].unsqueeze(1) @ found[:, t - 1, :t]
        found[:, t, t] = B[:, t]
    return found


def carried(recurrence: Recurrence) -> Tensor:
    """Return what the initial state contributes: A_t ... A_1 h_0, shape (B, T, H, m, P)."""
    A, h = recurrence.transitions, recurrence.initial_state
    found = h.new_zeros(*A.shape[:4], h.shape[-1])
    for t in range(A.shape[1]):
        found[:, t] = h = A[:, t] @ h
    return found


def applied(matrices: Tensor, values: Tensor) -> Tensor:
    """Return the states (B, T, H, m, P) that follow from inputs (B, T, H, R, P).

    ``matrices`` is the result of :func:`mixing`; :func:`carried` is no part of the states.
    """
    return torch.einsum("btshmr,bshrp->bthmp", matrices, values)


def sizes(matrices: Tensor) -> Tensor:
    """Return the largest change of an entry of the state by inputs of at most 1."""
    return matrices.abs().sum(-1).amax(-1)


def part(recurrence: Recurrence, sequences: slice, units: list[int] | slice) -> Recurrence:
    """Return the recurrence of some sequences and units."""
    A, B, v, initial_state, gates, unit = recurrence
    return Recurrence(
        A[sequences][:, :, units],
        B[sequences][:, :, units],
        v[sequences][:, :, units],
        initial_state[sequences][:, units],
        None if gates is None else gates[sequences][:, :, units],
        unit,
    )
