"""From a trained model to the network that is proven, and the certificate about it."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from statemix.automaton import IGNORED, NEVER, Automaton, reachable
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.proofs.certificate_tables import read_tables
from statemix.proofs.hardening import (
    GateGaps,
    PrunedModel,
    can_harden,
    can_prune,
    harden,
    prune,
    refit,
    watch_gaps,
)
from statemix.proofs.horizon import Horizon, find_horizon
from statemix.proofs.product_search import SearchResult, Verdict, check_fits, search_steps
from statemix.proofs.stepping import in_evaluation_mode

# Of readouts that are fitted again, if rounding may change the answers of one fitted without it.
_WEIGHT_DECAY = 1e-12

NetworkForm = Literal["pruned", "refitted", "hardened", "as trained"]


@dataclass(frozen=True)
class Certificate:
    """A network, and what the search of all words found about it.

    Attributes:
        result: result of the search of all words.
        network: what was done to the trained model: "pruned" (its gates are 0 or 1, and only blocks
            that track are read), "refitted" (pruned, and its readout fitted again), "hardened" (its
            gates are 0 or 1) or "as trained".
        model: the network.
        tracking: blocks that were kept; None if nothing was pruned.
        num_blocks: blocks of the trained model; None if nothing was pruned.
        gate_margin: smallest difference between the largest and the second largest raw gate of a
            row or column whose gates are 0 and 1, among the blocks that were kept; None as trained.
        head: head that answers.
        method: "search" (of all pairs of states) or "structure" (tokens do to entries what they do
            to places).
        horizon: length up to which the network is proven right with its gates as trained. If
            blocks were pruned, it says nothing of the trained network, which has other blocks, too.
    """

    result: SearchResult
    network: NetworkForm
    model: nn.Module
    head: str
    horizon: Horizon
    tracking: tuple[int, ...] | None = None
    num_blocks: int | None = None
    gate_margin: float | None = None
    method: Literal["search", "structure"] = "search"

    @property
    def verdict(self) -> Verdict:
        """The verdict of the search."""
        return self.result.verdict

    def tables(self, automaton: Automaton) -> dict[str, Any] | str:
        """Return the tables of a proof, as :func:`~statemix.proofs.read_tables` does."""
        if self.network == "as trained":
            return "the gates of the network are not 0 and 1"
        if self.verdict != "proven":
            return f"the verdict is {self.verdict}"
        return read_tables(self.model, automaton, self.head)

    def to_plain(self) -> dict[str, Any]:
        """Return everything but the model as JSON data, without NaN or infinities."""
        result = asdict(self.result)
        order = ("verdict", "pairs", "margin", "word", "answer", "expected", "checked", "reason")
        return {name: result[name] for name in order} | {
            "word": list(self.result.word),
            "method": self.method,
            "network": self.network,
            "tracking": None if self.tracking is None else list(self.tracking),
            "num_blocks": self.num_blocks,
            "gate_margin": self.gate_margin,
            "horizon": self.horizon.tokens,
            "horizon_reason": self.horizon.reason,
        }


@in_evaluation_mode
def prove(
    model: nn.Module,
    automaton: Automaton,
    *,
    head: str | None = None,
    soft: bool = False,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Harden a trained model, keep the blocks that track, and prove or refute the network.

    If the network without the other blocks is not proven, its readout is fitted again. If that does
    not help, the hardened network is searched with all its blocks. A model whose gates cannot be
    hardened is searched as it is. The certificate is about the network that is returned, whose
    answers may differ from those of the trained model.

    A proof also needs gates and answers that rounding cannot change: if two raw gates of a row, or
    the right answer and another one, differ by less than a change in the order of their sums, the
    verdict is open.

    The model may be any module. Its layers of Statemix are BD-LRUs and H-LRUs with gates of softmax
    or column_softmax, or causal convolutions. All other parts, such as norms, residual connections
    and MLPs, are functions of one token, and an ``nn.Linear`` returns the logits. The search puts
    each state into its layer itself, so the module need not pass states. The proof is about single
    tokens in the dtype and on the device of the module: hardened layers copy numbers without
    rounding, so their states are finitely many, and the search computes every step that a word can
    make. Random words of 64 tokens, as a whole and token by token, test that no other part
    remembers a token or knows a position. The bounds of rounding assume exact inputs of gates and
    of the readout.

    Args:
        model: the trained model: a :class:`~statemix.models.TokenClassifier`, or a module with
            ``forward(tokens)``, ``forward(tokens, state)`` or ``step(tokens_t, state)``. Tokens
            have shape (B, T), or (B,) in a step. The logits (B, T, classes), or (B, classes), come
            alone, first in a tuple, or in a mapping of heads. The model is not changed; the proof
            is about its evaluation mode.
        automaton: the automaton, with the model's tokens.
        head: head that answers; None means "logits" or the first one.
        soft: search the model as it is, and bound the length up to which it is right by a search
            of the hardened model.
        max_pairs: as in :func:`search`.
        on_progress: as in :func:`search`.

    Raises:
        TypeError: if a part of a module cannot be proven; the error names it.
        ValueError: if the automaton and the model do not fit.
    """
    stepper = check_fits(model, automaton, head)
    head = stepper.head
    states = sorted(reachable(automaton.transitions.tolist(), automaton.start))
    scored = (automaton.transitions != NEVER) & (automaton.outputs != IGNORED)
    if not scored[states].any():
        raise ValueError("automaton must score an answer to some word, got none")

    def search_words(network: nn.Module) -> SearchResult:
        steps = stepper.on(network)
        return search_steps(steps, automaton, max_pairs=max_pairs, on_progress=on_progress)

    def length(hard: nn.Module, tracking: tuple[int, ...] | None = None) -> Horizon:
        softened = copy.deepcopy(hard)
        for layer, like in zip(softened.modules(), model.modules(), strict=True):
            if isinstance(layer, GatedRecurrence) and isinstance(like, GatedRecurrence):
                layer.gate_temperature = like.gate_temperature
        return find_horizon(
            softened.cpu(),
            copy.deepcopy(hard).cpu(),
            automaton,
            head=head,
            tracking=tracking,
            max_pairs=max_pairs,
        )

    if soft or not can_harden(model):
        result = search_words(model)
        if result.verdict == "proven":
            bound = Horizon(None, "the trained network itself is proven")
        else:
            bound = length(harden(model) if can_harden(model) else model)
        return Certificate(result, "as trained", model, head, bound)
    hard = harden(model)
    if can_prune(hard):
        cut = prune(hard, automaton)
        for name, found in _candidates(cut, automaton, head):
            with watch_gaps(found, cut.tracking) as gaps:
                result = search_words(found)
            if result.verdict == "proven":
                result, bound = _unless_tied(result, gaps), length(found, cut.tracking)
                kept = cut.tracking, cut.num_blocks
                return Certificate(result, name, found, head, bound, *kept, gaps.finite)
            # A readout with smaller weights helps against rounding alone.
            if name == "refitted" and result.verdict == "refuted":
                break
    with watch_gaps(hard) as gaps:
        result = search_words(hard)
    if result.verdict == "proven":
        bound = length(hard)
    else:
        bound = Horizon(None, "the network is not proven with gates of 0 and 1")
    answer = _unless_tied(result, gaps)
    return Certificate(answer, "hardened", hard, head, bound, gate_margin=gaps.finite)


def _unless_tied(result: SearchResult, gaps: GateGaps) -> SearchResult:
    """Return a proof only if no rounding can choose other gates."""
    if result.verdict != "proven" or not gaps.doubt:
        return result
    return replace(result, verdict="open", reason=gaps.doubt)


def _candidates(
    cut: PrunedModel, automaton: Automaton, head: str
) -> Iterator[tuple[NetworkForm, nn.Module]]:
    """Yield the pruned network, and then, if its blocks hold anything, with other readouts."""
    yield "pruned", cut.model
    if cut.varying:
        for weight_decay in (0.0, _WEIGHT_DECAY):
            yield "refitted", refit(cut.model, automaton, head, weight_decay=weight_decay)
