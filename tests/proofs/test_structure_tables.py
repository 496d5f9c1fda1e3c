"""Tables of proofs by structure: what the checker accepts is right, and what is wrong is named."""

import json
import random

import numpy as np
import pytest
from tests.proofs.test_certificate_tables import corrupted, run_checker, sealed, written
from tests.proofs.test_structure import EXAMPLES, LOADS, SHARP, follower

from statemix.proofs import prove_by_structure
from statemix.proofs.check_certificate import Invalid, check_structure
from statemix.proofs.structure import structure_tables


def tables_of(rules):
    found = prove_by_structure(follower(rules, more_blocks=1), rules)
    return structure_tables(found.model, rules)


def followed(tables, words):
    """Return whether codes tell the contents of all places with heads after every token."""
    codes = [{tuple(row[1:]): row[0] for row in rows} for rows in tables["codes"]]
    for word in words:
        held, contents = tables["start"], tables["places"]["start"]
        for letter in (None, *word):
            if letter is not None:
                held = [held[r] if r >= 0 else -1 - r for r in tables["letters"][letter]]
                moves = tables["places"]["letters"][letter]
                contents = [contents[s] if s >= 0 else -1 - s for s in moves]
            for place in range(tables["heads"]):
                code = tuple(held[entry] for entry in tables["followers"][place])
                if codes[place].get(code) != contents[place]:
                    return False
    return True


@pytest.mark.parametrize("rules", EXAMPLES, ids=["S_3", "S_8", "loads"])
def test_a_stranger_can_check_the_tables(rules, tmp_path):
    tables = tables_of(rules)
    assert check_structure(json.loads(json.dumps(tables))) == rules.num_heads
    words = np.random.default_rng(0).integers(rules.num_tokens, size=(5, 50)).tolist()
    assert followed(tables, words)
    status, said = run_checker(written(tmp_path / "certificate.json", tables))
    assert (status, f"(by structure, {rules.num_heads} places)" in said) == (0, True)


def test_only_places_without_a_head_may_share_codes():
    """Place 0 never changes, and the others exchange contents that have the same code."""
    tables = {
        "format": 2,
        "values": 1,
        "start": [0, 0, 0],
        "letters": [[0, 2, 1]],
        "places": {"start": [0, 1, 2], "letters": [[0, 2, 1]]},
        "heads": 1,
        "followers": [[0], [1], [2]],
        "codes": [[[0, 0]], [[1, 0], [2, 0]], [[1, 0], [2, 0]]],
    }
    assert check_structure(sealed(tables)) == 1
    tables["heads"] = 2
    with pytest.raises(Invalid, match="a code of place 1 has two contents"):
        check_structure(sealed(tables))


@pytest.mark.parametrize("rules", EXAMPLES, ids=["S_3", "S_8", "loads"])
def test_what_is_accepted_is_right_whatever_was_changed(rules):
    tables, draw = tables_of(rules), random.Random(0)
    words = np.random.default_rng(0).integers(rules.num_tokens, size=(20, 60)).tolist()
    refused = 0
    for _ in range(100):
        changed = corrupted(tables, draw)
        with pytest.raises(Invalid):
            check_structure(changed)
        changed = sealed(changed)
        try:
            check_structure(changed)
        except Invalid:
            refused += 1
        else:
            assert followed(changed, words)
    assert refused > 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("codes"), "its tables must be"),
        (lambda t: t["letters"].pop(), "places must have a row per letter"),
        (lambda t: t["letters"][0].__setitem__(0, 1.0), "a letter holds 1.0"),
        (lambda t: t["places"]["letters"][0].pop(), "a letter of the places must have 3 numbers"),
        (
            lambda t: (t.update(letters=[]), t["places"].update(letters=[])),
            "places must have a row per letter",
        ),
        (lambda t: t.update(heads=4), "heads holds 4"),
        (lambda t: t["followers"].__setitem__(0, [0, 0]), "followers must have 1 numbers"),
        (lambda t: t["codes"][0][0].__setitem__(0, -1), "a content holds -1"),
        (lambda t: t.update(start=3), "its tables are not whole"),
        (lambda t: t["places"]["start"].__setitem__(0, 1), "place 0 does not start in one of its"),
        (lambda t: t["places"]["letters"][1].__setitem__(0, 0), "letter 1 at place 0 copies ano"),
        (lambda t: t["places"]["letters"][0].__setitem__(0, -1), "letter 0 at place 0 loads no v"),
        (lambda t: t["places"]["letters"][1].__setitem__(0, -1), "letter 1 at place 0 leads to a"),
    ],
)
def test_other_tables_are_named(change, message):
    tables = tables_of(LOADS)
    change(tables)
    with pytest.raises(Invalid, match=message):
        check_structure(sealed(tables))


@pytest.mark.parametrize(("token", "entry"), [(0, 2), (1, 0)], ids=["copy", "load"])
def test_there_are_no_tables_if_one_gate_shares(token, entry):
    """The entry gets a part of what entry 1 holds; all other gates are 0 or 1."""
    model = follower(LOADS)
    layer = model.backbone.blocks[0].mixer
    layer.gate_temperature = 0.05
    assert isinstance(structure_tables(model, LOADS), dict)
    layer.gate_proj.weight.data.view(3, 4, 1, -1)[entry, 1, 0, token] = SHARP - 0.1
    reason = structure_tables(model, LOADS)
    assert reason == "a step of the network is no copy of entries and values"
