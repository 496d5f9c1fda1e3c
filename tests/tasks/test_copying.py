"""The laws of copying: the answer is the string that was given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.errors import OptionError
from statemix.tasks import IGNORED
from statemix.tasks.copying import Copying

SPLITS = ("train", "validation", "test")


def texts(task, split, start, stop, length=None):
    """The example as text and its answers, with a dot where none is scored."""
    tokens, targets, lengths = task.examples(split, start, stop, length)
    if lengths is None:
        lengths = [tokens.shape[1]] * len(tokens)
    for row, labels, end in zip(tokens, targets["token"], lengths, strict=True):
        assert (labels[end:] == IGNORED).all()
        answers = ["." if label == IGNORED else task.word(label) for label in labels[:end]]
        yield "".join(task.word(token) for token in row[:end]), "".join(answers)


@given(
    letters=st.integers(1, 40),
    fewer=st.integers(0, 39),
    split=st.sampled_from(SPLITS),
    other=st.sampled_from([None, 1, 5, 60]),
    start=st.sampled_from([0, 3, 10**12]),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_answer_is_the_given_string_and_its_end(letters, fewer, split, other, start, seed):
    least = max(1, letters - fewer)
    task = Copying(min_length=2 * least + 2, length=2 * letters + 2, seed=seed)
    length = None if other is None else 2 * other + 2
    for text, answers in texts(task, split, start, start + 5, length):
        given_, copy = text[1:].split("|")
        assert text[0] == "^"
        assert copy == given_
        assert given_.isalpha()
        assert answers == "." * (1 + len(given_)) + given_ + "$"
        if split == "train" and other in (None, letters):
            assert least <= len(given_) <= letters
        else:
            assert len(given_) == (other or letters)


def test_training_lengths_are_uniform_over_their_range():
    lengths = Copying().examples("train", 0, 8000).lengths
    found, counts = np.unique(lengths, return_counts=True)
    assert found.tolist() == list(range(12, 43, 2))  # 5 to 20 letters
    np.testing.assert_allclose(counts / 8000, 1 / 16, rtol=0.2)


@pytest.mark.parametrize(("length", "fewest"), [(None, 5), (42, 5), (12, 5), (402, 200)])
def test_training_strings_are_shorter_only_at_the_training_length(length, fewest):
    examples = Copying().examples("train", 0, 200, length)
    letters = (examples.targets["token"] != IGNORED).sum(1) - 1
    assert letters.min() == fewest
    assert (examples.lengths is None) == (length in (12, 402))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_examples_are_of_one_length(split):
    for length, letters in ((None, 20), (42, 20), (12, 5), (402, 200)):
        examples = Copying().examples(split, 0, 3, length)
        assert examples.lengths is None
        assert ((examples.targets["token"] != IGNORED).sum(1) == letters + 1).all()


def test_letters_are_uniform_and_independent():
    letters = Copying(length=42).examples("test", 0, 4000).tokens[:, 1:21]
    share = np.bincount(letters.ravel(), minlength=26) / letters.size
    np.testing.assert_allclose(share, 1 / 26, rtol=0.05)
    repeated = (letters[:, 1:] == letters[:, :-1]).mean()
    assert repeated == pytest.approx(1 / 26, rel=0.05)


@pytest.mark.parametrize("letters", [1, 5, 20])
def test_guessing_letters_and_knowing_the_end_scores_the_chance(letters):
    task = Copying(min_length=4, length=2 * letters + 2)
    targets = task.examples("test", 0, 20_000).targets["token"][:, letters + 1 :]
    guess = np.random.default_rng(0).integers(26, size=targets.shape)
    guess[:, -1] = 28
    assert task.chance["token"] == pytest.approx((guess == targets).mean(), abs=0.01)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Copying(length=43), ValueError, "^length must be even .* letters.*, got 43"),
        (lambda: Copying(length=2), ValueError, "^length must be even and at least 4 .*, got 2"),
        (lambda: Copying(min_length=13), ValueError, "^min_length must be even .*, got 13"),
        (lambda: Copying(min_length=2), ValueError, "^min_length must be .* at least 4 .*, got 2"),
        (
            lambda: Copying(min_length=14, length=12),
            ValueError,
            "^min_length must be at most length=12, got 14",
        ),
        (lambda: Copying(min_length=None), OptionError, "^min_length must be an integer, got None"),
        (lambda: Copying(length=42.0), OptionError, "^length must be an integer, got 42.0"),
        (
            lambda: Copying().examples("test", 0, 1, 41),
            ValueError,
            "^length must be even .*, got 41",
        ),
    ],
)
def test_lengths_out_of_range_are_named(build, error, message):
    with pytest.raises(error, match=message):
        build()
