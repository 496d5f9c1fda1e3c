"""One run: its files, its schedules, its best weights, its failures."""

import json
from types import SimpleNamespace

import pytest
import torch

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    ScheduleConfig,
    Scores,
    evaluate,
    load_model,
    load_outcome,
    train,
)
from statemix.training.batches import CrossEntropy
from statemix.training.checkpoint import load_checkpoint
from statemix.training.folder import read_metrics, read_status
from statemix.training.settings import Assignments


def test_a_finished_run_leaves_everything(tiny, tmp_path):
    config = tiny({"evaluation.lengths": (40, 10), "evaluation.tokens": 200})
    outcome = train(config, tmp_path / "deep" / "run")
    names = sorted(path.name for path in outcome.folder.iterdir())
    assert names == [
        *("best_test.safetensors", "best_validation.safetensors", "config.json"),
        *("environment.json", "metrics.jsonl", "model.safetensors", "optimizer.safetensors"),
        *("state.json", "status.json", "summary.json"),
    ]
    assert outcome.config == config.resolved()
    assert outcome.num_parameters == sum(p.numel() for p in load_model(outcome.folder).parameters())
    assert (outcome.last.step, outcome.last.epoch) == (12, 4)
    counts = {n: heads["product"].num_sequences for n, heads in outcome.last.test.items()}
    assert counts == {5: 30, 10: 20, 40: 5}
    assert outcome.last.validation["product"].num_sequences == 20
    rows = read_metrics(outcome.folder)
    assert [(row["step"], row["epoch"]) for row in rows] == [(3, 1), (6, 2), (9, 3), (12, 4)]
    environment = json.loads((outcome.folder / "environment.json").read_text())
    assert environment["num_threads"] == 1
    assert environment["packages"]["torch"] == torch.__version__
    stored = json.loads((outcome.folder / "config.json").read_text())
    assert stored["schema"] == 1
    assert stored["asked"] == config.asked()
    assert stored["resolved"] == config.resolved().to_plain()


def test_loaded_weights_give_the_scores_of_the_summary(tiny, tmp_path):
    sharpen = AttributeSchedule("gate_temperature", end=0.25, curve="reciprocal")
    config = tiny({"schedules.attributes": (sharpen,), "evaluation.validation_lengths": (9,)})
    outcome = train(config, tmp_path)
    fields = {name: name for name in ("last", "best_test")}
    fields["best_validation"] = "test_at_best_validation"

    def check(weights, split, size, length, expected):
        examples = config.build_task().examples(split, 0, size, length)
        scores = evaluate(load_model(tmp_path, weights), examples, batch_size=8)["product"]
        assert scores.token_accuracy == expected["token_accuracy"]
        assert scores.mad_accuracy == expected["mad_accuracy"]
        assert scores.loss == pytest.approx(expected["loss"], rel=1e-5)

    for weights, field in fields.items():
        found = getattr(outcome, field)
        check(weights, "test", 30, None, vars(found.test[5]["product"]))
        check(weights, "validation", 20, None, vars(found.validation["product"]))
    check("last", "validation", 20, 9, read_metrics(tmp_path)[-1]["validation_at"]["9"]["product"])


def test_events_tell_every_step_and_evaluation(fresh, tmp_path):
    events, state = [], torch.get_rng_state()
    train(fresh(), tmp_path, on_event=events.append, checkpoint_every_s=1000.0)
    kinds = "started step step evaluated step step evaluated step step evaluated saved finished"
    assert [event.kind for event in events] == kinds.split()
    assert [event.step for event in events if event.kind == "step"] == [1, 2, 3, 4, 5, 6]
    assert all(event.loss > 0 for event in events if event.kind == "step")
    assert all(event.num_steps == 6 for event in events)
    rows = [event.row for event in events if event.kind == "evaluated"]
    assert rows == read_metrics(tmp_path)
    # The generator of the caller is as before.
    assert torch.equal(torch.get_rng_state(), state)


def test_learning_rate_really_falls_between_epochs(tiny, tmp_path, monkeypatch):
    """The test that MAD lacks: it checks the rates of AdamW, not the schedule."""
    used = []
    step = torch.optim.AdamW.step

    def watched(self, *arguments, **keywords):
        used.append(self.param_groups[0]["lr"])
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    train(tiny(), tmp_path)
    assert used[::3] == pytest.approx([1e-3, 8.5502e-4, 5.05e-4, 1.5498e-4], rel=1e-4)
    assert used[::3] == used[1::3] == used[2::3]
    assert [row["learning_rate"] for row in read_metrics(tmp_path)] == used[::3]


