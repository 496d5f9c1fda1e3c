"""Proofs that a model is right on words of every length, and searches for wrong words."""

from statemix.place_rules import PlaceRules
from statemix.proofs.certificate import Certificate, prove
from statemix.proofs.certificate_tables import read_tables
from statemix.proofs.entry_machine import EntryMachine
from statemix.proofs.hardening import PrunedModel, can_harden, can_prune, harden, prune, refit
from statemix.proofs.horizon import Horizon, find_horizon
from statemix.proofs.product_search import SearchResult, search
from statemix.proofs.refutation import Refutation, check_word, refute
from statemix.proofs.safety import SafetyProperty, SafetyResult, parse_property, prove_safety
from statemix.proofs.state_machine import StateMachine
from statemix.proofs.structure import prove_by_structure, prove_places, prove_task
from statemix.proofs.token_maps import BlockActions, JointAction, join_actions, read_actions

__all__ = [
    "BlockActions",
    "Certificate",
    "EntryMachine",
    "Horizon",
    "JointAction",
    "PlaceRules",
    "PrunedModel",
    "Refutation",
    "SafetyProperty",
    "SafetyResult",
    "SearchResult",
    "StateMachine",
    "can_harden",
    "can_prune",
    "check_word",
    "find_horizon",
    "harden",
    "join_actions",
    "parse_property",
    "prove",
    "prove_by_structure",
    "prove_places",
    "prove_safety",
    "prove_task",
    "prune",
    "read_actions",
    "read_tables",
    "refit",
    "refute",
    "search",
]
