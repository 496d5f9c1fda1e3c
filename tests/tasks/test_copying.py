"""The laws of copying: the answer is the string that was given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.errors import OptionError
from statemix.tasks import IGNORED
from statemix.tasks.copying import Copying

SPLITS = ("train", "validation", "test")


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
    tokens, targets, lengths = task.examples(split, start, start + 5, length)
    lengths = [tokens.shape[1]] * 5 if lengths is None else lengths
    for row, labels, end in zip(tokens, targets["token"], lengths, strict=True):
        assert (labels[end:] == IGNORED).all()
        # A dot stands where nothing is scored.
        shown = ["." if label == IGNORED else task.word(label) for label in labels[:end]]
        text, answers = "".join(map(task.word, row[:end])), "".join(shown)
        given_, copy = text[1:].split("|")
        assert text[0] == "^"
        assert copy == given_
        assert given_.isalpha()
        assert answers == "." * (1 + len(given_)) + given_ + "$"
        if split == "train" and other in (None, letters):
            assert least <= len(given_) <= letters
        else:
            assert len(given_) == (other or letters)


@pytest.mark.parametrize("letters", [1, 5, 20])
def test_guessing_letters_and_knowing_the_end_scores_the_chance(letters):
    task = Copying(min_length=4, length=2 * letters + 2)
    targets = task.examples("test", 0, 20_000).targets["token"][:, letters + 1 :]
    guess = np.random.default_rng(0).integers(26, size=targets.shape)
    guess[:, -1] = 28
    assert task.chance["token"] == pytest.approx((guess == targets).mean(), abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2}, "^length must be even and at least 4 .*, got 2"),
        ({"min_length": 13}, "^min_length must be even .*, got 13"),
        ({"min_length": 14, "length": 12}, "^min_length must be at most 12, got 14"),
    ],
)
def test_lengths_out_of_range_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        Copying(**options)
