"""Networks that are proven by structure as index maps, in NumPy and in C."""

import ctypes
import json

import numpy as np
import pytest
from tests.proofs.test_certificate_tables import CERTIFICATES, sealed

from statemix.proofs import EntryMachine, check_certificate

# The second letter loads value 2 into entry 0; entry 2 copies entry 0, and answers nothing.
SWAP = EntryMachine(
    np.array([0, 1, 0], np.int32),
    np.array([[1, 0, 2], [-3, 1, 0]], np.int32),
    np.array([1, 0], np.int32),
    np.array([[4, 5, 6], [4, 5, -1]], np.int32),
)


def tables_of(name):
    return json.loads((CERTIFICATES / f"{name}.json").read_text())["tables"]


def contents_after(tables, word):
    """Follow the places of the task, letter by letter."""
    contents = tables["places"]["start"]
    for letter in word:
        sources = tables["places"]["letters"][letter]
        contents = [contents[source] if source >= 0 else -1 - source for source in sources]
    return contents[: tables["heads"]]


@pytest.mark.parametrize(
    ("name", "length"), [("S_6", 0), ("cube", 1), ("chess", 5), ("S_6", 4097), ("cube", 1000)]
)
def test_words_are_answered_as_by_the_task(name, length):
    tables = tables_of(name)
    machine = EntryMachine.from_tables(tables)
    words = np.random.default_rng(length).integers(len(tables["letters"]), size=(3, length))
    states = machine.run(words)
    for word, state, answers in zip(words, states, machine.answers(states), strict=True):
        assert answers.tolist() == contents_after(tables, word)
        np.testing.assert_array_equal(machine.run(word), state)


def test_a_word_may_be_cut_anywhere(monkeypatch):
    machine = EntryMachine.from_tables(tables_of("cube"))
    words = np.random.default_rng(0).integers(18, size=(2, 500))
    whole = machine.run(words)
    for cut in (0, 1, 100, 499, 500):
        before = machine.run(words[:, :cut])
        np.testing.assert_array_equal(machine.run(words[:, cut:], before), whole)
    # Long words are composed in parts.
    for most in (1000, 1):
        monkeypatch.setattr("statemix.proofs.entry_machine._MOST_MAPPED", most)
        np.testing.assert_array_equal(machine.run(words), whole)
    assert machine.run(np.zeros((0, 7), int)).shape == (0, 48)


# Entry 0 answers nothing. Entry 3 answers, and copies entry 2, which copies entry 1.
CHAIN = {
    "format": 2,
    "values": 5,
    "start": [1, 0, 1, 2],
    "letters": [[0, -2, 1, 2], [0, -3, 1, 2]],
    "places": {"start": [5, 4, 3], "letters": [[1, 2, -5], [1, 2, -6]]},
    "heads": 1,
    "followers": [[3], [2], [1]],
    "codes": [[[5, 2], [4, 1], [3, 0], [6, 3]]] * 3,
}


def test_only_entries_that_answer_are_kept_and_those_that_they_copy():
    tables = sealed(CHAIN)
    machine = EntryMachine.from_tables(tables)
    assert machine.summary == "3 entries, 2 letters, 1 answers"
    assert machine.start.tolist() == [0, 1, 2]
    # Value 4 stands for no content, and is left out.
    assert machine.contents.tolist() == [[3, 4, 5, 6]]
    for word in ([], [0], [0, 1], [0, 1, 1], [1, 0, 0, 1]):
        assert machine.answers(machine.run(word)).tolist() == contents_after(tables, word)
    other = {**CHAIN, "start": [4, 0, 1, 2]}
    assert EntryMachine.from_tables(sealed(other)).contents.tolist() == [[3, 4, 5, 6, -1]]


