"""Any module, trained by the loop: everything that a run has, to equal bits after kill -9."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from statemix.errors import RequestError
from statemix.training import Hook, fit
from statemix.training.folder import read_metrics, read_status
from statemix.training.loop import Loop


def left(folder):
    """Return everything that a run leaves, except its times."""
    rows = read_metrics(folder)
    for row in rows:
        del row["time_s"]
    names = ("model", "optimizer", "best")
    return rows, [(folder / f"{name}.safetensors").read_bytes() for name in names]


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step):
    return torch.randn(16, 3, generator=torch.Generator().manual_seed(step))


def loss(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def evaluate(model):
    return {"score": -float(loss(model, batch(10**6)).detach())}


OPTIONS = {"evaluate": evaluate, "evaluate_every": 4, "criterion": "score", "device": "cpu"}
OPTIONS |= {"num_threads": 1}


def stop_at(step):
    def stop(event):
        if event.kind == "step" and event.step == step:
            raise KeyboardInterrupt

    return stop


def test_an_interrupted_call_ends_as_an_undisturbed_one(tmp_path):
    """Dropout, statistics of batches and momentum, from weights that the run does not use."""

    def train(folder, seed=0, **options):
        model = build(seed)
        model.insert(1, nn.Dropout(0.5))
        model.insert(2, nn.BatchNorm1d(8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        options |= {"optimizer": optimizer, **OPTIONS}
        return fit(model, batch, loss, folder, num_steps=13, **options), evaluate(model.eval())

    whole = train(tmp_path / "whole")
    for step in (1, 12):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", on_event=stop_at(step))
    assert read_status(tmp_path / "run").status == "interrupted"
    found, scores = train(tmp_path / "run", seed=1)
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    assert found.last["scores"] == scores == whole[1]
    assert train(tmp_path / "run", seed=2) == (found, scores)


def test_a_finished_call_is_extended_to_the_bits_of_a_longer_one(tmp_path):
    fit(build(), batch, loss, tmp_path / "long", num_steps=12, **OPTIONS)
    fit(build(), batch, loss, tmp_path / "run", num_steps=8, **OPTIONS)
    with pytest.raises(RequestError, match=r"schedules\.num_steps=8, not 12"):
        fit(build(), batch, loss, tmp_path / "run", num_steps=12, **OPTIONS)
    with pytest.raises(RequestError, match=r"^folder must hold a run of the same config.*model"):
        fit(nn.Linear(3, 1), batch, loss, tmp_path / "run", num_steps=8, **OPTIONS)
    fit(build(), batch, loss, tmp_path / "run", num_steps=12, extend=True, **OPTIONS)
    assert left(tmp_path / "run") == left(tmp_path / "long")


class Rate(Hook):
    """A learning rate that halves at every step, and what a checkpoint needs of it."""

    def __init__(self):
        self.calls = 0

    def before_step(self, loop: Loop):
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.1 / 2**self.calls

    def after_step(self, loop: Loop, loss: float):
        self.calls += 1

    def row(self, loop: Loop):
        return {"rate": 0.1 / 2**self.calls}

    def state_dict(self):
        return {"rate_calls": self.calls}

    def load_state_dict(self, state, tensors):
        self.calls = state["rate_calls"]


def test_ones_own_hook_is_called_and_restored(tmp_path):
    fit(build(), batch, loss, tmp_path / "whole", num_steps=9, hooks=[Rate()], **OPTIONS)
    stopped = {"hooks": [Rate()], "on_event": stop_at(6)}
    with pytest.raises(KeyboardInterrupt):
        fit(build(), batch, loss, tmp_path / "run", num_steps=9, **stopped, **OPTIONS)
    fit(build(), batch, loss, tmp_path / "run", num_steps=9, hooks=[Rate()], **OPTIONS)
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    assert [row["rate"] for row in left(tmp_path / "run")[0]] == [0.1 / 2**n for n in (4, 8, 9)]


FIXED = SimpleNamespace(num_steps=2, steps_per_epoch=1, parts=lambda step: [batch(step)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps must be greater than or equal to 1, got 0"),
        ({"criterion": "other"}, r"criterion must be a number of evaluate \(\['score'\]\)"),
        ({"criterion": None, "stop_at": 0.5}, "stop_at must be None without a criterion"),
        ({"settings": {"f": print}}, "settings must be JSON data"),
        ({"optimizer": torch.optim.SGD(build().parameters())}, "optimizer must have parameters"),
        ({"model": abs}, "model must be a module, got <built-in"),
        ({"batch": None}, "batch must be a function, got None"),
        ({"hooks": [3]}, "hooks must be hooks, got 3"),
        ({"clip_norm": -1.0}, "clip_norm must be greater than 0, got -1"),
        ({"stop_at": float("nan")}, "stop_at must be a finite number"),
        ({"evaluate": None}, "criterion must be None without evaluate, got 'score'"),
        ({"batch": FIXED}, "num_steps must be that of the batches, got 4"),
    ],
)
def test_bad_arguments_are_named(tmp_path, changes, message):
    arguments = {"model": build(), "batch": batch, "loss": loss, "num_steps": 4, **OPTIONS}
    with pytest.raises(RequestError, match=f"^{message}"):
        fit(folder=tmp_path / "run", **{**arguments, **changes})


@pytest.mark.parametrize(
    "odd", [lambda y: y, lambda y: y.sum().item(), lambda y: {"a": y}, lambda y: {}]
)
def test_a_loss_that_is_no_scalar_is_refused_at_the_first_step(tmp_path, odd):
    with pytest.raises(RequestError, match=r"^loss must be a tensor of shape \(\), or a table"):
        fit(build(), batch, lambda m, x: odd(m(x)), tmp_path, num_steps=4, device="cpu")


@pytest.mark.parametrize("found", [None, {"score": torch.ones(2)}])
def test_after_an_evaluation_that_is_no_table_of_numbers_the_steps_are_saved(tmp_path, found):
    options = OPTIONS | {"evaluate": lambda _: found, "evaluate_every": 3}
    with pytest.raises(RequestError, match=r"^evaluate must return numbers by name, got"):
        fit(build(), batch, loss, tmp_path, num_steps=4, **options)
    assert (tmp_path / "checkpoints" / "step-000000003").exists()


class Storing(Hook):
    """A hook that stores tensors and JSON data under a name."""

    def __init__(self, name):
        self.name = name

    def tensors(self):
        return {} if self.name == "trainer" else {self.name: {"w": torch.ones(1)}}

    def state_dict(self):
        return {self.name: {"w": 1}}


@pytest.mark.parametrize("names", [["model"], ["trainer"], ["files"], ["a", "a"], ["../a"]])
def test_hooks_that_store_under_a_name_of_others_are_refused_before_a_step(tmp_path, names):
    steps = []
    options = OPTIONS | {"hooks": list(map(Storing, names))}
    with pytest.raises(RequestError, match=r"^hooks must store under names of their own, got"):
        fit(
            build(), batch, loss, tmp_path, num_steps=4,
            on_event=lambda event: steps.append(event.kind), **options,
        )  # fmt: skip
    assert "step" not in steps


class Odd(nn.Module):
    """A module whose buffers change at a call."""

    def __init__(self, kind, call):
        super().__init__()
        self.kind, self.left = kind, call
        self.map = nn.Linear(3, 1)
        self.register_buffer("table", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.left -= 1
        if not self.left and self.kind == "late":
            self.register_buffer("late", torch.ones(3))
        elif not self.left:
            self.table = self.table + 0.5
        return self.map(x)


@pytest.mark.parametrize(("kind", "call"), [("late", 1), ("another dtype", 1), ("late", 4)])
def test_weights_that_a_new_model_would_not_have_are_refused(tmp_path, kind, call):
    """At once in the first step, and later by the next checkpoint."""
    steps = []
    with pytest.raises(RequestError, match="weights of the model"):
        fit(
            Odd(kind, call), batch, loss, tmp_path, num_steps=9, device="cpu",
            checkpoint_every_s=0.0, on_event=lambda event: steps.append(event.kind),
        )  # fmt: skip
    assert steps.count("step") == (0 if call == 1 else 4)
    assert (tmp_path / "checkpoints" / f"step-{call - 1:09d}").exists()


class Strange(nn.Module):
    """A module with unusual weights, all of which can be stored."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 3)
        self.tied = self.map.weight
        self.turned = nn.Parameter(torch.randn(1, 3).t())
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("wide", torch.randn(3, dtype=torch.complex128))
        self.register_buffer("part", torch.randn(6)[::2])
        self.register_buffer("empty", torch.empty(0, 3))

    def forward(self, x):
        if self.training:
            if not hasattr(self, "seen"):
                # A call may make a buffer that is not stored with the weights.
                self.register_buffer("seen", torch.zeros(()), persistent=False)
            self.seen += x.detach().sum()
        factor = self.phase.abs().sum() + self.wide.abs().sum().float() + self.seen.sin()
        return self.map(x) @ self.turned * factor


