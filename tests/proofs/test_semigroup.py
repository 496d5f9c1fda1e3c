"""Numbers of maps, against the products of all words."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from statemix.proofs.token_maps import semigroup_order


def closure(sources, moves):
    """What all words do to entries with names and to states, one token after the other."""
    entries, states = len(sources[0]), len(moves[0])

    def read(held, place, token):
        after = [held[i] if i < entries else f"constant {i}" for i in sources[token]]
        return tuple(after), tuple(moves[token][q] for q in place)

    start = tuple(f"entry {i}" for i in range(entries)), tuple(range(states))
    level, known = {start}, set()
    while level:
        level = {read(*one, token) for one in level for token in range(len(sources))} - known
        known |= level
    return known


def tables(draw, tokens, columns, above):
    row = st.lists(st.integers(0, above), min_size=columns, max_size=columns)
    rows = draw(st.lists(row, min_size=tokens, max_size=tokens))
    return np.array(rows, np.int64).reshape(tokens, columns)


@given(st.data())
def test_every_product_of_tokens_counts_once(data):
    tokens, entries, states = (data.draw(st.integers(low, 3)) for low in (1, 0, 0))
    sources = tables(data.draw, tokens, entries, entries + 1)
    moves = tables(data.draw, tokens, states, max(states - 1, 0))
    assert semigroup_order(sources, moves) == len(closure(sources.tolist(), moves.tolist()))
