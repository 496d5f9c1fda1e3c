"""The demo's suites: one protocol, results that survive interruption, and a summary for readers."""

import dataclasses
import itertools
import json

import pytest

from statemix.errors import RequestError
from statemix.layers.registry import LAYERS
from statemix.models import TokenClassifier
from statemix.studies.demo import demo_suite as demo
from statemix.studies.demo.demo_suite import LSTM
from statemix.studies.recipes import RECIPES, exact
from statemix.studies.suite import Network
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    SearchConfig,
)

NUM_STEPS = 6


class Events(list):
    """Records events; stops a named run at a step, as Ctrl-C would."""

    def __init__(self, stop=(None, None)):
        super().__init__()
        self.stop = stop

    def __call__(self, job, event):
        self.append((job.name, event.kind, event.step))
        if (job.name, event.step) == self.stop and event.kind == "step":
            raise KeyboardInterrupt


def run(suite, folder, events=None, **options):
    return demo.run(suite, folder, **{"num_workers": 1, "on_event": events, **options})


def scores(summary):
    return [{**row, "time_s": None} for row in summary["runs"]]


@pytest.fixture
def diverging(monkeypatch):
    """Makes the networks with these layers return NaN."""
    layers = set()
    forward = TokenClassifier.forward

    def spoilt(self, *arguments, **named):
        logits = forward(self, *arguments, **named)
        if any(type(module).__name__ in layers for module in self.modules()):
            return {head: value * float("nan") for head, value in logits.items()}
        return logits

    monkeypatch.setattr(TokenClassifier, "forward", spoilt)
    return layers


@pytest.mark.parametrize("group", list(demo.SUITES))
def test_runs_of_a_suite_differ_in_layer_seed_and_what_the_layer_allows_only(group, tmp_path):
    suite = demo.SUITES[group]
    jobs = suite.jobs(tmp_path)
    assert len({job.folder for job in jobs}) == len(jobs)
    protocol = suite.protocol
    by_recipe = [bool(network.recipe) for network, _ in suite.members]
    for job in itertools.compress(jobs, by_recipe):
        expected = exact(protocol.task)
        for part in ("task", "model", "optimizer", "schedules", "search"):
            assert getattr(job.config, part) == getattr(expected, part)
        for part in ("evaluation", "runtime"):
            assert getattr(job.config, part) == getattr(protocol, part)
    assert [job.config.seed for job in jobs] == [seed for _, seed in suite.members]
    jobs = [job for job, recipe in zip(jobs, by_recipe, strict=True) if not recipe]
    bare = {
        json.dumps(
            job.config.replace(
                model=protocol.model, schedules=protocol.schedules, seed=0
            ).to_plain()
        )
        for job in jobs
    }
    assert bare == {json.dumps(protocol.to_plain())}
    for job in jobs:
        model, schedules = job.config.model, job.config.schedules
        assert model.replace(layers=protocol.model.layers) == protocol.model
        without = schedules.replace(attributes=protocol.schedules.attributes)
        assert without == protocol.schedules
        sharpened = "gate_temperature" in LAYERS[model.layers[0].name].schedulable
        assert bool(schedules.attributes) == sharpened
        assert job.config.build_task().seed == job.config.seed


def test_the_first_suite_is_the_one_that_the_page_describes():
    suite = demo.SUITES["S_3"]
    config = suite.protocol.resolved()
    assert [network.label for network in suite.networks] == [
        "BD-LRU m=3",
        "BD-LRU m=2",
        "BD-LRU m=1",
        "LSTM",
    ]
    assert [network.layers[0].options.get("num_blocks") for network in suite.networks] == [
        64,
        64,
        64,
        None,
    ]
    assert suite.seeds == (0, 1, 2, 3, 4)
    schedules, optimizer, model = config.schedules, config.optimizer, config.model
    assert (schedules.epochs, optimizer.learning_rate) == (100, 1e-3)
    assert (schedules.min_learning_rate, schedules.learning_rate) == (1e-5, "cosine")
    assert (optimizer.weight_decay, config.batches.size, model.hidden_size) == (0.01, 128, 128)
    assert (model.bos, model.channel_mixer, model.num_layers) == (True, None, 1)
    assert schedules.attributes == (
        AttributeSchedule("gate_temperature", 0.125, begin=0.5, finish=0.9, curve="reciprocal"),
    )
    lengths = (64, 256, 1024, 4096, 16384)
    assert (config.build_task().length, *config.evaluation.lengths) == (16, *lengths)


