"""Backends are records: which is chosen, which is refused and why, and the messages to users."""

import warnings

import pytest
import torch

from statemix import ops
from statemix.ops import backends


@pytest.fixture
def registry():
    """The registry, restored after the test, with no warnings given yet."""
    before = list(ops.BACKENDS)
    backends._warned.clear()
    yield ops.BACKENDS
    for name in set(ops.BACKENDS) - set(before):
        ops.BACKENDS.remove(name)
    backends._warned.clear()


@pytest.fixture
def only(registry, monkeypatch):
    """``only(record, ...)`` replaces all backends by these."""

    def replace(*records):
        monkeypatch.setattr(registry, "_entries", {record.name: record for record in records})

    return replace


def fastest(**changes):
    kernels = dict(ops.BACKENDS["loop"].kernels)
    return ops.Backend(**{"name": "fastest", "kernels": kernels, "automatic": True} | changes)


def test_the_first_automatic_backend_that_serves_is_chosen(only):
    loop, reference = ops.BACKENDS["loop"], ops.BACKENDS["reference"]
    for record, expected in [
        (fastest(), "fastest"),
        (fastest(automatic=False), "loop"),
        (fastest(devices=("cuda",)), "loop"),
        (fastest(dtypes=(torch.float64,)), "loop"),
        (fastest(kernels={}), "loop"),
        (fastest(unavailable=lambda: "it is away"), "loop"),
    ]:
        only(reference, record, loop)
        assert ops.default_backend("cpu") == expected


@pytest.mark.kernels
def test_kernels_on_the_cpu_and_the_loop_elsewhere():
    assert ops.default_backend("cpu") == "cpu"
    assert ops.default_backend(torch.device("meta"), "lag", torch.bfloat16) == "loop"


def call(values=None):
    values = torch.zeros(1, 2, 3) if values is None else values
    return ops.lag_scan(torch.zeros(1, 2, 3, 2, device=values.device), values)


def test_no_usable_backend_is_an_error_and_a_slow_one_warns_once_both_with_the_reason(only):
    away, loop = fastest(unavailable=lambda: "it needs a beater: buy one"), ops.BACKENDS["loop"]
    only(away, ops.BACKENDS["reference"])
    with pytest.raises(ops.BackendUnavailableError, match=r"no backend serves .*a beater: buy"):
        call()
    only(away, loop)
    with pytest.warns(RuntimeWarning, match=r"slow backend 'loop'.*needs a beater: buy") as caught:
        call()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()


def test_a_named_backend_must_exist_support_the_tensors_and_run(registry):
    registry.register(fastest(unavailable=lambda: "it is away"))
    registry.register(fastest(name="other", devices=("cuda",), kernels={}))
    registry.register(fastest(name="far", devices=("cuda",)))
    ops.check_backend(None)
    ops.check_backend("far")
    for name, error, message in [
        ("abacus", ValueError, "backend must be one of .*, got 'abacus'"),
        ("fastest", ops.BackendUnavailableError, "it is away"),
        ("other", ValueError, "backend 'other' has no kernel of operator 'lag'"),
        ("far", ValueError, "backend 'far' needs tensors on cuda, got torch.float32 on cpu"),
    ]:
        with pytest.raises(error, match=message):
            ops.lag_scan(torch.zeros(1, 2, 3, 2), torch.zeros(1, 2, 3), backend=name)
        if name in ("abacus", "fastest"):
            with pytest.raises(error, match=message):
                ops.check_backend(name)