def test_unusual_weights_survive_kills_and_loading(tmp_path):
    def train(folder, **options):
        torch.manual_seed(0)
        model = Strange()
        fit(
            model, batch, loss, folder, num_steps=8, device="cpu", num_threads=1,
            optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), **options,
        )  # fmt: skip
        return model

    train(tmp_path / "whole")
    for step in (2, 5):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", on_event=stop_at(step))
    found = train(tmp_path / "run")
    for name in ("model", "optimizer"):
        file = f"{name}.safetensors"
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert found.wide.dtype == torch.complex128


class Counting(torch.optim.SGD):
    """An optimiser that counts its steps in its state."""

    def step(self, closure=None):
        self.state["count"] = 1
        return super().step(closure)


class Beside(torch.optim.SGD):
    """An optimiser that counts its steps beside its state."""

    def state_dict(self):
        return super().state_dict() | {"count": 1}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        *((kind, "^state of the optimizer .*got 'count'") for kind in (Counting, Beside)),
        (torch.optim.LBFGS, "^optimizer must .*LBFGS"),
    ],
)
def test_an_optimizer_that_cannot_be_resumed_is_refused_at_once(tmp_path, kind, message):
    model = build()
    optimizer = kind(model.parameters(), lr=0.01)
    with pytest.raises(RequestError, match=message):
        fit(model, batch, loss, tmp_path, num_steps=9, optimizer=optimizer, device="cpu")


