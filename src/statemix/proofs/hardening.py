"""Trained trackers made exact: gates of 0 and 1, and only the blocks that track."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.layers import BDLRU, Layer, State, take_rows
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.layers.state import placement
from statemix.models import ReadoutModel, TokenClassifier
from statemix.ops.layout import at_least_float32
from statemix.proofs.stepping import HARDENED, Stepper, in_evaluation_mode, token_inputs

Model = TypeVar("Model", bound=nn.Module)

# A gap between raw gates becomes larger than every exponent of float32 and of float64.
_TEMPERATURE = 1e-30


ROWS = 256
"""Rows of every step: products of fewer or more rows may be rounded otherwise."""


def fixed_batches(count: int, device: torch.device | str) -> Iterator[tuple[Tensor, int]]:
    """Yield the numbers of rows in batches of ``ROWS``, and how many count: others repeat these."""
    for start in range(0, count, ROWS):
        used = min(ROWS, count - start)
        yield start + torch.arange(ROWS, device=device) % used, used


def gates_and_values(model: nn.Module, layer: BDLRU, num_tokens: int = 0) -> tuple[Tensor, Tensor]:
    """Return the gates and values of every token, and of the learned one at the end.

    The gates must see the token alone. They have shape (tokens, H, rows, m+1), and values
    (tokens, H, m, C), or (tokens, H, m) without channels. ``num_tokens`` is for modules without a
    vocabulary.
    """
    x = token_inputs(model, layer, num_tokens)
    gates, values = [], []
    for rows, used in fixed_batches(len(x), x.device):
        recurrence = layer.recurrence(x[rows].unsqueeze(1))
        assert recurrence.gates is not None
        gates.append(recurrence.gates[:used, 0])
        values.append(recurrence.values[:used, 0])
    return torch.cat(gates), torch.cat(values)


def can_harden(model: nn.Module) -> bool:
    """Return whether a model has gates, all of them of softmax over rows or columns."""
    layers = [part for part in model.modules() if isinstance(part, GatedRecurrence)]
    return bool(layers) and all(layer.gate in HARDENED for layer in layers)


def can_prune(model: nn.Module) -> bool:
    """Return whether the layers of a model are all BD-LRUs."""
    parts = _layers(model)
    return bool(parts) and all(isinstance(part, BDLRU) for part in parts)


def only_layer(model: nn.Module) -> BDLRU | None:
    """Return the BD-LRU of a model that has no other layer; None for another model."""
    parts = _layers(model)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], BDLRU) else None


def _layers(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, TokenClassifier):
        return [block.mixer for block in model.backbone.blocks]
    if isinstance(model, ReadoutModel):
        return []
    return [part for part in model.modules() if isinstance(part, Layer)]


def harden(model: Model) -> Model:
    r"""Return a copy of a model whose gates are 0 or 1.

    .. math:: \lim_{\tau \to 0} \mathrm{softmax}(z / \tau)

    is 1 at the largest raw gate of a row or column and 0 elsewhere. With rows, every entry of a
    state copies one entry, or loads its value, and neither rounds. With columns, every entry of a
    block moves to one entry, or the block is loaded with a value in one entry. Entries that meet
    are added; a state with one entry that is not zero keeps its bytes as it moves, since nothing
    but zeros is added to it. Equal largest gates share the 1. Source: our addition, as the gate
    temperature is.

    Args:
        model: any model.
    """
    hard = copy.deepcopy(model)
    layers = [part for part in hard.modules() if isinstance(part, GatedRecurrence)]
    if not layers:
        raise ValueError("model must have a layer with gates to harden, got none")
    for layer in layers:
        if layer.gate not in HARDENED:
            known = " or ".join(map(repr, HARDENED))
            raise ValueError(f"gate must be {known} to harden, got {layer.gate!r}")
        layer.gate_temperature = _TEMPERATURE
    return hard


class PrunedModel(NamedTuple):
    """A model without the blocks that do not track.

    Attributes:
        model: the model.
        tracking: blocks that were kept. Those of several layers are numbered in the order in which
            the model holds the layers.
        varying: kept blocks whose state differs between states of the automaton.
        num_blocks: blocks that the layers have.
    """

    model: nn.Module
    tracking: tuple[int, ...]
    varying: tuple[int, ...]
    num_blocks: int


@torch.no_grad()
def prune(model: nn.Module, automaton: Automaton) -> PrunedModel:
    """Return a copy of a model that reads from its layers only the blocks that track.

    A block tracks if its state is a function of the automaton's: for every state reached and every
    token that can follow, the block goes bit for bit to where the automaton goes. By induction its
    state then depends on the automaton's state alone, after words of every length. The other blocks
    hold and load zeros, so that nothing is read from them. Layers are pruned in the order in which
    they run: the gates of each layer then depend on the token and on the automaton's state alone.

    Args:
        model: a hardened model whose layers are BD-LRUs.
        automaton: the automaton of the task, with the tokens of the model.
    """
    if not can_prune(model):
        kinds = [type(part).__name__ for part in _layers(model)]
        raise TypeError(f"model must have no layers but BD-LRUs to prune, got {kinds}")
    copied = copy.deepcopy(model).eval()
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    for place, name in enumerate(Stepper.of(copied).layers):
        layer = copied.get_submodule(name)
        assert isinstance(layer, BDLRU)
        tracks, varies = found[layer] = _tracking(copied, automaton, place)
        # Blocks are innermost in the order of the projection.
        layer.value_proj.weight.view(-1, layer.num_blocks, layer.hidden_size)[:, ~tracks] = 0
        if layer.first_state is not None:
            layer.first_state[~tracks] = 0
    tracks, varies = (torch.cat([found[one][n] for one in _layers(copied)]) for n in (0, 1))
    kept, varying = (
        tuple(blocks.nonzero().flatten().tolist()) for blocks in (tracks, tracks & varies)
    )
    return PrunedModel(copied, kept, varying, len(tracks))


def _tracking(model: nn.Module, automaton: Automaton, layer: int) -> tuple[Tensor, Tensor]:
    """Return which blocks of a layer are functions of the automaton's state, and vary."""
    # Automaton's state -> the blocks' states after one word that leads there.
    known: dict[int, Tensor] = {}
    tracks: Tensor | None = None
    for step in walk(model, automaton):
        for blocks, reached in zip(step.after[layer], step.reached.tolist(), strict=True):
            same = _same_bytes(blocks, known.setdefault(reached, blocks))
            tracks = same if tracks is None else tracks & same
    assert tracks is not None, "some token can follow at the start"
    first = next(iter(known.values()))
    same = torch.stack([_same_bytes(first, other) for other in known.values()])
    return tracks, ~same.all(0)


