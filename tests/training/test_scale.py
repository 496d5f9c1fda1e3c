"""Large models: gathered tensors, checkpoints, counters of steps, and processes that wait."""

import itertools
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from statemix.errors import RequestError
from statemix.training import loop as loops
from statemix.training.checkpoint import load_optimizer, load_tensors, optimizer_state
from statemix.training.devices import Ranks
from statemix.training.outcome import save_outcome


class Shard:
    """A sharded tensor; notes how many whole tensors are alive when it is gathered."""

    gathered: list
    alive: list

    def full_tensor(self):
        self.alive.append(sum(one() is not None for one in self.gathered))
        whole = torch.ones(3)
        self.gathered.append(weakref.ref(whole))
        return whole


@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_a_run_gathers_one_tensor_at_a_time(tmp_path, monkeypatch, rank):
    """The first process keeps those of a file."""
    Shard.gathered, Shard.alive = [], []
    monkeypatch.setattr(dist, "broadcast_object_list", lambda sent: None)
    files = {name: {"a": Shard(), "b": Shard()} for name in ("model", "optimizer")}
    loop = SimpleNamespace(
        tensors=lambda: files, state_dict=dict, ranks=Ranks(rank, 2), num_parameters=6,
        time_s=1.0, cpu_s=1.0, step=1, emit=lambda *_: None, hooks=[],
    )  # fmt: skip
    save_outcome(loop, tmp_path)
    # The name of the last one still holds it.
    assert max(Shard.alive) <= (2 if rank == 0 else 1)
    stored = {path.name for path in tmp_path.iterdir()}
    if rank:
        assert not stored
    else:
        found = load_tensors((tmp_path / "optimizer.safetensors").read_bytes())
        assert {"a", "b"} == found.keys()


def resumed_optimizer(make, device="cpu"):
    """An optimiser that has made a step, restored for the same model on another device."""
    model = nn.Linear(2, 2)
    optimizer = make(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tensors, numbers = optimizer_state(optimizer, model)
    restored = nn.Linear(2, 2, device=device)
    other = make(restored.parameters())
    load_optimizer(other, restored, tensors, numbers)
    return other.state[restored.weight]


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad])
def test_counters_of_steps_stay_on_the_cpu(make):
    """On a GPU, each would be waited for in each step."""
    state = resumed_optimizer(make, "meta")
    assert state["step"].device.type == "cpu"
    others = [value for name, value in state.items() if name != "step" and value.shape == (2, 2)]
    assert {value.device.type for value in others} == {"meta"}


def test_fused_kernels_read_the_counters_on_their_device():
    state = resumed_optimizer(lambda weights: torch.optim.AdamW(weights, fused=True), "meta")
    assert state["step"].device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_counters_are_where_pytorch_makes_them():
    for fused in (False, True):
        model = nn.Linear(2, 2, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        model(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        wanted = optimizer.state[model.weight]["step"].device
        tensors, numbers = optimizer_state(optimizer, model)
        load_optimizer(optimizer, model, tensors, numbers)
        assert optimizer.state[model.weight]["step"].device == wanted


@pytest.mark.parametrize(
    ("error", "others"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (SystemExit(3), RequestError)],
)
def test_whatever_ends_the_first_process_ends_the_others(monkeypatch, error, others):
    told = []
    monkeypatch.setattr(dist, "broadcast_object_list", lambda sent: told.append(sent[:]))

    def fail():
        raise error

    with pytest.raises(type(error)):
        Ranks(0, 2).on_first(fail)

    def receive(sent):
        sent[:] = told[0]

    monkeypatch.setattr(dist, "broadcast_object_list", receive)
    with pytest.raises(others):
        Ranks(1, 2).on_first(fail)


@pytest.mark.parametrize(
    ("every_s", "cost_s", "wanted"),
    [(None, 0.125, 10.0), (None, 3.0, 150.0), (0.0, 3.0, 0.0), (20.0, 3.0, 20.0)],
)
def test_checkpoints_take_at_most_a_fiftieth_of_the_time(
    tmp_path, monkeypatch, every_s, cost_s, wanted
):
    clock, saved = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def save(*_, **options):
        saved.append(clock[0])
        clock[0] += cost_s

    monkeypatch.setattr(loops, "save_checkpoint", save)

    class Loop:
        step, ranks = 0, Ranks()
        tensors = state_dict = staticmethod(dict)
        emit = staticmethod(lambda *_: None)

        @property
        def clock(self):
            return clock[0]

    checkpoints, loop = loops.Checkpoints(tmp_path, every_s), Loop()
    checkpoints.on_start(loop)
    checkpoints.save(loop)
    for _ in range(2000):
        clock[0] += 0.5
        checkpoints.before_step(loop)
    gaps = {later - sooner - cost_s for sooner, later in itertools.pairwise(saved)}
    assert gaps == {max(wanted, 0.5)}
