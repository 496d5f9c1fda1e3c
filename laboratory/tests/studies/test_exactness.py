"""Suites whose runs are certified, and what they add up to."""

import json
from types import SimpleNamespace

import polars as pl
import pytest

from statemix.layers import LayerSpec
from statemix.proofs import search
from statemix.sweeps.recipes import exact
from statemix.sweeps.runner import Ended
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    SearchConfig,
)
from statemix.training.certificates import load_proven
from statemix_lab.studies.exactness.exact_studies import (
    STUDIES,
    AttemptStudy,
    ProofStudy,
    certified_row,
)
from statemix_lab.studies.exactness.exact_table import interval
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study_entries import StudyEntry, Trial, Trials, due, plan


def tiny(seed):
    """A tracker of S_2 that is learned within a second or two, by the steps of the recipe."""
    config = exact(TaskSpec("permutation", group="S_2", length=8))
    (layer,) = config.model.layers
    layers = (LayerSpec("bd_lru", **{**layer.options, "num_blocks": 4}),)
    return config.replace(
        model=ModelConfig(layers=layers, hidden_size=16),
        batches=BatchConfig(size=32),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        schedules=config.schedules.replace(num_steps=60, warmup_steps=5),
        search=config.search.replace(size=16, length=16, every=20),
        evaluation=EvaluationConfig(test_size=20, validation_size=20, lengths=(32,)),
        runtime=RuntimeConfig(device="cpu", num_threads=1),
        seed=seed,
    )


def lstm(seed):
    model = ModelConfig(layers=(LayerSpec("lstm"),), hidden_size=8)
    schedules = tiny(seed).schedules.replace(num_steps=4, attributes=())
    return tiny(seed).replace(model=model, schedules=schedules, search=SearchConfig())


def entry(model, configs):
    return StudyEntry("S_2", model, Trials(lambda: [Trial("", tuple(configs))]))


RECIPE = entry("BD-LRU, recipe exact", [tiny(seed) for seed in range(2)])
PEER = entry("LSTM", [lstm(0)])
PROOF = ProofStudy("tiny", "a small study", lambda *_: [RECIPE, PEER])
ATTEMPT = AttemptStudy("tiny", "a small study", lambda *_: [RECIPE, PEER])
SUITES = {study.name: study.entries("paper", "laptop") for study in STUDIES}


def runs_of(one):
    return [config for _, config, _ in one.trials.runs]


def proofs(rows, *entries):
    """The cells of each line of the table of proofs."""
    listed = entries or (RECIPE,)
    return [line.cells for line in PROOF.table(PROOF.runs(listed, rows), listed).lines]


