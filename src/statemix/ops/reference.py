"""Backend "reference": the sequential definitions, which judge every other backend."""

from statemix.ops.backends import Backend

REFERENCE = Backend("reference")
"""Its kernels are added by the operators; autograd differentiates them."""
