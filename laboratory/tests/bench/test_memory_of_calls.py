"""The memory counter reports the peak of tensor memory allocated by a call."""

import ctypes
import sys

import pytest
import torch

from statemix import memory as machine
from statemix_lab.bench.timed_devices import Cpu, saved_bytes

MIB = 2**20


def test_peak_counts_what_is_held_at_once():
    def call():
        first = torch.empty(4 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        return second, third

    assert Cpu().peak_bytes(call) == 6 * MIB


def test_inputs_and_freed_inputs_do_not_count():
    inputs = torch.zeros(MIB, dtype=torch.float32)
    assert Cpu().peak_bytes(inputs.zero_) == 0
    assert Cpu().peak_bytes(inputs.exp) == 4 * MIB


class FakeLibrary:
    """A C library that accepts all settings but one."""

    def __init__(self, refused):
        self.settings = {}
        self.refused = refused

    def mallopt(self, parameter, value):
        self.settings[parameter] = value
        return 0 if parameter == self.refused else 1


def test_saved_bytes_count_each_memory_once_and_no_parameter():
    x = torch.randn(10, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)

    def call():
        # The product keeps x and the weight; the square keeps a view of x, and its own input.
        return (x @ weight).sum() + x[2:].square().sum() + (2 * x).square().sum()

    assert saved_bytes(call, [weight]) == 4 * (40 + 40)
    assert saved_bytes(call, []) == 4 * (40 + 40 + 16)
    with torch.no_grad():
        assert saved_bytes(call, []) == 0


REUSED = {-4: 0, -1: -1}
MAPPED = {-4: 65536, -3: 32 * MIB, -1: 64 * MIB}


@pytest.mark.parametrize("refused", [None, -1, -3, -4])
def test_settings_of_the_allocator_report_whether_they_were_accepted(monkeypatch, refused):
    for setting, expected in (
        (machine.reuse_freed_memory, REUSED),
        (machine.map_large_blocks, MAPPED),
    ):
        library = FakeLibrary(refused)
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=library: library)
        assert setting() is (refused not in expected)
        assert library.settings == expected
