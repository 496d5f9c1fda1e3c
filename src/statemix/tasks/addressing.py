"""Words addressed by (seed, split, index), each made alone and equal on every machine.

A word is a sequence of ``length`` symbols, each one of ``alphabet_size``. Two regimes share one
function, ``words``:

- *Independent draws*, in spaces of more than ``SHUFFLED_SPACE`` words. Symbols come from Philox, a
  counter-based generator. The seed and the split are its key and the index sets its counter, so
  that every word has its own stretch of the stream. NumPy guarantees raw streams across versions
  and platforms. A given test word is among N training words with probability at most
  N / SHUFFLED_SPACE: for N = 100,000 that is 9e-8, and 1,280 test words share 1.2e-4 examples with
  training on average.
- *A shuffled enumeration* of the whole space, in smaller spaces. A permutation keyed by the seed
  orders all words; validation owns the first eighth of the order, test the second, training the
  rest. So no two splits share a word, and no split repeats a word. (With independent draws a
  tenth of the test words over S_2 at length 16, a space of 65,536, would be among 10,000
  training words.)
"""

import hashlib
import operator
from collections.abc import Collection
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from statemix.errors import OptionError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

SHUFFLED_SPACE = 2**40
"""Spaces of at most this many words are enumerated in a shuffled order."""

MAX_LENGTH = 2**24
"""Longer words are refused: making one word of this length needs a gigabyte of memory."""

_NUM_ROUNDS = 6
_VALUES_PER_BLOCK = 4  # 64-bit values that Philox makes per value of its counter
# Second half of Philox's key. Changing any of these numbers changes the data.
_KEYS = {"train": 1, "validation": 2, "test": 3, "shuffle": 4}


