"""One run: what it leaves, what moves while it trains, which moments it keeps, how it fails."""

import dataclasses
import fcntl
import json

import pytest
import torch

from statemix.training import Scores, evaluate, load_model, load_outcome, loop, train
from statemix.training.checkpoint import load_checkpoint
from statemix.training.evaluation import draw


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_finished_run_leaves_everything(tiny, tmp_path):
    config = tiny(eval_lengths=(40, 10), eval_tokens=200)
    outcome = train(config, tmp_path / "deep" / "run")
    names = {path.name for path in outcome.folder.iterdir()} - {".lock"}
    assert names == {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
        "model.safetensors",
        "best_test.safetensors",
        "best_validation.safetensors",
    }
    assert outcome.config == config.resolved()
    assert (outcome.last.step, outcome.last.epoch) == (12, 4)
    assert {n: s.num_sequences for n, s in outcome.last.test.items()} == {5: 30, 10: 20, 40: 5}
    assert outcome.last.validation.num_sequences == 20
    rows = rows_of(outcome.folder)
    assert [(row["step"], row["epoch"]) for row in rows] == [(3, 1), (6, 2), (9, 3), (12, 4)]
    environment = json.loads((outcome.folder / "environment.json").read_text())
    assert environment["num_threads"] == 1
    assert environment["packages"]["torch"] == torch.__version__


@pytest.mark.parametrize("weights", ["last", "best_test", "best_validation"])
def test_loaded_weights_give_the_scores_of_the_summary(tiny, tmp_path, weights):
    config = tiny(sharpen_to=4.0)
    outcome = train(config, tmp_path)
    field = "test_at_best_validation" if weights == "best_validation" else weights
    expected = getattr(outcome, field).test[5]
    tokens, targets = draw(config.build_task(), "test", 30)
    scores = evaluate(load_model(tmp_path, weights), tokens, targets, batch_size=8)
    assert scores.token_accuracy == expected.token_accuracy
    assert scores.loss == pytest.approx(expected.loss, rel=1e-5)


def test_a_finished_run_is_returned_as_it_is(tiny, tmp_path):
    first = train(tiny(), tmp_path)
    stamp = (tmp_path / "model.safetensors").stat().st_mtime_ns
    events = []
    assert train(tiny(), tmp_path, on_event=events.append) == first == load_outcome(tmp_path)
    assert [event.kind for event in events] == ["finished"]
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == stamp


def test_events_tell_every_step_and_evaluation(fresh, tmp_path):
    events = []
    train(fresh(), tmp_path, on_event=events.append, checkpoint_every_s=1000.0)
    kinds = "started step step evaluated step step evaluated step step evaluated saved finished"
    assert [event.kind for event in events] == kinds.split()
    assert [event.step for event in events if event.kind == "step"] == [1, 2, 3, 4, 5, 6]
    assert all(event.loss > 0 for event in events if event.kind == "step")
    assert all(event.num_steps == 6 for event in events)


def test_rows_hold_the_mean_loss_since_the_row_before(tiny, tmp_path):
    events = []
    train(tiny(), tmp_path, on_event=events.append)
    losses = [event.loss for event in events if event.kind == "step"]
    expected = [sum(losses[i : i + 3]) / 3 for i in range(0, 12, 3)]
    assert [row["train_loss"] for row in rows_of(tmp_path)] == pytest.approx(expected)


def test_learning_rate_really_falls_between_epochs(tiny, tmp_path, monkeypatch):
    """The test that MAD lacks: AdamW is watched, not the schedule."""
    used = []
    step = torch.optim.AdamW.step

    def watched(self, *arguments, **keywords):
        used.append(self.param_groups[0]["lr"])
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    train(tiny(), tmp_path)
    assert used[::3] == pytest.approx([1e-3, 8.5502e-4, 5.05e-4, 1.5498e-4], rel=1e-4)
    assert used[::3] == used[1::3] == used[2::3]


def test_gate_temperature_follows_its_schedule_and_is_kept(tiny, tmp_path, monkeypatch):
    seen = []
    forward = loop.rundir.SyntheticModel.forward

    def watched(self, tokens):
        seen.append(1 / self.blocks[0].layer.gate_temperature)
        return forward(self, tokens)

    monkeypatch.setattr(loop.rundir.SyntheticModel, "forward", watched)
    options = tiny().layer_options | {"gate_temperature": 0.5}
    config = tiny(sharpen_to=4.0, sharpen_start=0.25, sharpen_end=0.75, layer_options=options)
    train(config, tmp_path)
    # 12 steps: flat to 3, then up by a half per step to 9; twice that, for the layer's own 0.5.
    expected = [1, 1, 1, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4, 4]
    assert seen == pytest.approx([2 * sharpness for sharpness in expected])
    assert load_model(tmp_path).blocks[0].layer.gate_temperature == pytest.approx(1 / 8)
    assert [row["inverse_temperature"] for row in rows_of(tmp_path)] == [1, 2, 3.5, 4]


