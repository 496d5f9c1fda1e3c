"""Measurements of trained models: spectra, mixing matrices and gates of their recurrences."""

from statemix.analysis.actions import BlockActions, actions
from statemix.analysis.gates import entropy
from statemix.analysis.inspection import LayerNumbers, Summary, inspected
from statemix.analysis.joint import Joint, joint
from statemix.analysis.mixing import applied, carried, mixing, sizes
from statemix.analysis.recording import Recorded, record
from statemix.analysis.sharpening import GateMap, Sharpening, sharpening, softened
from statemix.analysis.spectra import Spectrum, eigenvalues

__all__ = [
    "BlockActions",
    "GateMap",
    "Joint",
    "LayerNumbers",
    "Recorded",
    "Sharpening",
    "Spectrum",
    "Summary",
    "actions",
    "applied",
    "carried",
    "eigenvalues",
    "entropy",
    "inspected",
    "joint",
    "mixing",
    "record",
    "sharpening",
    "sizes",
    "softened",
]
