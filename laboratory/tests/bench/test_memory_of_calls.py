"""The memory counter reports the peak of tensor memory allocated by a call."""

import ctypes
import os
import sys

import pytest
import torch

from statemix import memory as machine
from statemix_lab.bench import timed_devices as memory

MIB = 2**20


def test_peak_counts_what_is_held_at_once():
    def call():
        first = torch.empty(4 * MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        return second, third

    assert memory.peak_bytes(call) == 6 * MIB


def test_inputs_and_freed_inputs_do_not_count():
    inputs = torch.zeros(MIB, dtype=torch.float32)
    assert memory.peak_bytes(inputs.zero_) == 0
    assert memory.peak_bytes(inputs.exp) == 4 * MIB


def test_gradients_count():
    x = torch.ones(MIB, dtype=torch.float32, requires_grad=True)
    # The exponential is kept for the backward, which adds the gradient; the sum is a few bytes.
    peak = memory.peak_bytes(lambda: torch.autograd.grad(x.exp().sum(), x))
    assert peak == pytest.approx(8 * MIB, rel=1e-3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_free_memory_is_within_what_the_machine_has():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < machine.available_bytes() <= total


class FakeLibrary:
    """A C library that accepts all settings but one."""

    def __init__(self, refused):
        self.settings = {}
        self.refused = refused

    def mallopt(self, parameter, value):
        self.settings[parameter] = value
        return 0 if parameter == self.refused else 1


@pytest.mark.parametrize(("refused", "taken"), [(None, True), (-1, False), (-4, False)])
def test_reuse_reports_whether_it_was_accepted(monkeypatch, refused, taken):
    library = FakeLibrary(refused)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert machine.reuse_freed_memory() is taken
    assert library.settings == {-4: 0, -1: -1}


@pytest.mark.parametrize(
    ("refused", "taken"), [(None, True), (-3, False), (-4, False), (-1, False)]
)
def test_mapping_can_be_turned_on_again(monkeypatch, refused, taken):
    library = FakeLibrary(refused)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert machine.map_large_blocks() is taken
    assert library.settings == {-4: 65536, -3: 32 * MIB, -1: 64 * MIB}


def test_saved_bytes_count_each_memory_once_and_no_parameter():
    x = torch.randn(10, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)

    def call():
        # The product keeps x and the weight; the square keeps a view of x, and its own input.
        return (x @ weight).sum() + x[2:].square().sum() + (2 * x).square().sum()

    assert memory.saved_bytes(call, [weight]) == 4 * (40 + 40)
    assert memory.saved_bytes(call, []) == 4 * (40 + 40 + 16)
    with torch.no_grad():
        assert memory.saved_bytes(call, []) == 0
