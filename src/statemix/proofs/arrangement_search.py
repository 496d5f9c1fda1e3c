"""Proofs for tasks with places: by structure, or by search if words lead to few arrangements."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import Automaton
from statemix.models import ReadoutModel
from statemix.place_rules import PlaceRules
from statemix.proofs.certificate import Certificate, prove
from statemix.proofs.structure import prove_by_structure

# More would take minutes for every head.
_MOST_ARRANGEMENTS, _MOST_PAIRS = 1000, 5000


def prove_places(
    model: ReadoutModel,
    rules: PlaceRules,
    *,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Prove that a model tells the contents of all places after words of every length.

    A network may be right though its entries follow no places: seven points of a plane are known
    from its seven lines, too. If :func:`prove_by_structure` does not prove the network, and words
    lead to at most 1,000 arrangements (the contents of all places together), these are the states
    of an automaton for each place, and every head is searched as in :func:`prove`.

    Args:
        model: as in :func:`prove_by_structure`.
        rules: as in :func:`prove_by_structure`.
        max_pairs: as in :func:`prove`, but at most 5,000.
        on_progress: as in :func:`prove`.

    Returns:
        The certificate by structure, unless the search proves every head or refutes one. The
        certificate of a search has the most pairs and the least margins of all heads.

    Raises:
        RequestError: as in :func:`prove_by_structure`.
    """
    by_structure = prove_by_structure(model, rules)
    automata = None if by_structure.verdict == "proven" else place_automata(rules)
    if automata is None:
        return by_structure
    network, found = model, []
    max_pairs = min(max_pairs, _MOST_PAIRS)
    for head, automaton in zip(model.heads, automata, strict=True):
        one = prove(network, automaton, head=head, max_pairs=max_pairs, on_progress=on_progress)
        if one.verdict == "refuted":
            return one
        if one.verdict == "open":
            return by_structure
        network = one.model
        found.append(one)
    last = found[-1]
    return replace(
        last,
        result=replace(
            last.result,
            pairs=max(one.result.pairs for one in found),
            margin=min(one.result.margin for one in found if one.result.margin is not None),
        ),
        network=next((one.network for one in found if one.network == "refitted"), last.network),
        head=by_structure.head,
        horizon=by_structure.horizon,
    )


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
