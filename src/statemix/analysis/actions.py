"""The automaton in a hardened BD-LRU: what every token does to the entries of every block."""

from itertools import permutations
from typing import Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from statemix.analysis.hardening import can_harden, can_prune, hardened, pruned
from statemix.layers import BDLRU
from statemix.models import SyntheticModel
from statemix.tasks.automaton import Automaton

LOADS = -1
"""Source of an entry that a token loads."""

# Elements after which a semigroup counts as large; a block of 6 entries can have 823,543.
_MOST_ELEMENTS = 5000
# Those of 500 blocks of 8 under 250 tokens.
_MOST_SOURCES = 1_000_000
# Larger blocks have too many relabellings to try.
_MOST_RELABELLED = 6

Role = Literal["tracks", "repeats", "constant", "idles", "other"]


class BlockActions(TypedDict):
    """What tokens do to one block of the first layer, with every gate set to 0 or 1."""

    block: int
    # "tracks" the task; "repeats" the maps of an earlier block that does, up to the order of the
    # entries; "constant": it holds the same in every state of the task; "idles": no token changes
    # it; "other". Without a task that is an automaton, none tracks or is constant.
    role: Role
    # Block that it repeats; otherwise None.
    repeats: int | None
    # Whether every token only permutes the entries.
    permutes: bool
    # Number of different maps that words of tokens make of the entries; None if there are too many,
    # or if the block does not track.
    order: int | None
    # Token -> entry -> entry that it copies, or -1 if it loads. The learned token is not included.
    sources: list[list[int]]


@torch.no_grad()
def actions(model: SyntheticModel, automaton: Automaton | None = None) -> list[BlockActions]:
    r"""Read off what every token does to the blocks of a model's only layer.

    With gates of 0 and 1, token x lets entry i copy entry :math:`f_x(i)` or load a value. Words
    compose these maps, :math:`f_{xy} = f_x \circ f_y`, where a load stays a load. The maps of all
    words form a semigroup, and a group if every token permutes the entries.

    Args:
        model: a model of one BD-LRU with softmax gates.
        automaton: automaton of the task, by which blocks are judged to track.

    Returns:
        One entry per block; empty for a model of another kind, or with more entries of blocks
        under all tokens than a reader could look at.
    """
    if not (can_harden(model) and can_prune(model)):
        return []
    layer = model.get_submodule("blocks.0.layer")
    assert isinstance(layer, BDLRU)
    if model.vocab_size * layer.num_blocks * layer.block_size > _MOST_SOURCES:
        return []
    hard = hardened(model).cpu()
    tables = _sources(hard)
    kept = None if automaton is None else pruned(hard, automaton)
    tracking, varying = ((), ()) if kept is None else (kept.tracking, kept.varying)
    found: list[BlockActions] = []
    for block, table in enumerate(tables):
        role, repeats = _role(block, tables, [one for one in varying if one <= block])
        if role == "other" and block in tracking:
            role = "constant"
        distinct = {tuple(row) for row in table.tolist()}
        found.append(
            {
                "block": block,
                "role": role,
                "repeats": repeats,
                "permutes": all(sorted(row) == list(range(len(row))) for row in distinct),
                "order": _order(distinct) if role in ("tracks", "repeats") else None,
                "sources": table.tolist(),
            }
        )
    return found


def _sources(hard: SyntheticModel) -> NDArray[np.int64]:
    """Return the source of every entry: shape (blocks, tokens, m)."""
    layer = hard.get_submodule("blocks.0.layer")
    assert isinstance(layer, BDLRU)
    x = hard.get_submodule("blocks.0.norm")(hard.embedding.weight[: hard.vocab_size])
    gates = layer.recurrence(x.unsqueeze(0)).gates
    assert gates is not None
    largest = gates[0].argmax(-1).transpose(0, 1)
    size = largest.shape[-1]
    sources: NDArray[np.int64] = largest.masked_fill(largest == size, LOADS).numpy()
    return sources


def _role(block: int, tables: NDArray[np.int64], tracking: list[int]) -> tuple[Role, int | None]:
    table = tables[block]
    if (table == np.arange(table.shape[1])).all():
        return "idles", None
    if block not in tracking:
        return "other", None
    for earlier in tracking[:-1]:
        if _relabelled(tables[earlier], table):
            return "repeats", earlier
    return "tracks", None


def _relabelled(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Return whether two tables are equal up to the order of the entries."""
    size = one.shape[1]
    # Orders change no number of loads, of fixed entries or of different sources.
    if not np.array_equal(_counts(one), _counts(other)):
        return False
    if size > _MOST_RELABELLED:
        return bool((one == other).all())
    for order in permutations(range(size)):
        # Entry i of the one is entry order[i] of the other.
        names = np.array([*order, LOADS])
        if (names[one] == other[:, list(order)]).all():
            return True
    return False


def _counts(table: NDArray[np.int64]) -> NDArray[np.int64]:
    fixed = (table == np.arange(table.shape[1])).sum(1)
    distinct = [len(set(row)) for row in table.tolist()]
    return np.stack([(table == LOADS).sum(1), fixed, np.array(distinct)])


def _order(generators: set[tuple[int, ...]]) -> int | None:
    """Return the size of the semigroup that maps generate; None if it is large."""
    tables = np.array(sorted(generators))
    known = set(generators)
    waiting = list(generators)
    while waiting and len(known) <= _MOST_ELEMENTS:
        # The last place is that of a load, which stays one.
        taken = np.array([*waiting.pop(), LOADS])
        new = {*map(tuple, taken[tables].tolist())} - known
        known.update(new)
        waiting.extend(new)
    return len(known) if len(known) <= _MOST_ELEMENTS else None
