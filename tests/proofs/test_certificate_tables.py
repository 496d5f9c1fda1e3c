"""The tables of certificates, and the checker that reads them without PyTorch."""

import contextlib
import copy
import functools
import itertools
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from statemix import proofs
from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.proofs import certificate_tables, check_certificate
from statemix.proofs.certificate_tables import read_tables
from statemix.proofs.check_certificate import Invalid, check, digest, step
from statemix.tasks.permutation import Permutation

CHECKER = Path(check_certificate.__file__)
CERTIFICATES = Path(__file__).parents[2] / "laboratory" / "results" / "certificates"


def tables_of(model, automaton):
    certificate = proofs.prove(model, automaton)
    assert certificate.verdict == "proven"
    tables = certificate.tables(automaton)
    assert isinstance(tables, dict)
    return certificate, tables


def sealed(tables):
    return {**tables, "sha256": digest(tables)}


def written(path, tables):
    path.write_text(json.dumps({"verdict": "proven", "tables": tables}))
    return path


def run_checker(path):
    """Without site-packages, so that nothing but the standard library can be imported."""
    command = [sys.executable, "-I", "-S", str(CHECKER), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


def automaton_of(name):
    return Permutation(group=name).automaton()


@pytest.fixture
def s_3(of_group):
    return tables_of(of_group("S_3"), automaton_of("S_3"))[1]


@pytest.mark.parametrize(("name", "channels"), [("S_3", False), ("A_5", False), ("S_3", True)])
def test_the_checker_agrees_with_the_proof(of_group, of_group_in_channels, name, channels):
    model = (of_group_in_channels if channels else of_group)(name)
    certificate, tables = tables_of(model, automaton_of(name))
    assert check(tables) == (certificate.result.pairs, None)
    assert len(tables["states"]) == certificate.result.pairs


def test_the_start_is_the_learned_state(of_group):
    """A block that the learned token leaves as it is, and whose order the letters change."""
    elements = np.array(Permutation(group="S_3").group.elements) - 1
    model = of_group("S_3", [*elements.tolist(), [0, 1, 2]], initial_state="learned")
    with torch.no_grad():
        model.backbone.blocks[0].mixer.learned_state[1] = torch.tensor([1.0, 2.0, 3.0])
    _, tables = tables_of(model, automaton_of("S_3"))
    assert check(tables) == (6, None)
    first, second = tables["start"][:3], tables["start"][3:]
    # The first block is written by the learned token with the same three numbers.
    assert first == second
    assert len(set(first)) == 3


def test_letters_that_cannot_follow_are_not_asked_for(tracker):
    """Token 1 can stand at place 0 alone, and nothing is scored after it."""
    sources = [[[1, 0], [-1, -1], [-1, -1]]]
    values = [[[0.0, 0.0], [1.0, 2.0], [1.0, 2.0]]]
    model = tracker(sources, values, [[-1, 1], [1, -1]], 2)
    transitions = np.array([[1, 0], [0, NEVER]])
    automaton = Automaton(0, transitions, np.array([[1, IGNORED], [0, IGNORED]]))
    _, tables = tables_of(model, automaton)
    assert check(tables) == (2, None)
    assert tables["automaton"]["transitions"][1][1] == -1
    assert tables["automaton"]["outputs"][0][1] == -1


def test_the_start_of_an_automaton_may_be_a_number_of_numpy(of_group):
    automaton = automaton_of("S_3")
    start = Automaton(np.int64(automaton.start), automaton.transitions, automaton.outputs)
    _, tables = tables_of(of_group("S_3"), start)
    assert json.loads(json.dumps(tables)) == tables


def test_the_checker_needs_the_standard_library_alone(s_3, tmp_path):
    status, text = run_checker(written(tmp_path / "certificate.json", s_3))
    assert (status, text) == (
        0,
        "proven: right after every word of every length (6 pairs of states)\n",
    )


def test_a_wrong_answer_is_refuted_by_a_shortest_word(s_3, tmp_path):
    wrong = copy.deepcopy(s_3)
    # The answer after the word 1 2, which no single letter asks for in this way.
    state = tuple(wrong["start"])
    for letter in (1, 2):
        state = step(state, wrong["letters"][letter])
    wrong["answers"][wrong["states"].index(list(state))][2] = 0
    status, text = run_checker(written(tmp_path / "certificate.json", sealed(wrong)))
    assert (status, text) == (1, "refuted: the answer after 1 2 is missing or wrong\n")


def parts_in(part, path=()):
    """Yield the path and the value of every part."""
    yield path, part
    if isinstance(part, list | dict):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from parts_in(value, (*path, key))


def corrupted(tables, rng):
    """A copy with one number changed."""
    changed = copy.deepcopy(tables)
    *parents, last = rng.choice([path for path, part in parts_in(tables) if isinstance(part, int)])
    place = changed
    for key in parents:
        place = place[key]
    place[last] += rng.choice([-2, -1, 1, 2])
    return changed


def replayed(tables, word):
    """The answers of the tables along a word, and the right ones."""
    state, automaton = tuple(tables["start"]), tables["automaton"]
    place = automaton["start"]
    states = [tuple(one) for one in tables["states"]]
    for letter in word:
        state = step(state, tables["letters"][letter])
        right = automaton["outputs"][place][letter]
        answer = tables["answers"][states.index(state)][letter] if state in states else None
        if right >= 0 and answer != right:
            return False
        place = automaton["transitions"][place][letter]
        if place < 0:
            return True
    return True


def test_corruptions_with_a_new_seal_are_found_unless_they_prove_something_else(s_3):
    """Judged by all words of up to three letters: six states are at most two letters apart."""
    rng, outcomes = random.Random(1), set()
    for _ in range(200):
        changed = corrupted(s_3, rng)
        with pytest.raises(Invalid):
            check(changed)
        changed = sealed(changed)
        try:
            word = check(changed)[1]
        except Invalid:
            outcomes.add("invalid")
            continue
        outcomes.add("refuted" if word is not None else "proven")
        if word is not None:
            assert not replayed(changed, word)
            assert replayed(changed, word[:-1])
        else:
            words = itertools.product(range(6), repeat=3)
            assert all(replayed(changed, one) for one in words)
    assert outcomes >= {"invalid", "refuted"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("start"), "its tables must be"),
        (lambda t: t.update(format=True), "its format holds True"),
        (lambda t: t.update(values=True), "values must be a number of values"),
        (lambda t: t["start"].append(0), "a letter must have a rule per entry"),
        (lambda t: t["start"].__setitem__(0, 99), "start holds 99"),
        (lambda t: t["letters"][0].__setitem__(0, 1.0), "a rule holds 1.0"),
        (lambda t: t["states"].append(t["states"][0]), "a state stands there twice"),
        (lambda t: t["answers"][0].__setitem__(0, True), "answers holds True"),
        (lambda t: t["automaton"].pop("start"), "the automaton is not whole"),
        (lambda t: t["automaton"]["transitions"][0].__setitem__(0, 6), "transitions holds 6"),
        (lambda t: t["automaton"]["outputs"][0].__setitem__(0, -2), "outputs holds -2"),
        (lambda t: t["automaton"].update(outputs=[[-1] * 6] * 6), "no answer to any word is sco"),
    ],
)
def test_tables_of_another_form_are_named(s_3, change, message):
    change(s_3)
    with pytest.raises(Invalid, match=message):
        check(sealed(s_3))


