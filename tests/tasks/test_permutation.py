"""The permutation task: data, sizes and errors."""

import hashlib
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.errors import OptionError
from statemix.tasks import IGNORED
from statemix.tasks.groups import NAMES, group
from statemix.tasks.permutation import PAPER_SETS, Permutation


def product(examples):
    """The tokens and the targets of the only head."""
    tokens, targets, lengths = examples
    assert lengths is None
    assert list(targets) == ["product"]
    return tokens, targets["product"]


def as_set(rows):
    return {tuple(row) for row in rows.tolist()}


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
    assert tokens.dtype == targets.dtype == np.int64
    np.testing.assert_array_equal(targets[:, 0], tokens[:, 0])
    np.testing.assert_array_equal(targets[:, 1:], table[targets[:, :-1], tokens[:, 1:]])


@pytest.mark.parametrize(("name", "count"), [("A_5", 2), ("A_5", 12), ("S_5", 32), ("S_3", 5)])
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
    assert task.title == f"{name}, {count} generators"
    tokens, targets, _ = task.examples("train", 0, 5)
    letters = np.array(task.letters)[tokens]
    assert (targets["product"] == task.group.running_products(letters)).all()


@pytest.mark.parametrize("name", NAMES)
def test_sizes_follow_from_the_group(name):
    task = Permutation(group=name)
    tokens, targets = product(task.examples("train", 0, 1000))
    order = group(name).order
    assert task.vocab_size == order
    assert task.heads == {"product": order}
    assert task.chance == {"product": 1 / order}
    assert task.title == name
    assert set(tokens.ravel()) == set(targets.ravel()) == set(range(order))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "S_2"])
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
    assert as_set(tokens[:, :1]) == {(0,), (1,)}
    letters = np.array(task.letters)[tokens]
    np.testing.assert_array_equal(targets, found.running_products(letters))
    assert set(targets.ravel()) == set(range(found.order))
    automaton = task.automaton()
    assert automaton.num_tokens == 2
    assert automaton.answers(tokens[0].tolist()) == targets[0].tolist()
    shown = task.describe(3).splitlines()
    (word,) = (line.split()[1:] for line in shown[1:2])
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
        product = np.eye(4, dtype=np.float32)
        for token, expected in zip(word, products, strict=True):
            # (a b)(i) = a(b(i)): row i of the product is row b(i) of a.
            product = matrices[token] @ product
            assert (product == whole[expected]).all()


def test_all_positions_are_scored():
    _, targets = product(Permutation().examples("test", 0, 100))
    assert (targets >= 0).all()


def test_a_smaller_training_set_is_the_beginning_of_a_larger_one():
    small, large = Permutation(train_size=250), Permutation(train_size=10_000)
    beginning = [part[:250] for part in product(large.examples("train", 0, 10_000))]
    np.testing.assert_array_equal(product(small.examples("train", 0, 250)), beginning)


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_example(name):
    task = Permutation(group=name, train_size=10_000)
    sizes = {"train": 10_000, "validation": 5_000, "test": 5_000}
    parts = [as_set(task.examples(split, 0, size)[0]) for split, size in sizes.items()]
    assert len(set().union(*parts)) == 20_000


@pytest.mark.parametrize("length", [1, 17, 64, 16_384])
def test_other_lengths_are_available_in_every_split(length):
    task = Permutation(group="S_4", train_size=3)
    for split in ("train", "validation", "test"):
        tokens, targets = product(task.examples(split, 0, 3, length))
        assert tokens.shape == targets.shape == (3, length)


def test_length_defaults_to_the_training_length():
    task = Permutation(length=20)
    np.testing.assert_array_equal(
        product(task.examples("test", 0, 5)), product(task.examples("test", 0, 5, length=20))
    )


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
    assert (lengths.shape, lengths.dtype) == ((6,), np.int64)
    assert least <= lengths.min() <= lengths.max() <= length
    inside = np.arange(length) < lengths[:, None]
    np.testing.assert_array_equal(tokens[inside], plain.tokens[inside])
    expected = np.where(inside, plain.targets["product"], IGNORED)
    np.testing.assert_array_equal(targets["product"], expected)


def test_mixed_lengths_are_uniform_and_drawn_by_the_index():
    task = Permutation(group="S_5", length=9, min_length=2, train_size=8000)
    lengths = task.examples("train", 0, 8000).lengths
    found, counts = np.unique(lengths, return_counts=True)
    assert found.tolist() == list(range(2, 10))
    np.testing.assert_allclose(counts / 8000, 1 / 8, rtol=0.1)
    np.testing.assert_array_equal(task.examples("train", 500, 600).lengths, lengths[500:600])
    other = Permutation(group="S_5", length=9, min_length=2, seed=1)
    assert (other.examples("train", 0, 8000).lengths != lengths).mean() > 0.8


def test_mixed_training_leaves_all_other_words_as_they_are():
    mixed, plain = Permutation(min_length=2, seed=3), Permutation(seed=3)
    for split in ("train", "validation", "test"):
        for length in (None, 16, 2, 5, 33):
            if split == "train" and length in (None, 16):
                continue
            pair = [product(task.examples(split, 0, 4, length)) for task in (mixed, plain)]
            np.testing.assert_array_equal(*pair)
    np.testing.assert_array_equal(
        mixed.examples("train", 0, 9).lengths, mixed.examples("train", 0, 9, 16).lengths
    )


