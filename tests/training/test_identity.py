"""What decides the result of `fit` identifies its run, or a warning names what has changed."""

import functools
import inspect
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from statemix.errors import RequestError
from statemix.training import Hook, fit
from statemix.training.folder import read_metrics
from statemix.training.identity import fingerprint

SCALE = 1.0


def build(dtype=torch.float32, middle=nn.Tanh):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), middle(), nn.Linear(3, 1)).to(dtype)


def batch(step):
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(step))


def loss(model, x):
    return SCALE * (model(x.to(next(model.parameters()).dtype)) - 1).square().mean()


def evaluate(model):
    return {"mse": float(loss(model, batch(99))), "mae": float(model(torch.zeros(1, 2)).abs())}


class Clamp(Hook):
    def __init__(self, bound):
        self.bound = bound

    def before_step(self, loop):
        for weights in loop.model.parameters():
            weights.data.clamp_(-self.bound, self.bound)


def arguments(**changes):
    """Arguments of a call; a change may be a function of the model."""
    model = changes.pop("model", build)()
    given = {
        "batch": batch, "loss": loss, "num_steps": 4, "evaluate": evaluate, "evaluate_every": 2,
        "criterion": "mse", "mode": "min", "device": "cpu", "num_threads": 1,
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        **changes,
    }  # fmt: skip
    if given["optimizer"] is not None:
        given["optimizer"] = given["optimizer"](model)
    if "scheduler" in given:
        given["scheduler"] = given["scheduler"](given["optimizer"])
    return {"model": model, **given}


def begin(folder, **changes):
    """Begin a run that is interrupted after a step."""

    def stop(event):
        if event.kind == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(folder=folder, on_event=stop, **arguments(**changes))


def partly_frozen():
    model = build()
    model[0].bias.requires_grad_(False)
    return model


def grouped(model):
    one, *others = model.parameters()
    return torch.optim.AdamW([{"params": [one], "lr": 0.1}, {"params": others}], lr=1e-3)


def one_of(model):
    return torch.optim.AdamW(list(model.parameters())[:1], lr=1e-3)


def own(forward):
    """A model with a module of the user's own, always of the same name."""
    kind = type("Own", (nn.Module,), {"forward": forward, "__module__": __name__})
    return functools.partial(build, middle=kind)


REFUSED = {
    "name": {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=1e-3)},
    "lr": {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)},
    "weight_decay": {"optimizer": lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.5)},
    "optimizer": {"optimizer": grouped},
    "parameters": {"optimizer": one_of},
    "clip_norm": {"clip_norm": 0.1},
    "precision": {"precision": "bf16-mixed"},
    "dtypes": {"model": functools.partial(build, torch.float64)},
    "fixed|parameters": {"model": partly_frozen},
    "criterion": {"criterion": "mae"},
    "mode": {"mode": "max"},
    "stop_at": {"stop_at": 0.5},
    "seed": {"seed": 1},
    "settings.width": {"settings": {"width": 3}},
}
"""What identifies a run: the name in the message, and a change of the arguments."""

WARNED = {
    "loss": ({"loss": lambda model, x: (model(x) - 2).square().mean()}, "loss"),
    "batch": ({"batch": lambda step: batch(step + 1)}, "batch"),
    "loader": ({"batch": DataLoader(torch.ones(4, 2))}, "batch"),
    "evaluate": ({"evaluate": lambda model: {"mse": 1.0}}, "evaluate"),
    "hook": ({"hooks": [Clamp(1.0)]}, "hooks"),
    "scheduler": ({"scheduler": lambda one: lr_scheduler.ConstantLR(one, 0.1)}, "scheduler"),
    "module": ({"model": functools.partial(build, middle=nn.ReLU)}, "modules of the model"),
    "method": ({"model": own(lambda self, x: (3 * x).tanh())}, "methods of the model"),
    "evaluate_every": ({"evaluate_every": 1}, r"evaluate_every=1 \(2 before\)"),
    "information": ({"information": {"data": 2}}, r"data=2 \(1 before\)"),
}
"""What changes results and is named by a warning."""

UNRELATED = {
    "model", "folder", "num_steps", "extend", "on_event", "checkpoint_every_s",
    # Named by warnings about the machine, or those of torchrun.
    "device", "num_threads", "strategy",
}  # fmt: skip


def test_every_argument_is_part_of_the_identity_or_named_by_a_warning():
    warned = [changes for changes, _ in WARNED.values()]
    covered = {name for changes in (*REFUSED.values(), *warned) for name in changes}
    assert set(inspect.signature(fit).parameters) == covered | UNRELATED