def split_size(alphabet_size: int, length: int, split: Split) -> int | None:
    """Return the number of distinct words that a split owns; None with independent draws."""
    # The capped power of 2 already exceeds SHUFFLED_SPACE, and every power of 1 is 1. Without the
    # cap, powers of millions take seconds.
    space: int = alphabet_size ** min(length, SHUFFLED_SPACE.bit_length())
    if space > SHUFFLED_SPACE:
        return None
    return space - 2 * (space // 8) if split == "train" else space // 8


def check_range(start: int, stop: int, length: int) -> None:
    """Check that indices can be addressed, and that some machine could hold the words."""
    if stop >= 2**63:
        raise OptionError(f"stop must be below 2^63, got {stop}")
    most = start + 2**48 // length
    if stop > most:
        raise OptionError(f"stop must be at most {most} (2^48 tokens from the start), got {stop}")


def words(
    alphabet_size: int, length: int, *, seed: int, split: Split, start: int, stop: int
) -> NDArray[np.int64]:
    """Make the words ``start`` ... ``stop - 1`` of a split.

    Arguments are trusted, but the size of the split is checked. The training stream has no end:
    where training owns M words, index i is word i modulo M.

    Args:
        alphabet_size: number of symbols, at least 1.
        length: symbols per word, 1 <= length <= ``MAX_LENGTH``.
        seed: 0 <= seed < 2^64.
        split: one of ``SPLITS``.
        start: first index.
        stop: one beyond the last index.

    Returns:
        Symbols 0 ... alphabet_size - 1, shape (stop - start, length), int64.
    """
    size = split_size(alphabet_size, length, split)
    if size is None:
        blocks_per_word = -(-length // _VALUES_PER_BLOCK)
        raw = _raw_values(
            seed, split, (alphabet_size, length), start * blocks_per_word, stop * blocks_per_word
        )
        per_word = raw.reshape(stop - start, blocks_per_word * _VALUES_PER_BLOCK)
        return below(per_word[:, :length], alphabet_size)
    if split != "train" and stop > size:
        raise OptionError(
            f"stop must be at most {size} (share of the {split} split in the "
            f"{alphabet_size**length} words of {length} symbols out of {alphabet_size}), got {stop}"
        )
    if size == 0:  # an empty range of an empty split
        return np.zeros((0, length), dtype=np.int64)
    positions = (start % size + np.arange(stop - start)) % size
    held_out = alphabet_size**length // 8
    positions += {"validation": 0, "test": held_out, "train": 2 * held_out}[split]
    return _shuffled_words(positions, alphabet_size, length, seed)


def draws(
    name: str, count: int, *, seed: int, split: Split, start: int, stop: int
) -> NDArray[np.uint64]:
    """Make uniform 64-bit values, shape (N, count), for the examples ``start`` ... ``stop - 1``.

    Every task, by its name, and every count of values per example has its own stream. The other
    arguments, which are trusted, are those of :func:`words`.
    """
    # Words use domains that begin with the size of an alphabet, which is smaller.
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") + 2**60
    blocks = -(-count // _VALUES_PER_BLOCK)
    raw = _raw_values(seed, split, (number, count), start * blocks, stop * blocks)
    return raw.reshape(stop - start, blocks * _VALUES_PER_BLOCK)[:, :count]


def _raw_values(
    seed: int, purpose: str, domain: tuple[int, int], first_block: int, end: int
) -> NDArray[np.uint64]:
    """Return blocks of Philox's stream; each purpose and domain has its own stream."""
    key = np.array([seed, _KEYS[purpose]], dtype=np.uint64)
    # The counter has 256 bits: the lower half counts blocks, the upper half holds the domain.
    counter = first_block + (domain[0] << 128) + (domain[1] << 192)
    count = (end - first_block) * _VALUES_PER_BLOCK
    values = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.asarray(values, dtype=np.uint64)


def below(raw: NDArray[np.uint64], size: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Map uniform 64-bit values to 0 ... size - 1 by floor(u * size) for u in [0, 1).

    ``size`` is at least 1: one number, or an array that broadcasts with ``raw``.

    u has as many leading bits as fit beside ``size`` in 64 bits. So no probability is off by more
    than a factor of 1 +- size^2 / 2^63 (1e-15 for the 120 elements of S_5).
    """
    bits = 64 - int(np.max(size, initial=1)).bit_length()
    scaled = (raw >> np.uint64(64 - bits)) * np.asarray(size).astype(np.uint64)
    return (scaled >> np.uint64(bits)).astype(np.int64)


def _shuffled_words(
    positions: NDArray[np.int64], alphabet_size: int, length: int, seed: int
) -> NDArray[np.int64]:
    """Words at the given positions of the shuffled enumeration, shape (len(positions), length).

    A Feistel network over (left half, right half) of a word: each round adds to one half a random
    function of the other. Each round can be undone, so the network is a bijection of the space.
    """
    left_length = length - length // 2
    left_space, right_space = alphabet_size**left_length, alphabet_size ** (length - left_length)
    left, right = np.divmod(positions, right_space)
    tables = _round_functions(alphabet_size, length, seed)
    for to_left, to_right in zip(tables[::2], tables[1::2], strict=True):
        left = (left + to_left[right]) % left_space
        right = (right + to_right[left]) % right_space
    symbols = np.empty((len(positions), length), dtype=np.int64)
    for half, columns in ((left, range(left_length)), (right, range(left_length, length))):
        for column in reversed(columns):
            half, symbols[:, column] = np.divmod(half, alphabet_size)
    return symbols


@lru_cache(maxsize=4)
def _round_functions(alphabet_size: int, length: int, seed: int) -> list[NDArray[np.int32]]:
    """Tables of the rounds, alternately right half -> left half and left half -> right half."""
    domain, image = alphabet_size ** (length // 2), alphabet_size ** (length - length // 2)
    tables = []
    first_block = 0
    for _ in range(_NUM_ROUNDS):
        end = first_block - (-domain // _VALUES_PER_BLOCK)
        raw = _raw_values(seed, "shuffle", (alphabet_size, length), first_block, end)
        tables.append(below(raw[:domain], image).astype(np.int32))
        first_block, domain, image = end, image, domain
    return tables


def check_integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return a checked integer."""
    # Python counts bool as an integer, but "length=True" is a mistake.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise OptionError(f"{name} must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise OptionError(f"{name} must be at most {maximum}, got {number}")
    return number


def check_length(value: object) -> int:
    """Return a checked number of tokens."""
    return check_integer("length", value, minimum=1, maximum=MAX_LENGTH)


def check_min_length(value: object, length: int, minimum: int = 1) -> int:
    """Return a checked number of tokens of the shortest training example."""
    return check_integer("min_length", value, minimum=minimum, maximum=length)


def check_vocabulary(value: object, minimum: int) -> int:
    """Return a checked number of tokens that there are."""
    return check_integer("vocab_size", value, minimum=minimum, maximum=2**20)


def check_share(name: str, value: object) -> float:
    """Return a checked number, 0 <= value < 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise OptionError(f"{name} must be a number >= 0 and < 1, got {value!r}")
    return float(value)


def check_seed(value: object, name: str = "seed") -> int:
    """Return a checked seed of the data, 0 <= seed < 2^64, under the name of its option."""
    number = check_integer(name, value, minimum=0)
    if number >= 2**64:
        raise OptionError(f"{name} must be below 2^64, got {value}")
    return number


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Check that a value is one of some words."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
