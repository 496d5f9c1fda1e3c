"""The semigroup of the maps that words of tokens make."""

import numpy as np
from numpy.typing import NDArray

MOST_MAPS = 5000
"""Maps after which a semigroup counts as large; a block of 6 entries can have 823,543."""


def order(sources: NDArray[np.int64], moves: NDArray[np.int64] | None = None) -> int | None:
    r"""Count the different maps that words of one or more tokens make.

    A token x copies between entries: entry i then holds what entry :math:`f_x(i)` held. It also
    moves states: q goes to :math:`m_x(q)`. The word xy does what x and then y does,

    .. math:: f_{xy} = f_x \circ f_y, \qquad m_{xy} = m_y \circ m_x.

    Two words make one map if they do the same to all entries and to all states.

    Args:
        sources: f, shape (tokens, entries); a number that is no entry's stands for a constant that
            is loaded, and must not be below the number of entries.
        moves: m, shape (tokens, states); None means that there are no states.

    Returns:
        The number of maps; None if there are more than ``MOST_MAPS``.

    Example:
        >>> order(np.array([[1, 2, 0], [1, 0, 2]]))
        6
    """
    entries = sources.shape[1]
    tokens = sources if moves is None else np.concatenate([sources, moves], axis=1)
    known: set[bytes] = set()
    elements: list[NDArray[np.int64]] = []

    def added(words: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        new = []
        for word in words:
            name = word.tobytes()
            if name not in known:
                known.add(name)
                new.append(word)
        elements.extend(new)
        return new

    generators: list[NDArray[np.int64]] = []
    for token in tokens:
        # Most elements of a group are words of a few others.
        if token.tobytes() in known:
            continue
        generators.append(token)
        before = np.array([token, *elements])
        new = [*added(token[None]), *added(_then(before, token, entries))]
        while new:
            words, new = np.array(new), []
            for one in generators:
                new += added(_then(words, one, entries))
                if len(known) > MOST_MAPS:
                    return None
    return len(known)


def _then(words: NDArray[np.int64], token: NDArray[np.int64], entries: int) -> NDArray[np.int64]:
    """Append a token to words, each given as its sources and moves."""
    source, move = token[:entries], token[entries:]
    copies = source < entries
    copied = np.where(copies, words[:, np.where(copies, source, 0)], source)
    return np.concatenate([copied, move[words[:, entries:]]], axis=1)
