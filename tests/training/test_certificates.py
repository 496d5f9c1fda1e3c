"""Certificates of finished runs."""

import json

import pytest

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import RunConfig, certificates, train
from statemix.training.certificates import certify_run, check_property

LAYER = LayerSpec("bd_lru", num_blocks=2, block_size=2)
CONFIG = RunConfig(
    task=TaskSpec("permutation", group="S_2", length=8, train_size=20),
    model={"layers": [LAYER], "hidden_size": 8, "bos": True},
    batches={"size": 20},
    schedules={"epochs": 1},
    evaluation={"test_size": 8, "validation_size": 8, "attributes": {"gate_temperature": 0.125}},
    runtime={"device": "cpu", "num_threads": 1},
)


def test_a_run_is_certified_as_it_is_evaluated(tmp_path, monkeypatch):
    asked = []
    prove = certificates.proofs.prove_task

    def spy(model, task, **options):
        asked.append((model.backbone.blocks[0].mixer.gate_temperature, options["max_pairs"]))
        return prove(model, task, **options)

    monkeypatch.setattr(certificates.proofs, "prove_task", spy)
    train(CONFIG, tmp_path)
    found, written = certify_run(tmp_path, max_pairs=5000)
    ((temperature, most),) = asked
    assert (float(temperature), most) == (0.125, 5000)
    assert found.verdict in ("proven", "refuted", "open")
    assert written[0] == tmp_path / "certificate.json"
    assert all(path.is_file() for path in written)


def test_a_certificate_names_the_words_that_its_automaton_was_compared_on(tmp_path):
    config = CONFIG.replace(task=TaskSpec("regex", pattern="(ab)*", length=8, train_size=20))
    train(config, tmp_path)
    _, (path, *_) = certify_run(tmp_path, max_pairs=5000)
    checked = "the words of the pattern '(ab)*', on all words of 1 to 8 letters"
    assert json.loads(path.read_text())["checked_against"] == checked


def test_a_task_without_an_automaton_is_named(tmp_path):
    task = TaskSpec("selective_copying", length=16, train_size=20, num_copied=2)
    train(CONFIG.replace(task=task), tmp_path)
    with pytest.raises(RequestError, match="finite automaton or places, got selective_copying"):
        certify_run(tmp_path)


def test_only_an_open_verdict_makes_way_for_a_decided_one_on_the_same_weights(tmp_path):
    train(CONFIG, tmp_path)
    rule = tmp_path / "rule.txt"
    rule.write_text("start: a\nbad: wrong\na 21 21 wrong\n")
    decided, path = check_property(tmp_path, rule)
    assert decided["verdict"] != "open"
    rule.write_text(rule.read_text(), encoding="utf-8-sig")  # as editors on Windows write it
    assert check_property(tmp_path, rule) == (decided, path)
    still_open, written = check_property(tmp_path, rule, max_states=1)
    assert (still_open["verdict"], written) == ("open", None)
    assert json.loads(path.read_text()) == decided
    # As if the run had been trained again.
    path.write_text(json.dumps(decided | {"weights_sha256": "0" * 64}))
    assert check_property(tmp_path, rule, max_states=1) == (still_open, path)
    assert json.loads(path.read_text()) == still_open


def test_a_proof_of_another_run_stays(tmp_path):
    train(CONFIG, tmp_path / "run")
    stored = {"verdict": "proven", "weights_sha256": "0" * 64}
    path = tmp_path / "proofs" / "certificate.json"
    path.parent.mkdir()
    path.write_text(json.dumps(stored))
    with pytest.raises(RequestError, match=f"output must hold no proof of another run, got {path}"):
        certify_run(tmp_path / "run", output=path.parent)
    assert json.loads(path.read_text()) == stored
