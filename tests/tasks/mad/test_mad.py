"""The laws of MAD's tasks."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.tasks import IGNORED, addressing
from statemix.tasks.mad.fuzzy_recall import FuzzyRecall, distinct, first_places
from statemix.tasks.mad.recall import NoisyRecall, Recall
from statemix.tasks.mad.storage import Compression, Memorization, SelectiveCopying

SPLITS = st.sampled_from(["train", "validation", "test"])


def check_compression(tokens, targets, vocab_size):
    *content, last = tokens
    assert last == vocab_size - 1
    assert all(0 <= token < vocab_size - 1 for token in content)
    assert list(targets) == list(tokens)


@given(st.integers(2, 40), st.integers(1, 70), st.integers(0, 99), SPLITS)
def test_compression_ends_with_its_token_and_targets_are_the_input(vocab, length, seed, split):
    task = Compression(vocab_size=vocab, length=length, seed=seed)
    tokens, targets, lengths = task.examples(split, 0, 5)
    assert lengths is None
    assert tokens.shape == (5, length)
    for row, labels in zip(tokens, targets["token"], strict=True):
        check_compression(row, labels, vocab)


def check_copying(tokens, targets, vocab_size, num_copied):
    """Read content among blanks, the request and the blanks after it, in plain Python."""
    blank, request = vocab_size - 2, len(tokens) - num_copied - 1
    shown, asked = list(tokens[:request]), list(tokens[request + 1 :])
    assert tokens[request] == vocab_size - 1
    assert asked == [blank] * num_copied
    content = [token for token in shown if token != blank]
    assert len(content) == num_copied
    assert all(0 <= token < blank for token in content)
    assert shown[-1] != blank  # No blank follows the last content token.
    assert list(targets) == [IGNORED] * (request + 1) + content


@given(st.integers(3, 40), st.integers(1, 20), st.integers(0, 60), SPLITS)
def test_copying_asks_for_the_content_in_order(vocab, copied, blanks, split):
    length = 2 * copied + 1 + blanks
    task = SelectiveCopying(vocab_size=vocab, length=length, num_copied=copied)
    tokens, targets, _ = task.examples(split, 0, 5)
    assert tokens.shape == (5, length)
    for row, labels in zip(tokens, targets["token"], strict=True):
        check_copying(row, labels, vocab, copied)


def test_blanks_choose_their_content_token_uniformly():
    task = SelectiveCopying(length=64, num_copied=16)
    tokens = task.examples("train", 0, 4000).tokens[:, :47]
    content = np.nonzero(tokens < 14)[1].reshape(4000, 16)
    before = np.diff(content, axis=1, prepend=-1) - 1
    np.testing.assert_allclose(before.mean(0), 31 / 16, atol=0.1)
    # Multinomial: the variance of the number of blanks before one token.
    np.testing.assert_allclose(before.var(0), 31 / 16 * 15 / 16, rtol=0.15)


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


def check_single_query(full, targets, split, num_keys, num_tokens):
    """Read pairs, the prefix, one of the keys shown and its value, in plain Python."""
    *shown, prefix, key, value = full
    assert prefix == num_tokens - 1
    known = {}
    for first, second in zip(shown[::2], shown[1::2], strict=True):
        assert 0 <= first < num_keys <= second < num_tokens - 1
        assert known.setdefault(first, second) == second
    assert known[key] == value
    expected = full[1:] if split == "train" else [IGNORED] * len(shown) + [IGNORED, value]
    np.testing.assert_array_equal(targets, expected)


@given(st.integers(3, 40), st.integers(2, 40), st.integers(0, 99), SPLITS)
def test_recall_of_a_single_query_asks_for_one_value(vocab_size, num_pairs, seed, split):
    task = Recall(vocab_size=vocab_size, num_pairs=num_pairs, multi_query=False, seed=seed)
    tokens, targets, _ = task.examples(split, 0, 4)
    assert tokens.shape == (4, 2 * num_pairs) == (4, task.length)
    for row, labels in zip(tokens, targets["token"], strict=True):
        full = [*row.tolist(), int(labels[-1])]
        check_single_query(full, labels, split, (vocab_size - 1) // 2, vocab_size)


def test_values_of_a_single_query_are_all_drawn():
    """An odd number of tokens leaves as many values as keys, an even number one more."""
    task = Recall(vocab_size=16, multi_query=False)
    tokens = task.examples("train", 0, 500).tokens
    assert np.unique(tokens[:, :-2:2]).tolist() == list(range(7))
    assert np.unique(tokens[:, 1:-2:2]).tolist() == list(range(7, 15))
    assert task.guessing == 1 / 8


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Memorization(vocab_size=6), "k0 k1 v0 v1 v2 ?"),
        (NoisyRecall(vocab_size=8), "k0 k1 v0 v1 ~ ~ ~ ~"),
    ],
)
def test_tokens_are_named_as_keys_and_values(task, words):
    assert [task.word(token) for token in range(task.vocab_size)] == words.split()


def numbers(text):
    return [int(word) for word in text.split()]


def test_the_readers_accept_the_examples_of_mad():
    """As its generators made them; those of recall with the last value."""
    compression = numbers("10 3 11 4 3 11 9 15")
    check_compression(compression, compression, 16)
    copying = numbers("14 9 14 14 14 14 3 14 14 11 4 15 14 14 14 14")
    check_copying(copying, [IGNORED] * 12 + [9, 3, 11, 4], 16, 4)
    values = {3: 11, 6: 10, 0: 13}
    ignored = IGNORED
    targets = [ignored, 11, ignored, 10, ignored, 13, ignored, 11]
    check_memorization(numbers("3 15 6 15 0 15 3 15"), targets, 16, values)
    recall = numbers("1 14 2 9 6 13 5 15 3 14 2 9 4 12 2 9")
    asked = [IGNORED] * 15
    asked[10] = asked[14] = 9
    check_recall(recall, asked, "test", 8)
    check_recall(recall, recall[1:], "train", 8)
    noisy = numbers("19 19 6 15 22 25 25 19 5 13 1 15 7 9 6 15")
    check_recall(noisy, [IGNORED] * 14 + [15], "test", 8, noise=range(16, 32))
    single = numbers("1 13 2 8 5 12 4 14 2 8 5 12 2 8 15 5 12")
    check_single_query(single, [IGNORED] * 15 + [12], "test", 7, 16)


@given(st.integers(1, 20), st.integers(2, 40), st.integers(0, 99), SPLITS)
def test_recall_repeats_the_value_of_a_key(num_keys, num_pairs, seed, split):
    task = Recall(vocab_size=2 * num_keys, num_pairs=num_pairs, seed=seed)
    tokens, targets, _ = task.examples(split, 0, 4)
    assert tokens.shape == (4, 2 * num_pairs - 1)
    for row, labels in zip(tokens, targets["token"], strict=True):
        check_recall(np.append(row, labels[-1]), labels, split, num_keys)


@pytest.mark.parametrize(
    ("preset", "length", "expected"),
    [
        ("baseline", 64, 24.12),
        ("vocabulary-32", 64, 18.20),
        ("length-128", 128, 56.00),
        ("examples-10k", 64, 24.12),
    ],
)
def test_recall_scores_as_many_targets_as_mad(preset, length, expected):
    """A sequence of L tokens has L / 2 pairs, and the model reads all but the last token."""
    task = Recall(**Recall.presets[preset])
    assert (task.num_pairs, task.length) == (length // 2, length - 1)
    num_keys, drawn = task.vocab_size // 2, task.num_pairs - 1
    # Pairs less those whose key is new; the last one never is.
    exact = task.num_pairs - num_keys * (1 - (1 - 1 / num_keys) ** drawn)
    assert exact == pytest.approx(expected, abs=0.05)
    targets = task.examples("test", 0, 20_000).targets["token"]
    # Five standard errors of the mean.
    assert (targets != IGNORED).sum(1).mean() == pytest.approx(exact, abs=0.04)


def test_the_last_key_of_recall_is_uniform_over_those_shown():
    task = Recall(vocab_size=8, num_pairs=6)
    tokens = task.examples("train", 0, 6000).tokens
    ranks = {}
    for row in tokens:
        shown = sorted(set(row[:-1:2].tolist()))
        ranks.setdefault(len(shown), []).append(shown.index(row[-1]))
    for count, found in ranks.items():
        if len(found) > 500:
            share = np.bincount(found, minlength=count) / len(found)
            np.testing.assert_allclose(share, 1 / count, atol=0.08)


@given(st.integers(1, 9), st.integers(2, 40), st.sampled_from([0.0, 0.2, 0.9]), SPLITS)
def test_noisy_recall_is_recall_between_pairs_of_noise(num_keys, num_pairs, noise, split):
    task = NoisyRecall(vocab_size=4 * num_keys, num_pairs=num_pairs, noise=noise)
    tokens, targets, _ = task.examples(split, 0, 4)
    noisy = range(2 * num_keys, 4 * num_keys)
    for row, labels in zip(tokens, targets["token"], strict=True):
        check_recall(np.append(row, labels[-1]), labels, split, num_keys, noise=noisy)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.8])
def test_the_share_of_noise_is_that_asked_for(noise):
    tokens = NoisyRecall(num_pairs=64, noise=noise).examples("test", 0, 1000).tokens
    found = (tokens[:, :-1:2] >= 16).mean()
    # One of 63 pairs is protected.
    assert found == pytest.approx(noise * 62 / 63, abs=0.01)


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


def test_the_reader_refuses_the_example_of_mad_without_an_answer():
    """Its generator made a sequence whose last key, 4 1 5, does not occur earlier."""
    mad = numbers("15 15 15 6 1 0 9 10 12 2 0 6 8 11 2 4 5 14 6 5 3 8 3 5 4 13 9 14 4 1 5 13 9")
    targets = [IGNORED] * 30 + [13, 9]
    with pytest.raises(AssertionError, match="the last key must have been shown"):
        check_fuzzy_recall(mad, targets, "test", 16, 3, 3)
    # With a key that does occur, it is as it should be.
    mad[28:] = [2, 0, 6, 8, 11]
    check_fuzzy_recall(mad, [*targets[:30], 8, 11], "test", 16, 3, 3)


def sizes_of_pairs(tokens, num_keys):
    """The numbers of tokens of keys and values, without the first pair and the last two."""
    keys, values = [], []
    for row in tokens.tolist():
        text = "".join("k" if t < num_keys else "v" for t in row if t != 2 * num_keys + 1)
        found = [(len(k), len(v)) for k, v in re.findall("(k+)(v+)", text)][1:-2]
        keys += [k for k, _ in found]
        values += [v for _, v in found]
    return keys, values


def test_sizes_of_fuzzy_keys_and_values_are_uniform_in_training():
    tokens = FuzzyRecall().examples("train", 0, 4000).tokens
    for found in sizes_of_pairs(tokens, 7):
        share = np.bincount(found, minlength=4)[1:] / len(found)
        np.testing.assert_allclose(share, 1 / 3, atol=0.01)
    keys, values = sizes_of_pairs(FuzzyRecall().examples("test", 0, 500).tokens, 7)
    assert (set(keys), set(values)) == ({3}, {1, 2, 3})


def test_different_tokens_are_drawn_by_their_rank_among_those_left():
    raw = np.random.default_rng(0).integers(0, 2**64, (2, 50, 7), dtype=np.uint64)
    for size in (7, 8, 40):
        for draws, numbers in zip(
            raw.reshape(-1, 7), distinct(raw, size).reshape(-1, 7), strict=True
        ):
            left = list(range(size))
            for value, number in zip(draws, numbers, strict=True):
                assert left.pop(int(addressing.below(value, len(left)))) == number


def test_the_last_pair_of_fuzzy_recall_repeats_any_of_those_shown():
    """Keys are many enough here to be different, so that the place of the answer is known."""
    task = FuzzyRecall(vocab_size=20_001, length=63, key_size=1, value_size=1)
    tokens, targets, _ = task.examples("train", 0, 6200)
    full = np.append(tokens, targets["token"][:, -1:], axis=1)
    assert full.min() >= 0
    assert (full < 20_000).all()  # Pairs of two tokens leave no room for fillers.
    places = (full[:, :-2:2] == full[:, -2:-1]).argmax(1)
    share = np.bincount(places, minlength=31) / len(places)
    np.testing.assert_allclose(share, 1 / 31, atol=0.012)


@pytest.mark.parametrize(("split", "first"), [("train", 0), ("test", 7)])
def test_all_fuzzy_keys_and_values_occur(split, first):
    task = FuzzyRecall(vocab_size=16)
    tokens, targets, _ = task.examples(split, 0, 500)
    assert np.unique(tokens).tolist() == list(range(16))
    # In training, keys and fillers are targets, too.
    scored = targets["token"][targets["token"] != IGNORED]
    assert np.unique(scored).tolist() == list(range(first, 16 if split == "train" else 15))
    assert task.guessing == 1 / 8


def test_fillers_are_few():
    """Fewer than the longest pair and what the last pair falls short of it."""
    tokens = FuzzyRecall().examples("train", 0, 2000).tokens
    fillers = (tokens == 15).sum(1)
    assert fillers.max() < 6 + 4
    assert fillers.min() == 0


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99))
def test_distinct_numbers_are_distinct(count, more, seed):
    raw = np.random.default_rng(seed).integers(2**64, size=(7, 2, count), dtype=np.uint64)
    drawn = distinct(raw, count + more)
    assert drawn.shape == raw.shape
    assert ((drawn >= 0) & (drawn < count + more)).all()
    assert all(len(set(row)) == count for row in drawn.reshape(-1, count).tolist())


def test_every_sequence_of_distinct_numbers_is_equally_likely():
    raw = np.random.default_rng(0).integers(2**64, size=(24_000, 3), dtype=np.uint64)
    found = Counter(map(tuple, distinct(raw, 4).tolist()))
    assert set(found) == set(itertools.permutations(range(4), 3))
    # Five standard deviations of the binomial distribution.
    assert all(abs(count - 1000) < 160 for count in found.values())


@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_first_places_are_those_of_a_search(number, most, size, seed):
    keys = np.random.default_rng(seed).integers(3, size=(number, most, size))
    for row, found in zip(keys.tolist(), first_places(keys).tolist(), strict=True):
        assert found == [row.index(key) for key in row]


def check_memorization(tokens, targets, vocab_size, seen):
    """Read keys and their values in plain Python; ``seen`` holds the map as far as it is known."""
    for place in range(0, len(tokens), 2):
        key, value = tokens[place], targets[place + 1]
        assert (tokens[place + 1], targets[place]) == (vocab_size - 1, IGNORED)
        assert 0 <= key < (vocab_size - 1) // 2 <= value < vocab_size - 1
        assert seen.setdefault(key, value) == value


@given(st.integers(3, 300), st.integers(1, 20), st.integers(0, 99))
def test_memorization_is_one_injective_map_for_all_splits(vocab_size, pairs, seed):
    task = Memorization(vocab_size=vocab_size, length=2 * pairs, train_size=None, seed=seed)
    seen = {}
    for split in ("train", "validation", "test"):
        tokens, targets, _ = task.examples(split, 0, 20)
        for row, labels in zip(tokens, targets["token"], strict=True):
            check_memorization(row, labels, vocab_size, seen)
    assert len(set(seen.values())) == len(seen)


def test_the_seed_determines_the_map():
    maps = {tuple(Memorization(seed=seed).values.tolist()) for seed in range(5)}
    assert len(maps) == 5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Compression(vocab_size=1), "vocab_size must be at least 2, got 1"),
        (lambda: SelectiveCopying(length=32), r"length must be at least 33 \(.*\), got 32"),
        (lambda: SelectiveCopying(num_copied=0), "num_copied must be at least 1, got 0"),
        (lambda: Recall(vocab_size=15), "vocab_size must be even, got 15"),
        (
            lambda: Recall(vocab_size=2, multi_query=False),
            "vocab_size must be at least 3 with multi_query=False, got 2",
        ),
        (
            lambda: Recall(multi_query=False).examples("test", 0, 1, 63),
            "length must be even and at least 4, got 63",
        ),
        (lambda: Recall(num_pairs=1), "num_pairs must be at least 2, got 1"),
        (lambda: Recall().examples("test", 0, 1, 64), "length must be odd and at least 3, got 64"),
        (lambda: NoisyRecall(vocab_size=30), "vocab_size must be a multiple of 4, got 30"),
        (lambda: NoisyRecall(noise=1.0), "noise must be at least 0 and below 1, got 1.0"),
        (lambda: NoisyRecall(noise=float("nan")), "noise must be at least 0 and below 1, got nan"),
        (lambda: Memorization(length=3), "length must be even, got 3"),
        (lambda: FuzzyRecall(vocab_size=6), "vocab_size must be at least 7, got 6"),
        (lambda: FuzzyRecall(value_size=9), "vocab_size must be at least 18, got 16"),
        (lambda: FuzzyRecall(length=10), r"length must be at least 11 \(two of the .*, got 10"),
        (
            lambda: FuzzyRecall(vocab_size=2049, key_size=1024, value_size=1024, length=4097),
            "length must be at most 4096 with key_size=1024 and value_size=1024, got 4097",
        ),
        (lambda: FuzzyRecall(key_size=0), "key_size must be at least 1, got 0"),
        (lambda: FuzzyRecall(vocab_size=2**20 + 1), "vocab_size must be .*1048576, got 1048577"),
    ],
)
def test_options_that_make_no_example_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_configurations_of_the_paper():
    assert Compression.presets["baseline"] == {
        "vocab_size": 16, "train_size": 20_000, "length": 64
    }  # fmt: skip
    assert Recall.presets["length-128"]["num_pairs"] == 64
    assert SelectiveCopying.presets["vocabulary-32"]["vocab_size"] == 32
    assert FuzzyRecall.presets["examples-800"] == {
        "vocab_size": 16, "train_size": 800, "length": 128
    }  # fmt: skip
    assert len(FuzzyRecall.presets) == 1 + 3 + 3 + 4
    lengths = {options["length"] for options in FuzzyRecall.presets.values()}
    assert lengths == {128, 256, 512, 1024}
    assert {options["train_size"] for options in Recall.presets.values()} == {10_000, 20_000}
