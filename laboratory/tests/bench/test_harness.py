"""Comparisons are fair: common rounds, ratios by round, and no time for a wrong result."""

import json
import math
import resource
import sys
import time

import pytest
import torch

from statemix import provenance
from statemix.layers import LayerSpec
from statemix.ops import BackendUnavailableError
from statemix_lab.bench import compared_layers, harness, layer_timing, step_timing, timed_devices
from statemix_lab.bench.harness import TOO_LATE, Measurement, Provider, Spread, measure
from statemix_lab.bench.timed_devices import Cpu


class FakeClock:
    """Time that passes only when a provider says so."""

    def __init__(self):
        self.now_s = 0.0
        self.calls = []

    def __call__(self):
        return self.now_s

    def provider(self, name, durations_s, **fields):
        """A provider whose calls take ``durations_s`` in turn, the last one from then on."""
        remaining = list(durations_s)

        def call():
            self.calls.append(name)
            self.now_s += remaining.pop(0) if len(remaining) > 1 else remaining[0]
            return name

        return Provider(name, lambda: call, **fields)


def run(clock, providers, **options):
    defaults = {
        "relative_to": ("a",),
        "rounds": 5,
        "budget_s": 1e9,
        "tolerance": 1e-5,
        "seed": 0,
        "on_step": lambda step: None,
        "clock": clock,
    }
    measured = measure(providers, **(defaults | options))
    return {one.provider: one for one in measured}


pytestmark = pytest.mark.usefixtures("process_kept")

# Every provider is called three times before the rounds: checked, counted, warmed up.
UNTIMED = 3


def test_ratios_are_taken_within_rounds():
    """The machine gets ten times slower half way: times spread, ratios do not."""
    clock = FakeClock()
    weather = [1, 1, 1, 10, 10]
    a = clock.provider("a", [9] * UNTIMED + [1.0 * w for w in weather])
    b = clock.provider("b", [9] * UNTIMED + [3.0 * w for w in weather])
    measured = run(clock, [a, b])
    assert measured["a"].time_s == pytest.approx((1, 1, 10))
    assert measured["b"].ratios["a"] == pytest.approx((3, 3, 3))
    assert measured["a"].ratios == {}
    assert measured["b"].rounds == 5
    # The first call is kept apart.
    assert measured["a"].first_call_s == 9


def test_ratio_is_the_median_of_ratios_and_not_the_ratio_of_medians():
    clock = FakeClock()
    a = clock.provider("a", [9] * UNTIMED + [1, 5, 6])
    b = clock.provider("b", [9] * UNTIMED + [3, 10, 3])
    assert run(clock, [a, b], rounds=3)["b"].ratios["a"].p50 == 2


def test_every_round_calls_everyone_in_an_order_of_the_seed():
    def order(seed):
        clock = FakeClock()
        run(clock, [clock.provider(name, [1.0]) for name in "abcd"], seed=seed, rounds=8)
        timed = clock.calls[4 * UNTIMED :]
        return ["".join(timed[i : i + 4]) for i in range(0, len(timed), 4)]

    assert all(sorted(one) == list("abcd") for one in order(0))
    assert len(set(order(0))) > 1
    assert order(0) == order(0) != order(1)


@pytest.mark.parametrize(("call_s", "rounds"), [(1.0, 20), (10.0, 10), (1000.0, 3)])
def test_slow_provider_makes_the_calls_it_can_afford_and_at_least_three(call_s, rounds):
    clock = FakeClock()
    slow = clock.provider("slow", [call_s])
    measured = run(clock, [clock.provider("a", [1.0]), slow], rounds=20, budget_s=100)
    assert measured["a"].rounds == 20
    assert measured["slow"].rounds == rounds
    assert measured["slow"].ratios["a"].p50 == call_s


def test_rounds_of_slow_providers_are_spread_and_shared():
    clock = FakeClock()
    providers = [clock.provider("a", [1.0])] + [clock.provider(name, [100.0]) for name in "bc"]
    run(clock, providers, rounds=20, budget_s=400, on_step=clock.calls.append)
    starts = [i for i, call in enumerate(clock.calls) if call.startswith("round ")]
    rounds = [
        set(clock.calls[start + 1 : end])
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    assert sorted(map(len, rounds)) == [1] * 16 + [3] * 4
    with_slow = [r for r, names in enumerate(rounds) if names == set("abc")]
    gaps = [later - r for r, later in zip([0, *with_slow], [*with_slow, 20], strict=True)]
    assert max(gaps) <= 8


@pytest.mark.parametrize("error", [1e-4, math.inf, math.nan])
def test_wrong_result_gets_no_time(error):
    clock = FakeClock()
    wrong = clock.provider("wrong", [1.0], error=lambda result: error)
    right = clock.provider("a", [1.0], error=lambda result: 1e-6)
    measured = run(clock, [wrong, right])
    assert measured["wrong"].status == "wrong"
    assert "exceeds 1e-05" in measured["wrong"].reason
    assert measured["wrong"].time_s is None
    assert clock.calls.count("wrong") == 1
    assert measured["a"].status == "measured"
    assert measured["a"].relative_error == 1e-6


SHORT = "out of memory: DefaultCPUAllocator"


@pytest.mark.parametrize(
    ("where", "error", "reason"),
    [
        ("prepare", RuntimeError("DefaultCPUAllocator: can't allocate memory"), SHORT),
        ("call", RuntimeError("DefaultCPUAllocator: can't allocate memory"), SHORT),
        ("error", RuntimeError("DefaultCPUAllocator: can't allocate memory"), SHORT),
        ("call", BackendUnavailableError("install a compiler"), "install a compiler"),
    ],
)
def test_provider_that_cannot_run_here_is_skipped_alone(where, error, reason):
    def fail(*arguments):
        raise error

    clock = FakeClock()
    broken = {
        "prepare": Provider("b", fail),
        "call": Provider("b", lambda: fail),
        "error": clock.provider("b", [1.0], error=fail),
    }[where]
    measured = run(clock, [clock.provider("a", [1.0]), broken])
    assert (measured["a"].status, measured["b"].status) == ("measured", "skipped")
    assert measured["b"].reason.startswith(reason)


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        (0, RuntimeError("CUDA error: an illegal memory access was encountered")),
        (1, AssertionError("shapes disagree")),
        (2, AssertionError("shapes disagree")),
        (5, RuntimeError("CUDA error: an illegal memory access was encountered")),
    ],
)
def test_other_failures_of_a_provider_are_its_own(calls, error, capsys):
    """In its first call, the one that counts memory, the one that warms up, or a timed one."""
    clock, made = FakeClock(), []

    def fail():
        made.append(1)
        clock.now_s += 1
        if len(made) > calls:
            raise error

    measured = run(clock, [clock.provider("a", [1.0]), Provider("b", lambda: fail, note="red")])
    assert (measured["a"].status, measured["a"].rounds) == ("measured", 5)
    failed = measured["b"]
    assert (failed.status, failed.note, failed.time_s) == ("failed", "red", None)
    assert failed.reason == f"{type(error).__name__}: {error}"
    # It is not called again, and its traceback is kept.
    assert len(made) == calls + 1
    assert "test_harness.py" in capsys.readouterr().err
    assert (measured["a"].ratios, measured["b"].ratios) == ({}, {})


