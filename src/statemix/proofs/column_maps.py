"""Where tokens send the entries of hardened blocks whose gates are normalised over columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from statemix.layers import BDLRU
from statemix.models import ReadoutModel
from statemix.proofs.fixed_batches import gates_and_values


@dataclass(frozen=True)
class ColumnMaps:
    """What tokens do to blocks that hold their weight in entries and move it.

    A *place* is an entry together with what it holds: the weight of the initial state, or one of
    the values that tokens load.

    Attributes:
        shown: shape (blocks, tokens, m): the entry to which an entry goes. A token that loads the
            block sends all entries to the one that it loads.
        moves: for each block, shape (tokens, places): the place to which a place goes. Places where
            no word leads are left out.
        starts: place of each block before the first token and after the learned one; -1 if it
            holds nothing or several entries.
        holdings: for each block, what it holds in each place, shape (places, m, C) float64.
    """

    shown: NDArray[np.int64]
    moves: list[NDArray[np.int64]]
    starts: list[int]
    holdings: list[NDArray[np.float64]]

    @classmethod
    def of(cls, hard: ReadoutModel) -> Self:
        """Read the maps off a hardened model of one BD-LRU with column gates."""
        layer = hard.backbone.blocks[0].mixer
        assert isinstance(layer, BDLRU)
        gates, loadable = gates_and_values(hard, layer)
        size = layer.block_size
        columns, inputs = gates.tensor_split([size], dim=-2)
        loads = inputs.squeeze(-2).argmax(-1) < size
        entries = inputs.squeeze(-2)[..., :size].argmax(-1)
        leads = columns[..., :size].argmax(-1)
        targets = torch.where(loads[..., None], entries[..., None], leads)
        rows = entries[..., None, None].expand(-1, -1, 1, layer.value_channels)
        values = loadable.gather(-2, rows).squeeze(-2)[loads]
        # NumPy has no bfloat16.
        known, numbers = np.unique(values.double().numpy(), axis=0, return_inverse=True)
        # Places of the initial state come first, then those of every value.
        held = torch.arange(0, size * (len(known) + 1), size)
        moves = (targets[..., None, :] + held.unsqueeze(-1)).flatten(-2).numpy()
        loaded = loads.numpy()
        first = size * (1 + numbers.reshape(-1)) + entries[loads].numpy()
        moves[loaded] = first[:, None]
        initial = layer.init_state(1)[0].double().numpy().reshape(layer.num_blocks, size, -1)
        vocabulary = hard.backbone.vocab_size
        followed, starts, holdings = [], [], []
        for block, first_state in enumerate(initial):
            begin = np.asarray(first_state.any(1))
            begun, reached = _reached(moves[:, block], loaded[:, block], begin, vocabulary)
            renumbered = np.cumsum(reached) - 1
            followed.append(renumbered[moves[:vocabulary, block][:, reached]])
            starts.append(int(renumbered[begun][0]) if begun.sum() == 1 else -1)
            places = np.flatnonzero(reached)
            contents = np.concatenate([first_state.sum(0, keepdims=True), known])
            holdings.append(np.eye(size)[places % size][..., None] * contents[places // size, None])
        return cls(targets[:vocabulary].transpose(0, 1).numpy(), followed, starts, holdings)

    def generators(self, blocks: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the maps of tokens on several blocks as arguments of ``semigroup_order``."""
        moves = side_by_side([self.moves[block] for block in blocks])
        return np.empty((len(moves), 0), np.int64), moves


def side_by_side(moves: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return moves of several sets of places, (tokens, n) each, as moves of all their places."""
    firsts = np.cumsum([0, *(table.shape[1] for table in moves[:-1])])
    return np.concatenate([table + n for table, n in zip(moves, firsts, strict=True)], axis=1)


def _reached(
    moves: NDArray[np.int64], loads: NDArray[np.bool_], begin: NDArray[np.bool_], vocabulary: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which places are held before the first token, and in words of all lengths.

    Moves have shape (tokens, places), and a learned token comes behind those of the vocabulary.
    ``loads`` tells which tokens load the block, ``begin`` which entries hold something at first.
    """
    begun = np.zeros(moves.shape[1], dtype=bool)
    begun[: len(begin)] = begin
    if len(moves) > vocabulary:
        begun = _after(moves[vocabulary:], loads[vocabulary:], begun)
    reached, before = begun, None
    while before is None or (reached != before).any():
        before = reached
        reached = before | _after(moves[:vocabulary], loads[:vocabulary], before)
    return begun, reached


def _after(
    moves: NDArray[np.int64], loads: NDArray[np.bool_], reached: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which places hold something after one of these tokens."""
    after = np.zeros_like(reached)
    after[moves[:, reached]] = True
    after[moves[loads, 0]] = True
    return after