@pytest.mark.parametrize("finished", [True, False])
def test_what_identifies_a_run_is_refused_by_name(tmp_path, finished):
    fit(folder=tmp_path, **arguments()) if finished else begin(tmp_path)
    for name, changes in REFUSED.items():
        with pytest.raises(RequestError, match=rf"with fit\.\S*({name})\S*=.*, not "):
            fit(folder=tmp_path, **arguments(**changes))


@pytest.mark.parametrize("change", WARNED)
def test_what_else_decides_results_is_named_by_a_warning(tmp_path, change):
    base = {"information": {"data": 1}, "model": own(lambda self, x: x.tanh())}
    base = base if change == "method" else {"information": {"data": 1}}
    changes, name = WARNED[change]
    begin(tmp_path, **base)
    with pytest.warns(UserWarning, match=rf"resumes.* have changed: {name}$"):
        fit(folder=tmp_path, **arguments(**{**base, **changes}))
    with pytest.warns(UserWarning, match=rf"holds a finished run, .* have changed: {name}$"):
        fit(folder=tmp_path, **arguments(**{**base, **changes}))


def test_a_change_of_the_machine_is_named_where_it_matters(tmp_path):
    begin(tmp_path)
    path = tmp_path / "environment.json"
    stored = json.loads(path.read_text())
    stored["packages"]["torch"] = "2.12.0"
    path.write_text(json.dumps(stored))
    changes = r"num_threads=2 \(1 before\), torch='.*' \('2\.12\.0' before\)$"
    with pytest.warns(UserWarning, match=f"have changed: {changes}"):
        fit(folder=tmp_path, **arguments(num_threads=2))
    # A finished run computes nothing.
    fit(folder=tmp_path, **arguments(num_threads=1))


def test_a_damaged_summary_of_a_finished_run_is_named(tmp_path):
    fit(folder=tmp_path, **arguments())
    path = tmp_path / "summary.json"
    whole = json.loads(path.read_text())
    for damage in (
        *({"last": {}}, {"last": {"step": 4, "scores": {"mse": 10**400}}}, {"best": []}),
        *({"time_s": None}, {"weights": {}}, {"weights": 5}),
    ):
        path.write_text(json.dumps(whole | damage))
        with pytest.raises(RequestError, match=f"{tmp_path}.* must hold "):
            fit(folder=tmp_path, **arguments())


def test_a_damaged_environment_is_compared_with_nothing(tmp_path):
    begin(tmp_path)
    damaged = dict.fromkeys(("python", "code", "information", "packages", "backends"), 5)
    (tmp_path / "environment.json").write_text(json.dumps(damaged))
    assert fit(folder=tmp_path, **arguments()).last["step"] == 4


def test_an_option_that_a_newer_pytorch_adds_is_not_compared(tmp_path):
    fit(folder=tmp_path, **arguments())
    newer = arguments()
    newer["optimizer"].param_groups[0]["novel"] = True
    fit(folder=tmp_path, **newer)


def scaled(factor):
    def inner(model, x):
        return factor * model(x).sum()

    return inner


def defaulted(model, x, factor=1.0):
    return factor * model(x).sum()


def looped(model, x):
    return sum(model(x[i]).sum() for i in range(3) if i not in {1, 2, 3})


class Called:
    def __init__(self, factor):
        self.factor, self._calls = factor, 0

    def __call__(self, model, x):
        self._calls += 1
        return self.factor * model(x).sum()


DATA = torch.arange(4.0)
PAIRS = {
    "closure": (scaled(1.0), scaled(2.0)),
    "partial": (functools.partial(defaulted, factor=1.0), functools.partial(defaulted, factor=2.0)),
    "object": (Called(1.0), Called(2.0)),
    "method": (Called(1.0).__call__, Called(2.0).__call__),
    "tensor": (functools.partial(defaulted, DATA), functools.partial(defaulted, DATA + 1)),
    "array": (functools.partial(defaulted, np.ones(2)), functools.partial(defaulted, np.zeros(2))),
    "loader": (DataLoader(TensorDataset(DATA)), DataLoader(TensorDataset(DATA + 1))),
    "names": (lambda model, x: model.a(x), lambda model, x: model.b(x)),
    "constants": (lambda model, x: model(x) * 2, lambda model, x: model(x) * 3),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_a_fingerprint_sees_code_and_what_it_refers_to(kind):
    one, other = PAIRS[kind]
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)