class WalkStep(NamedTuple):
    """Tokens that can follow in one state of an automaton, and where they lead."""

    place: int
    tokens: Tensor
    # States of the automaton after each token.
    reached: Tensor
    # What the readout gets after each, shape (N, width), and the model's state.
    features: Tensor
    after: State


def walk(model: nn.Module, automaton: Automaton, head: str | None = None) -> Iterator[WalkStep]:
    """Step a model by all tokens from every state of an automaton that words lead to.

    In each state the model is as it was after the first word that led there; the empty word leads
    to a state, too, but represents none: what it leaves need not come again.
    """
    stepper, device = Stepper.of(model, head), placement(model)[0]
    tokens = torch.arange(automaton.num_tokens, device=device)
    transitions = torch.tensor(automaton.transitions, device=device)
    known: set[int] = set()
    waiting: list[tuple[int, State | None]] = [(automaton.start, None)]
    while waiting:
        place, before = waiting.pop()
        allowed = transitions[place] != NEVER
        read, reached = tokens[allowed], transitions[place][allowed]
        for rows, used in fixed_batches(len(read), device):
            state = None if before is None else take_rows(before, torch.zeros_like(rows))
            _, features, after = stepper.step(read[rows].unsqueeze(1), state)
            new = rows[:used]
            after = take_rows(after, torch.arange(used, device=device))
            yield WalkStep(place, read[new], reached[new], features[:used], after)
            for row, state_reached in enumerate(reached[new].tolist()):
                if state_reached not in known:
                    known.add(state_reached)
                    waiting.append((state_reached, take_rows(after, torch.tensor([row]).to(new))))


def _same_bytes(state: Tensor, other: Tensor) -> Tensor:
    """Return for each block of states (H, m) or (H, m, C) whether entries have the same bytes."""
    kind = {torch.float32: torch.int32, torch.float64: torch.int64}[state.dtype]
    return (state.contiguous().view(kind) == other.contiguous().view(kind)).flatten(1).all(-1)


# A network of S_4 had nearly equal initial values: 200 were too few for it and 1,000 enough.
_ITERATIONS = 2000


@in_evaluation_mode
def refit(
    model: Model, automaton: Automaton, head: str | None, *, weight_decay: float = 0.0
) -> Model:
    """Return a copy of a pruned model whose readout is fitted again.

    In training, the readout also used blocks that do not track, which pruning has removed. The
    state of the kept blocks is a function of the state of the automaton. The readout therefore has
    finitely many inputs: one for each state and token. It is fitted to all of them by logistic
    regression with L-BFGS, starting from the trained readout. Nothing else changes.

    Args:
        model: the model, as :func:`prune` returns it.
        automaton: the automaton, with the model's tokens.
        head: head to fit.
        weight_decay: factor of the sum of squared weights in the loss.
    """
    copied = copy.deepcopy(model)
    readout = Stepper.of(copied, head).readout_layer
    with torch.no_grad():
        steps = list(walk(copied, automaton, head))
    inputs = torch.cat([step.features for step in steps]).cpu().double()
    outputs = torch.tensor(automaton.outputs)
    answers = torch.cat([outputs[step.place, step.tokens.cpu()] for step in steps])
    has_bias = readout.bias is not None
    shape = readout.in_features, readout.out_features
    fit = nn.Linear(*shape, bias=has_bias, dtype=torch.float64)
    fit.load_state_dict({name: one.double() for name, one in readout.state_dict().items()})
    fit_readout(fit, inputs, answers, weight_decay=weight_decay)
    # An embedding that shares the weight must stay as it is.
    readout.weight = nn.Parameter(fit.weight.detach().to(readout.weight))
    if has_bias:
        readout.bias = nn.Parameter(fit.bias.detach().to(readout.bias))
    return copied


