"""The automaton in a hardened BD-LRU: what every token does to the entries of every block."""

from collections.abc import Sequence
from itertools import permutations
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from statemix.automaton import NEVER, Automaton
from statemix.models import ReadoutModel
from statemix.proofs.certificate_tables import ColumnMaps, read_rules, side_by_side
from statemix.proofs.hardening import can_harden, harden, only_layer, prune
from statemix.proofs.stepping import in_evaluation_mode

LOADS = -1
"""Source of an entry that a token loads."""

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
    # Earliest block with the same maps, up to the order of the entries, among those that track or
    # among those that do not; None if there is none, or if the block idles. Blocks of more than 6
    # entries are compared in the order that they have.
    repeats: int | None
    # Whether every token only permutes the entries.
    permutes: bool
    # Number of different maps that words of tokens make of the entries, where a load is a constant;
    # None if there are too many, or if the block does not track.
    order: int | None
    # Token -> entry -> entry that it copies, or -1 if it loads; with column gates, the entry to
    # which it goes. The learned token is not included.
    sources: list[list[int]]
    # Whether gates are normalised over columns, so that entries go and do not copy.
    moves: bool


@torch.no_grad()
@in_evaluation_mode
def read_actions(model: nn.Module, automaton: Automaton | None = None) -> list[BlockActions]:
    r"""Read off what every token does to the blocks of a model's only layer.

    With gates of 0 and 1, token x lets entry i copy entry :math:`f_x(i)` or load a value. Words
    compose these maps, :math:`f_{xy} = f_x \circ f_y`, where a load stays a load. The maps of all
    words form a semigroup, and a group if every token permutes the entries. With gates of columns,
    token x sends entry j to entry :math:`m_x(j)`, :math:`m_{xy} = m_y \circ m_x`; a load sends all
    entries to one.

    Args:
        model: a model of one BD-LRU with softmax gates over rows or columns.
        automaton: automaton of the task, by which blocks are judged to track. A module that is no
            model of Statemix needs it, as the automaton has the tokens.

    Returns:
        One entry per block; empty for a model of another kind, or with more entries of blocks
        under all tokens than a reader could look at.
    """
    layer = only_layer(model)
    if layer is None or not can_harden(model):
        return []
    if _num_tokens(model, automaton) * layer.num_blocks * layer.block_size > _MOST_SOURCES:
        return []
    hard = harden(model).cpu()
    size, maps = layer.block_size, maps_of(hard, _num_tokens(model, automaton))
    kept = None if automaton is None else prune(hard, automaton)
    tracking, varying = ((), ()) if kept is None else (kept.tracking, kept.varying)
    actions: list[BlockActions] = []
    # Whether blocks track, and their maps -> the first such block.
    first: dict[tuple[bool, bytes], int] = {}
    for block, table in enumerate(maps.shown):
        role: Role = "constant" if block in tracking else "other"
        repeats = order = None
        if (table == np.arange(size)).all():
            role = "idles"
        else:
            earliest = first.setdefault((block in varying, _name(table)), block)
            repeats = None if earliest == block else earliest
            if block in varying:
                role = "tracks" if repeats is None else "repeats"
                order = semigroup_order(*maps.generators([block]))
        actions.append(
            {
                "block": block,
                "role": role,
                "repeats": repeats,
                "permutes": bool((np.sort(table, axis=1) == np.arange(size)).all()),
                "order": order,
                "sources": table.tolist(),
                "moves": isinstance(maps, ColumnMaps),
            }
        )
    return actions