def test_a_fingerprint_sees_the_constants_of_its_module_and_no_call(monkeypatch):
    called = Called(1.0)
    before = fingerprint(called), fingerprint(evaluate)
    called(build(), batch(0))
    assert (fingerprint(called), fingerprint(evaluate)) == before
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    assert fingerprint(evaluate) != before[1]


def test_a_fingerprint_leaves_out_how_a_loader_moves_its_batches():
    given = {"dataset": TensorDataset(DATA), "num_workers": 1}
    changed = DataLoader(**given, pin_memory=True, prefetch_factor=5, timeout=60)
    assert fingerprint(DataLoader(**given)) == fingerprint(changed)
    # Workers draw other noise, and shuffle otherwise than no worker.
    assert fingerprint(DataLoader(**{**given, "num_workers": 2})) != fingerprint(changed)


def test_fingerprints_are_equal_in_all_processes():
    code = (
        "from tests.training.test_identity import *; "
        "print([fingerprint(f) for f in (looped, evaluate, Clamp(1.0), *PAIRS['tensor'])])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(printed) == 1


def warm_up(one, factor=0.9):
    parts = [
        lr_scheduler.LinearLR(one, 0.1, total_iters=3),
        lr_scheduler.ExponentialLR(one, factor),
    ]
    return lr_scheduler.SequentialLR(one, parts, [3])


SCHEDULERS = {
    "cosine": lambda one: lr_scheduler.CosineAnnealingLR(one, 10),
    "lambda": lambda one: lr_scheduler.LambdaLR(one, lambda step: 0.9**step),
    "warm-up": warm_up,
    "one cycle": lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=13),
    "plateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, "min", patience=0, threshold=0.5),
}


OTHER_SCHEDULERS = {
    "lambda": lambda one: lr_scheduler.LambdaLR(one, lambda step: 0.8**step),
    "warm-up": functools.partial(warm_up, factor=0.8),
}


@pytest.mark.parametrize("kind", OTHER_SCHEDULERS)
def test_only_a_change_within_a_schedule_is_named_by_a_warning(tmp_path, kind):
    given = arguments(scheduler=SCHEDULERS[kind])
    rate = given["optimizer"].param_groups[0]["lr"]
    first = fit(folder=tmp_path, **given)
    assert given["optimizer"].param_groups[0]["lr"] == rate
    assert given["scheduler"].last_epoch == 0
    # The same objects, and equal ones.
    assert fit(folder=tmp_path, **given) == first
    fit(folder=tmp_path, **arguments(scheduler=SCHEDULERS[kind]))
    with pytest.warns(UserWarning, match="have changed: scheduler"):
        fit(folder=tmp_path, **arguments(scheduler=OTHER_SCHEDULERS[kind]))


class Rates(Hook):
    def __init__(self, noted):
        self._noted = noted

    def after_step(self, loop, loss):
        self._noted.append(loop.optimizer.param_groups[0]["lr"])


def interrupted(folder, steps, noted, make):
    """Train 12 steps with an interruption at some of them, each time by a new call."""
    for step in (*steps, None):

        def stop(event, step=step):
            if event.kind == "step" and event.step == step:
                raise KeyboardInterrupt

        try:
            fit(folder=folder, on_event=stop, **make(num_steps=12, hooks=[Rates(noted)]))
        except KeyboardInterrupt:
            continue
    return (folder / "model.safetensors").read_bytes(), read_metrics(folder)[-1]["scores"]


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_schedule_of_pytorch_resumes_to_equal_bits(tmp_path, kind):
    def make(**more):
        return arguments(scheduler=SCHEDULERS[kind], **more)

    whole, parts = [], []
    left = interrupted(tmp_path / "whole", (), whole, make)
    assert interrupted(tmp_path / "parts", (1, 6), parts, make) == left
    assert parts == whole
    assert len(set(whole)) > 1
    if kind != "plateau":
        # Its own loop, as PyTorch documents it.
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler, wanted = SCHEDULERS[kind](optimizer), []
        for _ in range(12):
            wanted.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert whole == wanted


