"""Devices and threads of a run."""

import os

import pytest
import torch

from statemix.settings import SettingError
from statemix.training.devices import check_threads, threads


def test_a_few_threads_per_processor_are_the_most(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    for number in (1, 12):
        check_threads("runtime.num_threads", number)
    for number in (0, 13):
        message = rf"^runtime.num_threads must be in 1\.\.12 \(.* 3 processors\), got {number}$"
        with pytest.raises(SettingError, match=message):
            check_threads("runtime.num_threads", number)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    check_threads("threads", 4)
    with pytest.raises(SettingError, match="1 processors"):
        check_threads("threads", 5)


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with threads(None):
        assert torch.get_num_threads() == before
