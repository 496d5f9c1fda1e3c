"""The laws of the tasks of the Chomsky hierarchy, against independent evaluations."""

import ast
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.tasks import IGNORED
from statemix.tasks.chomsky.arithmetic import BracketArithmetic, ModularArithmetic
from statemix.tasks.chomsky.string_tasks import CycleNavigation, Parity

TASKS = [Parity, CycleNavigation, ModularArithmetic, BracketArithmetic]
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def evaluated(text):
    """The value of an expression, by Python's own parser."""

    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        return node.value

    return value(ast.parse(text, mode="eval").body)


ANSWERS = {
    Parity: lambda words: sum(map(int, words)) % 2,
    CycleNavigation: lambda words: sum(map(int, words)) % 5,
    ModularArithmetic: lambda words: evaluated("".join(words[:-1])) % 5,
    BracketArithmetic: lambda words: evaluated("".join(words[:-1])) % 5,
}


@pytest.mark.parametrize("kind", TASKS)
@given(seed=st.integers(0, 99), length=st.sampled_from([None, 2, 3, 10, 38, 100]))
def test_the_answer_stands_at_the_last_token(kind, seed, length):
    task = kind(seed=seed)
    tokens, targets, lengths = task.examples("test", 0, 20, length)
    for row, labels, size in zip(tokens, targets["answer"], lengths, strict=True):
        words = [task.word(token) for token in row[:size]]
        assert np.flatnonzero(labels != IGNORED).tolist() == [size - 1]
        assert labels[size - 1] == ANSWERS[kind](words)
        if kind in (ModularArithmetic, BracketArithmetic):
            assert [n for n, word in enumerate(words) if word == "="] == [size - 1]


@pytest.mark.parametrize(
    ("kind", "theirs", "answer"),
    [
        (Parity, "2 2 2 1 2 2 1 1 1 2", 0),
        (CycleNavigation, "2 2 1 2 2 2 2 1 3 1", 0),
        (ModularArithmetic, "7 3 9 3 7 2 7 2 9 4", 0),
        (BracketArithmetic, "8 6 3 6 8 6 4 9 9 10", 1),
    ],
)
def test_examples_of_the_papers_generator_mean_the_same_here(kind, theirs, answer):
    """Theirs are numbered otherwise; the words are as in their grammar."""
    words = [THEIR_WORDS[kind][int(number)] for number in theirs.split()]
    task = kind()
    ours = [task.word(token) for token in range(task.vocab_size)]
    assert set(words) <= set(ours)
    assert ANSWERS[kind](words) == answer


# Words of the adaptation for linear RNNs, by their numbers.
THEIR_WORDS = {
    Parity: ["", "0", "1"],
    CycleNavigation: ["", "0", "+1", "-1"],
    ModularArithmetic: ["", "+", "-", "*", "=", *"01234"],
    BracketArithmetic: [*"01234", *"+-*()="],
}


@pytest.mark.parametrize(("text", "answer"), [("(-3*3)", 1), ("(0*(-2*(3)))", 0)])
def test_bracket_expressions_of_the_first_source_have_their_values(text, answer):
    assert ANSWERS[BracketArithmetic]([*text, "="]) == answer


@pytest.mark.parametrize("kind", TASKS)
def test_lengths_are_uniform_within_and_beyond_training(kind):
    task = kind(train_size=None)
    step = 2 if kind is ModularArithmetic else 1
    for length, low in ((None, task.min_length), (60, task.length + 1)):
        lengths = task.examples("train", 0, 6000, length).lengths
        high = task.length if length is None else length
        low, high = low - low % step, high - high % step
        found, counts = np.unique(lengths, return_counts=True)
        assert found.tolist() == list(range(low, high + 1, step))
        inner = counts[1:-1] / 6000
        np.testing.assert_allclose(inner, inner.mean(), rtol=0.35)


@pytest.mark.parametrize("kind", TASKS)
def test_tokens_and_answers_are_as_frequent_as_they_should_be(kind):
    task = kind(min_length=20, length=30)
    tokens, targets, lengths = task.examples("test", 0, 4000)
    answers = targets["answer"][np.arange(4000), lengths - 1]
    share = np.bincount(answers, minlength=task.num_classes) / 4000
    # Products make zero more frequent.
    upper = 0.35 if kind is BracketArithmetic else 1 / task.num_classes + 0.05
    assert (share > 1 / task.num_classes - 0.05).all()
    assert share.max() < upper
    inside = tokens[np.arange(tokens.shape[1]) < lengths[:, None]]
    assert (np.bincount(inside, minlength=task.vocab_size) > 0).all()


@pytest.mark.parametrize("length", range(1, 12))
def test_bracket_expressions_have_the_grammar(length):
    task = BracketArithmetic(min_length=length + 1, length=length + 1)
    for row in task.examples("train", 0, 30).tokens:
        text = "".join(task.word(token) for token in row[:-1])
        assert len(text) == length
        if length <= 4:
            digit = text.strip("(-)")
            assert text == {1: "{}", 2: "-{}", 3: "({})", 4: "(-{})"}[length].format(digit)
        else:
            assert (text[0], text[-1]) == ("(", ")")


def test_brackets_divide_tokens_uniformly():
    """Of three tokens the left expression has one or two, and then begins with a sign."""
    task = BracketArithmetic(min_length=7, length=7)
    second = [task.word(token) for token in task.examples("train", 0, 400).tokens[:, 1]]
    assert second.count("-") == pytest.approx(200, abs=50)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Parity(min_length=0), "length must be at least 1, got 0"),
        (lambda: ModularArithmetic(min_length=1), "length must be at least 2, got 1"),
        (
            lambda: ModularArithmetic().examples("test", 0, 1, 1),
            "^length must be at least 2, got 1",
        ),
        (
            lambda: BracketArithmetic().examples("test", 0, 1, 1),
            "^length must be at least 2, got 1",
        ),
        *(
            (build, "length must be at most 65536 for .*_arithmetic, .* got 65537")
            for kind in (ModularArithmetic, BracketArithmetic)
            for build in (
                lambda kind=kind: kind(length=65537),
                lambda kind=kind: kind(length=99).examples("test", 0, 1, 65537),
            )
        ),
        *(
            (lambda kind=kind: kind().examples("test", 0, 1, 1), "length must be at least 2, got 1")
            for kind in (ModularArithmetic, BracketArithmetic)
        ),
        (lambda: Parity(length=2**24 + 1), "length must be at most 16777216, got 16777217"),
        (lambda: Parity(min_length=9, length=8), "min_length must be at most length=8, got 9"),
    ],
)
def test_lengths_out_of_range_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("kind", TASKS)
def test_the_longest_strings_are_made(kind):
    tokens, _, lengths = kind(seed=1).examples("test", 0, 1, kind._longest)
    assert tokens.shape == (1, kind._longest)
    assert lengths[0] <= kind._longest
