"""State merging against definitions, and machines that it must find."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from statemix.automaton import IGNORED, NEVER
from statemix.learning import Log, learn
from statemix.learning.prefix_tree import PrefixTree
from statemix.learning.state_merging import LOG_ODDS, Evidence, Merging

# After "a" the answer is 0; the third "b" in a row answers 1, and "a" begins again.
COUNTER = np.array([[0, 1], [0, 2], [0, 2]]), np.array([[0, 0], [0, 0], [0, 1]])


def log_of(transitions, answers, *, noise, size=600, length=10, seed=0, last_only=False):
    """Traces of uniform letters; wrong labels are other answers."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(transitions.shape[1], size=(size, length))
    targets, state = np.empty_like(tokens), np.zeros(size, np.int64)
    for place, letter in enumerate(tokens.T):
        targets[:, place], state = answers[state, letter], transitions[state, letter]
    num_labels = int(answers.max()) + 1
    other = (targets + rng.integers(1, num_labels, targets.shape)) % num_labels
    targets = np.where(rng.random(targets.shape) < noise, other, targets)
    if last_only:
        targets[:, :-1] = IGNORED
    starts = np.arange(0, size * length + 1, length)
    names = tuple("abcdefgh"[: transitions.shape[1]]), tuple(map(str, range(num_labels)))
    return Log(*names, tokens.ravel(), targets.ravel(), starts, np.repeat(np.arange(size), length))


def merging_of(log, noise=0.05):
    tree = PrefixTree.of(log.tokens, log.targets, log.starts)
    return Merging(tree, (len(log.events), len(log.labels)), noise, 20)


def answers_of(machine, words):
    return [machine.run(list(word))[0].tolist() for word in words]


def test_tree_holds_each_prefix_once():
    tokens, targets = np.array([0, 1, 0, 0, 1]), np.array([1, 0, 1, IGNORED, 1])
    tree = PrefixTree.of(tokens, targets, np.array([0, 2, 4, 5]))
    assert tree.parent.tolist() == [NEVER, 0, 0, 1, 1]
    assert tree.letter.tolist() == [NEVER, 0, 1, 0, 1]
    assert tree.levels.tolist() == [0, 1, 3, 5]
    assert tree.visits.tolist() == [3, 2, 1, 1, 1]
    entries = zip(tree.labelled, tree.label, tree.count, strict=True)
    assert list(map(tuple, entries)) == [(1, 1, 2), (2, 1, 1), (4, 0, 1)]


def test_probabilities_of_all_labels_sum_to_one():
    evidence = Evidence(0.1, np.log([[0.2, 0.3, 0.5]]))
    counts = [np.bincount(labels, minlength=3) for labels in itertools.product(range(3), repeat=4)]
    log = evidence.log(np.array(counts, float), np.zeros(len(counts), np.int64))
    assert np.exp(log).sum() == pytest.approx(1, rel=1e-12)


def test_a_log_that_does_not_tell_leaves_the_most_frequent_target():
    """Two states answer alike but for a word that the log does not have."""
    # From state 1, "b" leads to a sink, like most transitions. The sink answers "a" with 0.
    delta = np.array([[1, 2], [2, 2], [2, 2]])
    answers = np.array([[0, 1], [1, 0], [0, 0]])
    words = ["a a b", "b a", "a b b", "b b a", "a a a"] * 40
    tokens = [["ab".index(letter) for letter in word.split()] for word in words]
    targets = []
    for word in tokens:
        state = 0
        for letter in word:
            targets.append(int(answers[state, letter]))
            state = int(delta[state, letter])
    starts = np.concatenate([[0], np.cumsum([len(word) for word in tokens])])
    flat = np.array([letter for word in tokens for letter in word])
    log = Log(("a", "b"), ("0", "1"), flat, np.array(targets), starts, flat)
    assert learn(log, noise=0.01).machine.transitions.tolist() == delta.tolist()
    # The machine grows so, without any repair.
    merging = merging_of(log, 0.01)
    merging.close()
    assert merging.delta.tolist() == delta.tolist()


