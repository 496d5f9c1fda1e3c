"""The laws of the tasks of the Chomsky hierarchy, against independent evaluations."""

import ast
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.tasks import IGNORED
from statemix.tasks.chomsky import BracketArithmetic, CycleNavigation, ModularArithmetic, Parity

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
    low, high = (task.length + 1, length) if length == 100 else (task.min_length, length)
    assert low - 1 <= lengths.min() <= lengths.max() <= (high or task.length)
    for row, labels, size in zip(tokens, targets["answer"], lengths, strict=True):
        words = [task.word(token) for token in row[:size]]
        assert np.flatnonzero(labels != IGNORED).tolist() == [size - 1]
        assert labels[size - 1] == ANSWERS[kind](words)
        if kind is not BracketArithmetic:
            assert task.automaton().answers(row[:size])[-1] == labels[size - 1]
        if kind in (ModularArithmetic, BracketArithmetic):
            assert [n for n, word in enumerate(words) if word == "="] == [size - 1]


@pytest.mark.parametrize(
    ("kind", "options", "length", "message"),
    [
        (Parity, {"min_length": 0}, None, "min_length must be at least 1, got 0"),
        (BracketArithmetic, {"length": 65537}, None, "length must be at most 65536, got 65537"),
        (ModularArithmetic, {}, 65537, "length must be at most 65536, got 65537"),
    ],
)
def test_lengths_out_of_range_are_named(kind, options, length, message):
    with pytest.raises(ValueError, match=message):
        kind(**options).examples("test", 0, 1, length)


@pytest.mark.parametrize("kind", [ModularArithmetic, BracketArithmetic])
def test_the_longest_strings_are_made(kind):
    tokens, _, lengths = kind(seed=1).examples("test", 0, 1, 65536)
    assert tokens.shape == (1, 65536)
    assert lengths[0] <= 65536
