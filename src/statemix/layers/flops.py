"""The FLOPs of a layer, in three parts."""

from typing import NamedTuple


class Flops(NamedTuple):
    """FLOPs of one token in the forward pass, counted from the layer's equation.

    :mod:`statemix.ops.flops` states how operations are counted; a multiply-add is 2 FLOPs. A
    recurrence counts as its equation, step by step: chunks and parallel scans compute more.

    Attributes:
        projections: products of weight matrices (or kernels of convolutions) with inputs, which all
            tokens of a sequence can compute together.
        transition: update of the state and, if its readout is no weight matrix, the readout; for
            attention, the comparison with every cached token. This is the "FLOPs per recurrent
            step" of Dubinin et al., Table 5, in corrected form: the input of a BD-LRU has as many
            entries as its state, and states of DeltaNet and Mamba-2 are matrices that are also
            read.
        other: everything else: gates and their normalisation, short convolutions, norms.
    """

    projections: int
    transition: int
    other: int

    @property
    def total(self) -> int:
        """Sum of the three parts."""
        return sum(self)
