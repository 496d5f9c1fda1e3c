"""Safety properties of networks that nobody has a full specification of."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statemix import proofs
from statemix.automaton import Automaton
from statemix.errors import OptionError
from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.proofs import StateMachine, parse_property, prove_safety
from statemix.proofs.safety import SafetyProperty, check_safety, explore
from statemix.proofs.stepping import Stepper
from statemix.tasks.permutation import Permutation

# The answer of S_2 is 1 after an odd number of 1s. It must not be 1 after two letters 1 in a row.
TWICE = """
start: other
bad: wrong
# Right after one letter 1, another one makes the number even again.
other 1 1 odd
odd   1 1 wrong
odd   * 1 odd
odd   * * other
"""
# The number of letters 0 is of no importance, so this one is broken.
NEVER_TWO = """
start: none
bad: twice
none * 1 once
once * 1 twice
once * * none
"""
BITS = ["0", "1"]


def test_the_first_line_that_fits_counts_and_others_stay():
    found = parse_property(TWICE, BITS, BITS)
    assert found.states == ("other", "wrong", "odd")
    assert found.bad.tolist() == [False, True, False]
    # A state's rows are letters, and its columns answers.
    assert found.transitions[0].tolist() == [[0, 0], [0, 2]]
    assert found.transitions[1].tolist() == [[1, 1], [1, 1]]
    assert found.transitions[2].tolist() == [[0, 2], [0, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "have a line 'start: STATE', got none"),
        ("start: a\nbad: b\naa 0 0 b", "lead from its start a to every state, got no way to b, aa"),
        # The second line never counts.
        ("start: a\nbad: b\na * * a\na 0 0 b", "lead from its start a .* no way to b"),
        ("start: a\nbad: b\na 0 b", "have one line .*, got 'a 0 b' on line 3"),
        ("start: a\nbad: b\na 2 0 b", "name letters among 0, 1, got '2' on line 3"),
        ("start: a\nbad: b\na 0 2 b", "name answers among 0, 1, got '2' on line 3"),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(OptionError, match=f"property must {message}"):
        parse_property(text, BITS, BITS)
    with pytest.raises(OptionError, match=r"letters and answers other than '\*', which means all"):
        parse_property(TWICE, ["0", "*"], BITS)


def test_a_property_is_proven_or_broken_by_a_shortest_word(of_group):
    model = proofs.harden(of_group("S_2"))
    proven = prove_safety(model, parse_property(TWICE, BITS, BITS), "answer")
    assert (proven.verdict, proven.word) == ("proven", ())
    broken = prove_safety(model, parse_property(NEVER_TWO, BITS, BITS), "answer")
    assert (broken.verdict, broken.state) == ("refuted", "twice")
    assert broken.word == (1, 0)
    assert broken.answers == (1, 1)
    # A bad start needs no word.
    first = prove_safety(model, parse_property("start: a\nbad: a\na 0 0 b", BITS, BITS), "answer")
    assert (first.verdict, first.word, first.state) == ("refuted", (), "a")


def test_a_network_is_explored_to_the_machine_of_its_answers(of_group):
    task = Permutation(group="S_3")
    levels = []
    machine = explore(Stepper.of(proofs.harden(of_group("S_3"))), 6, 1000, levels.append)
    examples = task.examples("train", 0, 3, 500)
    answers, _ = machine.run(examples.tokens)
    np.testing.assert_array_equal(answers, examples.targets["product"])
    # The state before the first letter, and one after each element.
    assert machine.num_states == 7
    assert levels == sorted(levels)
    assert levels[-1] == 6


def replayed(machine, watched, word):
    state, place = 0, watched.start
    for letter in word:
        answer = machine.answers[state, letter]
        state, place = (
            machine.transitions[state, letter],
            watched.transitions[place, letter, answer],
        )
        if watched.bad[place]:
            return True
    return False


def drawn(rng):
    """A random machine of three states, and a random property of which state "c" is bad."""
    machine = StateMachine(
        rng.integers(3, size=(3, 2)).astype(np.int32), rng.integers(2, size=(3, 2)).astype(np.int32)
    )
    bad = np.array([False, False, True])
    return machine, SafetyProperty(0, rng.integers(3, size=(3, 2, 2)), bad, ("a", "b", "c"))


@given(seed=st.integers(0, 2**32 - 1), within=st.booleans())
def test_verdicts_agree_with_all_words(seed, within):
    """All words, or those that an automaton allows, in which some letters cannot follow."""
    rng = np.random.default_rng(seed)
    machine, watched = drawn(rng)
    moves = rng.integers(-1 if within else 0, 2, size=(2, 2))
    automaton = Automaton(int(rng.integers(2)), moves, np.zeros((2, 2), np.int64))

    def allowed(word):
        place = automaton.start
        for letter in word:
            place = moves[place, letter]
            if place < 0:
                return False
        return True

    found = check_safety(machine, watched.within(automaton) if within else watched)
    # Pairs are at most nine letters apart.
    words = [w for n in range(10) for w in itertools.product(range(2), repeat=n) if allowed(w)]
    breaking = [word for word in words if replayed(machine, watched, word)]
    assert found.verdict == ("refuted" if breaking else "proven")
    if breaking:
        assert len(found.word) == len(breaking[0])
        assert found.word in breaking
        assert found.state == "c"


@pytest.mark.parametrize("table", ["transitions", "answers"])
def test_machines_without_a_next_state_or_answer_are_refused(table):
    machine, watched = drawn(np.random.default_rng(0))
    getattr(machine, table)[0, 0] = -1
    with pytest.raises(ValueError, match=rf"{table} must be in 0\.\..*, got -1"):
        check_safety(machine, watched)


def test_networks_with_too_many_states_stay_open():
    model = TokenClassifier(2, {"answer": 2}, 8, [LayerSpec("lstm")])
    found = prove_safety(model, parse_property(TWICE, BITS, BITS), "answer", 50)
    assert (found.verdict, found.reason) == ("open", "more than 50 states")


def tied(model):
    model.backbone.blocks[0].mixer.gate_proj.weight[:] *= 2e-7
    model.backbone.blocks[0].mixer.gate_proj.bias[:] = 1.0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        # A constant that all logits share makes their rounding larger.
        (
            lambda model: model.readouts["answer"].weight.add_(2.0**18),
            "rounding may change an answ",
        ),
        (lambda model: model.readouts["answer"].weight.zero_(), "two answers have the same logit,"),
        (tied, "rounding may swap two gates"),
    ],
)
def test_a_property_needs_gates_and_answers_that_rounding_cannot_change(of_group, damage, reason):
    model = proofs.harden(of_group("S_2"))
    with torch.no_grad():
        damage(model)
    found = prove_safety(model, parse_property(NEVER_TWO, BITS, BITS), "answer")
    assert (found.verdict, found.reason[: len(reason)]) == ("open", reason)
    assert explore(Stepper.of(model), model.backbone.vocab_size, 1000) == found.reason


def test_a_break_by_steps_alone_stays_open(of_group, monkeypatch):
    model = proofs.harden(of_group("S_2"))
    monkeypatch.setattr(model, "forward", lambda word: {"answer": torch.zeros(1, word.shape[1], 2)})
    found = prove_safety(model, parse_property(NEVER_TWO, BITS, BITS), "answer")
    assert found.verdict == "open"
    assert found.reason == "steps break the property on [1, 0], the whole word does not"


def test_properties_of_another_network_are_refused(of_group):
    watched = parse_property(TWICE, BITS, BITS)
    with pytest.raises(ValueError, match="watched must have the 6 letters and 6 answers"):
        prove_safety(proofs.harden(of_group("S_3")), watched, "answer")
