"""Lengths up to which soft gates answer as hard ones do."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from statemix.layers import BDLRU, State, take_rows
from statemix.models import SyntheticModel
from statemix.ops.layout import join_units
from statemix.tasks.automaton import NEVER, Automaton
from statemix.tasks.task import IGNORED

# A weighted mean of m+1 terms, and each of its weights, is rounded so many times at most beyond m;
# a sum of n products so many times beyond n.
_ROUNDINGS = 16


@torch.no_grad()
def horizon(
    soft: SyntheticModel,
    hard: SyntheticModel,
    automaton: Automaton,
    head: str,
    tracking: Sequence[int],
) -> int | None:
    r"""Return the number of tokens up to which a soft tracker is proven to answer as a hard one.

    Both have the same weights; the hard one is proven, and its state is a function of the
    automaton's. As the rows of its gates sum to 1, a step makes no error of the state larger. With
    e the largest L1 distance of a soft row of gates and its hard one, and V the largest value,

    .. math:: |h_t^{soft} - h_t^{hard}|_\infty \le t\,(e + u)\,V,

    where u bounds the rounding of a step. The answer i holds against the class j as long as this is
    below

    .. math:: \frac{c \cdot z + r\,(b_i - b_j)}
        {\lVert c^T W_y \rVert_1 + |b_i - b_j|\, \lVert W_y \rVert_{\infty \to 2} / \sqrt{d}}

    with z what the last norm reads, r its root mean square, c the difference of the two rows of the
    readout, times the norm's gain, and b its biases. T is the smallest of these bounds over all
    answers and classes, divided by (e + u) V. The numerator is diminished by the rounding of the
    readout. Projections of tokens are assumed to be rounded alike in every batch. Source: our
    addition.

    Args:
        soft: a model of one BD-LRU with softmax gates and without a channel mixer.
        hard: the same model with hard gates, of which only ``tracking`` blocks are not zero.
        automaton: the automaton for which ``hard`` is proven.
        head: head that answers.
        tracking: blocks that track, as :func:`pruned` returns them.

    Returns:
        The number of tokens; None if the model is of another kind, or the gates of all tracking
        blocks equal the hard ones, so that both models are the same.
    """
    layer, hard_layer = _only_layer(soft), _only_layer(hard)
    if layer is None or hard_layer is None:
        return None
    gates, values = _constants(soft, layer)
    hard_gates, _ = _constants(hard, hard_layer)
    used = torch.zeros(layer.num_blocks, dtype=torch.bool)
    used[list(tracking)] = True
    distance = float((gates - hard_gates)[:, used].abs().sum(-1).max()) if tracking else 0.0
    if distance == 0:
        return None
    largest = float(values.abs().max())
    if layer.learned_state is not None:
        largest = max(largest, float(layer.learned_state[used].abs().max()))
    rounding = (layer.block_size + _ROUNDINGS) * torch.finfo(values.dtype).eps / 2
    error = (distance + rounding) * largest
    slack = _slack(_Readout.of(hard, hard_layer, head, used), hard, hard_layer, automaton)
    if error == 0:
        return None
    # The last step stays below the bound, and the learned token is a step of its own.
    return max(0, math.ceil(min(slack / error, 2.0**62)) - 1 - hard.bos)


def _only_layer(model: SyntheticModel) -> BDLRU | None:
    if len(model.blocks) != 1 or model.get_submodule("blocks.0").mixer is not None:
        return None
    layer = model.get_submodule("blocks.0.layer")
    return layer if isinstance(layer, BDLRU) and layer.gate == "softmax" else None


def _constants(model: SyntheticModel, layer: BDLRU) -> tuple[Tensor, Tensor]:
    """Return the gates (tokens, H, m, m+1) and values (tokens, H, m) of every token."""
    x = model.get_submodule("blocks.0.norm")(model.embedding.weight)
    recurrence = layer.recurrence(x.unsqueeze(0))
    assert recurrence.gates is not None
    return recurrence.gates[0], recurrence.values[0].squeeze(-1)


def _slack(read: "_Readout", model: SyntheticModel, layer: BDLRU, automaton: Automaton) -> float:
    """Return an error of the state that changes no answer."""
    slack = math.inf
    out = layer.out_proj.weight.double()
    for tokens, answers, states in _answers(model, automaton):
        h = join_units(states).double()
        z, size = h @ out.T, h.abs() @ out.abs().T
        if model.get_submodule("blocks.0").residual:
            x = model.embedding(tokens).double()
            z, size = z + x, size + x.abs()
        slack = min(slack, read.slack(z, size, answers))
    return slack


def _answers(
    model: SyntheticModel, automaton: Automaton
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the tokens, answers and states of the first layer after each state of the automaton."""
    known = {automaton.start}
    waiting: list[tuple[int, State | None]] = [(automaton.start, None)]
    while waiting:
        place, before = waiting.pop()
        tokens = torch.from_numpy((automaton.transitions[place] != NEVER).nonzero()[0])
        if not len(tokens):
            continue
        rows = torch.zeros(len(tokens), dtype=torch.int64)
        _, after = model.extend(
            tokens.unsqueeze(1), None if before is None else take_rows(before, rows)
        )
        for row, reached in enumerate(automaton.transitions[place][tokens].tolist()):
            if reached not in known:
                known.add(reached)
                waiting.append((reached, take_rows(after, torch.tensor([row]))))
        answers = torch.tensor(automaton.outputs[place])[tokens]
        scored = answers != IGNORED
        yield tokens[scored], answers[scored], after[0][scored]


