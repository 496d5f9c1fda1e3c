"""Automata as input: texts, regular expressions, random tables, and the words drawn for them."""

import contextlib
import itertools
import random
import re

import numpy as np
import pytest

from statemix import tasks
from statemix.automaton import IGNORED, NEVER, reachable
from statemix.cli.main import main
from statemix.errors import OptionError, SettingError
from statemix.tasks import TaskSpec, addressing
from statemix.tasks.automata.automaton_text import parse_automaton

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


def test_answers_are_states_or_accepted_words_or_stand_on_the_transitions():
    found = parse_automaton(PARITY)
    assert (found.states, found.letters) == (("even", "odd"), ("0", "1"))
    assert found.classes == ("no", "yes")
    assert found.automaton.answers([1, 0, 1, 1, 0]) == [1, 1, 0, 1, 1]
    found = parse_automaton(LAMP)
    assert found.classes == found.states == ("off", "on", "broken")
    assert found.automaton.answers([0, 0, 1, 0]) == [1, 2, 0, 1]
    assert (found.automaton.transitions[0, 1], found.automaton.outputs[0, 1]) == (NEVER, IGNORED)
    found = parse_automaton("start: b\na x b up\nb x a down")
    assert found.classes == ("up", "down")
    assert found.automaton.answers([0, 0, 0]) == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a line 'STATE LETTER NEXT' for each transition, got none"),
        ("a x a", "a line 'start: STATE', got none"),
        ("start: a\nstart: a\na x a", "one start state"),
        ("start: b\na x a", "transitions from each state, got none from 'b', which 'start:' names"),
        ("start: a\na x c", ".*got none from 'c', which line 2 names"),
        ("start: a\na x", ".* of the form 'STATE LETTER NEXT' or .*, got 'a x' on line 2"),
        ("start: a\na x a\na x a", "one line for state 'a' and letter 'x', got lines 2 and 3"),
        (
            "start: a\na x b\nb y a",
            ".* every state and letter .*none for state 'a' with letter 'y'",
        ),
        ("start: a\na x -", "a letter that can follow, got '-' on every line"),
        ("start: a\na x a 1\na y a", "an answer on every transition or on none"),
        ("start: a\nb x a\nc x b\na x a", ".*got no way to b, c"),
        ("start: a\naccept: a\na x a 1", "either answers .* or a line 'accept:', got both"),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(OptionError, match=f"rules must (have|name|lead) {message}"):
        parse_automaton(text)


def test_an_automaton_has_at_most_500_states_none_of_them_a_dead_end():
    def chain(size):
        lines = [f"{state} x {min(state + 1, size - 1)}" for state in range(size)]
        return "\n".join(["start: 0", *lines])

    assert len(parse_automaton(chain(500)).states) == 500
    with pytest.raises(OptionError, match="rules must have at most 500 states, got 501"):
        parse_automaton(chain(501))
    with pytest.raises(OptionError, match="a letter that can follow in every state"):
        tasks.build("automaton", rules="start: a\na x b\nb x -")


def replayed(task, examples):
    """The answers along each word, read off the automaton."""
    automaton = task.automaton()
    lengths = examples.lengths
    if lengths is None:
        lengths = np.full(len(examples.tokens), examples.tokens.shape[1])
    return [automaton.answers(w[:n]) for w, n in zip(examples.tokens, lengths, strict=True)]


@pytest.mark.parametrize(
    "words", ["covering", "distinguishing", "uniform", "balanced", "repeating"]
)
@pytest.mark.parametrize(
    "rules",
    [
        LAMP,
        # Some transitions cannot be reached again.
        "start: 0\naccept: 1\n0 a 1\n0 b 1\n1 a 1\n1 b 2\n2 a -\n2 b 2",
        "start: 0\naccept: 2 3\n0 a 1\n0 b -\n1 a 3\n1 b 2\n2 a 1\n2 b 1\n3 a -\n3 b 1",
    ],
)
def test_every_position_is_answered_and_letters_can_follow(rules, words):
    task = tasks.build("automaton", rules=rules, length=9, words=words)
    examples = task.examples("train", 0, 100)
    assert examples.lengths is None
    assert examples.targets["answer"].tolist() == replayed(task, examples)