def test_a_place_that_takes_several_entries_to_tell_is_named():
    """Each of two entries holds one value for two contents; together they tell all four."""
    tables = {
        "format": 2,
        "values": 2,
        "start": [0, 0],
        "letters": [[-1, -1], [-1, -2], [-2, -1], [-2, -2]],
        "places": {"start": [0], "letters": [[-1], [-2], [-3], [-4]]},
        "heads": 1,
        "followers": [[0, 1]],
        "codes": [[[0, 0, 0], [1, 0, 1], [2, 1, 0], [3, 1, 1]]],
    }
    with pytest.raises(ValueError, match="no single entry determines the content of place 0"):
        EntryMachine.from_tables(sealed(tables))


def test_tables_that_prove_nothing_are_refused():
    tables = tables_of("cube")
    tables["letters"][0][0] ^= 1
    with pytest.raises(check_certificate.Invalid, match="letter 0 at place 0"):
        EntryMachine.from_tables(sealed({**tables, "sha256": ""}))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0.5],), TypeError, "tokens must be integers, got float64"),
        (([0], [0, 1, 3]), ValueError, r"state must be in 0\.\.2, got 0\.\.3"),
        (([0], [0.0, 1.0, 0.0]), TypeError, "state must be integers, got float64"),
        (([[[0]]],), ValueError, r"tokens must have shape \(T,\) or \(B, T\)"),
        (([[0]], [0, 0]), ValueError, r"state \(entries,\) or .*, got \(1, 1\) and \(2,\)"),
    ],
)
def test_bad_words_and_states_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        SWAP.run(*arguments)
    with pytest.raises(ValueError, match=r"state must have 3 entries on its last axis, got \(2,\)"):
        SWAP.answers([0, 1])


def test_a_value_that_stands_for_no_content_has_no_answer():
    assert SWAP.answers([[0, 1, 0], [2, 2, 2]]).tolist() == [[5, 4], [6, -1]]
    assert SWAP.answers(np.zeros((2, 3, 3), int)).shape == (2, 3, 2)


@pytest.mark.parametrize("name", ["S_6", "chess"])
def test_the_c_file_equals_numpy(compiled, name):
    machine = EntryMachine.from_tables(tables_of(name))
    check_c(compiled(machine), machine, ctypes.c_uint8)


@pytest.mark.parametrize(
    ("values", "entries"), [(128, 128), (129, 2), (2, 129), (255, 2), (256, 2), (300, 2)]
)
def test_larger_machines_have_wider_tables(compiled, values, entries):
    numbers = np.arange(entries, dtype=np.int32)
    load = np.where(numbers == 0, -values, numbers).astype(np.int32)
    contents = np.tile(np.arange(values, dtype=np.int32), (entries, 1))
    rules = np.stack([np.roll(numbers, 1), load])
    machine = EntryMachine(numbers % values, rules, numbers, contents)
    check_c(compiled(machine), machine, ctypes.c_uint8 if values < 256 else ctypes.c_uint32)


def check_c(functions, machine, kind):
    num_letters, num_entries = machine.rules.shape
    state = (kind * num_entries)()
    functions.m_begin(state)
    assert list(state) == machine.start.tolist()
    word = np.random.default_rng(0).integers(num_letters, size=3000).astype(np.uint32)
    read = functions.m_run(state, word.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(word)))
    assert read == len(word)
    reached = machine.run(word)
    assert list(state) == reached.tolist()
    places = range(len(machine.read))
    answers = [functions.m_answer(state, place) for place in places]
    assert answers == machine.answers(reached).tolist()
    # What is unknown is refused, and changes nothing.
    assert functions.m_step(state, num_letters) == -2
    word[5] = num_letters
    assert functions.m_run(state, word.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(9)) == 5
    assert list(state) == machine.run(word[:5], reached).tolist()
    assert functions.m_answer(state, len(places)) == -2
    state[machine.read[0]] = machine.contents.shape[1]
    assert functions.m_answer(state, 0) == -2
    numbers = f"m_num_letters = {num_letters}, m_num_places = {len(places)} "
    assert f"enum {{ {numbers}}};" in machine.to_c("m")
