"""Proven networks as state machines, in NumPy and in C."""

import ctypes
import itertools

import numpy as np
import pytest

from statemix import proofs
from statemix.proofs import StateMachine, check_certificate
from statemix.tasks.permutation import Permutation

# A lamp that breaks: the second letter can follow in the last state alone.
LAMP = np.array([[1, -1], [2, -1], [-1, 0]], dtype=np.int32)


def machine_of(of_group, name):
    task = Permutation(group=name)
    automaton = task.automaton()
    tables = proofs.prove(of_group(name), automaton).tables(automaton)
    return StateMachine.from_tables(tables), task


@pytest.mark.parametrize(
    ("name", "length"), [("S_2", 1), ("S_3", 64), ("A_5", 65), ("S_3", 1000), ("S_3", 1025)]
)
def test_words_are_answered_as_by_the_task(of_group, name, length):
    machine, task = machine_of(of_group, name)
    examples = task.examples("train", 0, 3, length)
    answers, state = machine.run(examples.tokens)
    np.testing.assert_array_equal(answers, examples.targets["product"])
    for row, word in enumerate(examples.tokens):
        alone, last = machine.run(word)
        np.testing.assert_array_equal(alone, answers[row])
        assert last == state[row]


def test_a_word_may_be_cut_anywhere(of_group):
    machine, task = machine_of(of_group, "S_3")
    tokens = task.examples("train", 0, 2, 500).tokens
    whole, last = machine.run(tokens)
    answers, state = machine.run(np.zeros((0, 1000), dtype=int))
    assert (answers.shape, state.shape) == ((0, 1000), (0,))
    for cut in (0, 1, 100, 500):
        first, state = machine.run(tokens[:, :cut])
        rest, after = machine.run(tokens[:, cut:], state)
        np.testing.assert_array_equal(np.concatenate([first, rest], 1), whole)
        np.testing.assert_array_equal(after, last)


