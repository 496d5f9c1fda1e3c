"""Training in the processes of torchrun, told by a JSON: python two_processes.py '{"folder": ...}'.

Keys: folder; strategies, trained in this order; the ranks that die at a step of a strategy, as
[[strategy, step, [ranks]], ...]; and further options of the training. Also a function that trains
in the calling process.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from statemix.errors import RequestError
from statemix.lm import StatemixConfig, StatemixForCausalLM
from statemix.lm.language_scores import summed_loss
from statemix.lm.language_training import TokenBatches
from statemix.lm.presets import LanguageSettings
from statemix.training import Hook, fit
from statemix.training.checkpoint import load_tensors
from statemix.training.devices import is_sharded, ranks_here

SCRIPT = Path(__file__)
STEPS = 7
# Five rows, two processes and two batches each: no two batches of a step are alike.
SETTINGS = LanguageSettings(length=6, batch_size=5, accumulate=2, steps=STEPS, learning_rate=1.0)
IDS = np.random.default_rng(0).integers(0, 11, 400).astype(np.uint16)


def torchrun(*arguments, num_processes=2):
    """Run a program in several processes; return its output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    path = os.pathsep.join([*filter(None, sys.path), str(SCRIPT.parents[2])])
    with subprocess.Popen(
        [*command, f"--nproc-per-node={num_processes}", *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            # SIGKILL would leave the workers behind.
            process.terminate()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_script(folder, strategies, *, num_processes=2, **asked):
    """Run this file in several processes."""
    told = json.dumps({"folder": str(folder), "strategies": strategies, **asked})
    return torchrun(str(SCRIPT), told, num_processes=num_processes)


def files(folder):
    """Return the tensors of each file in a folder."""
    return {path.name: load_tensors(path.read_bytes()) for path in folder.glob("*.safetensors")}


def assert_equal_files(found, wanted, **tolerance):
    found, wanted = files(found), files(wanted)
    assert (
        found.keys()
        == wanted.keys()
        == {f"{n}.safetensors" for n in ("model", "optimizer", "best")}
    )
    for name in wanted:
        assert found[name].keys() == wanted[name].keys()
        for key in wanted[name]:
            torch.testing.assert_close(found[name][key], wanted[name][key], **tolerance)


class ShardsSeen(Hook):
    """Adds to each row whether the weights are in shards after an evaluation."""

    def row(self, loop):
        return {"sharded": all(is_sharded(parameter) for parameter in loop.model.parameters())}


def build_tied_model():
    """Seven columns and eleven tokens: shards of two processes are uneven."""
    torch.manual_seed(1)
    mixers = {"name": "bd_lru", "num_blocks": 3, "block_size": 2}
    config = StatemixConfig(vocab_size=11, hidden_size=7, num_hidden_layers=2, mixers=mixers)
    model = StatemixForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
    return model


def build_sliced_model():
    """Every layer that can share a sequence, with states of each kind, after a convolution."""
    torch.manual_seed(2)
    lags = {"name": "h_lru", "num_channels": 3, "order": 3}
    blocks = {"name": "bd_lru", "num_blocks": 3, "block_size": 2}
    mixers = [
        {**blocks, "initial_state": "learned"},
        {**blocks, "value_channels": 3},
        lags,
        {**lags, "realization": "observer"},
        {"name": "conv", "kernel_size": 3},
    ]
    config = StatemixConfig(11, 7, len(mixers), mixers=mixers, conv_size=4)
    model = StatemixForCausalLM(config)
    with torch.no_grad():
        # What a token adds to the states must outlast a slice.
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


def train_tiny(
    folder, *, strategy="ddp", sequence_parallel=False, losses=None, act=None, **options
):
    """Train with momentum, which the scale of the gradient changes; return the model."""
    model = build_sliced_model() if sequence_parallel else build_tied_model()
    ranks = ranks_here()
    # Three processes get slices of 3, 2 and 2 tokens, and the convolution keeps 3.
    settings = replace(SETTINGS, length=7 if sequence_parallel else 6)
    batches = TokenBatches(IDS, settings, ranks, sequence_parallel=sequence_parallel)
    own = batches.parts

    def loss(net, batch):
        step, rows = batch
        factor = 1.0 if act is None else act(step, ranks.rank)
        group = dist.group.WORLD if sequence_parallel and ranks.size > 1 else None
        return summed_loss(net, rows, group) * factor / 30

    def evaluate(net):
        rows = torch.from_numpy(IDS[None, :50].astype(np.int64))
        return {"score": -float(summed_loss(net, rows))}

    def on_event(event):
        if event.kind == "step" and losses is not None:
            losses.append(event.loss)

    batches.parts = lambda step: [(step, rows) for rows in own(step)]
    options = {"device": "cpu", "num_threads": 1, "evaluate_every": 3, **options}
    fit(
        model, batches, loss, folder, num_steps=STEPS, evaluate=evaluate, criterion="score",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        hooks=[ShardsSeen()], strategy=strategy, on_event=on_event, clip_norm=2.0, **options,
    )  # fmt: skip
    return model


def _killed(kills, strategy):
    def act(step, rank):
        for name, at, ranks in kills:
            if (name, at) == (strategy, step) and rank in ranks:
                os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    return act


def _signal_one():
    sent = []

    def act(step, rank):
        # A second signal would end the process at once, and a step has two batches.
        if (step, rank) == (3, 1) and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return 1.0

    return act


def _refusals(folder, strategy):
    """Return how runs end of which a single process gets a signal, a NaN, a wrong folder."""
    found = {}

    def spoil_one(step, rank):
        return float("nan") if (step, rank) == (4, 1) else 1.0

    tries = {
        "signal": lambda: train_tiny(folder / "signal", strategy=strategy, act=_signal_one()),
        "nan": lambda: train_tiny(folder / "nan", strategy=strategy, act=spoil_one),
        "other": lambda: train_tiny(folder / "nan", strategy=strategy, seed=5),
        "double": lambda: train_tiny(folder / "x", strategy=strategy, precision="64-true"),
    }
    for name, attempt in tries.items():
        try:
            attempt()
            found[name] = ""
        except (KeyboardInterrupt, FloatingPointError, RequestError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    train_tiny(folder / "signal", strategy=strategy)
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    root, rank = Path(asked["folder"]), ranks_here().rank
    for strategy in asked["strategies"]:
        losses = []
        model = train_tiny(
            root / strategy,
            strategy=strategy,
            **asked.get("options", {}),
            losses=losses,
            act=_killed(asked.get("kills", ()), strategy),
            checkpoint_every_s=0.0,
        )
        tied = model.lm_head.weight is model.model.embed_tokens.weight
        report = {"losses": losses, "tied": tied}
        if asked.get("refusals"):
            report["refusals"] = _refusals(root / f"{strategy}-refused", strategy)
        (root / f"{strategy}-{rank}.json").write_text(json.dumps(report))
    # PyTorch 2.13 aborts in about one of fifty processes that end after they had a device mesh.
    sys.stdout.flush()
    os._exit(0)
