"""Automata as input: texts, regular expressions, random tables, and the words drawn for them."""

import contextlib
import hashlib
import itertools
import random
import re
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from statemix import tasks
from statemix.automaton import IGNORED, NEVER
from statemix.cli.main import main
from statemix.errors import OptionError, RequestError, SettingError
from statemix.tasks import TASKS, TaskSpec, addressing
from statemix.tasks.automata import regular_expressions
from statemix.tasks.automata.automaton_text import parse_automaton
from statemix.tasks.automata.known_languages import LANGUAGES, NESTED, TOMITA
from statemix.tasks.automata.word_kinds import BalancedWords, TellingLetters

PARITY = """
# Bits with an odd number of ones.
start: even
accept: odd
even 0 even
even 1 odd

odd 0 odd
odd 1 even
"""
# A lamp that breaks on the third switch; the letter "repair" cannot follow elsewhere.
LAMP = """
start: off
off switch on
off repair -
on switch broken
on repair -
broken switch -
broken repair off
"""


def test_text_names_states_letters_and_whether_words_are_accepted():
    found = parse_automaton(PARITY)
    assert (found.states, found.letters) == (("even", "odd"), ("0", "1"))
    assert found.classes == ("no", "yes")
    assert found.automaton.answers([1, 0, 1, 1, 0]) == [1, 1, 0, 1, 1]


def test_without_accepted_states_the_answer_is_the_state():
    found = parse_automaton(LAMP)
    assert found.classes == found.states == ("off", "on", "broken")
    assert found.automaton.answers([0, 0, 1, 0]) == [1, 2, 0, 1]
    assert found.automaton.transitions[0, 1] == NEVER
    assert found.automaton.outputs[0, 1] == IGNORED


def test_answers_may_stand_on_the_transitions():
    found = parse_automaton("start: b\na x b up\nb x a down")
    assert found.classes == ("up", "down")
    assert found.automaton.answers([0, 0, 0]) == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a line 'STATE LETTER NEXT' for each transition, got none"),
        ("a x a", "a line 'start: STATE', got none"),
        ("start: a b\na x a", "one start state, .* got 'start: a b'"),
        ("start: a\nstart: a\na x a", "one start state"),
        ("start: -\na x a", "transitions from each state, got none from '-', which 'start:' names"),
        ("start: b\na x a", "transitions from each state, got none from 'b', which 'start:' names"),
        ("start: a\na x c", ".*got none from 'c', which line 2 names"),
        ("start: a\naccept: b\na x a", ".*got none from 'b', which 'accept:' names"),
        ("start: a\naccept:\na x a", "a state after 'accept:', got 'accept:' on line 2"),
        ("start: a\naccept: a\naccept: a\na x a", "one line 'accept:"),
        ("start: a\na x", ".* of the form 'STATE LETTER NEXT' or .*, got 'a x' on line 2"),
        ("start: a\na x - y", ".* of the form 'STATE LETTER NEXT' or .*, got 'a x - y' on line 2"),
        ("start: a\na x a\na x a", "one line for state 'a' and letter 'x', got lines 2 and 3"),
        (
            "start: a\na x b\nb y a",
            ".* every state and letter .*none for state 'a' with letter 'y'",
        ),
        ("start: a\na x -", "a letter that can follow, got '-' on every line"),
        ("start: a\na x a 1\na y a", "an answer on every transition or on none"),
        ("start: a\na x a\nb x a", ".*got no way to b"),
        ("start: a\nb x a\nc x b\na x a", ".*got no way to b, c"),
        ("start: a\naccept: a\na x a 1", "either answers .* or a line 'accept:', got both"),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(OptionError, match=f"rules must (have|name|lead) {message}"):
        parse_automaton(text)


def test_an_automaton_has_at_most_500_states():
    def chain(size):
        lines = [f"{state} x {min(state + 1, size - 1)}" for state in range(size)]
        return "\n".join(["start: 0", *lines])

    assert len(parse_automaton(chain(500)).states) == 500
    with pytest.raises(OptionError, match="rules must have at most 500 states, got 501"):
        parse_automaton(chain(501))


def test_states_without_a_letter_are_refused():
    with pytest.raises(OptionError, match="a letter that can follow in every state"):
        tasks.build("automaton", rules="start: a\na x b\nb x -")


