"""Eigenvalues of the transitions of a recurrence."""

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-6
"""Parts of an eigenvalue, and distances from the unit circle, that are below this count as zero."""


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


@dataclass(frozen=True)
class Spectrum:
    """Many eigenvalues in a few numbers.

    Attributes:
        largest: largest modulus.
        mean: mean modulus.
        negative: share of eigenvalues with a negative real part.
        complex: share of eigenvalues that are not real.
        outside: share of eigenvalues outside the unit circle.
    """

    largest: float
    mean: float
    negative: float
    complex: float
    outside: float

    @classmethod
    def of(cls, found: Tensor) -> "Spectrum":
        """Summarise at least one eigenvalue, of any shape."""
        modulus = found.abs()

        def share(which: Tensor) -> float:
            return float(which.double().mean())

        return cls(
            largest=float(modulus.max()),
            mean=float(modulus.mean()),
            negative=share(found.real < -TOLERANCE),
            complex=share(found.imag.abs() > TOLERANCE),
            outside=share(modulus > 1 + TOLERANCE),
        )
