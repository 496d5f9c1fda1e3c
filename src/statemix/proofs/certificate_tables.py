"""The integer tables of a certificate, which a program without PyTorch can check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.layers import BDLRU
from statemix.layers.state import placement
from statemix.proofs.check_certificate import digest, step
from statemix.proofs.hardening import ROWS, fixed_batches, gates_and_values, only_layer
from statemix.proofs.stepping import Stepper, in_evaluation_mode

# Integers of a file of about 30 MB.
_MOST_NUMBERS = 10_000_000
# Steps, of a pair by a letter, that are followed together.
_STEPS_AT_ONCE = 4096

Pair = tuple[tuple[int, ...], int]


@torch.no_grad()
@in_evaluation_mode
def read_tables(network: nn.Module, automaton: Automaton, head: str) -> dict[str, Any] | str:
    """Read off what each token does to the entries of a proven network, and all of its answers.

    ``docs/certificates.md`` describes the tables. Every entry of the tables is compared with a step
    of the network, up to the sign of zeros.

    Args:
        network: a network with gates of 0 and 1.
        automaton: the automaton that it is proven to follow.
        head: head that answers.

    Returns:
        The tables as JSON data; or the reason why there are none.
    """
    layer = only_layer(network)
    if layer is None:
        return "the network is not one BD-LRU layer"
    stepper = Stepper.of(network, head)
    registers = _registers(network, layer, automaton.num_tokens)
    first, letters = registers.start, registers.letters
    # Rows of answers by the state that gives them.
    answers: dict[tuple[int, ...], list[int]] = {}
    known: set[Pair] = {(first, automaton.start)}
    level = list(known)
    while level:
        steps = [
            (pair, letter)
            for pair in level
            for letter in np.flatnonzero(automaton.transitions[pair[1]] != NEVER).tolist()
        ]
        level = []
        for begin in range(0, len(steps), _STEPS_AT_ONCE):
            part = steps[begin : begin + _STEPS_AT_ONCE]
            before = [state for (state, _), _ in part]
            after = [step(state, letters[letter]) for (state, _), letter in part]
            tokens = [letter for _, letter in part]
            given = _answers(stepper, layer, before, after, tokens, registers)
            if given is None:
                return "a step of the network is no copy of entries and values"
            # The first letters are read from the very beginning, too.
            from_start = stepper, layer, None, after, tokens, registers
            if set(before) == {first} and given != _answers(*from_start):
                return "the network does not begin in one entry of each block"
            for state, answer, ((_, task_state), letter) in zip(after, given, part, strict=True):
                row = answers.setdefault(state, [-1] * automaton.num_tokens)
                if automaton.outputs[task_state, letter] != IGNORED:
                    row[letter] = answer
                pair = state, int(automaton.transitions[task_state, letter])
                if pair not in known:
                    known.add(pair)
                    level.append(pair)
            if (len(answers) + len(letters)) * (len(first) + len(letters)) > _MOST_NUMBERS:
                return f"they would have more than {_MOST_NUMBERS:,} numbers"
    tables = {
        "format": 1,
        "values": registers.num_values,
        "start": list(first),
        "letters": letters,
        "states": [list(state) for state in answers],
        "answers": list(answers.values()),
        "automaton": automaton_table(automaton),
    }
    return {**tables, "sha256": digest(tables)}


def automaton_table(automaton: Automaton) -> dict[str, Any]:
    """Return an automaton as JSON data; an output that nobody checks is -1."""
    outputs = np.where(automaton.outputs == IGNORED, -1, automaton.outputs)
    return {
        "start": int(automaton.start),
        "transitions": automaton.transitions.tolist(),
        "outputs": outputs.tolist(),
    }


class _Registers(NamedTuple):
    """A state as a tuple of numbers, one for each register, before the first letter ``start``.

    With gates of rows, a register is an entry, and its number, below ``num_values``, that of the
    value it holds. With gates of columns, a register is a block, and its number that of its
    holding: an entry, with what the block holds there. ``letters`` are as certificates hold them.
    ``decode`` maps states (N, registers) to those of the layer, (N, entries, C) float64.
    """

    start: tuple[int, ...]
    letters: list[list[Any]]
    num_values: int
    decode: Callable[[NDArray[np.int64]], NDArray[np.float64]]


def _registers(network: nn.Module, layer: BDLRU, num_tokens: int) -> _Registers:
    if layer.gate != "column_softmax":
        start, sources, values = read_rules(network, num_tokens)
        held = tuple(start.tolist())
        return _Registers(held, sources.tolist(), len(values), lambda states: values[states])
    maps = ColumnMaps.of(network, num_tokens)
    blocks = [block for block, start in enumerate(maps.starts) if start >= 0]
    num_values = max((len(maps.holdings[block]) for block in blocks), default=1)

    def table(block: int, letter: int) -> list[int]:
        moves = maps.moves[block][letter].tolist()
        # All tables have one length; no state has the numbers at the end.
        return [*moves, *range(len(moves), num_values)]

    def decode(states: NDArray[np.int64]) -> NDArray[np.float64]:
        shape = len(states), layer.num_blocks, layer.block_size, layer.value_channels
        held = np.zeros(shape)
        for register, block in enumerate(blocks):
            held[:, block] = maps.holdings[block][states[:, register]]
        return held.reshape(len(states), -1, layer.value_channels)

    letters = [[table(block, token) for block in blocks] for token in range(num_tokens)]
    return _Registers(tuple(maps.starts[n] for n in blocks), letters, num_values, decode)


@dataclass(frozen=True)
class ColumnMaps:
    """What tokens do to blocks that hold their weight in entries and move it.

    A *holding* is an entry together with what it holds: the weight of the initial state, or one of
    the values that tokens load.

    Attributes:
        shown: shape (blocks, tokens, m): the entry to which an entry goes. A token that loads the
            block sends all entries to the one that it loads.
        moves: for each block, shape (tokens, holdings): the holding to which a holding goes.
            Holdings where no word leads are left out.
        starts: holding of each block before the first token and after the learned one; -1 if it
            holds nothing or several entries.
        holdings: for each block, its state with each holding, shape (holdings, m, C) float64.
    """

    shown: NDArray[np.int64]
    moves: list[NDArray[np.int64]]
    starts: list[int]
    holdings: list[NDArray[np.float64]]

    @classmethod
    def of(cls, hard: nn.Module, vocabulary: int) -> Self:
        """Read the maps of the tokens off a hardened model of one BD-LRU with column gates."""
        layer = only_layer(hard)
        assert layer is not None
        gates, loadable = gates_and_values(hard, layer, vocabulary)
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
        # Holdings of the initial state come first, then those of every value.
        held = torch.arange(0, size * (len(known) + 1), size)
        moves = (targets[..., None, :] + held.unsqueeze(-1)).flatten(-2).numpy()
        loaded = loads.numpy()
        first = size * (1 + numbers.reshape(-1)) + entries[loads].numpy()
        moves[loaded] = first[:, None]
        initial = layer.init_state(1)[0].double().numpy().reshape(layer.num_blocks, size, -1)
        followed, starts, holdings = [], [], []
        for block, first_state in enumerate(initial):
            begin = np.asarray(first_state.any(1))
            begun, reached = _reached(moves[:, block], loaded[:, block], begin, vocabulary)
            renumbered = np.cumsum(reached) - 1
            followed.append(renumbered[moves[:vocabulary, block][:, reached]])
            starts.append(int(renumbered[begun][0]) if begun.sum() == 1 else -1)
            kept = np.flatnonzero(reached)
            contents = np.concatenate([first_state.sum(0, keepdims=True), known])
            holdings.append(np.eye(size)[kept % size][..., None] * contents[kept // size, None])
        return cls(targets[:vocabulary].transpose(0, 1).numpy(), followed, starts, holdings)

    def generators(self, blocks: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the maps of tokens on several blocks as arguments of ``semigroup_order``."""
        moves = side_by_side([self.moves[block] for block in blocks])
        return np.empty((len(moves), 0), np.int64), moves