def replayed(task, examples):
    """The answers along each word, read off the automaton."""
    automaton = task.automaton()
    lengths = examples.lengths
    if lengths is None:
        lengths = np.full(len(examples.tokens), examples.tokens.shape[1])
    return [automaton.answers(w[:n]) for w, n in zip(examples.tokens, lengths, strict=True)]


@pytest.mark.parametrize("words", ["covering", "uniform"])
def test_every_position_is_answered_and_letters_can_follow(words):
    task = tasks.build("automaton", rules=LAMP, length=9, words=words)
    examples = task.examples("train", 0, 50)
    assert examples.lengths is None
    assert examples.targets["answer"].tolist() == replayed(task, examples)


def test_the_last_position_alone_is_answered_in_words_of_all_lengths():
    task = tasks.build("automaton", rules=PARITY, length=6, labels="last")
    examples = task.examples("train", 0, 200)
    assert set(examples.lengths) == set(range(1, 7))
    scored = examples.targets["answer"] != IGNORED
    assert (scored.argmax(1) == examples.lengths - 1).all()
    assert (scored.sum(1) == 1).all()
    assert examples.targets["answer"][scored].tolist() == [
        answers[-1] for answers in replayed(task, examples)
    ]
    beyond = task.examples("test", 0, 200, 12).lengths
    assert (beyond.min(), beyond.max()) == (7, 12)


def test_log_uniform_lengths_are_those_of_training_words_alone():
    options = {"rules": PARITY, "length": 40, "labels": "last", "min_length": 2}
    task = tasks.build("automaton", **options, lengths="log-uniform")
    found = task.examples("train", 0, 20_000).lengths
    assert (found.min(), found.max()) == (2, 40)
    for length in (2, 6, 30):
        chance = np.log((length + 1) / length) / np.log(41 / 2)
        assert (found == length).mean() == pytest.approx(chance, abs=0.01)
    usual = tasks.build("automaton", **options)
    for split, length in (("test", 40), ("validation", 40), ("train", 60), ("test", 60)):
        ours, others = (one.examples(split, 0, 50, length) for one in (task, usual))
        assert (ours.lengths == others.lengths).all()


def test_training_words_may_be_shorter():
    task = tasks.build("automaton", rules=PARITY, length=6, min_length=4)
    examples = task.examples("train", 0, 100)
    assert set(examples.lengths) == {4, 5, 6}
    for row, answers in zip(examples.targets["answer"], replayed(task, examples), strict=True):
        assert row[: len(answers)].tolist() == answers
        assert (row[len(answers) :] == IGNORED).all()
    assert task.examples("test", 0, 10).lengths is None
    assert task.examples("train", 0, 10, 12).lengths is None


def seen_transitions(task, count):
    automaton = task.automaton()
    seen = set()
    for word in task.examples("train", 0, count).tokens:
        state = automaton.start
        for token in word.tolist():
            seen.add((state, token))
            state = automaton.transitions[state, token]
    return seen


def test_covering_words_see_every_transition_where_uniform_words_do_not():
    pattern = "(a|b)*abbababbbaab(a|b)*"
    found = {
        words: seen_transitions(tasks.build("regex", pattern=pattern, length=15, words=words), 400)
        for words in ("covering", "uniform")
    }
    everything = set(itertools.product(range(13), range(2)))
    assert found["covering"] == everything
    assert found["uniform"] < everything


@pytest.mark.parametrize("seed", range(3))
def test_covering_words_see_every_transition_of_random_automata(seed):
    task = tasks.build("random_automaton", num_states=16, num_letters=4, table_seed=seed)
    assert seen_transitions(task, 200) == set(itertools.product(range(16), range(4)))


