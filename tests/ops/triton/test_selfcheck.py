"""The self-check of GPU kernels, played by a backend on the CPU that is right, wrong or broken."""

import dataclasses
import re
from functools import partial

import pytest
import torch

from statemix import ops
from statemix.ops import backends
from statemix.ops.triton import selfcheck

LOOP = ops.BACKENDS["loop"]
CPU = torch.device("cpu")


def agrees(kernel, scan):
    return kernel.forward(scan)


def disagrees(kernel, scan):
    states, final_state, saved = kernel.forward(scan)
    return states * 1.001, final_state, saved


def disagrees_if_packed(kernel, scan):
    return (agrees if scan.cu_seqlens is None else disagrees)(kernel, scan)


def fails(kernel, scan):
    raise RuntimeError("PassManager::run failed\nand more")


def lacks_memory(kernel, scan):
    raise torch.OutOfMemoryError("2 GiB wanted")


@pytest.fixture
def device(monkeypatch):
    """``device(behaviour)`` makes the backend "stub" behave so; a new process knows no verdict."""
    calls = []

    def behave(behaviour, *, new_process=True):
        def forward(kernel, scan):
            calls.append(scan.operator)
            return behaviour(kernel, scan)

        kernels = {
            operator: dataclasses.replace(kernel, forward=partial(forward, kernel))
            for operator, kernel in LOOP.kernels.items()
        }
        stub = dataclasses.replace(
            LOOP,
            name="stub",
            kernels=kernels,
            slow=False,
            distrust=lambda operator, place: selfcheck.distrust(operator, place, "stub"),
        )
        entries = {"stub": stub, "loop": LOOP, "reference": ops.BACKENDS["reference"]}
        monkeypatch.setattr(ops.BACKENDS, "_entries", entries)
        if new_process:
            monkeypatch.setattr(selfcheck, "_known", {})
        backends._warned.clear()
        calls.clear()
        return calls

    yield behave
    backends._warned.clear()


def run(operator="lag"):
    rows = (1, 3, 2) if operator == "lag" else (1, 3, 2, 2)
    scan = {"lag": ops.h_lru, "block": ops.bd_lru}[operator]
    return scan(torch.zeros(*rows, 3), torch.ones(rows))[0]


@pytest.mark.parametrize("operator", ["block", "lag"])
def test_kernels_that_agree_are_chosen_and_checked_once(device, operator):
    calls = device(agrees)
    run(operator)
    checked = len(selfcheck.QUICK[operator])
    assert calls == [operator] * (checked + 1)
    run(operator)
    assert calls == [operator] * (checked + 2)
    assert ops.default_backend("cpu", operator) == "stub"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (disagrees, r"lag softmax m=2 float32 T=6 disagrees \(error of states 1\.0e-03"),
        (disagrees_if_packed, r": lag softmax m=2 float32 T=80\+1\+70 disagrees"),
        (fails, r"fails \(RuntimeError: PassManager::run failed\)"),
        (lacks_memory, r"needs memory \(OutOfMemoryError: 2 GiB wanted\)"),
    ],
)
def test_kernels_that_are_wrong_or_broken_give_way_with_one_warning(device, behaviour, message):
    calls = device(behaviour)
    with pytest.warns(RuntimeWarning, match=r"slow backend 'loop'") as caught:
        states = run()
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.count("failed its self-check on cpu") == 1
    assert "report this with the output of `statemix doctor --check`" in text
    assert re.search(message, text)
    checked = len(calls)
    torch.testing.assert_close(states, run())
    if behaviour is not lacks_memory:
        assert len(calls) == checked
    # They may still be named.
    if behaviour is not fails and behaviour is not lacks_memory:
        ops.lag_scan(torch.zeros(1, 3, 2, 3), torch.ones(1, 3, 2), backend="stub")


def test_the_check_does_not_see_what_is_active_around_the_first_call(device):
    device(agrees)
    gates, values = torch.zeros(4, 1, 3, 2, 3), torch.ones(4, 1, 3, 2)
    gradient = torch.func.grad(lambda g, v: ops.h_lru(g, v)[0].sum())
    with torch.autocast("cpu"):
        torch.func.vmap(gradient)(gates, values)
    device(disagrees)
    with torch.inference_mode():
        assert selfcheck.distrust("block", CPU, "stub") is not None


def test_a_check_gives_a_verdict_for_each_case(device, monkeypatch):
    device(disagrees_if_packed)
    monkeypatch.setattr(selfcheck, "complete_cases", lambda: iter(selfcheck.QUICK["lag"]))
    verdicts = list(selfcheck.check_kernels("cpu", "stub"))
    assert [verdict.outcome for verdict in verdicts] == ["agrees", "disagrees"]
    assert verdicts[0].case == "lag softmax m=2 float32 T=6"