class RowMaps(NamedTuple):
    """What tokens put into the entries of blocks.

    Attributes:
        sources: shape (tokens, blocks, m): number of the entry that is copied, within its block;
            or -1 - v if value v is loaded. All blocks share the numbers of values.
    """

    sources: NDArray[np.int64]

    @property
    def shown(self) -> NDArray[np.int64]:
        """The maps with ``LOADS`` in place of every value, shape (blocks, tokens, m)."""
        return np.maximum(self.sources, LOADS).transpose(1, 0, 2)

    def generators(self, blocks: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the maps of tokens on several blocks as arguments of :func:`semigroup_order`."""
        maps = self.sources[:, list(blocks)]
        tokens, number, size = maps.shape
        first = size * np.arange(number).reshape(-1, 1)
        # The numbers of values come after all entries.
        numbered = np.where(maps < 0, size * number - 1 - maps, maps + first)
        return numbered.reshape(tokens, -1), np.empty((tokens, 0), np.int64)


@torch.no_grad()
def maps_of(hard: nn.Module, num_tokens: int) -> RowMaps | ColumnMaps:
    """Return the maps of a hardened model of one BD-LRU."""
    layer = only_layer(hard)
    assert layer is not None
    if layer.gate == "column_softmax":
        return ColumnMaps.of(hard, num_tokens)
    sources = read_rules(hard, num_tokens).sources.reshape(-1, layer.num_blocks, layer.block_size)
    return RowMaps(np.where(sources < 0, sources, sources % layer.block_size))


def _num_tokens(model: nn.Module, automaton: Automaton | None) -> int:
    if isinstance(model, ReadoutModel):
        return model.backbone.vocab_size
    if automaton is None:
        raise ValueError(f"automaton must be given for a {type(model).__name__}, got None")
    return automaton.num_tokens


def _name(table: NDArray[np.int64]) -> bytes:
    """Return the same bytes for all orders of the entries of a block."""
    size = table.shape[1]
    if size > _MOST_RELABELLED:
        return table.tobytes()
    every = np.array(list(permutations(range(size))))
    together, names = max(1, _MOST_SOURCES // table.size), list[bytes]()
    for start in range(0, len(every), together):
        orders = every[start : start + together]
        # Entry i becomes order[i]. A load, which is the last place, stays one.
        named = np.pad(orders, ((0, 0), (0, 1)), constant_values=LOADS).astype(np.int8)[:, table]
        renamed = np.take_along_axis(named, orders.argsort(1)[:, None], axis=2)
        names.append(min(maps.tobytes() for maps in renamed))
    return min(names)


MOST_MAPS = 5000
"""Maps after which a semigroup counts as large; a block of 6 entries can have 823,543."""


def semigroup_order(
    sources: NDArray[np.int64], moves: NDArray[np.int64] | None = None
) -> int | None:
    r"""Count the different maps that words make; None if there are more than ``MOST_MAPS``.

    A token x copies between entries: entry i then holds what entry :math:`f_x(i)` held. It also
    moves states: q goes to :math:`m_x(q)`. The word xy does what x and then y does,

    .. math:: f_{xy} = f_x \circ f_y, \qquad m_{xy} = m_y \circ m_x.

    Two words make one map if they do the same to all entries and to all states.

    Args:
        sources: f, shape (tokens, entries); a number that is no entry's stands for a constant that
            is loaded, and must not be below the number of entries.
        moves: m, shape (tokens, states); None means that there are no states.
    """
    entries = sources.shape[1]
    tokens = sources if moves is None else np.concatenate([sources, moves], axis=1)
    known: set[bytes] = set()
    elements: list[NDArray[np.int64]] = []

    def added(words: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        new = []
        for word in words:
            name = word.tobytes()
            if name not in known:
                known.add(name)
                new.append(word)
        elements.extend(new)
        return new

    generators: list[NDArray[np.int64]] = []
    for token in tokens:
        # Most elements of a group are words of a few others.
        if token.tobytes() in known:
            continue
        generators.append(token)
        before = np.array([token, *elements])
        new = [*added(token[None]), *added(_then(before, token, entries))]
        while new:
            words, new = np.array(new), []
            for generator in generators:
                new += added(_then(words, generator, entries))
                if len(known) > MOST_MAPS:
                    return None
    return len(known)


def _then(words: NDArray[np.int64], token: NDArray[np.int64], entries: int) -> NDArray[np.int64]:
    """Append a token to words, each given as its sources and moves."""
    source, move = token[:entries], token[entries:]
    copies = source < entries
    copied = np.where(copies, words[:, np.where(copies, source, 0)], source)
    return np.concatenate([copied, move[words[:, entries:]]], axis=1)


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


@in_evaluation_mode
def join_actions(
    model: nn.Module,
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
    sources, places = maps_of(harden(model).cpu(), _num_tokens(model, automaton)).generators(blocks)
    number = semigroup_order(sources, places)
    joined: JointAction = {
        "blocks": blocks,
        "order": number,
        "most": MOST_MAPS,
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
        joined["task"] = name or "the task's semigroup"
        task_order, nothing = joined["task_order"], np.empty((1, 0), np.int64)
        # A cyclic group has a token that generates it.
        orders = (semigroup_order(nothing, move[None]) for move in moves)
        if not name and task_order is not None and _permute(moves) and task_order in orders:
            joined["task"] = f"Z_{task_order}"
        both = semigroup_order(sources, side_by_side([places, moves]))
        if both is not None and both == joined["task_order"]:
            joined["relation"] = "isomorphic" if both == number else "quotient"
        elif both is not None and both == number:
            joined["relation"] = "cover"
        # Quotients of a group are groups.
        of_group = joined["relation"] in ("isomorphic", "quotient") and _permute(moves)
        joined["group"] = joined["group"] or of_group
    return joined


def _permute(moves: NDArray[np.int64]) -> bool:
    return bool((np.sort(moves, axis=1) == np.arange(moves.shape[1])).all())