@pytest.mark.parametrize(("words", "all_found"), [("distinguishing", True), ("covering", False)])
def test_distinguishing_words_show_every_wrong_transition(words, all_found):
    """An automaton with one transition to a wrong state gives a wrong answer to some word."""
    task = tasks.build("regex", pattern="(a|b)*babbabaa(a|b)*", length=16, words=words)
    raw = addressing.draws("regex", 19, seed=0, split="train", start=0, stop=4000)
    examples = task.examples("train", 0, 4000)
    # The others have uniform letters, and are drawn with the same first numbers.
    chosen = raw[:, 0] >= 2**63
    tokens, targets = examples.tokens[chosen], examples.targets["answer"][chosen]
    after, answers = task.automaton().transitions, task.automaton().outputs
    missed = []
    for state, letter, wrong in itertools.product(range(9), range(2), range(9)):
        if wrong == after[state, letter]:
            continue
        changed = after.copy()
        changed[state, letter] = wrong
        found, at = np.zeros_like(targets), np.full(len(tokens), task.automaton().start)
        for t, column in enumerate(tokens.T):
            found[:, t] = answers[at, column]
            at = changed[at, column]
        if (found == targets).all():
            missed.append((state, letter, wrong))
    assert (not missed) == all_found


@pytest.mark.parametrize(
    "rules",
    [
        LAMP + "accept: broken",
        # Some transitions cannot be reached again.
        "start: 0\naccept: 1\n0 a 1\n0 b 1\n1 a 1\n1 b 2\n2 a -\n2 b 2",
        "start: 0\naccept: 2 3\n0 a 1\n0 b -\n1 a 3\n1 b 2\n2 a 1\n2 b 1\n3 a -\n3 b 1",
    ],
)
def test_distinguishing_words_take_letters_that_can_follow(rules):
    task = tasks.build("automaton", rules=rules, length=9, words="distinguishing")
    examples = task.examples("train", 0, 200)
    assert examples.targets["answer"].tolist() == replayed(task, examples)
    state = np.full(200, task.automaton().start)
    for letter in examples.tokens.T:
        state = task.automaton().transitions[state, letter]
        assert (state != NEVER).all()
    alone = [task.examples("train", n, n + 1).tokens[0].tolist() for n in range(200)]
    assert examples.tokens.tolist() == alone


def test_states_are_told_apart_by_a_shortest_word():
    automaton = tasks.build("regex", pattern="(a|b)*babb(a|b)*").automaton()
    letters = TellingLetters(automaton).letters
    lengths = set()
    for pair in itertools.permutations(range(automaton.num_states), 2):
        both = [replace(automaton, start=start) for start in pair]

        def told(word, both=both):
            return both[0].answers(word) != both[1].answers(word)

        state, other, word = *pair, []
        while not told(word):
            word.append(int(letters[state, other]))
            state, other = automaton.transitions[[state, other], word[-1]]
        shorter = itertools.product(range(2), repeat=len(word) - 1)
        assert not any(told(one) for one in shorter)
        lengths.add(len(word))
    assert lengths == {1, 2, 3}


def test_the_kinds_of_words_stay_what_they_were():
    """Other words would make old results incomparable."""
    found = {}
    for kind in ("distinguishing", "balanced", "repeating"):
        task = tasks.build("regex", pattern="(a|b)*babbab(a|b)*", words=kind)
        tokens = task.examples("train", 0, 500).tokens
        found[kind] = hashlib.sha256(tokens.tobytes()).hexdigest()[:16]
    assert found == {
        "distinguishing": "4cdcbeb1d8d2dea7",
        "balanced": "4728b960ba3d259e",
        "repeating": "e527c868ec4f072e",
    }


def test_repetitions_are_counted_as_they_are_nested():
    """Beside each other, 40 and 26 letters are 66; within each other, they are refused."""
    assert tasks.build("regex", pattern="a{40}b{26}", alphabet="ab").automaton().num_states == 68


def test_states_that_no_word_tells_apart_have_covering_words():
    """All states of this automaton give the same answers."""
    rules = "start: p\np x q yes\nq x p yes\np y p no\nq y q no"
    kinds = [
        tasks.build("automaton", rules=rules, words=words).examples("train", 0, 50).tokens.tolist()
        for words in ("distinguishing", "covering")
    ]
    assert kinds[0] == kinds[1]


def test_half_of_the_covering_words_have_uniform_letters():
    """Of the six transitions of x*, one begins with x: so 1 in 6 covering words does, of the others
    1 in 3.
    """
    task = tasks.build("regex", pattern="x*", alphabet="xyz")
    first = task.examples("train", 0, 4000).tokens[:, 0]
    assert abs((first == 0).mean() - 0.25) < 0.03


def last_answers(task, count, length=None):
    """The length and the last answer of each word."""
    examples = task.examples("train", 0, count, length)
    answers = examples.targets["answer"]
    return np.stack([examples.lengths, answers[answers != IGNORED]], axis=1)