@pytest.mark.parametrize("change", ["seed", "schedule", "clip_norm", "weight_decay", "bos"])
def test_settings_reach_the_weights(tiny, tmp_path, change):
    changes = {
        "seed": 1,
        "schedule": "constant",
        "clip_norm": 1e-3,
        "weight_decay": 0.5,
        "bos": False,
    }
    train(tiny(), tmp_path / "one")
    train(tiny(**{change: changes[change]}), tmp_path / "other")
    one, other = load_model(tmp_path / "one"), load_model(tmp_path / "other")
    assert not torch.equal(one.readout.weight, other.readout.weight)


def test_two_runs_of_one_configuration_are_equal(tiny, tmp_path):
    train(tiny(), tmp_path / "one")
    torch.manual_seed(99)
    train(tiny(), tmp_path / "other", checkpoint_every_s=0.0)
    one, other = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("one", "other"))
    assert one == other


def test_best_last_and_best_by_validation_are_kept(tiny, tmp_path, monkeypatch):
    accuracies = {"test": [0.2, 0.5, 0.5, 0.3], "validation": [0.1, 0.3, 0.4, 0.4]}
    calls = []
    weights = []

    def scripted(model, tokens, targets, **_):
        split = "test" if len(tokens) == 30 else "validation"
        calls.append(split)
        if split == "test":
            weights.append(model.readout.weight.detach().clone())
        return Scores(len(tokens), accuracies[split][calls.count(split) - 1], 0.0, 0.0, 1.0)

    monkeypatch.setattr(loop, "evaluate", scripted)
    outcome = train(tiny(), tmp_path)
    assert outcome.best_test.epoch == 2
    assert outcome.test_at_best_validation.epoch == 3
    assert outcome.last.epoch == 4
    assert outcome.test_at_best_validation.test[5].token_accuracy == 0.5
    for name, epoch in (("best_test", 2), ("best_validation", 3), ("last", 4)):
        kept = load_model(tmp_path, name).readout.weight
        assert [torch.equal(kept, w) for w in weights] == [n == epoch for n in (1, 2, 3, 4)]


def test_stopping_early_is_decided_on_validation(tiny, tmp_path, monkeypatch):
    def scripted(model, tokens, targets, **_):
        return Scores(len(tokens), 1.0 if len(tokens) == 30 else next(accuracies), 0.0, 0.0, 1.0)

    accuracies = iter([0.5, 0.9, 0.95, 1.0])
    monkeypatch.setattr(loop, "evaluate", scripted)
    outcome = train(tiny(stop_at=0.9), tmp_path)
    assert (outcome.last.epoch, len(rows_of(tmp_path))) == (3, 3)


def test_evaluations_come_as_often_as_asked_and_at_the_end(tiny, tmp_path):
    train(tiny(eval_every=3), tmp_path)
    assert [row["epoch"] for row in rows_of(tmp_path)] == [3, 4]


def test_loss_that_is_not_finite_ends_with_step_and_rate_and_loses_nothing(tiny, tmp_path):
    config = tiny(learning_rate=3e38, schedule="constant", batch_size=4, eval_every=1)
    messages = []
    for _ in range(2):
        with pytest.raises(FloatingPointError, match=r"^loss must be finite, got nan at step") as e:
            train(config, tmp_path)
        messages.append(str(e.value))
    assert "learning rate 3e+38" in messages[0]
    assert messages[0] == messages[1]
    assert list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite_never_reaches_the_weights(
    tiny, tmp_path, monkeypatch, value, clip_norm
):
    config = tiny(clip_norm=clip_norm)
    weights = []
    forward = loop.rundir.SyntheticModel.forward

    def planted(self, tokens):
        weights.append({name: t.clone() for name, t in self.state_dict().items()})
        logits = forward(self, tokens)
        if len(weights) == 5:
            # The loss is what it was; its gradient is not.
            logits.register_hook(lambda gradient: gradient.clone().fill_(value))
        return logits

    message = (
        r"^norm of the gradient must be finite, got .* at step 5 of 12 with learning rate 0\.0"
    )
    with monkeypatch.context() as patch:
        patch.setattr(loop.rundir.SyntheticModel, "forward", planted)
        with pytest.raises(FloatingPointError, match=message):
            train(config, tmp_path / "run", checkpoint_every_s=1000.0)
    tensors, state = load_checkpoint(tmp_path / "run" / "checkpoints", pytest.fail)
    assert state["step"] == 4
    assert tensors["model"].keys() == weights[4].keys()
    assert all(torch.equal(t, weights[4][name]) for name, t in tensors["model"].items())
    # Nothing is lost: without the fault the run goes on to the same end.
    train(config, tmp_path / "run")
    train(config, tmp_path / "whole")
    one, other = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("run", "whole"))
    assert one == other


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_every_precision_trains_and_loads(tiny, tmp_path, precision):
    train(tiny(precision=precision), tmp_path)
    expected = torch.float64 if precision == "64-true" else torch.float32
    assert load_model(tmp_path).readout.weight.dtype == expected


