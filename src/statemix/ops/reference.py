"""Backend "reference": the sequential definitions that every other backend must match."""

from statemix.ops.backends import Backend

REFERENCE = Backend("reference")
"""The backend's record. The operators add its kernels; autograd differentiates them."""