@pytest.mark.parametrize("pattern", ["(ab)*", "(a|b)*aab(a|b)*"])
def test_half_of_the_words_are_balanced(pattern):
    task = tasks.build("regex", pattern=pattern, length=8, labels="last", words="balanced")
    found = last_answers(task, 8000)
    # The kind of a word is drawn with its first number, as it is here.
    usual = tasks.build("regex", pattern=pattern, length=8, labels="last")
    raw = addressing.draws("regex", 11, seed=0, split="train", start=0, stop=8000)
    covering = last_answers(usual, 8000)[raw[:, 0] >= 2**63]
    for length in range(1, 9):
        can_match = any(
            re.fullmatch(pattern, "".join(word)) for word in itertools.product("ab", repeat=length)
        )
        matching = found[found[:, 0] == length, 1].mean()
        # The others are covering words.
        share = covering[covering[:, 0] == length, 1].mean()
        assert matching == pytest.approx((share + can_match / 2) / 2, abs=0.05)


def test_balanced_words_are_uniform_among_those_with_their_last_transition():
    automaton = tasks.build("regex", pattern="(a|b)*ab(a|b)*", length=4).automaton()
    raw = addressing.draws("words", 5, seed=0, split="train", start=0, stop=32_000)
    words = BalancedWords(automaton, 5).words(raw, np.full(32_000, 4))[:, :4]
    expected = {}
    for answer in range(2):
        by_end = {}
        for word in itertools.product(range(2), repeat=4):
            state = automaton.start
            for token in word[:-1]:
                state = int(automaton.transitions[state, token])
            if automaton.outputs[state, word[-1]] == answer:
                by_end.setdefault((state, word[-1]), []).append(word)
        for same in by_end.values():
            expected |= {word: 1 / (2 * len(by_end) * len(same)) for word in same}
    found = Counter(map(tuple, words.tolist()))
    assert set(found) == set(expected)
    for word, chance in expected.items():
        assert found[word] / 32_000 == pytest.approx(chance, abs=0.01)


def test_balanced_words_of_a_language_that_shrinks_have_no_underflow():
    task = tasks.build("regex", pattern="(ab)*", labels="last", words="balanced")
    found = last_answers(task, 60, 4096)
    assert set(found[:, 1]) == {0, 1}


def test_letters_of_balanced_words_can_follow():
    task = tasks.build("automaton", rules=LAMP, length=9, words="balanced")
    examples = task.examples("train", 0, 50)
    assert examples.targets["answer"].tolist() == replayed(task, examples)


def test_half_of_the_repeating_words_repeat_letters_up_to_the_length_of_the_word():
    task = tasks.build("regex", pattern="(a|b|c)*", length=64, words="repeating")
    longest = [
        max(len(list(run)) for _, run in itertools.groupby(word))
        for word in task.examples("train", 0, 1000).tokens.tolist()
    ]
    # A word of uniform letters hardly ever has a run of 16, and a repeating one mostly.
    assert abs((np.array(longest) >= 16).mean() - 0.5) < 0.05
    assert 64 in longest
    lamp = tasks.build("automaton", rules=LAMP, length=9, words="repeating")
    examples = lamp.examples("train", 0, 50)
    assert examples.targets["answer"].tolist() == replayed(lamp, examples)


