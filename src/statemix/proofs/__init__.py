"""Proofs that a trained model is right on words of every length."""

from statemix.proofs.certificate import Certificate, prove
from statemix.proofs.hardening import PrunedModel, can_harden, can_prune, harden, prune
from statemix.proofs.horizon import Horizon, find_horizon
from statemix.proofs.product_search import SearchResult, search
from statemix.proofs.refitting import refit

__all__ = [
    "Certificate",
    "Horizon",
    "PrunedModel",
    "SearchResult",
    "can_harden",
    "can_prune",
    "find_horizon",
    "harden",
    "prove",
    "prune",
    "refit",
    "search",
]