@pytest.mark.parametrize("rate", [torch.tensor(0.1), np.float32(0.1)], ids=["tensor", "numpy"])
def test_a_rate_of_pytorch_or_numpy_is_the_number_that_it_is(tmp_path, rate):
    def given(rate, **more):
        return {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=rate), **more}

    begin(tmp_path / "parts", **given(rate))
    own = arguments(**given(rate))
    found = fit(folder=tmp_path / "parts", **own)
    assert own["optimizer"].param_groups[0]["lr"] is rate
    plain = fit(folder=tmp_path / "plain", **arguments(**given(rate.item())))
    assert plain.last["scores"] == found.last["scores"]
    assert fit(folder=tmp_path / "parts", **arguments(**given(rate.item()))) == found
    with pytest.raises(RequestError, match=r"lr=0\.10000000149\d*, not 0\.2"):
        fit(folder=tmp_path / "parts", **arguments(**given(2 * rate)))


PLATEAU = {"scheduler": SCHEDULERS["plateau"]}


class Short(IterableDataset):
    """Two examples where its length says three."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler": lambda one: 3}, "scheduler must be a schedule of PyTorch or None, got 3"),
        ({"scheduler": lambda _: warm_up(grouped(build()))}, "scheduler must be a schedule of"),
        (PLATEAU | {"criterion": None}, "criterion must be given with ReduceLROnPlateau"),
        (PLATEAU | {"mode": "max"}, "mode must be that of the scheduler, 'min', got 'max'"),
        ({"mode": "least"}, "mode must be 'max' or 'min', got 'least'"),
        ({"batch": DataLoader([])}, "batch must be a DataLoader with batches"),
        ({"batch": DataLoader(Short())}, "batch must have as many batches as its length, 3, got 2"),
    ],
)
def test_schedules_and_loaders_that_do_not_fit_are_refused(tmp_path, changes, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        fit(folder=tmp_path / "run", **arguments(**changes))


class Noisy(Dataset):
    """Examples with noise from every generator that transforms use."""

    def __len__(self):
        return 10

    def __getitem__(self, place):
        import random

        noise = [random.random(), np.random.random(), float(torch.rand(()))]  # noqa: NPY002
        return torch.tensor([place + sum(noise), float(place)])


LOADERS = {
    "shuffled": lambda: DataLoader(TensorDataset(torch.arange(20.0).view(10, 2)), 4, shuffle=True),
    "workers": lambda: DataLoader(Noisy(), 4, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(
        Noisy(), 4, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "generator": lambda: DataLoader(
        Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "weighted": lambda: DataLoader(
        Noisy(), 4, sampler=WeightedRandomSampler(torch.arange(1.0, 11), 10)
    ),
}


def loader_loss(model, item):
    x = item[0] if isinstance(item, list) else item
    return (model(x) - 1).square().mean()


@pytest.mark.parametrize("kind", LOADERS)
def test_a_data_loader_resumes_to_equal_bits(tmp_path, kind):
    seen = {}

    def make(noted, **more):
        def noting(model, item):
            noted.append(item[0] if isinstance(item, list) else item)
            return loader_loss(model, item)

        return arguments(batch=LOADERS[kind](), loss=noting, **more)

    for name, steps in (("whole", ()), ("parts", (2, 4))):
        seen[name] = []
        left = interrupted(tmp_path / name, steps, [], functools.partial(make, seen[name]))
        seen[f"{name} left"] = left
    assert seen["parts left"] == seen["whole left"]
    for one, other in zip(seen["whole"], seen["parts"], strict=True):
        assert torch.equal(one, other)
    # Epochs differ, and so do their examples.
    assert not torch.equal(seen["whole"][0], seen["whole"][3])


def test_the_lowest_criterion_keeps_the_best_weights_and_may_stop_the_training(tmp_path):
    for stop_at, scores, steps in (
        (None, [3.0, 1.0, float("nan"), 2.0], (2, 4)),
        (0.8, [3.0, 1.0, 0.5, 2.0], (3, 3)),
    ):
        rest = iter(scores)
        changes = {"evaluate": lambda model, rest=rest: {"mse": next(rest)}, "evaluate_every": 1}
        found = fit(folder=tmp_path / f"{stop_at}", **arguments(stop_at=stop_at, **changes))
        assert (found.best["step"], found.last["step"]) == steps


class Counted:
    """Batches that know their number."""

    steps_per_epoch = 1

    def __init__(self, num_steps):
        self.num_steps = num_steps

    def parts(self, step):
        return [batch(step)]


def test_neither_an_extension_nor_a_hook_that_only_looks_on_is_a_change(tmp_path, recwarn):
    watching = type("Watching", (Hook,), {"changes_results": False})()
    fit(folder=tmp_path, **arguments(batch=Counted(4)))
    fit(folder=tmp_path, extend=True, **arguments(batch=Counted(6), num_steps=6, hooks=[watching]))
    assert not recwarn.list
