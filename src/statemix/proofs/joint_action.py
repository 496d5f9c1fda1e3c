"""What all blocks that are kept do together, and how that is related to the task."""

from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import NEVER, Automaton
from statemix.models import ReadoutModel
from statemix.proofs import token_maps
from statemix.proofs.column_maps import side_by_side
from statemix.proofs.hardening import harden
from statemix.proofs.token_maps import BlockActions, maps_of, semigroup_order

SemigroupRelation = Literal["isomorphic", "quotient", "cover"]


class JointAction(TypedDict):
    """The semigroup of the maps that words of tokens make of several blocks at once."""

    # Those that track, with those that repeat them; without any, those of role "other".
    blocks: list[int]
    # Number of maps, where a load is a constant; None if there are more than ``most``.
    order: int | None
    most: int
    # Whether the maps are known to form a group.
    group: bool
    # Name of the semigroup of the task, and its number of maps; None without an automaton in which
    # every token can follow every state, or if there are more than ``most``.
    task: str | None
    task_order: int | None
    # What x -> map of x, for every token x, gives between the task and the blocks: "isomorphic";
    # "quotient": the blocks' maps are a quotient of the task's; "cover": the task's are a quotient
    # of the blocks'; None if no such relation is known, or if ``task`` is None.
    relation: SemigroupRelation | None


def join_actions(
    model: ReadoutModel,
    found: Sequence[BlockActions],
    automaton: Automaton | None = None,
    *,
    name: str | None = None,
) -> JointAction | None:
    r"""Compare what the blocks of a model do together with what its task does.

    Each token is a map of the entries of all blocks that are kept, and a map of the states of the
    task. If words that are one map of the task's states are also one map of the entries, the
    latter form a quotient of the former. So the semigroups of both, and that of pairs of both maps,
    tell by their sizes how they are related.

    Args:
        model: the model.
        found: its blocks, as :func:`read_actions` returns them.
        automaton: automaton of the task; only one that lets every token follow every state is
            compared.
        name: name of the task's group, if it is one.

    Returns:
        None if no block does anything.
    """
    blocks = [actions["block"] for actions in found if actions["role"] in ("tracks", "repeats")]
    blocks = blocks or [actions["block"] for actions in found if actions["role"] == "other"]
    if not blocks:
        return None
    sources, places = maps_of(harden(model).cpu()).generators(blocks)
    number = semigroup_order(sources, places)
    joined: JointAction = {
        "blocks": blocks,
        "order": number,
        "most": token_maps.MOST_MAPS,
        "group": all(found[block]["permutes"] for block in blocks),
        "task": None,
        "task_order": None,
        "relation": None,
    }
    # The network may do anything after tokens that cannot follow, which the task maps nowhere.
    if automaton is not None and (automaton.transitions != NEVER).all():
        moves = np.ascontiguousarray(automaton.transitions.T)
        none = np.empty((len(moves), 0), np.int64)
        joined["task_order"] = semigroup_order(none, moves)
        joined["task"] = name or _name(moves, joined["task_order"])
        both = semigroup_order(sources, side_by_side([places, moves]))
        joined["relation"] = _relation(number, joined["task_order"], both)
        # Quotients of a group are groups.
        of_group = joined["relation"] in ("isomorphic", "quotient") and _permute(moves)
        joined["group"] = joined["group"] or of_group
    return joined


def _permute(moves: NDArray[np.int64]) -> bool:
    return bool((np.sort(moves, axis=1) == np.arange(moves.shape[1])).all())


def _name(moves: NDArray[np.int64], number: int | None) -> str:
    """Name a cyclic group of which some token is a generator."""
    none = np.empty((1, 0), np.int64)
    cyclic = _permute(moves) and any(semigroup_order(none, move[None]) == number for move in moves)
    return f"Z_{number}" if cyclic and number is not None else "the task's semigroup"


def _relation(blocks: int | None, task: int | None, both: int | None) -> SemigroupRelation | None:
    if both is None:
        return None
    if both == blocks == task:
        return "isomorphic"
    if both == task:
        return "quotient"
    return "cover" if both == blocks else None
