"""Measurements of trained models: spectra, mixing matrices and gates of their recurrences."""

from statemix.analysis.actions import BlockActions, actions
from statemix.analysis.certificate import Certificate, certify
from statemix.analysis.certified import Certified, certified, load_certified, write_certificate
from statemix.analysis.gates import entropy
from statemix.analysis.hardening import Pruned, hardened, pruned
from statemix.analysis.horizon import Horizon, horizon
from statemix.analysis.inspection import LayerNumbers, Summary, inspected
from statemix.analysis.joint import Joint, joint
from statemix.analysis.mixing import applied, carried, mixing, sizes
from statemix.analysis.recording import Recorded, record
from statemix.analysis.refitting import refitted
from statemix.analysis.sharpening import GateMap, Sharpening, sharpening, softened
from statemix.analysis.spectra import Spectrum, eigenvalues

__all__ = [
    "BlockActions",
    "Certificate",
    "Certified",
    "GateMap",
    "Horizon",
    "Joint",
    "LayerNumbers",
    "Pruned",
    "Recorded",
    "Sharpening",
    "Spectrum",
    "Summary",
    "actions",
    "applied",
    "carried",
    "certified",
    "certify",
    "eigenvalues",
    "entropy",
    "hardened",
    "horizon",
    "inspected",
    "joint",
    "load_certified",
    "mixing",
    "pruned",
    "record",
    "refitted",
    "sharpening",
    "sizes",
    "softened",
    "write_certificate",
]