def test_a_second_head_names_the_state_after_each_letter():
    task = TaskSpec("regex", pattern="(ab)*", states=True).build()
    automaton = task.automaton()
    assert task.heads == {"answer": 2, "state": automaton.num_states}
    tokens, targets, _ = task.examples("train", 0, 64)
    for word, states, answers in zip(tokens, targets["state"], targets["answer"], strict=True):
        assert automaton.answers(word) == answers.tolist()
        state = automaton.start
        for letter, named in zip(word, states, strict=True):
            state = automaton.transitions[state, letter]
            assert named == state
    # Where the answer is the state, both heads are as hard to guess.
    same = TaskSpec("random_automaton", states=True).build().chance
    assert same["state"] == same["answer"]
    # The first head alone is described.
    assert task.describe(0) == TaskSpec("regex", pattern="(ab)*").build().describe(0)
    for options in ({"labels": "last"}, {"flipped": 0.1}):
        with pytest.raises(OptionError, match="states must be absent with labels=last and"):
            TaskSpec("automaton", preset="login", states=True, **options).build()


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


def test_training_words_may_be_shorter():
    task = tasks.build("automaton", rules=PARITY, length=6, min_length=4)
    examples = task.examples("train", 0, 100)
    assert set(examples.lengths) == {4, 5, 6}
    for row, answers in zip(examples.targets["answer"], replayed(task, examples), strict=True):
        assert row[: len(answers)].tolist() == answers
        assert (row[len(answers) :] == IGNORED).all()
    assert task.examples("test", 0, 10).lengths is None
    assert task.examples("train", 0, 10, 12).lengths is None


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


def test_balanced_words_of_a_language_that_shrinks_have_no_underflow():
    task = tasks.build("regex", pattern="(ab)*", labels="last", words="balanced")
    assert set(task.examples("train", 0, 60, 2400).targets["answer"].ravel()) == {IGNORED, 0, 1}


def odd_run_after_an_odd_run(word):
    runs = [(bit, len(list(run))) for bit, run in itertools.groupby(word)]
    pairs = itertools.pairwise(runs)
    return any(bit == "1" and n % 2 and m % 2 for (bit, n), (_, m) in pairs)


def nested(word, most):
    depths = [0]
    for letter in word:
        depths.append(depths[-1] + (1 if letter == "a" else -1))
    return depths[-1] == 0 and min(depths) >= 0 and max(depths) <= most


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("tomita-1", lambda word: "0" not in word),
        ("tomita-2", lambda word: word == "10" * (len(word) // 2)),
        ("tomita-3", lambda word: not odd_run_after_an_odd_run(word)),
        ("tomita-4", lambda word: "000" not in word),
        ("tomita-5", lambda word: word.count("0") % 2 == word.count("1") % 2 == 0),
        ("tomita-6", lambda word: (word.count("0") - word.count("1")) % 3 == 0),
        ("tomita-7", lambda word: re.fullmatch("0*1*0*1*", word) is not None),
        ("even-pairs", lambda word: (word.count("ab") + word.count("ba")) % 2 == 0),
        ("P_2_ab", lambda word: word[2:].startswith("ab")),
        ("D_2", lambda word: nested(word, 2)),
        ("D_5", lambda word: nested(word, 5)),
    ],
)
def test_known_languages_equal_their_definitions(name, matches):
    language = TaskSpec("regex", preset=name).build().language
    for letters in itertools.product(language.letters, repeat=10):
        word = "".join(letters)
        answers = language.automaton.answers(map(language.letters.index, letters))
        assert answers == [matches(word[:n]) for n in range(1, 11)]


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "iso-date",
            "2026-11-30 0000-01-01 9999-12-31",
            "2026-13-01 2026-00-10 2026-1-01 2026-10-32",
        ),
        ("ipv4", "0.0.0.0 255.249.199.10 192.168.0.1", "256.0.0.0 1.2.3 01.2.3.4 1.2.3.4. 1..3.4"),
        ("decimal-number", "0 -1. +.5 12.50e-7 3E+10", ". + 1e 1.2.3 -e5 1e+ .e1"),
        (
            "http-request",
            "GET_/_HTTP/1.1 HEAD_/a/b_HTTP/1.0",
            "GET_/_HTTP/1.00 GOT_/_HTTP/1.1 GET_a_HTTP/1.1 POST_/_HTTP/1.",
        ),
        ("clock-time", "00:00 19:59 23:07", "24:00 12:60 1:00 12:0 12:000"),
    ],
)
def test_known_texts_are_told_from_others(name, right, wrong):
    language = TaskSpec("regex", preset=name).build().language

    def matches(word):
        return language.automaton.answers(map(language.letters.index, word))[-1]

    for word in right.split():
        assert matches(word), word
    for word in wrong.split():
        assert not matches(word), word


