"""Proofs: harden a trained network, search the product automaton, certify the result."""

from statemix.analysis.certificate import Certificate, certify
from statemix.analysis.certified import Certified, certified, load_certified, write_certificate
from statemix.analysis.hardening import Pruned, hardened, pruned
from statemix.analysis.horizon import Horizon, horizon
from statemix.analysis.refitting import refitted

__all__ = [
    "Certificate",
    "Certified",
    "Horizon",
    "Pruned",
    "certified",
    "certify",
    "hardened",
    "horizon",
    "load_certified",
    "pruned",
    "refitted",
    "write_certificate",
]