def fit_readout(
    readout: nn.Linear, inputs: Tensor, answers: Tensor, *, weight_decay: float = 0.0
) -> None:
    """Fit a readout of float64 to classes by logistic regression, from the weights that it has.

    Inputs whose class is ``IGNORED`` do not count. ``weight_decay`` is the factor of the sum of
    squared weights in the loss: small weights, whose products rounding moves less, take longer.
    """
    optimizer = torch.optim.LBFGS(
        readout.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(readout(inputs), answers, ignore_index=IGNORED)
        if weight_decay:
            value = value + weight_decay * readout.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]


@dataclass
class GateGaps:
    """Differences between the largest and the second largest raw gate of all rows or columns seen.

    If ``nearest``, the smallest one beyond what rounding can move, is not above 0, another order of
    sums may choose another gate.
    """

    smallest: float = math.inf
    nearest: float = math.inf

    @property
    def finite(self) -> float | None:
        """The smallest difference; None if none was seen."""
        return self.smallest if math.isfinite(self.smallest) else None

    @property
    def doubt(self) -> str:
        """Why another order of sums may choose other gates; empty if none may."""
        if self.nearest > 0:
            return ""
        gates = "two gates of a row or column"
        return f"rounding may swap {gates}, which differ by {self.smallest:.2g}"

    def add(self, gaps: Tensor, moved: Tensor) -> None:
        """Take note of differences, and of how far rounding can move each."""
        if gaps.numel():
            self.smallest = min(self.smallest, float(gaps.min()))
            self.nearest = min(self.nearest, float((gaps - moved).min()))


@contextmanager
def watch_gaps(model: nn.Module, units: Sequence[int] | None = None) -> Iterator[GateGaps]:
    """Watch the raw gates of a model in this context, or those of its units with some numbers.

    Units of several layers, all BD-LRUs, are numbered as in :class:`PrunedModel`.
    """
    gaps, hooks, first = GateGaps(), [], 0
    for layer in (part for part in model.modules() if isinstance(part, GatedRecurrence)):
        chosen = None
        if units is not None:
            assert isinstance(layer, BDLRU)
            last = first + layer.num_blocks
            chosen = [unit - first for unit in units if first <= unit < last]
            first = last
        # Gates that are linear in one channel are rounded alike in every batch.
        if layer.selective is True:
            hook = partial(_note, gaps, layer, chosen)
            hooks.append(layer.gate_proj.register_forward_hook(hook))
    try:
        yield gaps
    finally:
        for handle in hooks:
            handle.remove()


def rounding_of(projection: nn.Linear, x: Tensor) -> Tensor:
    r"""Return how far another order of sums can move what a linear map returns.

    A product of n terms has the error

    .. math:: |\hat z - z| \le k\,u\,(|W|\,|x| + |b|)

    whatever the order of their sum, with the unit roundoff u and k = 2 n + 32 roundings: n of the
    product, and as many of the norm that x comes from. Sums are float32 or wider; a narrower x and
    z are rounded once more each. Errors of the state that x may depend on are not counted. Source:
    our addition; the bound is the usual one of inner products (Higham, "Accuracy and Stability of
    Numerical Algorithms", 3.1).
    """
    bias = None if projection.bias is None else projection.bias.abs()
    sizes = functional.linear(x.abs(), projection.weight.abs(), bias)
    wide = at_least_float32(x.dtype)
    roundings = (2 * projection.in_features + 32) * torch.finfo(wide).eps / 2
    if x.dtype != wide:
        roundings += torch.finfo(x.dtype).eps
    return roundings * sizes


def _note(
    gaps: GateGaps,
    layer: GatedRecurrence,
    units: Sequence[int] | None,
    projection: nn.Linear,
    read: tuple[Any, ...],
    flat: Tensor,
) -> None:
    (x,) = read
    with torch.no_grad():
        moved = rounding_of(projection, x)
        parts = [layer.split_gates(numbers) for numbers in (flat, moved)]
        if units is not None:
            chosen = torch.tensor(units, dtype=torch.int64, device=flat.device)
            parts = [part.index_select(x.ndim - 1, chosen) for part in parts]
        for gates, errors in zip(*(_compared(layer, part) for part in parts), strict=True):
            largest = gates.topk(2, dim=-1).values
            gaps.add(largest[..., 0] - largest[..., 1], 2 * errors.amax(-1))


def _compared(layer: GatedRecurrence, gates: Tensor) -> list[Tensor]:
    """Return gates of which the largest along the last axis becomes 1; there are at least two."""
    if layer.gate != "column_softmax":
        return [gates]
    # A zero stands for the state, beside the input gates.
    inputs = functional.pad(gates[..., -1], (0, 1))
    return [inputs] if gates.shape[-2] == 1 else [inputs, gates[..., :-1].mT]