@pytest.mark.parametrize(
    ("preset", "calls", "answers"),
    [
        ("file-handle", "read open-read write read close close", "no ok no ok ok no"),
        ("tcp-handshake", "ack syn data ack data fin data ack data", "no ok no ok ok ok no ok no"),
        ("login", "wrong wrong wrong right use unlock right", "ok ok ok no no ok ok"),
        ("flip-flop", "ignore write1 ignore ignore write0 ignore", "0 1 1 1 0 0"),
        ("modular-sum", "4 3 0 1 2 4", "4 2 2 3 0 4"),
        (
            "traffic-light",
            "button tick button tick tick tick tick tick button fault tick repair",
            "red green green amber red green green green amber flashing flashing red",
        ),
        (
            "lift",
            "down up up up up open up shut down open open",
            "no ok ok ok no ok no ok ok ok no",
        ),
        (
            "vending-machine",
            "cancel drink coin10 coin20 coin5 coin5 drink coin20 cancel",
            "wait wait wait coin wait wait drink wait refund",
        ),
        (
            "retry-policy",
            "ok ask fail tick fail tick fail tick fail ask ask ok ask fail ok",
            "none send wait send wait wait none send give-up send none done send wait done",
        ),
    ],
)
def test_known_tables_answer_as_they_should(preset, calls, answers):
    task = TaskSpec("automaton", preset=preset).build()
    word = [task.language.letters.index(call) for call in calls.split()]
    found = [task.label(answer) for answer in task.automaton().answers(word)]
    assert found == [{"no": "violation"}.get(answer, answer) for answer in answers.split()]


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


def test_patterns_are_refused_or_mean_what_they_mean_for_re():
    assert all(equals_re(pattern, "abc*", 5) for pattern in PATTERNS)
    parts = [
        *"ab|*?+().", "{0}", "{,2}", "{1,}", "[a]", "[^a]", r"\*", "()", "(a|b)",
    ]  # fmt: skip
    draw, accepted = random.Random(0), 0
    for _ in range(500):
        pattern = "".join(draw.choices(parts, k=draw.randint(2, 8)))
        with contextlib.suppress(OptionError):
            accepted += 1 if equals_re(pattern, "ab*", 3) else pytest.fail(pattern)
    assert accepted > 60