def by_definition(number, word):
    zeros, ones = word.count("0"), word.count("1")
    if number == 1:
        return zeros == 0
    if number == 2:
        return word == "10" * (len(word) // 2)
    if number == 3:
        runs = [(bit, len(list(run))) for bit, run in itertools.groupby(word)]
        return not any(
            one == "1" and n % 2 and m % 2 for (one, n), (_, m) in itertools.pairwise(runs)
        )
    if number == 4:
        return "000" not in word
    if number == 5:
        return zeros % 2 == ones % 2 == 0
    if number == 6:
        return (zeros - ones) % 3 == 0
    return re.fullmatch("0*1*0*1*", word) is not None


@pytest.mark.parametrize("number", range(1, 8))
def test_tomita_languages_equal_their_definitions(number):
    automaton = tasks.build("regex", **TOMITA[f"tomita-{number}"]).automaton()
    for bits in itertools.product("01", repeat=11):
        word = "".join(bits)
        assert automaton.answers(map(int, word)) == [
            by_definition(number, word[:n]) for n in range(1, 12)
        ]


@pytest.mark.parametrize("name", NESTED)
def test_nested_brackets_are_those_of_bounded_depth(name):
    automaton = TaskSpec("regex", preset=name).build().automaton()
    most = int(name.removeprefix("D_"))
    assert automaton.num_states == most + 2
    words = ["".join(bits) for bits in itertools.product("ab", repeat=8)]
    for word in [*words, "a" * most + "b" * most, "a" * (most + 1) + "b" * (most + 1)]:
        depths = [0]
        for letter in word:
            depths.append(depths[-1] + (1 if letter == "a" else -1))
        assert automaton.answers(map("ab".index, word)) == [
            depths[n] == 0 and min(depths[: n + 1]) >= 0 and max(depths[: n + 1]) <= most
            for n in range(1, len(word) + 1)
        ]


def test_known_languages_equal_their_definitions():
    skipped = {"P_2_ab": (2, "ab"), "P_4_abba": (4, "abba"), "P_8_ab": (8, "ab")}
    pairs = TaskSpec("regex", preset="even-pairs").build().automaton()
    prefixes = {name: TaskSpec("regex", preset=name).build().automaton() for name in skipped}
    for letters in itertools.product("ab", repeat=10):
        word = "".join(letters)
        tokens = list(map("ab".index, word))
        assert pairs.answers(tokens)[-1] == (word.count("ab") + word.count("ba") + 1) % 2
        for name, (skip, prefix) in skipped.items():
            assert prefixes[name].answers(tokens)[-1] == word[skip:].startswith(prefix)
    assert (
        max(TaskSpec("regex", preset=name).build().automaton().num_states for name in LANGUAGES)
        == 14
    )


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_recipe_has_room_for_known_languages(name):
    assert TaskSpec("regex", preset=name).build().automaton().num_states <= 16


@pytest.mark.parametrize(
    ("preset", "calls", "answers"),
    [
        ("file-handle", "read open-read write read close close", "no ok no ok ok no"),
        ("file-handle", "open-write open-read write close", "ok no ok ok"),
        ("tcp-handshake", "ack syn data ack data fin data ack data", "no ok no ok ok ok no ok no"),
        ("tcp-handshake", "rst syn rst ack", "ok ok ok no"),
        ("login", "wrong wrong right use logout use", "ok ok ok ok ok no"),
        ("login", "wrong wrong wrong right use unlock right", "ok ok ok no no ok ok"),
    ],
)
def test_monitors_watch_their_protocols(preset, calls, answers):
    task = TaskSpec("automaton", preset=preset).build()
    word = [task.language.letters.index(call) for call in calls.split()]
    found = [task.label(answer) for answer in task.automaton().answers(word)]
    assert found == [{"no": "violation", "ok": "ok"}[one] for one in answers.split()]


def test_known_tables_equal_their_definitions():
    flip_flop = TaskSpec("automaton", preset="flip-flop").build()
    assert flip_flop.language.letters == ("write0", "write1", "ignore")
    assert flip_flop.automaton().answers([2, 1, 2, 2, 0, 2]) == [0, 1, 1, 1, 0, 0]
    digits = [4, 3, 0, 1, 2, 4]
    total = TaskSpec("automaton", preset="modular-sum").build().automaton()
    assert total.answers(digits) == [sum(digits[: n + 1]) % 5 for n in range(6)]


PATTERNS = [
    "(ab|c)*", "a{2,3}b?", "[ab]*abc.", "a+|(bc)+", "()", "a{0}b*", "b(ab){0}a", "(a{0,0}|b)*",
    "a{,2}b", "(a|b){2,}c?", "(a?){3}", "[^a]{0,2}a", "[a-b]c*", "((a*)*b|c)*", r"a\*b",
]  # fmt: skip


def equals_re(pattern, alphabet, length):
    automaton = tasks.build("regex", pattern=pattern, alphabet=alphabet).automaton()
    match = re.compile(pattern, re.DOTALL).fullmatch
    words = itertools.product(range(len(alphabet)), repeat=length)
    return all(
        answer == (match("".join(alphabet[token] for token in word[:n])) is not None)
        for word in words
        for n, answer in enumerate(automaton.answers(word), 1)
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_it_means_for_re(pattern):
    assert equals_re(pattern, "abc*", 5)


def test_a_small_automaton_may_have_many_derivatives():
    task = tasks.build("regex", pattern="(.{0,9}a.{0,9}b)*", alphabet="ab")
    assert len(task.language.states) == 39


def test_random_patterns_are_refused_or_mean_what_they_mean_for_re():
    parts = [
        *"ab|*?+().", "{0}", "{,2}", "{1,}", "[a]", "[^a]", r"\*", "()", "(a|b)",
    ]  # fmt: skip
    draw, accepted = random.Random(0), 0
    for _ in range(800):
        pattern = "".join(draw.choices(parts, k=draw.randint(2, 8)))
        with contextlib.suppress(OptionError):
            accepted += 1 if equals_re(pattern, "ab*", 3) else pytest.fail(pattern)
    assert accepted > 100


@pytest.mark.parametrize(
    ("pattern", "alphabet", "matches"),
    [
        (r"\{x\}", "{}x", "{x}"),
        (r"\{x\}", None, "{x}"),
        (r"[\]\-\^]\.[\+-]", "^.+-]", "].-"),
        (r"\\\||a", None, "\\|"),
        ("[0-9]{2}-[^0-9]", "0123456789-", "42--"),
    ],
)
def test_a_backslash_makes_a_letter_of_an_operator(pattern, alphabet, matches):
    task = tasks.build("regex", pattern=pattern, alphabet=alphabet)
    tokens = [task.language.letters.index(letter) for letter in matches]
    assert task.automaton().answers(tokens) == [0] * (len(matches) - 1) + [1]
    assert re.fullmatch(pattern, matches)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("(a|b)&b", "b"), ("(b&b)|a", "ab"), (".&[^a]&(a|b)", "b"), ("((a|b)&(b|c))c{0}", "b")],
)
def test_and_matches_what_both_sides_match(pattern, matches):
    automaton = tasks.build("regex", pattern=pattern, alphabet="abc").automaton()
    assert [automaton.answers([n])[0] for n in range(3)] == [one in matches for one in "abc"]


