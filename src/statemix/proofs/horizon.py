"""Lengths up to which soft gates answer as hard ones do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from statemix.automaton import IGNORED, Automaton
from statemix.layers import BDLRU
from statemix.models import ReadoutModel, TokenClassifier
from statemix.ops.layout import join_units
from statemix.proofs.hardening import gates_and_values
from statemix.proofs.place_readouts import LastNorm
from statemix.proofs.product_search import ProductSearch, RightAnswers
from statemix.proofs.stepping import HARDENED, Stepper, in_evaluation_mode

# The sum that normalises m+1 weights and the weighted sum of m+1 terms are rounded so many times at
# most beyond 2m, or 3m with columns, whose share of the state is normalised, too; a sum of n
# products so many times beyond n.
_ROUNDINGS = 16


@dataclass(frozen=True)
class Horizon:
    """A length up to which soft gates are proven to answer right.

    Attributes:
        tokens: the length; None if there is no bound.
        reason: why the length is not larger, or why there is no bound.
    """

    tokens: int | None
    reason: str


@torch.no_grad()
@in_evaluation_mode
def find_horizon(
    soft: nn.Module,
    hard: nn.Module,
    automaton: Automaton,
    *,
    head: str,
    tracking: Sequence[int] | None = None,
    max_pairs: int = 100_000,
) -> Horizon:
    r"""Return a number of tokens up to which a model with soft gates answers as an automaton.

    The soft model has the weights of the hard one. Let e be the largest L1 distance of a soft row
    of gates and its hard one, V the largest value, and u the largest relative error by which a step
    and its gates are rounded. Hard states are at most V and not rounded. The rows of soft gates sum
    to 1 up to rounding. A step therefore adds e V to the error of the state, and rounds a number of
    at most V plus this error:

    .. math::
        E_t \le (1 + u)\,E_{t-1} + (e + u)\,V, \qquad
        E_t = |h_t^{soft} - h_t^{hard}|_\infty
        \le \frac{(1 + u)^t - 1}{u}\,(e + u)\,V.

    If the hard model gives the answer i, the soft one does not prefer the class j as long as this
    is below

    .. math:: \frac{c \cdot z + r\,(b_i - b_j)}
        {\lVert c^T W_y \rVert_1 + |b_i - b_j|\, \lVert W_y \rVert_{\infty \to 2} / \sqrt{d}}

    with z what the last norm reads, r its root mean square, c the difference of the two rows of the
    readout, times the norm's gain, and b its biases. The numerator is diminished by the rounding of
    the readout. T is the largest t for which this holds after all words of up to t tokens, which
    the search of :func:`search` visits in the hard model: until the bound fails, an answer is
    wrong, or no new pair is left. Projections of tokens are assumed to be rounded alike in every
    batch.

    With gates of columns, e is the largest L1 distance of a soft column of the state and its hard
    one, plus that of the input columns. The error is the L1 norm of a block's, which is not below
    its largest entry, and V is not below the L1 norm of an initial state. Source: our addition.

    Args:
        soft: a classifier of tokens with one BD-LRU of softmax gates, of rows or columns, and
            without a channel mixer.
        hard: the same model with hard gates.
        automaton: the automaton, with the model's tokens.
        head: head that answers.
        tracking: blocks of ``hard`` that are not zero, as :func:`prune` returns them; None means
            all blocks.
        max_pairs: pairs after which the search gives up; all shorter words have then been visited.

    Returns:
        The length. There is none if the model is of another kind, or if both have the same states.
    """
    layer, hard_layer = _only_layer(soft), _only_layer(hard)
    if layer is None or hard_layer is None or not isinstance(hard, TokenClassifier):
        kind = "one BD-LRU with softmax gates, no channel mixer and a linear readout"
        return Horizon(None, f"the bound is for {kind}")
    used = torch.zeros(layer.num_blocks, dtype=torch.bool)
    used[slice(None) if tracking is None else list(tracking)] = True
    drift = _drift(soft, hard, used)
    if drift is None:
        return Horizon(None, "the states are those of gates of 0 and 1, so the verdict is on both")
    error, rounding = drift
    read = _Readout.of(hard, hard_layer, head, used)
    slack = math.inf

    def steps() -> float:
        """Return the number of steps after which the error may reach ``slack``, as a fraction."""
        return math.log1p(rounding * slack / error) / math.log1p(rounding)

    def observe(found: RightAnswers) -> str:
        nonlocal slack
        answers = torch.from_numpy(found.outputs)
        scored = answers != IGNORED
        state = found.after[0][scored]
        h, out = join_units(state, state.ndim - 2).double(), hard_layer.out_proj.weight.double()
        z, size = h @ out.T, h.abs() @ out.abs().T
        if hard.backbone.blocks[0].residual:
            x = hard.backbone.embedding(torch.from_numpy(found.tokens)[scored]).double()
            z, size = z + x, size + x.abs()
        slack = min(slack, read.slack(z, size, answers[scored]))
        # The learned token is a step of its own.
        return "" if found.length + hard.backbone.bos < steps() else told()

    def told() -> str:
        return (
            "longer words need gates of 0 and 1, or gates trained to a lower temperature: states "
            f"can drift by up to {error:.2g} per token, and a drift of {slack:.2g} can "
            "change an answer"
        )

    found = ProductSearch(Stepper.of(hard, head), automaton, max_pairs, observe=observe).run()
    if found.verdict == "refuted":
        word = " ".join(map(str, found.word))
        return Horizon(found.checked, f"gates of 0 and 1 are wrong after {word}")
    if found.verdict == "open":
        return Horizon(found.checked, found.reason)
    # The last step stays below the bound.
    return Horizon(math.ceil(min(steps(), 2.0**62)) - 1 - hard.backbone.bos, told())


def _drift(soft: nn.Module, hard: nn.Module, used: Tensor) -> tuple[float, float] | None:
    """Return what a step adds to the error of states at most, and by which part that grows.

    None means that the states do not drift apart.
    """
    layer, hard_layer = _only_layer(soft), _only_layer(hard)
    assert layer is not None
    assert hard_layer is not None
    gates, values = gates_and_values(soft, layer)
    hard_gates, _ = gates_and_values(hard, hard_layer)
    distances = (gates - hard_gates)[:, used].abs()
    largest, first = float(values.abs().max()), layer.first_state
    if layer.gate == "column_softmax":
        # The last number of a row is a share that the others leave.
        *columns, inputs = distances[..., :-1].sum(-1).unbind(-1)
        distance, sums = torch.stack(columns).amax(0) + inputs, 3
        first = None if first is None else first.abs().sum(1)
    else:
        distance, sums = distances.sum(-1), 2
    if first is not None and used.any():
        largest = max(largest, float(first[used].abs().max()))
    if largest == 0 or not distance.any():
        return None
    rounding = (sums * layer.block_size + _ROUNDINGS) * torch.finfo(values.dtype).eps / 2
    return (float(distance.max()) + rounding) * largest, rounding


def _only_layer(model: nn.Module) -> BDLRU | None:
    if not isinstance(model, ReadoutModel):
        return None
    first, *others = model.backbone.blocks
    if others or first.channel_mixer is not None or len(model.readout_mlp):
        return None
    layer = first.mixer
    return layer if isinstance(layer, BDLRU) and layer.gate in HARDENED else None


class _Readout(NamedTuple):
    """The last norm and a readout in float64, without the gain of the norm.

    A change of the state by 1 changes the difference of two classes by at most their ``steepness``
    (classes, classes). ``rounding`` is the relative error of a sum of products up to a logit.
    """

    weight: Tensor
    bias: Tensor
    norm: LastNorm
    steepness: Tensor
    rounding: float

    @classmethod
    def of(cls, model: ReadoutModel, layer: BDLRU, head: str, used: Tensor) -> "_Readout":
        norm = LastNorm.of(model)
        weight, bias = map(torch.from_numpy, norm.folded_into(model.readouts[head]))
        out = layer.out_proj.weight.double()
        # A pruned block holds zeros, without error.
        out = out * used.repeat(layer.block_size * layer.value_channels)
        steepness = torch.cdist(weight @ out, weight @ out, p=1)
        if norm.eps is not None:
            scale = out.abs().sum(1).norm() / math.sqrt(len(out))
            steepness = steepness + (bias.unsqueeze(1) - bias).abs() * scale
        terms = sum(out.shape) + _ROUNDINGS
        rounding = terms * torch.finfo(layer.out_proj.weight.dtype).eps / 2
        return cls(weight, bias, norm, steepness, rounding)

    def slack(self, z: Tensor, size: Tensor, answers: Tensor) -> float:
        """Return an error of the states that changes no answer; 0 if rounding alone may.

        ``size`` holds sums of the magnitudes of which z, what the norm reads, holds the sums.
        """
        if not len(z):
            return math.inf
        square = z.var(1, correction=0) if self.norm.centred else z.square().mean(1)
        r = torch.ones(len(z)) if self.norm.eps is None else (square + self.norm.eps).sqrt()
        scores = z @ self.weight.T + r.unsqueeze(1) * self.bias
        sizes = size @ self.weight.abs().T + r.unsqueeze(1) * self.bias.abs()
        if self.norm.centred:
            # The mean, too, is a sum of all entries.
            sizes = sizes + size.mean(1, keepdim=True) * self.weight.abs().sum(1)
        of_answers = answers.unsqueeze(1)
        lead = scores.gather(1, of_answers) - scores
        lead = lead - self.rounding * (sizes.gather(1, of_answers) + sizes)
        bounds = lead.clamp(min=0) / self.steepness[answers]
        # The answer itself is no other class.
        return float(bounds.scatter(1, of_answers, torch.inf).amin())