def test_score_is_that_of_the_definition():
    log = log_of(*COUNTER, noise=0.1, size=50)
    merging = merging_of(log)
    merging.delta = COUNTER[0].copy()
    counts = np.zeros((3, 2, 2))
    for begin, end in itertools.pairwise(log.starts):
        state = 0
        for letter, label in zip(log.tokens[begin:end], log.targets[begin:end], strict=True):
            counts[state, letter, label] += 1
            state = COUNTER[0][state, letter]
    letters = np.tile([0, 1], 3)
    expected = merging.evidence.log(counts.reshape(-1, 2), letters).sum() - 3 * LOG_ODDS
    into = [0, 0, 0]
    for target in COUNTER[0].ravel():
        expected += np.log((into[target] + 1) / (sum(into) + 3))
        into[target] += 1
    assert merging.score() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("letter", [0, 1])
def test_scores_of_targets_differ_as_scores_do(source, letter):
    # With few words, some targets leave transitions without labels.
    merging = merging_of(log_of(*COUNTER, noise=0.1, size=8, length=5))
    merging.delta = COUNTER[0].copy()
    scores = merging._scores_of_targets(source, letter)
    expected = []
    for target in range(3):
        merging.delta[source, letter] = target
        expected.append(merging.score())
    np.testing.assert_allclose(scores - scores[0], np.array(expected) - expected[0], atol=1e-8)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_machine_is_found_in_spite_of_wrong_labels(noise):
    found = learn(log_of(*COUNTER, noise=noise))
    words = list(itertools.product(range(2), repeat=6))
    state_of = found.machine
    right = []
    for word in words:
        state, answers = 0, []
        for letter in word:
            answers.append(int(COUNTER[1][state, letter]))
            state = COUNTER[0][state, letter]
        right.append(answers)
    assert state_of.num_states == 3
    assert answers_of(state_of, words) == right
    assert found.noise == pytest.approx(noise, abs=0.02)


def test_labels_at_the_end_are_enough():
    parity = np.array([[0, 1], [1, 0]]), np.array([[0, 1], [1, 0]])
    traces = [log_of(*parity, noise=0.05, size=400, length=n, last_only=True) for n in range(1, 9)]
    lengths = np.concatenate([np.diff(log.starts) for log in traces])
    steps = (
        np.concatenate([getattr(log, name) for log in traces]) for name in ("tokens", "targets")
    )
    starts = np.concatenate([[0], lengths.cumsum()])
    # Of ten traces in a row, the learner holds out the tenth: lengths must not depend on the place.
    order = np.random.default_rng(0).permutation(len(lengths))
    log = Log(("a", "b"), ("0", "1"), *steps, starts, np.zeros(starts[-1], np.int64)).select(order)
    assert learn(log).machine.transitions.tolist() == [[0, 1], [1, 0]]


def test_wrong_labels_are_the_contradictions():
    log = log_of(*COUNTER, noise=0.0)
    wrong = [17, 1234]
    targets = log.targets.copy()
    targets[wrong] = 1 - targets[wrong]
    changed = Log(log.events, log.labels, log.tokens, targets, log.starts, log.rows)
    found = learn(changed)
    assert found.contradictions.tolist() == wrong
    assert found.given.tolist() == log.targets[wrong].tolist()


@pytest.mark.parametrize("limit", [1, 2])
def test_states_are_at_most_those_asked_for(limit):
    log = log_of(*COUNTER, noise=0.2, size=200)
    assert learn(log, num_states=limit).machine.num_states <= limit


@pytest.mark.parametrize("labelled", [600, 9])
def test_accuracy_is_that_on_labelled_traces(labelled):
    log = log_of(*COUNTER, noise=0.2)
    # Of ten traces in a row, the last one has no label.
    targets = log.targets.reshape(600, 10).copy()
    targets[9::10] = targets[labelled:] = IGNORED
    learned = learn(replace(log, targets=targets.ravel()))
    if labelled == 9:
        assert np.isnan(learned.accuracy)
    else:
        assert learned.accuracy == pytest.approx(0.8, abs=0.06)


def test_accuracy_is_that_of_answers_learned_without_the_held_out_labels():
    """Answers to rare events are guesses, whatever they fit."""
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(300, size=2_000), rng.integers(2, size=2_000)
    targets[::2] = IGNORED
    names = tuple(map(str, range(300))), ("0", "1")
    log = Log(*names, tokens, targets, np.arange(0, 2_001, 2), np.arange(2_000))
    assert learn(log, num_states=1).accuracy < 0.65