def test_an_automaton_is_compared_with_the_words_of_its_pattern(monkeypatch):
    task = tasks.build("regex", pattern="a{0}b*", alphabet="ab")
    assert (
        task.checked_against == "the words of the pattern 'a{0}b*', on all words of 1 to 8 letters"
    )
    monkeypatch.setattr(regular_expressions._Terms, "after", lambda self, term, letter: term)
    with pytest.raises(RuntimeError):
        tasks.build("regex", pattern="(ab)*", alphabet="ab")


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path):
    (tmp_path / "a.txt").write_text(PARITY, encoding="utf-8-sig")
    task = TaskSpec("automaton", file=str(tmp_path / "a.txt")).build()
    assert task.language.states == parse_automaton(PARITY).states


def test_letters_of_the_pattern_are_the_alphabet_unless_given():
    assert tasks.build("regex", pattern="a b | c").language.letters == ("a", "b", "c")
    assert tasks.build("regex", pattern="(ba)*").language.letters == ("a", "b")
    assert tasks.build("regex", pattern="(ba)*", alphabet="bac").language.letters == (
        "b", "a", "c",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "(ab"}, "pattern must have a \\) for every \\(, got '\\(ab'"),
        *(
            ({"pattern": pattern, "alphabet": "ab"}, f"of the alphabet 'ab' alone, not {letter!r}")
            for pattern, letter in [("abc", "c"), ("a&~b", "~"), ("a1", "1"), ("[a-z]", "z")]
        ),
        *(
            ({"pattern": pattern, "alphabet": "ab"}, "pattern must have counts of the form")
            for pattern in ["a{}", "a{2", "a{,}", "a{2,3,4}", "a{-1}", "a{99999}", "a{٢}"]
        ),
        ({"pattern": "a{1001}", "alphabet": "ab"}, "pattern must have counts of at most 1,000"),
        ({"pattern": "a\\*b", "alphabet": "ab"}, "of the alphabet 'ab' alone, not '\\*'"),
        ({"pattern": "\\d", "alphabet": "ab"}, "pattern must have no \\\\d: only operators"),
        ({"pattern": "a\\", "alphabet": "ab"}, r"must have \\\\ for the letter \\, or something"),
        ({"pattern": "a\\ b"}, "of the alphabet 'ab' alone, not ' '"),
        ({"pattern": "[a", "alphabet": "ab"}, "pattern must have a \\] for every \\[, got '\\[a'"),
        ({"pattern": "[]", "alphabet": "ab"}, "pattern must have a letter in every \\[...\\]"),
        ({"pattern": "a]", "alphabet": "ab"}, "pattern must have no '\\]' without an opening one"),
        ({"pattern": "^ab$", "alphabet": "ab"}, "no \\^, as it always matches whole words"),
        ({"pattern": "a|b&b"}, "parentheses where | and & stand side by side, got 'a|b&b'"),
        ({"pattern": "a+?"}, "pattern must have parentheses around what a second operator \\? rep"),
        ({"pattern": "a||b"}, "pattern must have something to match before '\\|'"),
        ({"pattern": "*a"}, r"pattern must have \\\* for the letter \*, or something to match"),
        ({"pattern": "[*]", "alphabet": "*a"}, r"pattern must have \\\* for the letter \*, or"),
        ({"pattern": "(" * 51 + "a" + ")" * 51}, "at most 50 parentheses within each other"),
        ({"pattern": "a&b"}, "pattern must match a word, got 'a&b', which matches none"),
        ({"pattern": "a", "alphabet": "a "}, "alphabet must have different characters .* 'a '"),
        ({"pattern": "a", "alphabet": "aa"}, "alphabet must have different characters .* 'aa'"),
        ({"pattern": ""}, "pattern must have a letter, got ''"),
        ({"pattern": "|"}, "pattern must have a letter, got '\\|'"),
        ({"pattern": "a", "alphabet": ""}, "alphabet must have different characters .* ''"),
        *(
            ({"pattern": pattern, "alphabet": "ab"}, "at most 500 states, .* too many steps")
            for pattern in ["(a{1000}){1000}", "((a*){100}){100}", "(a|b)*a(a|b){20}"]
        ),
        (
            {"pattern": "a{600}", "alphabet": "ab"},
            "pattern must have an automaton of at most 500 states, got 602 for",
        ),
        ({"pattern": 3}, "pattern must be a string, got 3"),
        ({"pattern": "[a-c]*"}, "alphabet must be given where .* got None with '\\[a-c\\]\\*'"),
        ({"pattern": "a{2,5}"}, "alphabet must be given where a pattern has more than letters"),
        ({"pattern": "a.*"}, "alphabet must be given where a pattern has more than letters"),
        ({"pattern": "\\d+"}, "pattern must have no \\\\d: only operators have a backslash"),
        ({"pattern": "a{3,2}", "alphabet": "ab"}, "pattern must have no \\{3,2\\}, which nothing"),
        ({"pattern": "a[b-a]", "alphabet": "ab"}, "pattern must have no b-a, which nothing mat"),
        ({"pattern": "a", "alphabet": 3}, "alphabet must be a string, got 3"),
        ({"pattern": "a", "labels": "first"}, "labels must be one of all, last, got 'first'"),
        (
            {"pattern": "a", "words": "s"},
            "words must be one of covering, distinguishing, uniform, balanced, repeating, got 's'",
        ),
        (
            {"pattern": "abc", "words": "balanced", "length": 671_089},
            "length must be at most 671,088 with words=balanced, got 671,089",
        ),
        (
            {"pattern": "a", "lengths": "short"},
            "lengths must be one of uniform, log-uniform, got 'short'",
        ),
        ({"pattern": "a", "min_length": 17}, "min_length must be at most 16, got 17"),
    ],
)
def test_options_of_expressions_are_checked(options, message):
    with pytest.raises(OptionError, match=message):
        tasks.build("regex", **options)