def test_a_machine_is_as_small_as_its_answers_allow():
    """Of random machines, each state three times, beside all words of up to six letters."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 5):
        small = rng.integers(-1, size, (size, 2)).astype(np.int32)
        answers = np.where(small < 0, -1, rng.integers(-1, 2, (size, 2))).astype(np.int32)
        copies = small[np.arange(3 * size) % size] + size * rng.integers(0, 3, (3 * size, 2))
        copies[small[np.arange(3 * size) % size] < 0] = -1
        large = StateMachine(copies.astype(np.int32), np.tile(answers, (3, 1)))
        found = large.minimized()
        assert found.num_states <= size
        assert found.minimized().num_states == found.num_states
        for word in itertools.chain(*(itertools.product(range(2), repeat=n) for n in range(7))):
            outcomes = []
            for machine in (large, found):
                try:
                    outcomes.append(machine.run(np.array(word, int))[0].tolist())
                except ValueError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]


def test_states_of_a_network_that_answer_alike_are_one_state_of_its_machine():
    """The first entry holds the parity, and the second the last letter, which no answer needs."""
    tables = {
        "format": 1,
        "values": 2,
        "start": [0, 0],
        "letters": [[0, -1], [[1, 0], -2]],
        "states": [[0, 0], [0, 1], [1, 0], [1, 1]],
        "answers": [[0, -1], [-1, 0], [1, -1], [-1, 1]],
        "automaton": {"start": 0, "transitions": [[0, 1], [1, 0]], "outputs": [[0, 1], [1, 0]]},
    }
    tables["sha256"] = check_certificate.digest(tables)
    machine = StateMachine.from_tables(tables)
    assert machine.num_states == 2
    assert machine.run([1, 0, 1, 1])[0].tolist() == [1, 1, 0, 1]


def test_tables_that_prove_nothing_are_refused(of_group):
    automaton = Permutation(group="S_2").automaton()
    tables = proofs.prove(of_group("S_2"), automaton).tables(automaton)
    tables["answers"][0][0] ^= 1
    tables["sha256"] = check_certificate.digest(tables)
    with pytest.raises(ValueError, match="tables must be those of a proof"):
        StateMachine.from_tables(tables)


@pytest.mark.parametrize("repeats", [1, 200])
def test_tokens_that_cannot_follow_are_named(repeats):
    machine = StateMachine(LAMP, LAMP)
    word = [0, 0, 1] * repeats
    answers, state = machine.run(word)
    assert answers.tolist() == [1, 2, 0] * repeats
    assert state == 0
    with pytest.raises(ValueError, match=f"token 1 cannot follow at {3 * repeats + 1}$"):
        machine.run([*word, 0, 1, 0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0.5],), TypeError, "tokens must be integers, got float64"),
        (([0], 3), ValueError, r"state must be in 0\.\.2, got 3\.\.3"),
        (([[[0]]],), ValueError, r"tokens must have shape \(T,\) or \(B, T\)"),
        (([[0]], [0, 0]), ValueError, r"state \(\) or \(B,\), got \(1, 1\) and \(2,\)"),
    ],
)
def test_bad_words_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        StateMachine(LAMP, LAMP).run(*arguments)


@pytest.mark.parametrize(
    ("transitions", "answers", "error", "message"),
    [
        (LAMP[0], LAMP[0], ValueError, r"must both have shape \(states, letters\), got \(2,\)"),
        (LAMP, LAMP[:2], ValueError, r"got \(3, 2\) and \(2, 2\)"),
        (LAMP + 1, LAMP, ValueError, r"transitions must be in -1\.\.2, got 0\.\.3"),
        (LAMP, LAMP * 1.0, TypeError, "answers must be integers, got float64"),
    ],
)
def test_bad_tables_are_named(transitions, answers, error, message):
    with pytest.raises(error, match=message):
        StateMachine(transitions, answers)


def test_a_comment_cannot_end_itself_or_begin_another():
    head = StateMachine(LAMP, LAMP).to_c("m", "first */\n/* second").partition("#include")[0]
    assert head.endswith("Statemix.\n   first * /\n   / * second */\n")


def test_a_name_that_c_refuses_is_named():
    with pytest.raises(ValueError, match="name must be an identifier of C, got 'a b'"):
        StateMachine(LAMP, LAMP).to_c("a b")


@pytest.mark.parametrize("name", ["S_3", "A_5"])
def test_the_c_file_equals_numpy(of_group, compiled, name):
    machine, task = machine_of(of_group, name)
    functions = compiled(machine)
    word = task.examples("train", 0, 1, 10_000).tokens[0].astype(np.uint32)
    answers, state = np.empty(len(word), np.int32), ctypes.c_uint8(0)
    pointers = word.ctypes.data_as(ctypes.c_void_p), answers.ctypes.data_as(ctypes.c_void_p)
    read = functions.m_run(
        ctypes.byref(state), pointers[0], ctypes.c_size_t(len(word)), pointers[1]
    )
    expected, last = machine.run(word)
    assert (read, state.value) == (len(word), last)
    np.testing.assert_array_equal(answers, expected)


def test_the_c_file_refuses_letters_that_cannot_follow(compiled):
    functions, state = compiled(StateMachine(LAMP, LAMP)), ctypes.c_uint8(0)
    steps = [functions.m_step(ctypes.byref(state), letter) for letter in (0, 1, 2, 0, 1)]
    assert steps == [1, -2, -2, 2, 0]
    state.value = 3
    assert functions.m_step(ctypes.byref(state), 0) == -2


@pytest.mark.parametrize(("count", "kind"), [(255, ctypes.c_uint8), (256, ctypes.c_uint16)])
def test_states_have_room_for_the_number_that_means_no_state(compiled, count, kind):
    table = ((np.arange(count)[:, None] + [0, 1]) % count).astype(np.int32)
    table[-1, 0] = -1
    functions, state = compiled(StateMachine(table, table)), kind(0)
    for _ in range(count - 1):
        functions.m_step(ctypes.byref(state), 1)
    assert functions.m_step(ctypes.byref(state), 0) == -2
    assert state.value == count - 1