class _Readout(NamedTuple):
    """The last norm and a readout in float64.

    Attributes:
        weight: rows of the readout times the norm's gain, shape (classes, d).
        bias: shape (classes,).
        centred: whether the norm subtracts the mean.
        eps: what the norm adds to the mean square; None if there is no norm.
        steepness: for two classes, the most by which their difference changes, for an error of the
            state of 1; shape (classes, classes).
        rounding: relative error of a sum of products on the way to a logit.
    """

    weight: Tensor
    bias: Tensor
    centred: bool
    eps: float | None
    steepness: Tensor
    rounding: float

    @classmethod
    def of(cls, model: SyntheticModel, layer: BDLRU, head: str, used: Tensor) -> "_Readout":
        norm, readout = model.final_norm, model.readouts[head]
        assert isinstance(readout, nn.Linear)
        weight, bias = readout.weight.double(), readout.bias.double()
        centred, eps = isinstance(norm, nn.LayerNorm), getattr(norm, "eps", None)
        if isinstance(norm, nn.LayerNorm):
            bias = bias + weight @ norm.bias.double()
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            weight = weight * norm.weight.double()
        if centred:
            weight = weight - weight.mean(1, keepdim=True)
        out = layer.out_proj.weight.double()
        # A pruned block holds zeros, without error.
        out = out * used.repeat(layer.block_size)
        steepness = torch.cdist(weight @ out, weight @ out, p=1)
        if eps is not None:
            scale = out.abs().sum(1).norm() / math.sqrt(len(out))
            steepness = steepness + (bias.unsqueeze(1) - bias).abs() * scale
        terms = sum(out.shape) + _ROUNDINGS
        rounding = terms * torch.finfo(layer.out_proj.weight.dtype).eps / 2
        return cls(weight, bias, centred, eps, steepness, rounding)

    def slack(self, z: Tensor, size: Tensor, answers: Tensor) -> float:
        """Return an error of the states that changes no answer; 0 if rounding alone may.

        Args:
            z: what the norm reads, shape (rows, d).
            size: sums of the magnitudes of which z is the sum, shape (rows, d).
            answers: shape (rows,).
        """
        if not len(z):
            return math.inf
        square = z.var(1, correction=0) if self.centred else z.square().mean(1)
        r = torch.ones(len(z)) if self.eps is None else (square + self.eps).sqrt()
        scores = z @ self.weight.T + r.unsqueeze(1) * self.bias
        sizes = size @ self.weight.abs().T + r.unsqueeze(1) * self.bias.abs()
        if self.centred:
            # The mean, too, is a sum of all entries.
            sizes = sizes + size.mean(1, keepdim=True) * self.weight.abs().sum(1)
        of_answers = answers.unsqueeze(1)
        lead = scores.gather(1, of_answers) - scores
        lead = lead - self.rounding * (sizes.gather(1, of_answers) + sizes)
        bounds = lead.clamp(min=0) / self.steepness[answers]
        # The answer itself is no other class.
        return float(bounds.scatter(1, answers.unsqueeze(1), torch.inf).amin())
