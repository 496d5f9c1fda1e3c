"""Suites whose runs are certified, and what they add up to."""

import itertools
import json
import re
from types import SimpleNamespace

import polars as pl
import pytest
import torch

from statemix.layers import LayerSpec
from statemix.proofs import search
from statemix.sweeps.recipes import exact
from statemix.sweeps.runner import Ended, Job
from statemix.tasks import IGNORED, TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    SearchConfig,
    certificates,
)
from statemix.training.certificates import load_proven
from statemix.training.settings import ABSENT, differences
from statemix_lab.studies.exactness import exact_studies as exactness_rows
from statemix_lab.studies.exactness.exact_studies import (
    STUDIES,
    AttemptStudy,
    ProofStudy,
    certified_row,
)
from statemix_lab.studies.exactness.exact_table import interval
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study_entries import StudyEntry, Trial, Trials, due, plan
from statemix_lab.studies.tidy import failing_word


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


def test_a_certificate_is_found_with_the_threads_of_the_run(trained, monkeypatch):
    config = runs_of(RECIPE)[0]
    seen = []

    def certify_run(*arguments, **options):
        seen.append(torch.get_num_threads())
        return certificates.certify_run(*arguments, **options)

    monkeypatch.setattr(exactness_rows, "certify_run", certify_run)
    torch.set_num_threads(2)
    certified_row(Ended(Job("again", config, trained[1] / key(config)), "done"))
    assert seen == [config.runtime.num_threads] == [1]
    assert torch.get_num_threads() == 2


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


def changes_of(config, usual):
    """What a configuration asks for beyond another: dotted name -> value."""
    found = differences(config.resolved().to_plain(), usual.resolved().to_plain())
    return {name: value for name, value, _ in found if value is not ABSENT}


OPENED = {
    "model.layers.0.num_blocks": 20,
    "model.layers.0.initial_state": "zero",
    "model.layers.0.initial_std": 0.0,
    "model.layers.0.input_gate_bias": 0.0,
    "model.bos": True,
    "optimizer.learning_rate": 1e-3,
    "search.max_steps": 3500,
    "search.every": 200,
}


def test_groups_are_learned_by_the_recipe_and_by_a_few_other_ways():
    suite = {(one.column, one.model): runs_of(one) for one in SUITES["exact-groups"]}
    groups = ["S_3 from 250 words", "S_3", "S_4", "A_5", "S_5"]
    others = [
        "BD-LRU, recipe exact, embeddings start as matrices",
        "BD-LRU, start token, open gates",
    ]
    assert list(suite) == [
        *((group, model) for model in (RECIPE.model, "LSTM") for group in groups),
        *((group, model) for model in others for group in ("A_5", "S_5")),
    ]
    for group in groups:
        configs = suite[group, RECIPE.model]
        assert [config.seed for config in configs] == list(range(20))
        usual = exact(configs[0].task)
        assert (configs[0].model, configs[0].search) == (usual.model, usual.search)
        assert configs[0].evaluation.lengths == tuple(4**power for power in range(3, 11))
        schedules = suite[group, "LSTM"][0].schedules
        assert (schedules.num_steps or 2 * schedules.epochs) == 2500
    for group in ("A_5", "S_5"):
        usual = suite[group, RECIPE.model][0]
        matrices, opened = (suite[group, model] for model in others)
        assert changes_of(matrices[0], usual) == {"model.embedding_init": "features"}
        assert OPENED.items() <= changes_of(opened[0], usual).items()
        assert len(opened) == 10


def test_each_change_of_a_factorial_is_a_single_attempt_that_differs():
    suite = SUITES["exact-factorial"]
    more = ("as in the recipe", "embeddings start as permutation matrices")
    for one in suite:
        seeds = range(100, 140 if one.model in more else 110)
        assert [config.seed for config in runs_of(one)] == list(seeds)
        assert runs_of(one)[0].search.attempts == 1
    firsts = {one.model: runs_of(one)[0] for one in suite if one.column == "S_5"}
    recipe, usual = exact(TaskSpec("permutation", group="S_5")), firsts["as in the recipe"]
    assert (usual.model, usual.optimizer) == (recipe.model, recipe.optimizer)
    assert usual.search == recipe.search.replace(attempts=1, confirm=None)
    changes = {name: changes_of(config, usual) for name, config in firsts.items()}
    assert len(changes) == len({str(one) for one in changes.values()}) == 24
    # Options of layers and other settings, and slower attempts.
    assert changes["20 blocks"] == {"model.layers.0.num_blocks": 20}
    assert changes["start token, open gates, 20 blocks, rate 1e-3"] == OPENED
    slow = {"optimizer.learning_rate": 5e-4, "search.max_steps": 7000, "search.every": 400}
    assert changes["learning rate 5e-4"] == slow
    assert changes["other words"] == {"task.seed": 1}
    for one in SUITES["larger-groups"]:
        if one.model.startswith("BD-LRU, one attempt"):
            config = runs_of(one)[0]
            assert (config.search.attempts, config.search.confirm) == (1, None)