def test_random_automata_reach_all_their_states_and_depend_on_their_seed():
    tables = [
        tasks.build("random_automaton", num_states=12, table_seed=seed).automaton().transitions
        for seed in range(20)
    ]
    assert len({table.tobytes() for table in tables}) == 20
    for table in tables:
        reached = {0}
        for _ in range(12):
            reached |= {int(after) for state in reached for after in table[state]}
        assert reached == set(range(12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_states": 49}, "num_states must be at most 48, got 49"),
        ({"num_letters": 1}, "num_letters must be at least 2, got 1"),
        ({"table_seed": -1}, "table_seed must be at least 0, got -1"),
    ],
)
def test_options_of_random_automata_are_checked(options, message):
    with pytest.raises(OptionError, match=message):
        tasks.build("random_automaton", **options)


def test_a_request_holds_the_text_of_its_file(tmp_path):
    file = tmp_path / "parity.txt"
    file.write_text(PARITY)
    spec = TaskSpec("automaton", file=str(file), length=4)
    assert spec == TaskSpec("automaton", rules=PARITY, length=4)
    file.unlink()
    assert spec.build().language.states == ("even", "odd")


def flipping(**options):
    rules = "start: a\na x b\na y c\nb x c\nb y a\nc x a\nc y b"
    return tasks.build("automaton", rules=rules, length=12, **options)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_share_of_the_labels_that_a_learner_sees_is_wrong(split):
    task = flipping(flipped=0.3)
    found = task.examples(split, 0, 4000)
    right = np.array([task.automaton().answers(word) for word in found.tokens.tolist()])
    shift = (found.targets["answer"] - right) % 3
    if split == "test":
        assert not shift.any()
        return
    # Both other answers are equally frequent, at every place.
    for wrong in (1, 2):
        assert (shift == wrong).mean(0) == pytest.approx(np.full(12, 0.15), abs=0.03)
    # Wrong labels are drawn for each place of each word alone.
    assert np.corrcoef(shift[:, 0] > 0, shift[:, 1] > 0)[0, 1] == pytest.approx(0, abs=0.06)


