"""Words that a network gets wrong."""

import math

import torch
from torch.nn import functional

from statemix.tasks.automata.language_tasks import Regex
from statemix.training.counterexamples import Counterexamples


class Wrong(torch.nn.Module):
    """Answers like a task, but takes a single transition to a wrong state."""

    def __init__(self, task, state, letter, to):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self._task, automaton = task, task.automaton()
        self._moves, self._start = automaton.transitions.copy(), automaton.start
        self._accepts = {
            int(automaton.transitions[q, x]): int(automaton.outputs[q, x])
            for q in range(automaton.num_states)
            for x in range(automaton.num_tokens)
        }
        self._moves[state, letter] = to

    def forward(self, tokens):
        states = torch.empty_like(tokens)
        for row, word in enumerate(tokens.tolist()):
            state = self._start
            for place, letter in enumerate(word):
                states[row, place] = state = int(self._moves[state, letter])
        answers = torch.tensor([self._accepts.get(q, 0) for q in range(len(self._moves))])[states]
        given = {"answer": answers, "state": states}
        heads = self._task.heads.items()
        return {
            head: 10 * self.scale * functional.one_hot(given[head], n).float() for head, n in heads
        }


def shown(task):
    found = Counterexamples(task)
    # The search for a proof has found a word of its own.
    found.add(Wrong(task, 1, 0, 1), (0, 0, 0, 1))
    return found


def test_words_end_with_their_first_wrong_answer():
    task = Regex(pattern="abab", alphabet="ab")
    found = shown(task)
    assert (0, 0, 0, 1) in found.words
    moves = task.automaton().transitions
    assert int(moves[task.automaton().start, 0]) == 1
    # After a second "a", the network is where one "a" leads: "a a b a b" shows it.
    assert (0, 0, 1, 0, 1) in found.words
    model = Wrong(task, 1, 0, 1)
    for word in set(found.words) - {(0, 0, 0, 1)}:
        given = model(torch.tensor([word]))["answer"].argmax(-1)[0].tolist()
        right = task.automaton().answers(word)
        assert given[:-1] == right[:-1]
        assert given[-1] != right[-1]


def test_a_word_that_is_found_again_is_kept_once():
    task = Regex(pattern="abab", alphabet="ab")
    found = shown(task)
    before = set(found.words)
    found.add(Wrong(task, 1, 0, 1), (0, 0, 1, 0, 1))
    assert found.words[0] == (0, 0, 1, 0, 1)
    assert (len(found.words), set(found.words)) == (len(before), before)


def test_a_head_of_states_shows_a_wrong_transition_at_once():
    found = shown(Regex(pattern="abab", alphabet="ab", states=True))
    assert (0, 0) in found.words


def test_the_loss_is_that_of_right_answers_on_these_words():
    task = Regex(pattern="abab", alphabet="ab")
    found = shown(task)
    found.words = [(0, 0, 1, 0, 1), (0, 1)]
    wrong, right = -math.log(1 / (1 + math.exp(10))), -math.log(1 / (1 + math.exp(-10)))
    loss = found.loss(Wrong(task, 1, 0, 1))
    torch.testing.assert_close(loss, torch.tensor((wrong + 6 * right) / 7))
    loss.backward()


def test_the_refuting_word_and_the_shortest_ones_are_kept(monkeypatch):
    task = Regex(pattern="abab", alphabet="ab")
    found = shown(task)
    assert len(found.words) > 2
    shortest = found.words[:2]
    monkeypatch.setattr("statemix.training.counterexamples._MOST_KEPT", 2)
    again = shown(task)
    assert again.words == shortest
    assert shortest[0] == (0, 0, 0, 1)
    assert len(shortest[1]) == min(map(len, found.words[1:]))
