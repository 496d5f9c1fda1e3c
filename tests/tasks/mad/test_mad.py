"""The laws of MAD's tasks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.errors import OptionError
from statemix.tasks import IGNORED
from statemix.tasks.mad.fuzzy_recall import FuzzyRecall
from statemix.tasks.mad.recall import NoisyRecall, Recall
from statemix.tasks.mad.storage import Compression, Memorization, SelectiveCopying

SPLITS = st.sampled_from(["train", "validation", "test"])


@given(st.integers(2, 40), st.integers(1, 70), st.integers(0, 99), SPLITS)
def test_compression_ends_with_its_token_and_targets_are_the_input(vocab, length, seed, split):
    task = Compression(vocab_size=vocab, length=length, seed=seed)
    tokens, targets, lengths = task.examples(split, 0, 5)
    assert lengths is None
    assert tokens.shape == (5, length)
    for row, labels in zip(tokens, targets["token"], strict=True):
        *content, last = row
        assert last == vocab - 1
        assert all(0 <= token < vocab - 1 for token in content)
        assert list(labels) == list(row)


@given(st.integers(3, 40), st.integers(1, 20), st.integers(0, 60), SPLITS)
def test_copying_asks_for_the_content_in_order(vocab, copied, blanks, split):
    length = 2 * copied + 1 + blanks
    task = SelectiveCopying(vocab_size=vocab, length=length, num_copied=copied)
    tokens, targets, _ = task.examples(split, 0, 5)
    assert tokens.shape == (5, length)
    blank, request = vocab - 2, length - copied - 1
    for row, labels in zip(tokens, targets["token"], strict=True):
        content = [token for token in row[:request] if token != blank]
        assert row[request] == vocab - 1
        assert list(row[request + 1 :]) == [blank] * copied
        assert len(content) == copied
        assert all(0 <= token < blank for token in content)
        assert row[request - 1] != blank  # No blank follows the last content token.
        assert list(labels) == [IGNORED] * (request + 1) + content


def check_recall(full, targets, split, num_keys, noise=()):
    """Read a sequence with its last value pair by pair, in plain Python."""
    known = {}
    expected = np.full(len(full) - 1, IGNORED)
    for place in range(0, len(full), 2):
        key, value = full[place], full[place + 1]
        if key in noise:
            assert value in noise
            continue
        assert 0 <= key < num_keys <= value < 2 * num_keys
        if key in known:
            assert value == known[key]
            expected[place] = value
        assert place < len(full) - 2 or key in known  # The last key was shown before.
        known[key] = value
    if split == "train":
        expected = full[1:]
    np.testing.assert_array_equal(targets, expected)


@given(st.integers(3, 40), st.integers(2, 40), st.integers(0, 99), SPLITS)
def test_recall_of_a_single_query_asks_for_one_value(vocab_size, num_pairs, seed, split):
    task = Recall(vocab_size=vocab_size, num_pairs=num_pairs, multi_query=False, seed=seed)
    tokens, targets, _ = task.examples(split, 0, 4)
    assert tokens.shape == (4, 2 * num_pairs) == (4, task.length)
    for row, labels in zip(tokens, targets["token"], strict=True):
        full = [*row.tolist(), int(labels[-1])]
        *shown, prefix, key, value = full
        assert prefix == vocab_size - 1
        known = {}
        for first, second in zip(shown[::2], shown[1::2], strict=True):
            assert 0 <= first < (vocab_size - 1) // 2 <= second < vocab_size - 1
            assert known.setdefault(first, second) == second
        assert known[key] == value
        expected = full[1:] if split == "train" else [IGNORED] * (len(shown) + 1) + [value]
        np.testing.assert_array_equal(labels, expected)


@given(st.integers(1, 9), st.integers(2, 40), st.sampled_from([None, 0.0, 0.2, 0.9]), SPLITS)
def test_recall_repeats_the_value_of_a_key_between_pairs_of_noise(
    num_keys, num_pairs, noise, split
):
    if noise is None:
        task, noisy = Recall(vocab_size=2 * num_keys, num_pairs=num_pairs), ()
    else:
        task = NoisyRecall(vocab_size=4 * num_keys, num_pairs=num_pairs, noise=noise)
        noisy = range(2 * num_keys, 4 * num_keys)
    tokens, targets, _ = task.examples(split, 0, 4)
    assert tokens.shape == (4, 2 * num_pairs - 1)
    for row, labels in zip(tokens, targets["token"], strict=True):
        check_recall(np.append(row, labels[-1]), labels, split, num_keys, noise=noisy)


def check_fuzzy_recall(full, targets, split, num_tokens, key_size, value_size):
    """Read a sequence with its last token pair by pair, in plain Python."""
    filler, num_keys = num_tokens - 1, (num_tokens - 1) // 2
    start = 0
    while full[start] == filler:
        start += 1
    assert min(full) >= 0
    assert max(full[start:]) < filler
    known, expected, place = {}, [IGNORED] * start, start
    while place < len(full):
        end_of_key = place
        while end_of_key < len(full) and full[end_of_key] < num_keys:
            end_of_key += 1
        end = end_of_key
        while end < len(full) and full[end] >= num_keys:
            end += 1
        key, value = tuple(full[place:end_of_key]), tuple(full[end_of_key:end])
        assert len(set(key)) == len(key) in range(1, key_size + 1)
        assert len(set(value)) == len(value) in range(1, value_size + 1)
        assert split == "train" or len(key) == key_size
        expected += [IGNORED] * len(key)
        expected += value if key in known else [IGNORED] * len(value)
        if end == len(full):
            assert key in known, "the last key must have been shown"
        assert known.setdefault(key, value) == value
        place = end
    wanted = full[1:] if split == "train" else expected[1:]
    np.testing.assert_array_equal(targets, wanted)


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 20), st.integers(0, 60),
    st.integers(0, 99), SPLITS,
)  # fmt: skip
def test_fuzzy_recall_repeats_the_value_of_a_key(key_size, value_size, more, longer, seed, split):
    num_tokens = 1 + max(2 * key_size, 2 * value_size - 1) + more
    length = 2 * (key_size + value_size) - 1 + longer
    task = FuzzyRecall(
        vocab_size=num_tokens, length=length, key_size=key_size, value_size=value_size, seed=seed
    )
    tokens, targets, _ = task.examples(split, 0, 6)
    assert tokens.shape == (6, length)
    # In a sequence of validation, the last token is that of the last target.
    for row, labels in zip(tokens.tolist(), targets["token"].tolist(), strict=True):
        full = [*row, labels[-1]]
        check_fuzzy_recall(full, labels, split, num_tokens, key_size, value_size)


@given(st.integers(3, 300), st.integers(1, 20), st.integers(0, 99))
def test_memorization_is_one_injective_map_for_all_splits(vocab_size, pairs, seed):
    task = Memorization(vocab_size=vocab_size, length=2 * pairs, train_size=None, seed=seed)
    seen = {}
    for split in ("train", "validation", "test"):
        tokens, targets, _ = task.examples(split, 0, 20)
        for row, labels in zip(tokens, targets["token"], strict=True):
            for place in range(0, len(row), 2):
                key, value = row[place], labels[place + 1]
                assert (row[place + 1], labels[place]) == (vocab_size - 1, IGNORED)
                assert 0 <= key < (vocab_size - 1) // 2 <= value < vocab_size - 1
                assert seen.setdefault(key, value) == value
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SelectiveCopying, {"length": 32}, r"length must be at least 33 \(.*\), got 32"),
        (Recall, {"vocab_size": 15}, "vocab_size must be even, got 15"),
        (Recall, {"vocab_size": 2, "multi_query": False}, "vocab_size must be at least 3 with"),
        (Recall, {"multi_query": 1}, "multi_query must be True or False, got 1"),
        (NoisyRecall, {"vocab_size": 30}, "vocab_size must be a multiple of 4, got 30"),
        (NoisyRecall, {"noise": 1.0}, "noise must be a number >= 0 and < 1, got 1.0"),
        (Memorization, {"length": 3}, "length must be even, got 3"),
        (FuzzyRecall, {"value_size": 9}, "vocab_size must be at least 18, got 16"),
        (FuzzyRecall, {"length": 10}, r"length must be at least 11 \(two of the .*, got 10"),
        (
            FuzzyRecall,
            {"vocab_size": 2049, "key_size": 1024, "value_size": 1024, "length": 4097},
            "length must be at most 4096 with key_size=1024 and value_size=1024, got 4097",
        ),
        (FuzzyRecall, {"vocab_size": 2**20 + 1}, "vocab_size must be .*1048576, got 1048577"),
    ],
)
def test_options_that_make_no_example_are_named(kind, options, message):
    with pytest.raises(OptionError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("task", "length", "message"),
    [
        (Recall(), 64, "length must be odd and at least 3, got 64"),
        (Recall(multi_query=False), 63, "length must be even and at least 4, got 63"),
    ],
)
def test_lengths_without_whole_pairs_are_named(task, length, message):
    with pytest.raises(OptionError, match=message):
        task.examples("test", 0, 1, length)
