"""A user's own layer, channel mixer and task, added without touching the library.

This file is also the module that a user would write: ``register()`` registers its entries.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from statemix import ops
from statemix.cli import doctor
from statemix.cli.main import main
from statemix.layers import LAYERS, Layer, LayerSpec, State, build, take_rows
from statemix.layers.state import tensors
from statemix.models import CHANNEL_MIXERS, ChannelMixer, MixerSpec, TokenClassifier
from statemix.ops import backends
from statemix.tasks import IGNORED, TASKS, Examples, addressing
from statemix.training import load_model, load_outcome
from statemix.training.folder import read_metrics


class AveragingState(NamedTuple):
    """State of the inner layer, and a running average (B, hidden_size) of the input."""

    inner: State
    average: Tensor


class Averaging(Layer):
    """A layer within a layer: adds a running average of the input to another layer's output."""

    name = "averaging"
    schedulable = ("decay",)

    def __init__(
        self,
        hidden_size: int,
        *,
        inner: LayerSpec,
        decay: float = 0.5,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.decay = decay
        self.inner = inner.build(hidden_size=hidden_size, device=device, dtype=dtype)
        # A custom initialisation that no wrapper may undo.
        self.mix = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.inner.reset_parameters(generator)
        nn.init.eye_(self.mix.weight)
        nn.init.constant_(self.mix.bias, 0.25)

    def init_state(self, batch_size, device=None, dtype=None):
        weight = self.mix.weight
        device = weight.device if device is None else device
        dtype = torch.promote_types(weight.dtype if dtype is None else dtype, torch.float32)
        average = torch.zeros(batch_size, self.hidden_size, device=device, dtype=dtype)
        return AveragingState(self.inner.init_state(batch_size, device, dtype), average)

    def forward(self, x, state=None, cu_seqlens=None):
        num_sequences = self._check_sequence(x, state, cu_seqlens)
        if state is None:
            state = self.init_state(num_sequences)
        y, inner = self.inner(x, state.inner, cu_seqlens)
        decay = torch.full_like(x, self.decay).unsqueeze(-1)
        averages, last = ops.lag_scan(
            decay, (1 - self.decay) * x, state.average.unsqueeze(-1), cu_seqlens
        )
        self._size = averages.detach().abs().mean()
        time.sleep(float(os.environ.get("SLOWED_BY_S", "0")))
        return y + self.mix(averages), AveragingState(inner, last.squeeze(-1))

    def step(self, x_t, state):
        y, state = self(x_t.unsqueeze(1), state)
        return y.squeeze(1), state

    def reports(self):
        return {"average_size": self._size}


class Scaling(ChannelMixer):
    """A channel mixer: one learned factor for each channel."""

    name = "scaling"

    def __init__(self, hidden_size: int, *, start: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((hidden_size,), start))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Bits:
    """Predict the parity so far and the previous bit; words have unequal lengths."""

    name: ClassVar[str] = "bits"
    presets: ClassVar[dict[str, dict[str, object]]] = {}
    vocab_size = 2
    heads: ClassVar[dict[str, int]] = {"parity": 2, "before": 2}
    chance: ClassVar[dict[str, float]] = {"parity": 0.5, "before": 0.5}
    title = "bits"

    def __init__(self, *, length: int = 8, train_size: int | None = 40, seed: int = 0) -> None:
        self.length = length
        self.train_size = train_size
        self.seed = seed

    def examples(self, split, start, stop, length=None):
        length = self.length if length is None else length
        tokens = addressing.words(2, length, seed=self.seed, split=split, start=start, stop=stop)
        lengths = length - np.arange(start, stop) % (length // 2)
        ended = np.arange(length) >= lengths[:, None]
        parity = tokens.cumsum(axis=1) % 2
        before = np.concatenate([np.full_like(tokens[:, :1], IGNORED), tokens[:, :-1]], axis=1)
        targets = {"parity": parity, "before": before}
        targets = {head: np.where(ended, IGNORED, these) for head, these in targets.items()}
        return Examples(np.where(ended, 0, tokens), targets, lengths)

    def describe(self, index, split="train"):
        examples = self.examples(split, index, index + 1)
        return str(examples.tokens[0, : examples.lengths[0]])


ENTRIES = ((LAYERS, Averaging), (CHANNEL_MIXERS, Scaling), (TASKS, Bits))


def register() -> None:
    for registry, entry in ENTRIES:
        registry.register(entry)


@pytest.fixture
def registered(monkeypatch):
    """Register the entries in this process, as importing the user's module would."""
    monkeypatch.setitem(sys.modules, "own", types.ModuleType("own"))
    register()
    yield
    for registry, entry in ENTRIES:
        registry.remove(entry.name)


CONFIG = """
imports = ["own"]

[task]
name = "bits"
length = 10
train_size = 40

[model]
hidden_size = 8
num_layers = 3
channel_mixer = {name = "scaling", start = 0.5}

[[model.layers]]
name = "bd_lru"
num_blocks = 2
block_size = 3

[[model.layers]]
name = "averaging"
inner = {name = "h_lru", num_channels = 4, order = 2}

[batches]
size = 8
accumulate = 2
packed = true

[schedules]
epochs = 8

[[schedules.attributes]]
attribute = "decay"
end = 0.9
begin = 0.25
finish = 0.75

[evaluation]
every = 2
test_size = 24
validation_size = 16
lengths = [20]
attributes = {decay = 0.8}

[runtime]
device = "cpu"
num_threads = 1
"""


@pytest.fixture
def project(tmp_path):
    """A user's folder with a module and a configuration file."""
    loader = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('extension', {str(Path(__file__))!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.register()\n"
    )
    (tmp_path / "own.py").write_text(loader)
    (tmp_path / "hybrid.toml").write_text(CONFIG)
    return tmp_path


def command(project, *arguments, slowed_by_s=0.0):
    return subprocess.Popen(
        [sys.executable, "-m", "statemix", *arguments],
        cwd=project,
        env=os.environ | {"SLOWED_BY_S": str(slowed_by_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output, errors


GRID = ("--grid", "seed=0,1", "--checkpoint-every-s", "0.05")


def test_a_hybrid_of_own_parts_is_trained_killed_resumed_evaluated_and_reported(
    project, registered
):
    arguments = ("train", "--config", "hybrid.toml", *GRID)
    whole = command(project, *arguments, "--workers", "1", "--folder", "whole")

    resumed = (*arguments, "--workers", "2", "--folder", "resumed")
    killed = command(project, *resumed, slowed_by_s=0.05)
    first = project / "resumed" / "seed=0"
    deadline = time.monotonic() + 60
    while len(list(first.glob("checkpoints/step-*"))) < 2:
        assert time.monotonic() < deadline, killed.stderr.read()
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)  # Until the worker processes have ended, too.
    assert not (first / "summary.json").exists()
    finished(whole)
    output, errors = finished(command(project, *resumed))
    assert "seed=0: resumed at step" in errors

    for seed in (0, 1):
        whole, resumed = (project / name / f"seed={seed}" for name in ("whole", "resumed"))
        # Weights and metrics are equal despite the interruption.
        weights = [load_model(folder).state_dict() for folder in (whole, resumed)]
        torch.testing.assert_close(*weights, rtol=0, atol=0)
        rows = [read_metrics(folder) for folder in (whole, resumed)]
        assert [row | {"time_s": 0} for row in rows[0]] == [row | {"time_s": 0} for row in rows[1]]

    outcome = load_outcome(project / "whole" / "seed=0")
    assert set(outcome.last.test) == {10, 20}
    assert set(outcome.last.test[20]) == {"parity", "before"}
    last = read_metrics(project / "whole" / "seed=0")[-1]
    assert last["attributes"] == {"backbone.blocks.1.mixer.decay": 0.9}
    # Only the second of the three layers is of this kind; the third repeats the first.
    assert last["train"]["backbone.blocks.1.mixer.average_size"] > 0
    assert last["train"]["loss"] == pytest.approx(
        last["train"]["loss/parity"] + last["train"]["loss/before"]
    )

    # The table of the grid has a line with the status of each run.
    assert [line.split()[:2] for line in output.splitlines() if "done" in line] == [
        ["0", "done"],
        ["1", "done"],
    ]
    asked = ("evaluate", "whole/seed=0", "--lengths", "10", "40", "--sequences", "20", "--json")
    # The code of a run is imported only if the user names it.
    refused = command(project, *asked)
    assert "add --imports own if you trust its code" in refused.communicate(timeout=120)[1]
    evaluated, _ = finished(command(project, *asked, "--imports", "own"))
    rows = [json.loads(line) for line in evaluated.splitlines()]
    assert [row["length"] for row in rows] == [10, 40]
    # Attributes outside the weights are restored, too.
    assert load_model(project / "whole" / "seed=0").backbone.blocks[1].mixer.decay == 0.9
    assert all(row["scores"].keys() == {"parity", "before"} for row in rows)


def test_own_parts_are_built_by_name_and_keep_their_own_initial_weights(registered):
    spec = LayerSpec("averaging", inner=LayerSpec("lstm"), decay=0.75)
    model = TokenClassifier(
        2,
        {"parity": 2},
        8,
        [LayerSpec("bd_lru", num_blocks=2, block_size=2), spec],
        channel_mixer=MixerSpec("scaling", start=0.5),
    )
    layer = model.backbone.blocks[1].mixer
    assert isinstance(layer, Averaging)
    assert layer.decay == 0.75
    assert bool((layer.mix.bias == 0.25).all())
    assert bool((model.backbone.blocks[0].channel_mixer.factor == 0.5).all())
    # Two states of an LSTM and the average.
    assert layer.state_size == 3 * 8


def test_a_state_of_parts_is_carried_stepped_and_reordered(registered):
    torch.manual_seed(0)
    layer = build("averaging", hidden_size=6, inner=LayerSpec("lstm"), dtype=torch.float64)
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    whole, final = layer(x)
    _, state = layer(x[:, :4])
    rows = torch.tensor([2, 0])
    state = take_rows(state, rows)
    for t in range(4, 7):
        y_t, state = layer.step(x[rows, t], state)
        torch.testing.assert_close(y_t, whole[rows, t])
    torch.testing.assert_close(
        dict(tensors(state)), dict(tensors(take_rows(final, rows))), check_dtype=True
    )
    with pytest.raises(ValueError, match=r"state.average must have shape \(B=2, 6\), got \(2, 5\)"):
        layer.step(x[rows, 0], state._replace(average=state.average[:, :5]))


def test_an_own_task_of_unequal_lengths_is_shown_by_the_command(registered, capsys):
    assert main(["tasks", "bits", "length=6"]) == 0
    assert "parity: 2 classes, accuracy of guessing 0.5000" in capsys.readouterr().out


@torch.autocast("cpu", enabled=False)
def solve_blocks(A, b, h_0, cu_seqlens):
    h, states, finals = None, torch.empty_like(b), h_0.clone()
    for n, t, _ in walked(b, h_0, cu_seqlens):
        h = finals[n]
        h = torch.einsum("nhij,nhj->nhi", A[rows(n, cu_seqlens), t], h)
        h = h + b[rows(n, cu_seqlens), t]
        states[rows(n, cu_seqlens), t] = finals[n] = h
    return states, finals


@torch.autocast("cpu", enabled=False)
def solve_adjoint(d_states, d_final, A, b, states, h_0, cu_seqlens):
    lam = d_final.clone()
    d_A, d_b = torch.empty_like(A), torch.empty_like(b)
    for n, t, start in reversed(list(walked(b, h_0, cu_seqlens))):
        row = rows(n, cu_seqlens)
        d_b[row, t] = lam[n] + d_states[row, t]
        before = h_0[n] if t == start else states[row, t - 1]
        d_A[row, t] = torch.einsum("nhi,nhj->nhij", d_b[row, t], before)
        lam[n] = torch.einsum("nhij,nhi->nhj", A[row, t], d_b[row, t])
    return d_A, d_b, lam


def companions(a):
    """The lag recurrence is a block recurrence of companion matrices."""
    size = a.shape[-1]
    below = torch.diag(a.new_ones(size - 1), -1)
    return torch.cat([a.unsqueeze(-2), below[1:].expand(*a.shape[:-1], size - 1, size)], -2)


def widened(b, size):
    return torch.cat([b.unsqueeze(-1), b.new_zeros(*b.shape, size - 1)], -1)


def block_forward(scan):
    return *solve_blocks(*scan[:4]), ()


def block_backward(scan, d_states, d_final, states, saved):
    A, b, h_0, cu_seqlens = scan[:4]
    return solve_adjoint(d_states, d_final, A, b, states, h_0, cu_seqlens)


def lag_forward(scan):
    """What the backward needs beside the states is opaque to the library: here, whole windows."""
    a, b, h_0, cu_seqlens = scan[:4]
    windows, finals = solve_blocks(companions(a), widened(b, a.shape[-1]), h_0, cu_seqlens)
    return windows[..., 0].clone(), finals, (windows,) if scan.keep else ()


def lag_backward(scan, d_states, d_final, states, saved):
    a, b, h_0, cu_seqlens = scan[:4]
    A, terms = companions(a), widened(b, a.shape[-1])
    d_windows = widened(d_states, a.shape[-1])
    arguments = A, terms, *saved, h_0, cu_seqlens
    d_A, d_terms, d_initial = solve_adjoint(d_windows, d_final, *arguments)
    return d_A[..., 0, :].clone(), d_terms[..., 0].clone(), d_initial


def lag_empty(scan):
    b, h_0 = scan.inputs, scan.initial_state
    windows = (torch.empty_like(widened(b, h_0.shape[-1])),) if scan.keep else ()
    return torch.empty_like(b), torch.empty_like(h_0), windows


def walked(b, h_0, cu_seqlens):
    """(sequences, step, first step): all sequences at once, or one after the other if packed."""
    bounds = [(slice(None), 0, b.shape[1])]
    if cu_seqlens is not None:
        c = cu_seqlens.tolist()
        bounds = [(slice(n, n + 1), c[n], c[n + 1]) for n in range(len(c) - 1)]
    return [(n, t, start) for n, start, stop in bounds for t in range(start, stop)]


def rows(n, cu_seqlens):
    return n if cu_seqlens is None else slice(0, 1)


TOY = ops.Backend(
    "toy",
    kernels={
        "block": ops.Kernel(block_forward, block_backward),
        "lag": ops.Kernel(lag_forward, lag_backward, lag_empty),
    },
    devices=("cpu",),
    stepwise=False,
)


def pytest_configure(config):
    """Register the backend before any test is collected, where this file is a plugin."""
    ops.BACKENDS.register(TOY)


OPERATOR_TESTS = Path(__file__).parent / "ops"

# A part of the suite that takes seconds.
SELECTED = "toy and (dispatch or packing) and not compile and not float16"


@pytest.mark.slow
def test_the_suite_runs_over_a_registered_backend_by_itself():
    command = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", SELECTED, "--tb=short"]
    if doctor.examine()["compiler"] is None:
        command += ["-m", "not compiler"]
    command += [str(OPERATOR_TESTS)]
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TESTED_BACKEND": "toy"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 20
    assert "skipped" not in done.stdout


def test_a_registered_backend_is_reported_and_chosen_by_name():
    ops.BACKENDS.register(TOY)
    try:
        rows = backends.report(["cpu"], [torch.float32])
        assert {row["operator"] for row in rows} == {"block", "lag", "low_rank"}
        for row in rows:
            assert "used only if named" in row["others"]["toy"] or row["operator"] == "low_rank"
        values = torch.ones(1, 2, 1, 1)
        states, _ = ops.bd_lru(torch.zeros(1, 2, 1, 1, 2), values, backend="toy")
        assert states.flatten().tolist() == [0.5, 0.75]
        with pytest.raises(ValueError, match="backend 'toy' needs tensors on cpu"):
            ops.block_scan(
                *[torch.zeros(s, device="meta") for s in ((1, 2, 1, 1, 1), (1, 2, 1, 1))],
                backend="toy",
            )
    finally:
        ops.BACKENDS.remove("toy")
    with pytest.raises(ValueError, match="backend must be one of"):
        ops.check_backend("toy")