def test_a_model_without_trained_weights_is_refused(tmp_path):
    for model in (build().requires_grad_(requires_grad=False), nn.Flatten()):
        with pytest.raises(RequestError, match=r"^model must have weights"):
            fit(model, batch, loss, tmp_path / "run", num_steps=2, device="cpu")
    assert not (tmp_path / "run").exists()


def test_sparse_gradients_are_clipped_and_resumed(tmp_path):
    def train(folder, **options):
        torch.manual_seed(0)
        model = nn.EmbeddingBag(5, 1, sparse=True)
        fit(
            model, lambda step: torch.tensor([[step % 5, 1, 1]]), lambda net, x: net(x).exp().sum(),
            folder, num_steps=8, device="cpu", num_threads=1, clip_norm=0.1,
            optimizer=torch.optim.SparseAdam(model.parameters(), lr=0.1), **options,
        )  # fmt: skip
        return (folder / "model.safetensors").read_bytes()

    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", on_event=stop_at(3))
    assert train(tmp_path / "run") == whole


def test_a_finished_call_is_read_from_a_folder_that_others_write(tmp_path, monkeypatch):
    fit(build(), batch, loss, tmp_path, num_steps=2, device="cpu")
    monkeypatch.setattr("statemix.training.folder.lock_folder", None)
    assert fit(build(), batch, loss, tmp_path, num_steps=2, device="cpu").last["step"] == 2


def test_a_call_whose_best_value_is_no_number_is_extended(tmp_path):
    values = iter([float("nan"), float("nan"), 0.5])
    options = OPTIONS | {"evaluate": lambda _: {"accuracy": next(values)}, "evaluate_every": 4}
    options["criterion"] = "accuracy"
    fit(build(), batch, loss, tmp_path, num_steps=8, **options)
    found = fit(build(), batch, loss, tmp_path, num_steps=12, extend=True, **options)
    assert found.best["step"] == 12


def test_a_hook_that_the_checkpoint_does_not_know_is_named(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(build(), batch, loss, tmp_path, num_steps=4, device="cpu", on_event=stop_at(2))
    message = r"optimizer and hooks must match the checkpoint: 'rate"
    with pytest.warns(UserWarning, match="hooks"), pytest.raises(RequestError, match=message):
        fit(build(), batch, loss, tmp_path, num_steps=4, device="cpu", hooks=[Rate()])