def test_a_wrong_call_is_no_refutation():
    called = subprocess.run([sys.executable, CHECKER], capture_output=True, check=False)
    assert (called.returncode, called.stdout) == (2, b"")


# What a damaged or hostile file may hold in place of a value; the last one nests deeply.
ODD = [
    None, True, -1, 1.5, math.inf, 10**4000, "", "\ud800", "é", [], [[]], {}, {"a": 1}, [None],
    "\nproven: ", functools.reduce(lambda inner, _: [inner], range(900), []),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["S_3", "S_6"])
def test_odd_values_anywhere_never_end_in_a_traceback(kind, tmp_path, capsys):
    content = json.loads((CERTIFICATES / f"{kind}.json").read_text())
    path, places = tmp_path / "certificate.json", [path for path, _ in parts_in(content)]
    assert content["tables"]["format"] == {"S_3": 1, "S_6": 2}[kind]
    rng, statuses = random.Random(0), Counter()
    for odd in ODD * 15:
        changed = {"all": copy.deepcopy(content)}
        *parents, last = ("all", *rng.choice(places))
        place = changed
        for key in parents:
            place = place[key]
        place[last] = odd
        with contextlib.suppress(TypeError, KeyError, RecursionError):
            changed["all"]["tables"] = sealed(changed["all"]["tables"])
        with contextlib.suppress(RecursionError, ValueError):
            path.write_text(json.dumps(changed["all"]))
        statuses[check_certificate.main(str(path))] += 1
        assert re.fullmatch("(proven|refuted|invalid): .*\n", capsys.readouterr().out)
    assert statuses.keys() <= {0, 1, 2}
    assert statuses[2] > 100


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((b"", "Expecting value"), (b"[]", "it has no tables\n")),
        (b'{"tables": 3}', "it has no tables\n"),
        (b'{"without_tables": "the verdict is open"}', "it has no tables: the verdict is open\n"),
        (b'{"tables": {"sha256": 1}}', "its tables must be "),
        *((b"\x00\xff\xfe", ""), (b"9" * 5000, ""), (b"1e999", ""), (b"\xef\xbb\xbf{}", "")),
        (b'{"tables":' + b"[" * 200_000, ""),
        (b'{"tables": {"\\ud800": 1}}', ""),
        (b'{"without_tables": "\\nproven: \\u001b[2J"}', ""),
    ],
    ids=itertools.count(),
)
def test_a_file_without_tables_is_invalid_in_one_line(content, reason, tmp_path, capsys):
    path = tmp_path / "é.json"
    path.write_bytes(content)
    assert check_certificate.main(str(path)) == 2
    said = capsys.readouterr().out
    assert re.fullmatch("invalid: .*\n", said)
    assert f": {reason}" in said


