"""Networks: stacks of layers with an embedding and a readout."""

from statemix.models.synthetic import SyntheticModel

__all__ = ["SyntheticModel"]