@pytest.mark.parametrize("layer", ["h_lru", "lstm"])
def test_every_layer_trains_under_one_protocol(tiny, tmp_path, layer):
    options = {"num_channels": 4, "order": 2} if layer == "h_lru" else {}
    train(tiny(layer=layer, layer_options=options, sharpen_to=8.0), tmp_path)
    assert load_outcome(tmp_path).last.step == 12


def occupied(path):
    (path / "thesis.tex").write_text("")


def another(path):
    train(dataclasses.replace(occupied.config, learning_rate=0.5), path)


def damaged(path):
    (path / "config.json").write_text('{"task"')


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (occupied, "folder must be empty or hold a run, got .* with 'thesis.tex'"),
        (another, "folder must hold a run of the same configuration, .*learning_rate=0.5, not 0.0"),
        (damaged, "config.json must be JSON"),
    ],
)
def test_a_folder_that_holds_something_else_is_refused(tiny, tmp_path, prepare, message):
    occupied.config = tiny()
    prepare(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        train(tiny(), tmp_path)
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"}
    assert after == {path: content for path, content in before.items() if path.name != ".lock"}


def test_a_folder_in_use_is_refused(tiny, tmp_path):
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="folder must not be in use, got"):
            train(tiny(), tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    message = r"folder must be writable, got .*file/run: Not a directory"
    with pytest.raises(ValueError, match=message):
        train(tiny(), tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_options": {"num_blocks": 2}}, r"must include \['block_size'\]"),
        ({"layer_options": {"num_blocks": 2, "block_size": 0}}, "block_size must be at least 1"),
        (
            {"layer_options": {"num_blocks": 2, "block_size": 3, "backend": "abacus"}},
            "backend must be one of .* got 'abacus'",
        ),
        (
            {"layer_options": {"num_blocks": 2, "block_size": 3, "device": "cuda"}},
            r"options of layer 'bd_lru' must be among .*got \['device'\]",
        ),
        ({"test_size": 10**6}, "test_size must fit the task: .* must be at most"),
        ({"validation_size": 10**6}, "validation_size must fit the task: .* must be at most"),
        ({"eval_lengths": (1,)}, "eval_lengths must fit the task: .* must be at most"),
    ],
)
def test_what_cannot_run_fails_before_anything_is_written(tiny, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_only_a_call_finds_out_fails_before_anything_is_written(tiny, tmp_path, monkeypatch):
    def elsewhere(*_, **__):
        raise ValueError("backend 'cpu' needs tensors on the CPU, got cuda:0")

    monkeypatch.setattr("statemix.ops.bd_lru", elsewhere)
    with pytest.raises(ValueError, match="needs tensors on the CPU"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_missing_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="device must be available, got 'cuda'"):
        train(tiny(device="cuda"), tmp_path / "run")


def test_threads_are_the_runs_and_then_the_callers_again(tiny, tmp_path):
    torch.set_num_threads(1)
    seen = set()
    train(
        tiny(num_threads=2, epochs=1),
        tmp_path,
        on_event=lambda _: seen.add(torch.get_num_threads()),
    )
    assert (seen, torch.get_num_threads()) == ({2}, 1)


def test_it_learns_to_add_modulo_two(tiny, tmp_path):
    """S_2 is parity, which a diagonal network of positive gates cannot follow but m = 2 can."""
    config = tiny(
        task_options={"group": "S_2", "length": 12, "train_size": 100},
        layer_options={"num_blocks": 8, "block_size": 2},
        hidden_size=32,
        batch_size=50,
        epochs=60,
        learning_rate=1e-2,
        sharpen_to=8.0,
        test_size=60,
        eval_lengths=(500,),
        eval_every=30,
    )
    last = train(config, tmp_path).last
    assert last.test[12].token_accuracy >= 0.99
    assert last.test[500].token_accuracy >= 0.99