@pytest.mark.parametrize("group", ["S_3", "S_5"])
def test_the_paper_has_a_number_for_every_network(group):
    suite = demo.SUITES[group]
    known = {row["network"] for row in suite.published["rows"]}
    assert known >= {network.label for network in suite.networks}


def test_summary_has_a_row_for_every_run_beside_its_setting(tiny, tmp_path):
    summary = run(tiny, tmp_path)
    assert json.loads(json.dumps(summary)) == summary
    assert [(row["network"], row["seed"], list(row["test"])) for row in summary["runs"]] == [
        ("BD-LRU m=3", 0, ["16", "24", "40"]),
        ("LSTM", 0, ["16", "24", "40"]),
    ]
    for row in summary["runs"]:
        accuracy = row["curve"]["accuracy"]["product"]
        assert row["curve"]["epoch"] == [1, 2]
        assert accuracy[-1] == row["test"]["16"]["product"]["token_accuracy"]
        for length, heads in row["test"].items():
            # The setting, which is made from the configuration, says what was measured.
            words = summary["setting"]["test_words"][length]
            assert heads["product"]["num_sequences"] == words
            # Every accuracy is a whole number of positions.
            right = heads["product"]["token_accuracy"] * words * int(length)
            assert right == pytest.approx(round(right))
    assert summary["setting"] == {
        "group": "S_3",
        "train_size": 20,
        "train_length": 16,
        "head": "product",
        "chance": 1 / 6,
        "unit": "epoch",
        "duration": 2,
        "sharpening": {"begin": 1.0, "finish": 1.8, "end": 0.125, "without": ["LSTM"]},
        "test_words": {"16": 8, "24": 6, "40": 4},
        "recipes": {},
    }
    assert summary["protocol"]["optimizer"]["learning_rate"] == 1e-3
    assert "layers" not in summary["protocol"]["model"]
    assert summary["time_s"] == sum(row["time_s"] for row in summary["runs"]) > 0


def test_a_summary_may_be_changed_without_changing_the_suite(tiny):
    demo.summarize(tiny, [])["published"]["rows"].clear()
    assert tiny.published["rows"]


def test_a_suite_of_fresh_words_counts_steps(tiny, tmp_path):
    protocol = tiny.protocol
    protocol = protocol.replace(
        task=TaskSpec("permutation", group="S_3"),
        schedules=protocol.schedules.replace(epochs=None, num_steps=4, attributes=()),
        evaluation=protocol.evaluation.replace(every=2),
    )
    summary = run(dataclasses.replace(tiny, protocol=protocol), tmp_path)
    setting = summary["setting"]
    assert (setting["unit"], setting["duration"], setting["train_size"]) == ("step", 4, None)
    assert setting["sharpening"] is None
    assert summary["runs"][0]["curve"]["step"] == [2, 4]
    assert summary["runs"][0]["curve"]["epoch"] is None


def test_an_interrupted_demo_continues_to_the_same_results(tiny, tmp_path):
    whole = run(tiny, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path / "cut", Events(stop=("lstm-seed0", 4)))
    events = Events()
    resumed = run(tiny, tmp_path / "cut", events)
    assert [kind for name, kind, _ in events if name == "bd_lru-m3-seed0"] == ["finished"]
    assert ("lstm-seed0", "started", 4) in events
    assert scores(resumed) == scores(whole)