@pytest.mark.parametrize("path", ["", "absent", ".", "nul\0", "\udcff"])
def test_what_is_no_file_is_invalid(path, capsys):
    assert check_certificate.main(path) == 2
    assert capsys.readouterr().out.startswith("invalid: ")


def test_there_are_no_tables_of_other_networks(of_group, stacked):
    model, automaton = of_group("S_3"), automaton_of("S_3")
    soft = proofs.prove(model, automaton, soft=True)
    assert soft.tables(automaton) == "the gates of the network are not 0 and 1"
    proven = proofs.prove(model, automaton)
    wrong = replace(proven, result=replace(proven.result, verdict="refuted"))
    assert wrong.tables(automaton) == "the verdict is refuted"
    both = proofs.prove(stacked(model), automaton)
    assert both.verdict == "proven"
    assert both.tables(automaton) == "the network is not one BD-LRU layer"


def test_there_are_no_tables_of_too_many_numbers(of_group, monkeypatch):
    monkeypatch.setattr(certificate_tables, "_MOST_NUMBERS", 50)
    reason = read_tables(proofs.harden(of_group("S_3")), automaton_of("S_3"), "answer")
    assert reason == "they would have more than 50 numbers"


@pytest.mark.parametrize("path", sorted(CERTIFICATES.glob("*.json")), ids=lambda path: path.stem)
def test_the_checker_agrees_with_committed_certificates(path):
    stored = json.loads(path.read_text())
    assert stored["verdict"] == "proven"
    status, said = check_certificate.verdict(str(path))
    assert status == 0
    if stored["method"] == "search":
        # The checker counts the pair before the first letter, too, to which no word may lead back.
        pairs = int(re.search(r"\(([\d,]+) pairs of states\)", said)[1].replace(",", ""))
        assert pairs - stored["pairs"] in (0, 1)
    else:
        places = {"S_6": 6, "chess": 69, "cube": 48}[path.stem]
        assert f"(by structure, {places} places)" in said