def test_unequal_lengths_and_two_heads_train_and_are_scored_at_any_length(toys, tiny, tmp_path):
    changes = {
        "task": TaskSpec("ragged", train_size=20),
        "imports": ("statemix_toys",),
        "evaluation.lengths": (11,),
        "batches.packed": True,
    }
    outcome = train(tiny(changes), tmp_path)
    assert list(outcome.last.test) == [6, 11]
    examples = toys.Ragged(length=6).examples("test", 0, 30, 11)
    expected = evaluate(load_model(tmp_path), examples, batch_size=8)
    assert list(expected) == ["sum", "parity"]
    for head, scores in outcome.last.test[11].items():
        assert scores.token_accuracy == expected[head].token_accuracy
        assert scores.loss == pytest.approx(expected[head].loss, rel=1e-5)
    row = read_metrics(tmp_path)[-1]
    assert row["test"]["6"].keys() == row["validation"].keys() == {"sum", "parity"}
    train_losses = row["train"]
    assert train_losses["loss"] == train_losses["loss/sum"] + train_losses["loss/parity"]
    assert load_outcome(tmp_path) == outcome


def test_best_last_and_best_by_validation_are_kept(tiny, tmp_path, monkeypatch):
    weights = []
    test, validation = iter([0.2, 0.5, 0.5, 0.3, 1, 1]), iter([0.1, 0.3, 0.4, 0.4, 0.45, 0.5])

    def scripted(model, examples, **_):
        is_test = len(examples.tokens) == 30
        if is_test:
            weights.append(model.backbone.embedding.weight.detach().clone())
        accuracy = next(test if is_test else validation)
        return {"product": Scores(len(examples.tokens), accuracy, 0.0, 0.0, 1.0)}

    monkeypatch.setattr("statemix.training.evaluation.evaluate", scripted)
    outcome = train(tiny(), tmp_path)
    assert outcome.best_test.epoch == 2
    assert outcome.test_at_best_validation.epoch == 3
    assert outcome.last.epoch == 4
    assert outcome.test_at_best_validation.test[5]["product"].token_accuracy == 0.5
    for name, epoch in (("best_test", 2), ("best_validation", 3), ("last", 4)):
        kept = load_model(tmp_path, name).backbone.embedding.weight
        assert [torch.equal(kept, w) for w in weights] == [n == epoch for n in (1, 2, 3, 4)]
    # Stopping early is decided on validation.
    assert train(tiny({"evaluation.stop_at": 0.45}), tmp_path / "early").last.epoch == 2


def test_weights_that_the_last_step_ruined_are_no_result(fresh, tmp_path):
    schedules = ScheduleConfig(num_steps=1, learning_rate="constant")
    changes = {"schedules": schedules, "optimizer.learning_rate": 3e38}
    with pytest.raises(FloatingPointError, match=r"^loss of the test sequences must be finite"):
        train(fresh(changes), tmp_path)
    assert read_status(tmp_path).status == "diverged"


def test_loss_that_is_not_finite_ends_with_step_and_rate_and_loses_nothing(tiny, tmp_path):
    schedules = ScheduleConfig(epochs=4, learning_rate="constant")
    config = tiny({"optimizer.learning_rate": 3e38}, schedules=schedules)
    messages = []
    for _ in range(2):
        with pytest.raises(FloatingPointError, match=r"^loss must be finite, got nan at step") as e:
            train(config, tmp_path)
        messages.append(str(e.value))
    assert "learning rate 3e+38" in messages[0]
    assert messages[0] == messages[1]
    # The only checkpoint holds the weights whose loss is not finite.
    assert messages[0].endswith("; no good checkpoint was saved yet")
    status = read_status(tmp_path)
    assert (status.status, status.message) == ("diverged", messages[0])


