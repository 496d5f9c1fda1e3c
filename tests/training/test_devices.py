"""Machines: devices, threads, counters of steps, times of checkpoints, processes that wait."""

import itertools
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from statemix.errors import RequestError, SettingError
from statemix.training import RunConfig, RuntimeConfig, ScheduleConfig
from statemix.training import loop as loops
from statemix.training.checkpoint import load_optimizer, optimizer_state
from statemix.training.devices import Ranks, build_fabric, check_threads


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [(torch.optim.AdamW, {}, "cpu"), (torch.optim.Adagrad, {}, "cpu"),
     (torch.optim.AdamW, {"fused": True}, "meta")],
)  # fmt: skip
def test_counters_of_steps_stay_on_the_cpu_unless_fused_kernels_read_them(kind, options, expected):
    """On a GPU, each would be waited for in each step."""
    models = [nn.Linear(2, 2, device=device) for device in ("cpu", "meta")]
    optimizer, other = (kind(model.parameters(), **options) for model in models)
    models[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    load_optimizer(other, models[1], *optimizer_state(optimizer, models[0]))
    state = other.state[models[1].weight]
    assert state.pop("step").device.type == expected
    assert {value.device.type for value in state.values() if value.shape == (2, 2)} == {"meta"}


@pytest.mark.parametrize(
    ("error", "others"), [(KeyboardInterrupt(), KeyboardInterrupt), (SystemExit(3), RequestError)]
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
def test_checkpoints_take_a_fiftieth_of_the_time(tmp_path, monkeypatch, every_s, cost_s, wanted):
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


@pytest.mark.parametrize(
    ("device", "gpu", "expected"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_auto_is_a_gpu_if_there_is_one(monkeypatch, device, gpu, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("lightning_fabric.Fabric", lambda **options: options["accelerator"])
    assert build_fabric(device, "32-true") == expected
    config = RunConfig(runtime=RuntimeConfig(device=device), schedules=ScheduleConfig(num_steps=1))
    assert config.resolved().runtime.device == expected


def test_a_few_threads_per_processor_are_the_most(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5}, raising=False)
    for number in (1, 12):
        check_threads("runtime.num_threads", number)
    for number in (0, 13):
        message = rf"^runtime.num_threads must be in 1\.\.12 \(.* available: 3\), got {number}$"
        with pytest.raises(SettingError, match=message):
            check_threads("runtime.num_threads", number)
    # Elsewhere than on Linux.
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    check_threads("threads", 4)
    with pytest.raises(SettingError, match="available: 1"):
        check_threads("threads", 5)
