"""The permutation task: data, sizes and errors."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.errors import OptionError
from statemix.tasks import IGNORED
from statemix.tasks.groups import NAMES, group
from statemix.tasks.permutation import Permutation


def product(examples):
    """The tokens and the targets of the only head."""
    tokens, targets, lengths = examples
    assert lengths is None
    return tokens, targets["product"]


@given(
    name=st.sampled_from(NAMES),
    length=st.integers(1, 90),
    start=st.integers(0, 1000),
    seed=st.integers(0, 2**64 - 1),
)
def test_targets_are_running_products_of_the_tokens(name, length, start, seed):
    task = Permutation(group=name, length=length, seed=seed)
    tokens, targets = product(task.examples("train", start, start + 4))
    table = group(name).table
    assert tokens.shape == targets.shape == (4, length)
    np.testing.assert_array_equal(targets[:, 0], tokens[:, 0])
    np.testing.assert_array_equal(targets[:, 1:], table[targets[:, :-1], tokens[:, 1:]])


@pytest.mark.parametrize(("name", "count"), [("A_5", 2), ("S_5", 32), ("S_3", 5)])
def test_random_generators_generate_the_group(name, count):
    found = set()
    for seed in range(8):
        task = Permutation(group=name, num_generators=count, generator_seed=seed, length=6)
        assert task.vocab_size == len(set(task.letters)) == count
        assert 0 not in task.letters
        products = {0}
        for _ in range(task.group.order):
            products |= {int(task.group.table[a, g]) for a in products for g in task.letters}
        assert len(products) == task.group.order
        assert task.automaton().transitions.shape == (task.group.order, count)
        found.add(task.letters)
    assert len(found) == (1 if name == "S_3" else 8)
    assert Permutation(group="A_5", num_generators=2, generator_seed=3).letters == (26, 45)
    assert task.title == f"{name}, {count} generators"
    tokens, targets, _ = task.examples("train", 0, 5)
    letters = np.array(task.letters)[tokens]
    assert (targets["product"] == task.group.running_products(letters)).all()


@pytest.mark.parametrize("name", ["S_3", "A_5"])
def test_words_of_generators_reach_the_whole_group(name):
    task = Permutation(group=name, generators=True, length=40)
    found = group(name)
    first, second = (found.elements[place] for place in task.letters)
    points = tuple(range(1, found.degree + 1))
    assert first == ((2, 1, *points[2:]) if name.startswith("S") else (2, 3, 1, *points[3:]))
    assert second == (*points[1:], 1)
    assert (task.vocab_size, task.heads) == (2, {"product": found.order})
    assert task.title == f"{name}, two generators"
    tokens, targets = product(task.examples("train", 0, 500))
    letters = np.array(task.letters)[tokens]
    np.testing.assert_array_equal(targets, found.running_products(letters))
    assert set(targets.ravel()) == set(range(found.order))
    assert task.automaton().answers(tokens[0].tolist()) == targets[0].tolist()
    word = task.describe(3).splitlines()[1].split()[1:9]
    assert word == ["".join(map(str, found.elements[place])) for place in letters[3, :8]]
    # A mixture of lengths, and the spaces of short words.
    mixed = Permutation(group=name, generators=True, length=6, min_length=2)
    assert (mixed.examples("train", 0, 40).targets["product"] == IGNORED).any()
    with pytest.raises(ValueError, match=r"64 words of length 6 over .*, two generators\), got 60"):
        Permutation(group=name, generators=True, length=6, train_size=60)


@pytest.mark.parametrize("options", [{}, {"generators": True}, {"num_generators": 4}])
def test_features_of_tokens_are_matrices_that_multiply_like_permutations(options):
    task = Permutation(group="S_4", **options)
    matrices = task.token_features().reshape(task.vocab_size, 4, 4)
    whole = Permutation(group="S_4").token_features().reshape(24, 4, 4)
    examples = task.examples("train", 0, 5, 6)
    for word, products in zip(examples.tokens, examples.targets["product"], strict=True):
        so_far = np.eye(4, dtype=np.float32)
        for token, expected in zip(word, products, strict=True):
            # (a b)(i) = a(b(i)): row i of the product is row b(i) of a.
            so_far = matrices[token] @ so_far
            assert (so_far == whole[expected]).all()


@pytest.mark.parametrize(
    ("split", "length", "expected"),
    [
        ("train", 16, "d836c4528cfb2b3f"),
        ("validation", 16, "1617eee757298bb5"),
        ("test", 16, "118b93df2c9307c6"),
        ("test", 16_384, "73b6e693cfef2e52"),
    ],
)
def test_examples_are_those_of_every_other_machine(split, length, expected):
    tokens, targets = product(Permutation(train_size=250).examples(split, 0, 250, length))
    digest = hashlib.sha256(np.stack([tokens, targets]).astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == expected


@given(
    name=st.sampled_from(NAMES),
    length=st.integers(1, 40),
    shorter=st.integers(0, 39),
    start=st.sampled_from([0, 7, 10**12]),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_mixed_training_word_begins_the_word_of_full_length(name, length, shorter, start, seed):
    least = max(1, length - shorter)
    mixed = Permutation(group=name, length=length, min_length=least, seed=seed)
    tokens, targets, lengths = mixed.examples("train", start, start + 6)
    plain = Permutation(group=name, length=length, seed=seed).examples("train", start, start + 6)
    assert least <= lengths.min() <= lengths.max() <= length
    inside = np.arange(length) < lengths[:, None]
    np.testing.assert_array_equal(tokens[inside], plain.tokens[inside])
    expected = np.where(inside, plain.targets["product"], IGNORED)
    np.testing.assert_array_equal(targets["product"], expected)
    np.testing.assert_array_equal(
        mixed.examples("train", start + 2, start + 6).lengths, lengths[2:]
    )


def test_mixed_training_leaves_all_other_words_as_they_are():
    mixed, plain = Permutation(min_length=2, seed=3), Permutation(seed=3)
    for split, length in (("train", 5), ("validation", None), ("test", 16), ("test", 33)):
        pair = [product(task.examples(split, 0, 4, length)) for task in (mixed, plain)]
        np.testing.assert_array_equal(*pair)
    # Lengths of a mixture are those of every other machine.
    lengths = Permutation(length=9, min_length=2).examples("train", 0, 12).lengths
    assert lengths.tolist() == [6, 2, 3, 6, 8, 8, 8, 7, 9, 5, 9, 2]
    whole = mixed.examples("train", 0, 9, 16).lengths
    np.testing.assert_array_equal(mixed.examples("train", 0, 9).lengths, whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "S_9"}, "group must be one of S_2, S_3, .* got 'S_9'"),
        ({"group": "S_2", "generators": True}, "generators must be false for S_2"),
        ({"num_generators": 6}, "num_generators must be at most 5, got 6"),
        ({"num_generators": 2, "generators": True}, "generators must be false with num_gen"),
        ({"min_length": 17}, "min_length must be at most 16, got 17"),
        (
            {"group": "S_2", "train_size": 50_000},
            r"train_size must be at most 49152 .* 65536 words of length 16 over S_2\), got 50000",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        Permutation(**options)