@pytest.mark.parametrize(("value", "clip_norm"), [(float("nan"), None), (float("inf"), 1.0)])
def test_a_gradient_that_is_not_finite_is_not_used(tiny, tmp_path, monkeypatch, value, clip_norm):
    config = tiny({"optimizer.clip_norm": clip_norm})
    weights, cross_entropy = [], CrossEntropy.__call__

    def planted(self, model, batch):
        weights.append({name: t.clone() for name, t in model.module.state_dict().items()})
        losses = cross_entropy(self, model, batch)
        if len(weights) == 5:
            # The loss is unchanged; its gradient is not.
            losses["product"].register_hook(lambda gradient: gradient.clone().fill_(value))
        return losses

    message = (
        r"^norm of the gradient must be finite, got .* at step 5 of 12 with learning rate 0\.0"
        ".*; no good checkpoint was saved yet$"
    )
    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropy, "__call__", planted)
        with pytest.raises(FloatingPointError, match=message):
            train(config, tmp_path / "run", checkpoint_every_s=1000.0)
    tensors, state = load_checkpoint(tmp_path / "run" / "checkpoints", pytest.fail)
    assert state["trainer"]["step"] == 4
    assert tensors["model"].keys() == weights[4].keys()
    assert all(torch.equal(t, weights[4][name]) for name, t in tensors["model"].items())
    # Nothing is lost: without the fault the run resumes and ends the same.
    train(config, tmp_path / "run")
    train(config, tmp_path / "whole")
    one, other = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("run", "whole"))
    assert one == other


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_every_precision_trains_and_loads(tiny, tmp_path, precision):
    train(tiny({"runtime.precision": precision}), tmp_path)
    expected = torch.float64 if precision == "64-true" else torch.float32
    assert load_model(tmp_path).backbone.embedding.weight.dtype == expected


COLD = AttributeSchedule("gate_temperature", end=0.0)
HOT = Assignments(gate_temperature=-1.0)


def layer(**options):
    return {"model.layers": (LayerSpec("bd_lru", num_blocks=2, **options),)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (layer(block_size=0), "model: block_size must be at least 1, got 0"),
        (layer(block_size=3, backend="abacus"), "model: backend must be one of .* got 'abacus'"),
        ({"evaluation.test_size": 10**6}, "evaluation.test_size: .* must be at most"),
        ({"evaluation.lengths": (1,)}, "evaluation.lengths: .* must be at most"),
        ({"evaluation.validation_lengths": (1,)}, "evaluation.validation_lengths: .* at most"),
        ({"schedules.attributes": (COLD,)}, "schedules.attributes.0.end must suit gate_temper"),
        ({"evaluation.attributes": HOT}, "evaluation.attributes.gate_temperature must suit gate_t"),
    ],
)
def test_what_cannot_run_fails_before_anything_is_written(tiny, tmp_path, changes, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        train(tiny(changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_only_a_call_finds_out_fails_before_anything_is_written(tiny, tmp_path, monkeypatch):
    from statemix.ops import BackendUnavailableError

    def elsewhere(*_, **__):
        raise BackendUnavailableError("backend 'cpu' needs tensors on the CPU, got cuda:0")

    monkeypatch.setattr("statemix.ops.bd_lru", elsewhere)
    with pytest.raises(RequestError, match=r"^model: .*needs tensors on the CPU"):
        train(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_time_of_a_run_is_that_of_all_its_sessions(tiny, tmp_path, monkeypatch):
    now = 1000.5
    clocks = SimpleNamespace(monotonic=lambda: now, process_time=lambda: now / 2)
    monkeypatch.setattr("statemix.training.loop.time", clocks)

    def takes(seconds, stop_at=None):
        def on_event(event):
            nonlocal now
            if event.kind == "step":
                now += seconds
                if event.step == stop_at:
                    raise KeyboardInterrupt

        return on_event

    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path, on_event=takes(2.0, stop_at=3))
    now = 50.25
    outcome = train(tiny(), tmp_path, on_event=takes(3.0))
    # Processor time runs half as fast here.
    assert outcome.time_s == 3 * 2.0 + (outcome.last.step - 3) * 3.0
    assert outcome.cpu_s == outcome.time_s / 2
    assert read_metrics(tmp_path)[-1]["time_s"] == outcome.time_s


def test_edited_source_of_imported_modules_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package").mkdir()
    files = [tmp_path / "own_module.py", tmp_path / "own_package" / "layers.py"]
    for file in (*files, tmp_path / "own_package" / "__init__.py"):
        file.write_text("HALF = 0.5\n")
    for file, name in zip(files, ("own_module", "own_package"), strict=True):
        config = tiny({"imports": (name,)})
        train(config, tmp_path / f"{name}-run")
        train(config, tmp_path / f"{name}-run")
        file.write_text("HALF = 0.4\n")
        with pytest.warns(UserWarning, match=f"have changed: source of {name}="):
            train(config, tmp_path / f"{name}-run")
