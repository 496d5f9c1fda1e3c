"""Proofs for tasks with places: by structure, or by search if words lead to few arrangements."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import Automaton
from statemix.models import ReadoutModel
from statemix.place_rules import PlaceRules
from statemix.proofs.certificate import Certificate, NetworkForm
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
        rules: as in :func:`prove_by_structure`.
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
            found = {
                head: search(
                    network,
                    automaton,
                    head=head,
                    max_pairs=min(max_pairs, _MOST_PAIRS),
                    on_progress=on_progress,
                )
                for head, automaton in heads.items()
            }
        verdicts = {result.verdict for result in found.values()}
        failed = [one for one in found.items() if one[1].verdict != "proven"]
        last = name in ("hardened", "as trained")
        head, result = min(found.items(), key=lambda one: one[1].margin or 0.0)
        if verdicts == {"proven"} and not gaps.doubt:
            most = max(result.pairs for result in found.values())
            result, head = replace(result, pairs=most), by_structure.head
        elif failed and last and ("refuted" in verdicts or by_structure.network == "as trained"):
            # A wrong answer says more than a search that has not ended.
            head, result = min(failed, key=lambda one: one[1].verdict != "refuted")
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

    Args:
        rules: the places.

    Returns:
        The automata; None if there are more than 1,000 arrangements.
    """
    numbers = {tuple(rules.start.tolist()): 0}
    reached: list[NDArray[np.int64]] = [rules.start]
    every = np.arange(rules.num_tokens)[:, None]
    after: list[NDArray[np.int64]] = []
    while len(after) < len(reached):
        start = np.tile(reached[len(after)], (rules.num_tokens, 1))
        after.append(rules.contents(every, start)[:, 0])
        for one in after[-1]:
            if numbers.setdefault(tuple(one.tolist()), len(numbers)) == len(reached):
                reached.append(one)
        if len(reached) > _MOST_ARRANGEMENTS:
            return None
    contents = np.stack(after)
    transitions = np.array(
        [[numbers[tuple(one.tolist())] for one in of_state] for of_state in contents]
    )
    return [
        Automaton(0, transitions, np.ascontiguousarray(contents[..., place]))
        for place in range(rules.num_heads)
    ]
