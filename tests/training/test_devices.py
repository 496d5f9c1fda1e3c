"""Devices and threads of a run."""

import os

import pytest
import torch

from statemix.errors import SettingError
from statemix.training import RunConfig, RuntimeConfig, ScheduleConfig
from statemix.training.devices import build_fabric, check_threads, threads


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


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with threads(None):
        assert torch.get_num_threads() == before