def side_by_side(moves: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return moves of several sets of holdings, (tokens, n) each, as moves of all of them."""
    firsts = np.cumsum([0, *(table.shape[1] for table in moves[:-1])])
    return np.concatenate([table + n for table, n in zip(moves, firsts, strict=True)], axis=1)


def _reached(
    moves: NDArray[np.int64], loads: NDArray[np.bool_], begin: NDArray[np.bool_], vocabulary: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which holdings occur before the first token, and in words of all lengths.

    Moves have shape (tokens, holdings), and a learned token comes behind those of the vocabulary.
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
    """Return which holdings occur after one of these tokens."""
    after = np.zeros_like(reached)
    after[moves[:, reached]] = True
    after[moves[loads, 0]] = True
    return after


class EntryRules(NamedTuple):
    """What tokens do to the entries of a network with gates of 0 and 1.

    Attributes:
        start: number of the value in each entry before the first token, shape (entries,).
        sources: for each token and entry, shape (tokens, entries): the entry that is copied, or
            -1 - v if value v is loaded.
        values: the values, one for each channel, shape (values, C) float64.
    """

    start: NDArray[np.int64]
    sources: NDArray[np.int64]
    values: NDArray[np.float64]


@torch.no_grad()
def read_rules(network: nn.Module, num_tokens: int) -> EntryRules:
    """Read the rules of the tokens off a network of one BD-LRU with gates of rows."""
    layer = only_layer(network)
    assert layer is not None
    gates, loadable = gates_and_values(network, layer, num_tokens)
    sources: NDArray[np.int64] = gates.argmax(-1).cpu().numpy()
    size = layer.block_size
    copied = sources + size * np.arange(layer.num_blocks)[:, None]
    loaded = _rows(loadable, sources.size)
    initial = _rows(layer.init_state(1), layer.num_blocks * size)
    loads = (sources == size).ravel()
    values, numbers = np.unique(
        np.concatenate([initial, loaded[loads]]), axis=0, return_inverse=True
    )
    numbers = numbers.reshape(-1)  # NumPy 2.0 keeps the axis of channels.
    flat = copied.ravel()
    flat[loads] = -1 - numbers[len(initial) :]
    rules = flat.reshape(len(sources), -1)
    start = numbers[: len(initial)]
    if len(rules) > num_tokens:
        # The learned token is the last one.
        start = np.array(step(tuple(start.tolist()), rules[-1].tolist()))
    return EntryRules(start, rules[:num_tokens], values)


def _rows(values: Tensor, count: int) -> NDArray[np.float64]:
    """Return a row for each entry, without negative zeros."""
    rows: NDArray[np.float64] = values.double().cpu().numpy().reshape(count, -1) + 0.0
    return rows


def _answers(
    stepper: Stepper,
    layer: BDLRU,
    before: list[tuple[int, ...]] | None,
    after: list[tuple[int, ...]],
    letters: list[int],
    registers: _Registers,
) -> list[int] | None:
    """Step the network; return its answers, or None if it does not reach the states ``after``."""
    like, old, device = layer.init_state(1), None, placement(stepper.model)[0]
    if before is not None:
        held = torch.from_numpy(registers.decode(np.array(before, dtype=np.int64)))
        old = held.to(like).reshape(-1, *like.shape[1:])
    tokens = torch.tensor(letters, device=device).unsqueeze(1)
    expected = registers.decode(np.array(after, dtype=np.int64)).reshape(len(after), -1)
    answers: list[int] = []
    for rows, used in fixed_batches(len(letters), device):
        state = None if old is None else (old[rows],)
        logits, _, (reached,) = stepper.step(tokens[rows], state)
        if not np.array_equal(_rows(reached, ROWS), expected[rows.cpu().numpy()]):
            return None
        answers += logits[:used].argmax(-1).tolist()
    return answers