def attempts(rows):
    (line,) = ATTEMPT.table(ATTEMPT.runs([RECIPE], rows), [RECIPE]).lines
    return line.cells


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The store of a small suite, and the folder of its runs."""
    folder = tmp_path_factory.mktemp("exactness")
    store = Store(folder / "runs.jsonl")
    planned = plan([RECIPE, PEER], folder)
    PROOF.fill(planned, store, num_workers=1)
    assert due(planned, store.rows(), retry=False) == []
    return store, folder


def test_rows_have_certificates_and_proven_networks_are_kept(trained):
    store, folder = trained
    rows = store.rows()
    for config in runs_of(RECIPE):
        row = rows[key(config)]
        assert row["certificate"]["verdict"] == "proven"
        assert row["attempts"][-1]["passed"]
        assert row["certify_s"] > 0
        stored = json.loads((folder / key(config) / "certificate.json").read_text())
        assert stored["verdict"] == "proven"
        network = load_proven(folder / key(config))
        assert search(network, config.build_task().automaton()).verdict == "proven"
    peer = rows[key(runs_of(PEER)[0])]
    assert peer["certificate"]["verdict"] != "proven"
    assert peer["attempts"] == []


def test_a_run_without_a_result_has_a_row_without_a_certificate(trained, tmp_path):
    job = plan([RECIPE], tmp_path)[0].job
    row = certified_row(Ended(job, "diverged", "loss must be finite"))
    assert row["status"] == "diverged"
    assert "certificate" not in row
    rows = {key(runs_of(RECIPE)[0]): row}
    assert proofs(rows)[0][2] == "1 without result"
    assert proofs(trained[0].rows() | rows)[0][2] == "1 of 2 (1 without result)"


def test_the_table_has_a_line_for_each_condition(trained):
    recipe, peer = proofs(trained[0].rows(), RECIPE, PEER)
    assert recipe[:3] == ("S_2", "BD-LRU, recipe exact", "2 of 2")
    assert peer[2].startswith("0 of 1 (1 ")
    assert peer[3] == "–"
    assert proofs({})[0] == ("S_2", "BD-LRU, recipe exact", "–", "", "", "")


def test_the_figure_has_a_panel_for_each_model(trained):
    rows = trained[0].rows()
    found = PROOF.panels(PROOF.runs([RECIPE, PEER], rows))
    assert [panel.title for panel in found] == ["BD-LRU, recipe exact", "LSTM"]
    name = key(runs_of(RECIPE)[0])
    curve = found[0].curves.filter(run=name)
    assert set(curve["line"]) == {"S_2"}
    assert dict(zip(curve["x"], curve["y"], strict=True)) == {
        float(length): heads["product"]["token_accuracy"]
        for length, heads in rows[name]["test"].items()
    }
    assert PROOF.draw(PROOF.runs([RECIPE], rows), trained[1]) is not None


@pytest.mark.parametrize(
    ("passed", "of", "expected"),
    [(10, 10, (0.7225, 1.0)), (0, 10, (0.0, 0.2775)), (5, 10, (0.2366, 0.7634))],
)
def test_intervals_are_those_of_the_literature(passed, of, expected):
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", method 3.
    found = interval([True] * passed + [False] * (of - passed))
    assert found == pytest.approx(expected, abs=1e-4)


def test_other_layers_choose_their_rates_by_the_loss_of_validation_words(tmp_path):
    study = next(one for one in STUDIES if one.name == "exact-protocols")
    entries = study.chosen("paper", "laptop", ["S_3 x S_3"], ["LSTM", RECIPE.model])
    planned = plan(entries, tmp_path)
    rows = {}

    def due_runs():
        store = SimpleNamespace(rows=lambda: rows)
        return [one.job.config for one in study.due(planned, store, retry=False)]

    # Of a first head, which would choose another rate, and of a second one.
    losses = {3e-4: (0.1, 0.3), 1e-3: (None, None), 3e-3: (0.2, 0.1)}
    for one in planned:
        config = one.job.config
        if config.search.attempts is None and config.seed == 0:
            rate = config.optimizer.learning_rate
            row = {"key": one.key, "seed": 0, "environment": {}, "status": "done"}
            row["best_validation"] = {
                f"place_{place}": {"loss": loss, "token_accuracy": 1 / place}
                for place, loss in enumerate(losses[rate], 1)
            }
            rows[one.key] = row if None not in losses[rate] else row | {"status": "diverged"}
    peers = [config for config in due_runs() if config.search.attempts is None]
    assert [(one.optimizer.learning_rate, one.seed) for one in peers] == [(3e-3, 1), (3e-3, 2)]
    assert len(due_runs()) == 10 + 2
    shown = study.runs(entries, rows).filter(pl.col("model") == "LSTM")
    assert shown["setting"].to_list() == ["lr=0.003"] * 3
    # An accuracy is the mean over heads.
    assert shown["best_validation"].to_list() == [0.75, None, None]
    rows.popitem()  # The choice is open again.
    assert len(due_runs()) == 10 + 1 + 3 * 2


def test_the_table_of_other_works_has_their_accuracies():
    study = next(one for one in STUDIES if one.name == "exact-protocols")
    entries = study.chosen("paper", "laptop", ["parity"], [RECIPE.model])
    ours, published = study.table(study.runs(entries, {}), entries).lines
    assert ours.cells[:3] == ("parity", RECIPE.model, "0 of 10")
    assert published.cells[1] == "PD-SSM at 256, MLP-LDRU at 500"
    assert [cell for cell in published.cells[2:] if cell] == [".999", "1.00"]


def test_the_table_of_a_factorial_counts_steps(trained):
    rows = trained[0].rows()
    cells = attempts(rows)
    passed = [one for run in runs_of(RECIPE) for one in rows[key(run)]["attempts"]]
    steps = [one["ended"] - one["began"] for one in passed]
    left = [one["left"] - one["began"] for one in passed if one["left"] is not None]
    assert cells[:2] == ("S_2", "BD-LRU, recipe exact")
    assert cells[3] == "2 of 2"
    assert cells[4:6] == (f"{sum(left) / len(left):.0f}", f"{sum(steps) / len(steps):.0f}")
    name = key(runs_of(RECIPE)[0])
    bare = {part: value for part, value in rows[name].items() if part != "certificate"}
    assert attempts({name: bare})[3] == "–"
    lost = {name: {**bare, "status": "diverged"}}
    assert attempts(lost)[2] == "1 without result"
    # A run that was lost has ended in its last attempt.
    assert attempts(rows | lost)[2].endswith("), 1 without result")