@pytest.mark.parametrize(
    ("pattern", "alphabet", "matches"),
    [
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


@pytest.mark.parametrize(
    ("pattern", "alphabet", "letters"),
    [("a b | c", None, "abc"), ("(ba)*", None, "ab"), ("(ba)*", "bac", "bac")],
)
def test_letters_of_the_pattern_are_the_alphabet_unless_given(pattern, alphabet, letters):
    task = tasks.build("regex", pattern=pattern, alphabet=alphabet)
    assert task.language.letters == tuple(letters)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(ab", r"a \) for every \(, got '\(ab'"),
        *(
            (pattern, f"letters of the alphabet 'ab' alone, not {letter!r}")
            for pattern, letter in [("abc", "c"), ("a1", "1"), ("[a-z]", "z"), (r"a\ b", " ")]
        ),
        *(
            (pattern, "counts of the form")
            for pattern in ["a{}", "a{2", "a{,}", "a{2,3,4}", "a{-1}", "a{99999}", "a{٢}"]
        ),
        ("a{1001}", "counts of at most 1,000"),
        (r"\d", r"no \\d: only operators"),
        ("[a", r"a \] for every \[, got '\[a'"),
        ("^ab$", r"no \^, as it always matches whole words"),
        ("a|b&b", r"parentheses where | and & stand side by side, got 'a|b&b'"),
        ("a+?", "parentheses around what a second operator"),
        ("a||b", r"something to match before '\|'"),
        ("*a", r"\\\* for the letter \*, or something to match"),
        ("(" * 51 + "a" + ")" * 51, "at most 50 parentheses within each other"),
        ("a&b", "match a word, got 'a&b', which matches none"),
        *(
            (pattern, "at most 500 states, .* too many steps")
            for pattern in ["(a{1000}){1000}", "((a*){100}){100}", "(a|b)*a(a|b){20}"]
        ),
        ("a{600}", "an automaton of at most 500 states, got 602 for"),
        (3, "be a string, got 3"),
    ],
)
def test_patterns_that_cannot_be_read_are_named(pattern, message):
    with pytest.raises(OptionError, match=f"^pattern must .*{message}"):
        tasks.build("regex", pattern=pattern, alphabet="ab")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "|"}, r"pattern must have a letter, got '\|'"),
        ({"pattern": "[a-c]*"}, r"alphabet must be given where .* got None with '\[a-c\]\*'"),
        ({"pattern": "a{2,5}"}, "alphabet must be given where a pattern has more than letters"),
        ({"alphabet": "aa"}, "alphabet must have different characters .* 'aa'"),
        ({"words": "s"}, "words must be one of covering, .*, repeating, got 's'"),
        (
            {"pattern": "abc", "words": "balanced", "length": 671_089},
            "length must be at most 671088 with words=balanced, got 671089",
        ),
    ],
)
def test_options_of_expressions_are_checked(options, message):
    with pytest.raises(OptionError, match=message):
        tasks.build("regex", **{"pattern": "a"} | options)


def test_random_automata_reach_all_their_states_and_depend_on_their_seed():
    automata = [
        tasks.build("random_automaton", num_states=12, table_seed=seed).automaton()
        for seed in range(20)
    ]
    assert len({automaton.transitions.tobytes() for automaton in automata}) == 20
    assert all(len(reachable(one.transitions.tolist(), 0)) == 12 for one in automata)
    with pytest.raises(OptionError, match="num_states must be at most 48, got 49"):
        tasks.build("random_automaton", num_states=49)


def test_a_request_holds_the_text_of_its_file(tmp_path):
    file = tmp_path / "parity.txt"
    # It may begin with a mark of its encoding.
    file.write_text(PARITY, encoding="utf-8-sig")
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
    last = flipping(flipped=0.9, labels="last", min_length=3).examples(split, 0, 50)
    assert ((last.targets["answer"] != IGNORED).sum(1) == 1).all()
    # Both other answers are equally frequent, at every place.
    for wrong in (1, 2):
        assert (shift == wrong).mean(0) == pytest.approx(np.full(12, 0.15), abs=0.03)


@pytest.mark.parametrize("flipped", [-0.1, 1, float("nan"), True, "0.1"])
def test_a_share_of_wrong_labels_is_checked(flipped):
    with pytest.raises(OptionError, match="flipped must be a number >= 0 and < 1, got"):
        flipping(flipped=flipped)
    with pytest.raises(OptionError, match=r"flipped must be 0 with a single answer, got 0\.1"):
        tasks.build("automaton", rules="start: a\na x a", flipped=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file": "nowhere.txt"}, "file must be a text file \\(No such file.*'nowhere.txt'"),
        ({"file": "nowhere.txt", "rules": PARITY}, "file must be absent where rules \\(or"),
    ],
)
def test_files_that_cannot_be_read_are_named(options, message):
    with pytest.raises(SettingError, match=message):
        TaskSpec("automaton", **options)


def test_a_run_outlives_its_file_and_is_certified(tmp_path, capsys, refused):
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
    refused(train, "folder must hold a run of the same configuration")
    file.unlink()
    assert main(["certify", run]) == 1
    assert "refuted: wrong after" in capsys.readouterr().out
    assert main(["evaluate", run]) == 0