def test_a_run_that_diverges_stops_no_other_and_is_a_row(tiny, tmp_path, diverging):
    diverging.add("BDLRU")
    ended = []
    summary = run(tiny, tmp_path, on_end=ended.append)
    assert [row["status"] for row in summary["runs"]] == ["diverged", "done"]
    assert [one.status for one in ended] == ["diverged", "done"]
    assert "nan" in summary["runs"][0]["message"]
    assert summary["runs"][1]["test"]


def test_a_diverged_run_is_tried_again_only_on_request(tiny, tmp_path, diverging):
    diverging.add("LSTM")
    run(tiny, tmp_path)
    diverging.clear()
    assert [row["status"] for row in run(tiny, tmp_path)["runs"]] == ["done", "diverged"]
    retried = run(tiny, tmp_path, retry=("diverged",))
    assert [row["status"] for row in retried["runs"]] == ["done", "done"]


def test_a_fresh_start_trains_again_and_leaves_other_folders_alone(tiny, tmp_path):
    run(tiny, tmp_path)
    other = tmp_path / "lstm-seed7"
    other.mkdir()
    events = Events()
    run(tiny, tmp_path, events, fresh=True)
    assert ("bd_lru-m3-seed0", "started", 0) in events
    assert other.exists()


def test_runs_of_another_configuration_are_refused_before_anything_is_trained(tiny, tmp_path):
    run(dataclasses.replace(tiny, networks=(demo.LSTM,)), tmp_path)
    optimizer = tiny.protocol.optimizer.replace(weight_decay=0.5)
    changed = dataclasses.replace(tiny, protocol=tiny.protocol.replace(optimizer=optimizer))
    with pytest.raises(RequestError, match=r"lstm-seed0 with optimizer.*--fresh"):
        run(changed, tmp_path)
    assert not (tmp_path / "bd_lru-m3-seed0").exists()
    assert [row["status"] for row in run(changed, tmp_path, fresh=True)["runs"]] == ["done"] * 2


def test_runs_of_an_older_version_are_refused_and_removed_by_a_fresh_start(tiny, tmp_path):
    old = tmp_path / "lstm-seed0"
    old.mkdir()
    (old / "config.json").write_text(json.dumps({"layer": "lstm", "layer_options": {}}))
    (old / "summary.json").write_text("{}")
    (old / "model.safetensors").write_bytes(b"")
    with pytest.raises(RequestError, match=r"older development version.*--fresh"):
        run(tiny, tmp_path)
    assert [row["status"] for row in run(tiny, tmp_path, fresh=True)["runs"]] == ["done"] * 2


def test_workers_give_the_same_results_as_one_process(tiny, tmp_path):
    alone = run(tiny, tmp_path / "alone")
    events = Events()
    together = run(tiny, tmp_path / "together", events, num_workers=2)
    assert scores(together) == scores(alone)
    for name in ("bd_lru-m3-seed0", "lstm-seed0"):
        assert [step for who, kind, step in events if (who, kind) == (name, "step")] == list(
            range(1, NUM_STEPS + 1)
        )


def test_a_network_may_be_trained_by_a_recipe(tiny, tmp_path, monkeypatch):
    def recipe(task):
        search = SearchConfig(attempts=2, max_steps=1, accept_last=1.0)
        model = ModelConfig(layers=LSTM.layers, hidden_size=4)
        return RunConfig(task=task, model=model, schedules=ScheduleConfig(epochs=1), search=search)

    monkeypatch.setitem(RECIPES, "exact", recipe)
    suite = dataclasses.replace(
        tiny, networks=(tiny.networks[0], Network(LSTM.layers, recipe="exact"))
    )
    summary = run(suite, tmp_path)
    assert [row["attempts"] for row in summary["runs"]] == [None, [False, False]]
    assert summary["setting"]["recipes"] == {"LSTM": "exact"}
    assert summary["setting"]["sharpening"]["without"] == []
    assert all(row["certificate"]["verdict"] for row in summary["runs"])