def test_wrong_labels_leave_positions_that_are_not_scored():
    task = flipping(flipped=0.9, labels="last", min_length=3)
    targets = task.examples("train", 0, 50).targets["answer"]
    assert ((targets != IGNORED).sum(1) == 1).all()


@pytest.mark.parametrize("flipped", [-0.1, 1, 1.5, float("nan"), True, "0.1"])
def test_a_share_of_wrong_labels_is_checked(flipped):
    with pytest.raises(OptionError, match="flipped must be a number >= 0 and < 1, got"):
        flipping(flipped=flipped)


def test_a_single_answer_cannot_be_wrong():
    with pytest.raises(OptionError, match=r"flipped must be 0 with a single answer, got 0\.1"):
        tasks.build("automaton", rules="start: a\na x a", flipped=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file": "nowhere.txt"}, "file must be a text file \\(No such file.*'nowhere.txt'"),
        ({"regex": "a*"}, "regex must be the pattern of another task: --task regex pattern="),
        ({"pattern": "a*"}, "pattern must be the pattern of another task"),
        ({"file": "nowhere.txt", "rules": PARITY}, "file must be absent where rules \\(or"),
        ({"file": 3}, "file must be a string, got 3"),
    ],
)
def test_files_that_cannot_be_read_are_named(options, message):
    with pytest.raises(SettingError, match=message):
        TaskSpec("automaton", **options)


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "table").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match=r"file must be a text file .*utf-8"):
        TaskSpec("automaton", file=str(tmp_path / "table"))


def test_a_run_outlives_its_file_and_is_certified(tmp_path, capsys):
    file = tmp_path / "parity.txt"
    file.write_text(PARITY)
    run = str(tmp_path / "run")
    train = [
        "train", "--folder", run, "--task", "automaton", f"file={file}", "length=4",
        "--model.hidden_size", "8", "--model.layers", "bd_lru", "num_blocks=2", "block_size=2",
        "--schedules.num_steps", "2", "--batches.size", "4", "--evaluation.test_size", "4",
        "--evaluation.validation_size", "4",
    ]  # fmt: skip
    assert main(train) == 0
    assert main(train) == 0
    file.write_text(PARITY.replace("accept: odd", "accept: even"))
    assert main(train) == 2
    assert "folder must hold a run of the same configuration" in capsys.readouterr().err
    file.unlink()
    assert main(["certify", run]) == 1
    assert "refuted: wrong after" in capsys.readouterr().out
    assert main(["evaluate", run]) == 0
    copy = shutil.copytree(run, tmp_path / "copy")
    assert main(["inspect", str(copy)]) == 0


def test_tasks_list_the_published_languages(capsys):
    assert main(["tasks", "regex"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in TASKS["regex"].presets)