@pytest.mark.parametrize("name", PAPER_SETS)
def test_paper_sets_can_be_built(name):
    task = Permutation(**PAPER_SETS[name])
    degree, size = re.fullmatch(r"S(\d)-(\d+k?)", name).groups()
    assert task.group.name == f"S_{degree}"
    assert task.train_size == int(size.replace("k", "000"))
    assert task.length == 16
    tokens, _ = product(task.examples("train", 0, task.train_size))
    assert len(as_set(tokens)) == task.train_size


def test_description_shows_the_word_and_its_products():
    task = Permutation(group="S_3", length=10, train_size=50)
    (tokens,), (targets,) = product(task.examples("test", 4, 5))
    text = task.describe(4, "test")
    assert text.splitlines()[0] == "test word 4 over S_3, 10 elements"
    shown = {"word": [], "token": [], "product": [], "target": []}
    for line in filter(None, text.splitlines()[1:]):
        title, *cells = line.split()
        shown[title] += cells
    elements = ["".join(map(str, element)) for element in group("S_3").elements]
    assert shown == {
        "word": [elements[i] for i in tokens],
        "token": [str(i) for i in tokens],
        "product": [elements[i] for i in targets],
        "target": [str(i) for i in targets],
    }


def test_description_of_a_mixed_training_word_ends_with_the_word():
    task = Permutation(group="S_4", length=30, min_length=2)
    for index in range(12):
        (length,) = task.examples("train", index, index + 1).lengths
        first, *lines = task.describe(index).splitlines()
        assert first == f"train word {index} over S_4, {length} elements"
        targets = " ".join(line[10:] for line in lines if line.startswith("  target")).split()
        assert len(targets) == length
        assert str(IGNORED) not in targets


def test_description_fits_a_terminal():
    lines = Permutation(group="S_5", length=64).describe(0).splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"group": "S_9"}, ValueError, "group must be one of S_2, S_3, .* got 'S_9'"),
        ({"group": 3}, OptionError, "group must be a string, got 3"),
        ({"length": 0}, ValueError, "length must be at least 1, got 0"),
        (
            {"length": 2**24 + 1, "train_size": 5},
            ValueError,
            "length must be at most 16777216, got 16777217",
        ),
        ({"length": 10**30}, ValueError, f"length must be at most 16777216, got {10**30}"),
        ({"length": 16.0}, OptionError, "length must be an integer, got 16.0"),
        ({"length": True}, OptionError, "length must be an integer, got True"),
        (
            {"group": "S_2", "generators": True},
            ValueError,
            "generators must be false for S_2, which has only one, got true",
        ),
        ({"generators": 1}, OptionError, "generators must be true or false, got 1"),
        ({"num_generators": 1}, OptionError, "num_generators must be at least 2, got 1"),
        (
            {"num_generators": 6},
            OptionError,
            "num_generators must be at most 5, the elements of S_3 without the identity, got 6",
        ),
        (
            {"num_generators": 2, "generators": True},
            OptionError,
            "generators must be false with num_generators, got true",
        ),
        ({"generator_seed": -1}, OptionError, "generator_seed must be at least 0, got -1"),
        ({"min_length": 0}, ValueError, "min_length must be at least 1, got 0"),
        ({"min_length": 17}, ValueError, "min_length must be at most length=16, got 17"),
        ({"min_length": 2.0}, OptionError, "min_length must be an integer, got 2.0"),
        ({"train_size": 0}, ValueError, "train_size must be at least 1, got 0"),
        ({"train_size": "250"}, OptionError, "train_size must be an integer, got '250'"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"seed": 2**64}, ValueError, r"seed must be below 2\^64, got 18446744073709551616"),
        ({"seed": None}, OptionError, "seed must be an integer, got None"),
        (
            {"group": "S_2", "train_size": 50_000},
            ValueError,
            r"train_size must be at most 49152 .* 65536 words of length 16 over S_2\), got 50000",
        ),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        Permutation(**options)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (("dev", 0, 1), ValueError, "split must be one of train, validation, test, got 'dev'"),
        (("train", -1, 1), ValueError, "start must be at least 0, got -1"),
        (("train", 0.0, 1), OptionError, "start must be an integer, got 0.0"),
        (("train", 5, 4), ValueError, "stop must be at least 5, got 4"),
        (("train", 0, 251), ValueError, "stop must be at most train_size=250, got 251"),
        (("train", 0, 250, 3), ValueError, "stop must be at most 162 .* 216 words .*, got 250"),
        (("test", 0, 28, 3), ValueError, "stop must be at most 27 .* 216 words .*, got 28"),
        (("test", 0, 1, 0), ValueError, "length must be at least 1, got 0"),
        (("test", 0, 1, 10**9), ValueError, "length must be at most 16777216, got 1000000000"),
        (("test", 0, 1, "16"), OptionError, "length must be an integer, got '16'"),
    ],
)
def test_bad_requests_are_named(request_, error, message):
    with pytest.raises(error, match=message):
        Permutation(train_size=250).examples(*request_)


def test_bad_indices_of_a_description_are_named():
    with pytest.raises(ValueError, match="index must be at least 0, got -1"):
        Permutation().describe(-1)


@pytest.mark.parametrize("stop", [2**63, 2**200, 2**62])
def test_ranges_beyond_any_memory_or_address_are_refused(stop):
    with pytest.raises(ValueError, match="stop must be"):
        Permutation().examples("train", 0, stop)
    with pytest.raises(ValueError, match=r"stop must be below 2\^63"):
        Permutation().examples("train", 2**200, 2**200 + 1)
