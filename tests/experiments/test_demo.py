"""The demo's suite: one protocol, results that survive interruption, and a summary for readers."""

import dataclasses
import json

import pytest

from statemix.experiments import demo
from statemix.experiments.workers import train_all

NUM_STEPS = 6


class Events(list):
    """Remembers what it is told; stops the run of a name at a step, as Ctrl-C would."""

    def __init__(self, stop=(None, None)):
        super().__init__()
        self.stop = stop

    def __call__(self, job, event):
        self.append((job.name, event.kind, event.step))
        if (job.name, event.step) == self.stop and event.kind == "step":
            raise KeyboardInterrupt


def run(suite, folder, events=None, **options):
    return demo.run(
        suite, folder, num_workers=1, on_event=Events() if events is None else events, **options
    )


@pytest.mark.parametrize("group", list(demo.SUITES))
def test_runs_of_a_suite_differ_in_layer_and_seed_only(group, tmp_path):
    suite = demo.SUITES[group]
    jobs = suite.jobs(tmp_path)
    assert len({job.folder for job in jobs}) == len(jobs)
    assert [(job.config.layer, job.config.layer_options, job.config.seed) for job in jobs] == [
        (network["model"], network["options"], seed)
        for seed in suite.seeds
        for network in suite.networks
    ]
    bare = {
        dataclasses.replace(job.config, layer="lstm", layer_options={}, seed=0).to_json()
        for job in jobs
    }
    assert len(bare) == 1
    assert all(job.config.build_task().seed == job.config.seed for job in jobs)


def test_the_first_suite_is_the_one_that_the_page_describes():
    suite = demo.SUITES["S_3"]
    config = suite.protocol
    names = [(network["model"], network["m"]) for network in suite.networks]
    assert names == [("bd_lru", 3), ("bd_lru", 2), ("bd_lru", 1), ("lstm", None)]
    assert all(n["options"]["num_blocks"] == 64 for n in suite.networks if n["m"])
    assert suite.seeds == (0, 1, 2, 3, 4)
    assert (config.epochs, config.learning_rate, config.min_learning_rate) == (100, 1e-3, 1e-5)
    assert (config.weight_decay, config.batch_size, config.hidden_size) == (0.01, 128, 128)
    assert (config.bos, config.channel_mixer, config.schedule) == (True, "none", "cosine")
    assert (config.sharpen_start, config.sharpen_end, config.sharpen_to) == (0.5, 0.9, 8.0)
    assert (config.build_task().length, *config.eval_lengths) == (16, 64, 256, 1024, 4096, 16384)


def test_summary_has_a_row_and_a_curve_for_every_run(tiny, tmp_path):
    summary = run(tiny, tmp_path)
    assert json.loads(json.dumps(summary))["runs"] == summary["runs"]
    assert [{**row, "accuracy": list(row["accuracy"])} for row in summary["runs"]] == [
        {"model": "bd_lru", "m": 3, "seed": 0, "accuracy": ["16", "24", "40"]},
        {"model": "lstm", "m": None, "seed": 0, "accuracy": ["16", "24", "40"]},
    ]
    for row, curve in zip(summary["runs"], summary["curves"], strict=True):
        assert curve["position"] == [1, 2]
        assert curve["accuracy"][-1] == row["accuracy"]["16"]
        # Every accuracy is a whole number of positions.
        for length, value in row["accuracy"].items():
            positions = summary["setting"]["test_words"][length] * int(length)
            assert value * positions == pytest.approx(round(value * positions))
    assert summary["setting"] == {
        "group": "S_3",
        "train_size": 20,
        "train_length": 16,
        "chance": 1 / 6,
        "unit": "epoch",
        "duration": 2,
        "sharpen": (1.0, 1.8, 8.0),
        "test_words": {"16": 8, "24": 6, "40": 4},
    }
    assert summary["protocol"]["learning_rate"] == 1e-3
    assert not {"layer", "layer_options"} & summary["protocol"].keys()
    assert summary["time_s"] > 0


def test_a_suite_of_fresh_words_counts_steps(tiny, tmp_path):
    protocol = dataclasses.replace(
        tiny.protocol, task_options={"group": "S_3"}, epochs=None, num_steps=4, eval_every=2
    )
    summary = run(dataclasses.replace(tiny, protocol=protocol), tmp_path)
    assert summary["setting"]["unit"] == "step"
    assert summary["setting"]["train_size"] is None
    assert summary["setting"]["duration"] == 4
    assert summary["curves"][0]["position"] == [2, 4]


def test_an_interrupted_demo_goes_on_to_the_same_results(tiny, tmp_path):
    whole = run(tiny, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path / "cut", Events(stop=("lstm-seed0", 4)))
    events = Events()
    resumed = run(tiny, tmp_path / "cut", events)
    assert [kind for name, kind, _ in events if name == "bd_lru-m3-seed0"] == ["finished"]
    assert ("lstm-seed0", "started", 4) in events
    assert resumed["runs"] == whole["runs"]
    assert resumed["curves"] == whole["curves"]


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
    changed = dataclasses.replace(
        tiny, protocol=dataclasses.replace(tiny.protocol, weight_decay=0.5)
    )
    with pytest.raises(ValueError, match="lstm-seed0 must hold a run of the same configuration"):
        run(changed, tmp_path)
    assert not (tmp_path / "bd_lru-m3-seed0").exists()


def test_workers_give_the_same_results_as_one_process(tiny, tmp_path):
    alone = run(tiny, tmp_path / "alone")
    events = Events()
    together = demo.run(tiny, tmp_path / "together", num_workers=2, on_event=events)
    assert together["runs"] == alone["runs"]
    for name in ("bd_lru-m3-seed0", "lstm-seed0"):
        assert [step for who, kind, step in events if (who, kind) == (name, "step")] == list(
            range(1, NUM_STEPS + 1)
        )


def test_the_error_of_a_worker_reaches_the_caller(tiny, tmp_path):
    jobs = tiny.jobs(tmp_path)
    (tmp_path / "lstm-seed0").mkdir()
    (tmp_path / "lstm-seed0" / "stranger").touch()
    with pytest.raises(ValueError, match="stranger"):
        train_all(jobs, 2, Events())


def test_number_of_workers_is_checked(tiny, tmp_path):
    with pytest.raises(ValueError, match="num_workers must be at least 1, got 0"):
        train_all(tiny.jobs(tmp_path), 0, Events())