def test_each_seed_of_the_automata_has_an_automaton_of_its_own():
    suite = {(one.column, one.model): runs_of(one) for one in SUITES["exact-automata"]}
    recipe = {column: one for (column, model), one in suite.items() if model == RECIPE.model}
    assert list(recipe) == [
        *(f"random, {n} states" for n in (8, 12, 16)),
        *(f"tomita-{number}" for number in range(1, 8)),
        *(f"pattern of {k}" for k in range(3, 13)),
    ]
    random = [config.task.options["table_seed"] for config in recipe["random, 12 states"]]
    assert random == list(range(20))
    patterns = [config.task.options["pattern"] for config in recipe["pattern of 8"]]
    assert len(patterns) == len(set(patterns)) == 20
    assert all(re.fullmatch(r"\(0\|1\)\*[01]{8}\(0\|1\)\*", one) for one in patterns)
    (longest, *_) = recipe["pattern of 12"]
    assert longest.build_task().automaton().num_states == 13
    assert longest.build_task().length == 24
    for column in ("pattern of 6", "pattern of 7"):
        covering = suite[column, "BD-LRU, recipe exact, covering words"]
        for one, other in zip(covering, recipe[column], strict=True):
            words = [config.build_task().words for config in (one, other)]
            assert words == ["covering", "distinguishing"]
            assert one.replace(task=other.task, search=other.search) == other
    for column, seeds in {"pattern of 7": [18], "pattern of 8": [3, 9, 15]}.items():
        longer = suite[column, "BD-LRU, recipe exact, 24 attempts"]
        assert [config.seed for config in longer] == seeds
        for config in longer:
            same = recipe[column][config.seed]
            assert config.search.attempts == 24
            assert config.replace(search=same.search) == same


PD_SSM = ["parity", "cycle navigation", "even pairs"]
GROUPS = {"A_5": [2, 6, 8, 12], "S_5": [4, 8, 32]}
LDRU = [*PD_SSM, "modular sum", *(f"tomita-{number}" for number in range(3, 8))]
LDRU += [f"D_{depth}" for depth in (2, 3, 4, 6, 8, 12)]
LDRU += [f"P_{skipped}_{word}" for word in ("ab", "abba") for skipped in (2, 4, 8)]


def test_the_tasks_of_other_works_are_trained_and_tested_as_there():
    suite = {(one.column, one.model): one for one in SUITES["exact-protocols"]}
    recipe = {column: one for (column, model), one in suite.items() if model == RECIPE.model}
    groups = [f"{name}, {count} generators" for name in GROUPS for count in GROUPS[name]]
    assert len(LDRU) == 21
    assert set(recipe) == {*LDRU, *groups, "flip-flop", "S_3 x S_3"}
    for column, entry in recipe.items():
        configs = runs_of(entry)
        assert [config.seed for config in configs] == list(range(10))
        task, usual = configs[0].build_task(), exact(configs[0].task)
        assert (configs[0].model, configs[0].search) == (usual.model, usual.search)
        assert all(length in configs[0].evaluation.lengths for length in entry.published)
        if column in LDRU:
            # Proofs of even pairs are about all words; the other two are right on short ones, too.
            shortest = 3 if column in {"parity", "cycle navigation"} else None
            assert (task.min_length, task.length) == (shortest, 40)
            assert configs[0].evaluation.lengths == (256, 500)
            scored = task.examples("train", 0, 20).targets["answer"] != IGNORED
            assert (scored.sum(1) == 1).all()
    for column in groups:
        task = runs_of(recipe[column])[0].build_task()
        assert column == f"{task.group.name}, {task.vocab_size} generators"
    # Other layers are trained on some of the tasks.
    models = ["LSTM", "Mamba-2", "DeltaNet [-1,1]", "Gated DeltaProduct_4"]
    columns = ["parity", "flip-flop", "S_3 x S_3", "A_5, 2 generators"]
    peers = {place: one for place, one in suite.items() if place[1] != RECIPE.model}
    assert set(peers) == set(itertools.product(columns, models))
    for entry in peers.values():
        tried = [(config.optimizer.learning_rate, config.seed) for config in runs_of(entry)]
        assert tried == list(itertools.product((3e-4, 1e-3, 3e-3), range(3)))


def test_all_runs_of_a_suite_differ():
    for suite in SUITES.values():
        keys = [name for one in suite for _, _, name in one.trials.runs]
        assert len(keys) == len(set(keys))


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


def test_failing_words_have_the_letters_of_their_task():
    row = {"task": {"name": "regex", "pattern": "(ab)*"}, "certificate": {"word": [0, 1]}}
    assert failing_word(row) == "a b"
    assert failing_word({**row, "certificate": {"verdict": "open"}}) == ""


def test_the_table_of_a_factorial_counts_steps(trained):
    rows = trained[0].rows()
    cells = attempts(rows)
    passed = [one for run in runs_of(RECIPE) for one in rows[key(run)]["attempts"]]
    steps = [one["ended"] - one["began"] for one in passed]
    left = [one["left"] - one["began"] for one in passed if one["left"] is not None]
    assert cells[:2] == ("S_2", "BD-LRU, recipe exact")
    assert cells[3] == "2 of 2"
    assert cells[4:6] == (f"{sum(left) / len(left):.0f}", f"{sum(steps) / len(steps):.0f}")
    assert attempts({})[2:] == ("–", "", "", "", "")
    name = key(runs_of(RECIPE)[0])
    bare = {part: value for part, value in rows[name].items() if part != "certificate"}
    assert attempts({name: bare})[3] == "–"
    refuted = {**bare, "certificate": {"verdict": "refuted"}}
    assert attempts(rows | {name: refuted})[3] == "1 of 2"
    lost = {name: {**bare, "status": "diverged"}}
    assert attempts(lost)[2] == "1 without result"
    # A run that was lost has ended in its last attempt.
    assert attempts(rows | lost)[2].endswith("), 1 without result")