def test_what_is_not_checked_in_time_has_failed_and_the_others_are_timed():
    clock = FakeClock()

    def compile_slowly():
        time.sleep(0.2)
        return clock.provider("a", [1.0]).prepare()

    providers = [Provider("a", compile_slowly), Provider("b", lambda: pytest.fail("prepared"))]
    measured = run(clock, providers, ready_by_s=time.monotonic() + 0.1)
    assert measured["a"].rounds == 5
    assert (measured["b"].status, measured["b"].reason) == ("failed", TOO_LATE)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no limit of memory")
def test_provider_that_needs_more_memory_than_is_free_is_skipped(monkeypatch):
    monkeypatch.setattr(timed_devices, "available_bytes", lambda: 2**28)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    clock = FakeClock()
    large = Provider("large", lambda: lambda: torch.ones(2**27))
    measured = run(clock, [clock.provider("a", [1.0]), large])
    assert measured["a"].status == "measured"
    assert measured["large"].status == "skipped"
    assert measured["large"].reason.startswith("out of memory: ")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_memory_is_that_of_the_call_and_not_of_its_replay():
    """As graphs are: a replay does nothing that Python sees."""

    class Replaying(Cpu):
        def waiting(self, call):
            result = call()
            return lambda: result

        def peak_bytes(self, call):
            before = len(clock.calls)
            call()
            return 100 * (len(clock.calls) - before)

    clock = FakeClock()
    measured = run(clock, [clock.provider("a", [1.0])], device=Replaying())
    assert measured["a"].memory_bytes == 100
    assert measured["a"].rounds == 5


def test_rows_are_appended_and_say_where_and_how_they_were_measured(tmp_path):
    path, process = tmp_path / "ops.jsonl", harness.describe_process()
    assert process.items() >= provenance.describe().items()
    assert process["threads"] == torch.get_num_threads()
    assert {"command", "omp_proc_bind"} <= process.keys()
    harness.append_rows(path, [{"x": 1}], process)
    harness.append_rows(path, [{"x": 2}, {"x": 3}], process | {"commit": "d"})
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["x"], row["commit"] == "d") for row in read] == [(1, False), (2, True), (3, True)]
    for row in read:
        assert row["measured_utc"].endswith("+00:00")
        assert row["started_utc"] == process["started_utc"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_copy_moves_its_bytes_so_many_times_by_buffers_that_are_reused(
    monkeypatch, copied, times
):
    monkeypatch.setattr(harness, "_BUFFER_BYTES", 4 * 64)
    sizes = copied(harness.copy_provider(8 * 150, "cpu", times))
    assert sizes == [64, 64, 22] * times


def test_a_roofline_is_the_time_of_a_copy_of_ones_own_bytes_over_ones_own():
    case = compared_layers.LayerCase(8, 2, 5)
    ratios = {harness.COPY: Spread(2.0, 4.0, 8.0)}
    measured = Measurement("a", "", "measured", ratios=ratios)
    row = harness.timed_row("layers", case, measured, torch.float32, 5, 10)
    assert row["roofline"] == {"p20": 1 / 16, "p50": 1 / 8, "p80": 1 / 4}
    copy = Measurement(harness.COPY, "", "measured")
    assert harness.timed_row("layers", case, copy, torch.float32, 10, 10)["roofline"] is None


def test_copies_beside_steps_and_layers_move_what_these_must(copied):
    case = step_timing.StepCase("bd_lru", 2, 6, 3)
    *_, copy = step_timing.providers(case)
    assert 8 * sum(copied(copy)) == case.steps_per_call * case.moved_bytes(torch.float32)
    training = compared_layers.LayerCase(hidden_size=8, batch_size=2, length=5)
    listed = compared_layers.entries({"lstm": LayerSpec("lstm")}, training, torch.float32, Cpu())
    moved = layer_timing.copied_bytes(listed, training, torch.float32)
    *_, copy = layer_timing.providers(listed, training, torch.float32)
    assert 8 * sum(copied(copy)) == moved
