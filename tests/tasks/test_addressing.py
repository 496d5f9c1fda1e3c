"""Words are functions of (seed, split, index, length) alone, and splits share no word."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.tasks.addressing import SHUFFLED_SPACE, SPLITS, split_size, words

# (alphabet size, length): shuffled spaces with even, odd and unequal halves; independent draws
# with whole and ragged blocks of the generator.
SPACES = [(2, 16), (6, 5), (120, 3), (6, 16), (24, 18), (120, 65)]


def make(alphabet_size, length, start, stop, *, seed=0, split="train"):
    return words(alphabet_size, length, seed=seed, split=split, start=start, stop=stop)


def whole_split(alphabet_size, length, split, *, seed=0):
    size = split_size(alphabet_size, length, split)
    return make(alphabet_size, length, 0, size, split=split, seed=seed)


def as_set(rows):
    return {tuple(row) for row in rows.tolist()}


@given(
    space=st.sampled_from(SPACES),
    start=st.integers(0, 50) | st.sampled_from([2**40, 2**63 - 100]),
    sizes=st.lists(st.integers(0, 9), max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_ranges_join_without_seams(space, start, sizes, seed):
    bounds = np.cumsum([start, *sizes]).tolist()
    parts = [make(*space, first, last, seed=seed) for first, last in pairwise(bounds)]
    expected = make(*space, start, bounds[-1], seed=seed)
    assert (expected.shape, expected.dtype) == ((sum(sizes), space[1]), np.int64)
    np.testing.assert_array_equal(np.concatenate([expected[:0], *parts]), expected)


@pytest.mark.parametrize(("alphabet_size", "length"), [(2, 3), (2, 16), (6, 5), (120, 2)])
def test_splits_of_a_small_space_divide_it(alphabet_size, length):
    """No word occurs twice in or across splits, and none is missing."""
    parts = [whole_split(alphabet_size, length, split, seed=3) for split in SPLITS]
    assert sum(map(len, parts)) == alphabet_size**length
    assert len(as_set(np.concatenate(parts))) == alphabet_size**length


@pytest.mark.parametrize(("alphabet_size", "length"), [(2, 40), (120, 5)])
def test_words_of_the_largest_shuffled_spaces_are_distinct(alphabet_size, length):
    parts = [make(alphabet_size, length, 0, 20_000, split=split) for split in SPLITS]
    assert len(as_set(np.concatenate(parts))) == 60_000


def test_training_stream_of_a_small_space_repeats_only_its_own_words():
    size = split_size(2, 16, "train")
    stream = make(2, 16, size - 100, size + 100)
    np.testing.assert_array_equal(stream[100:], make(2, 16, 0, 100))
    held_out = as_set(whole_split(2, 16, "validation")) | as_set(whole_split(2, 16, "test"))
    assert not as_set(stream) & held_out


@pytest.mark.parametrize(
    ("alphabet_size", "length", "expected"),
    [
        (1, 10**9, 0),
        (2, 40, SHUFFLED_SPACE // 8),
        (2, 41, None),
        (3, 25, 3**25 // 8),
        (3, 26, None),
        (2, 10**30, None),  # multiplied out, it would not fit into any memory
    ],
)
def test_the_regime_changes_at_the_stated_size(alphabet_size, length, expected):
    assert split_size(alphabet_size, length, "test") == expected


@pytest.mark.parametrize(
    ("alphabet_size", "length", "expected"),
    [
        (6, 16, "738c812251bba7ef"),
        (120, 16, "efa64fb94572095e"),
        (6, 4096, "5eacfc5260c30002"),
        (2, 16, "15d25a9c3da37cf3"),
        (6, 15, "9c17e86ba0120d54"),
    ],
)
def test_many_words_hash_as_on_every_other_machine(alphabet_size, length, expected):
    digest = hashlib.sha256()
    for split in SPLITS:
        block = make(alphabet_size, length, 0, 500, seed=1, split=split)
        digest.update(block.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == expected


def test_a_request_beyond_a_small_space_names_the_numbers():
    assert make(2, 1, 0, 0, split="test").shape == (0, 1)
    message = r"stop must be at most 8192 .*the test split .* 65536 words .*, got 8193"
    with pytest.raises(ValueError, match=message):
        make(2, 16, 0, 8193, split="test")
