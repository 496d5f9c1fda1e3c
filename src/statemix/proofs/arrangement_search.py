"""Proofs for tasks: with places by structure, or by search if words lead to few arrangements."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import Automaton, HasAutomaton
from statemix.errors import RequestError
from statemix.models import ReadoutModel
from statemix.place_rules import HasPlaces, PlaceRules
from statemix.proofs.certificate import Certificate, NetworkForm, prove
from statemix.proofs.hardening import can_harden, can_prune, harden, prune, refit
from statemix.proofs.product_search import search
from statemix.proofs.structure import prove_by_structure
from statemix.proofs.ties import watch_gaps

# More would take minutes for every head.
_MOST_ARRANGEMENTS, _MOST_PAIRS = 1000, 5000


def prove_places(
    model: ReadoutModel,
    rules: PlaceRules,
    *,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Prove that a model names the contents of all places after words of every length.

    A network may be right though its entries follow no places: seven points of a plane are known
    from its seven lines, too. If :func:`prove_by_structure` does not prove the network, and words
    lead to at most 1,000 arrangements (the contents of all places together), these are the states
    of an automaton for each place. All heads of a network are then searched, and the networks are
    those that :func:`prove` tries: the trained one, if its gates cannot be hardened.

    Args:
        model: any model with the heads of the places; it is put into evaluation mode.
        rules: the places, with the model's tokens.
        max_pairs: as in :func:`prove`, but at most 5,000.
        on_progress: as in :func:`prove`.

    Returns:
        The certificate by structure, unless a search proves all heads of a network, or refutes a
        head of the last one. For a model that no structure can prove, it is that of the search. The
        certificate of a search that proves has the most pairs and the least margin of all heads.
    """
    by_structure = prove_by_structure(model, rules)
    automata = None if by_structure.verdict == "proven" else place_automata(rules)
    if automata is None:
        return by_structure
    heads = dict(zip(model.heads, automata, strict=True))
    for name, network, tracking in _candidates(model, heads):
        with watch_gaps(network, tracking) as gaps:
            most = min(max_pairs, _MOST_PAIRS)
            results = {
                head: search(network, automaton, head=head, max_pairs=most, on_progress=on_progress)
                for head, automaton in heads.items()
            }
        verdicts = {result.verdict for result in results.values()}
        last = name in ("hardened", "as trained")
        if verdicts == {"proven"}:
            if gaps.doubt:
                continue
            result = min(results.values(), key=lambda result: result.margin or 0.0)
            result = replace(result, pairs=max(result.pairs for result in results.values()))
            head = by_structure.head
        elif last and ("refuted" in verdicts or by_structure.network == "as trained"):
            # A wrong answer says more than a search that has not ended.
            order = ["refuted", "open", "proven"]
            head, result = min(results.items(), key=lambda item: order.index(item[1].verdict))
        else:
            continue
        return replace(
            by_structure,
            result=result,
            network=name,
            model=network,
            head=head,
            tracking=tracking,
            gate_margin=gaps.finite,
            method="search",
        )
    return by_structure


def _candidates(
    model: ReadoutModel, heads: Mapping[str, Automaton]
) -> Iterator[tuple[NetworkForm, ReadoutModel, tuple[int, ...] | None]]:
    """Yield networks to search and the blocks that they keep, as :func:`prove` tries them."""
    if not can_harden(model):
        yield "as trained", model, None
        return
    hard = harden(model).cpu().eval()
    if can_prune(hard):
        first, *_ = heads.values()
        # Which blocks track depends on the transitions alone, which all heads share.
        cut = prune(hard, first)
        yield "pruned", cut.model, cut.tracking
        if cut.varying:
            fitted = cut.model
            for head, automaton in heads.items():
                fitted = refit(fitted, automaton, head)
            yield "refitted", fitted, cut.tracking
    yield "hardened", hard, None


def place_automata(rules: PlaceRules) -> list[Automaton] | None:
    """Return an automaton for each head, whose states are the arrangements that words lead to.

    Returns None if there are more than 1,000 arrangements.
    """
    numbers = {tuple(rules.start.tolist()): 0}
    reached: list[NDArray[np.int64]] = [rules.start]
    every = np.arange(rules.num_tokens)[:, None]
    after: list[NDArray[np.int64]] = []
    while len(after) < len(reached):
        start = np.tile(reached[len(after)], (rules.num_tokens, 1))
        after.append(rules.contents(every, start)[:, 0])
        for contents in after[-1]:
            if numbers.setdefault(tuple(contents.tolist()), len(numbers)) == len(reached):
                reached.append(contents)
        if len(reached) > _MOST_ARRANGEMENTS:
            return None
    table = np.stack(after)
    transitions = np.array([[numbers[tuple(row)] for row in rows] for rows in table.tolist()])
    heads = np.ascontiguousarray(np.moveaxis(table, -1, 0)[: rules.num_heads])
    return [Automaton(0, transitions, outputs) for outputs in heads]


def prove_task(
    model: ReadoutModel,
    task: HasAutomaton | HasPlaces,
    *,
    soft: bool = False,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Prove or refute a network on a task, by :func:`prove` or :func:`prove_places`.

    Args:
        model: network with the tokens and the heads of the task.
        task: a task with an automaton or with places.
        soft: as in :func:`prove`; refused for a task with places.
        max_pairs: as in :func:`prove`.
        on_progress: as in :func:`prove`.
    """
    if isinstance(task, HasAutomaton):
        automaton = task.automaton()
        return prove(model, automaton, soft=soft, max_pairs=max_pairs, on_progress=on_progress)
    if soft:
        raise RequestError("soft must be absent for a task with places, whose proof hardens")
    return prove_places(model, task.places(), max_pairs=max_pairs, on_progress=on_progress)
