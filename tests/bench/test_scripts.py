"""The scripts in ``benchmarks/`` run, and their rows say what was measured."""

import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from statemix import ops as operators
from statemix.layers import BDLRU, LayerSpec
from statemix.studies.fixed_points import fp_suites as suites
from statemix.studies.fixed_points.fp_suite import FixedPointSuite, Measured
from statemix.studies.store import key
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    train,
)

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _keep_the_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def rows_of(monkeypatch, tmp_path):
    def run(script, *options):
        path = tmp_path / "rows.jsonl"
        monkeypatch.setattr(sys, "argv", [script, str(path), *options])
        names = runpy.run_path(SCRIPTS / script)
        run.status = names["main"]()
        return [json.loads(line) for line in path.read_text().splitlines()]

    return run


def test_a_long_sequence_is_measured_with_gates_kept_and_computed_again(rows_of, capsys):
    size = {"length": 2**17, "hidden_size": 4, "block_size": 2}
    options = [part for name, n in size.items() for part in (f"--{name.replace('_', '-')}", str(n))]
    rows = rows_of(
        "long_context.py", "--device", "cpu", "--backend", "associative", "--rounds", "3", *options
    )
    kept, again = rows
    for row in rows:
        assert row["status"] == "measured", row["reason"]
        assert row["case"].items() >= size.items()
        assert 0 < row["time_s"]["p20"] <= row["time_s"]["p50"]
        assert (row["device"], row["dtype"]) == ("cpu", "bfloat16")
        assert 0 < row["relative_error"] <= 2e-2
    assert (kept["checkpoint_every"], again["checkpoint_every"]) == (None, 2**16)
    assert again["memory_bytes"] < 0.8 * kept["memory_bytes"]
    assert capsys.readouterr().out.count("measured") == 2


@pytest.mark.parametrize("wrong", ["y", "state", "d_x"])
def test_a_long_sequence_that_ends_wrong_has_no_time(rows_of, monkeypatch, wrong):
    forward = BDLRU.forward

    def spoil(self, x, *rest):
        y, state = forward(self, x, *rest)
        if x.shape[1] == 300 and wrong == "d_x":
            # The same output, with twice its gradient.
            y = 2 * y - y.detach()
        elif x.shape[1] == 300:
            y, state = y + (wrong == "y"), state + (wrong == "state")
        return y, state

    monkeypatch.setattr(BDLRU, "forward", spoil)
    options = ["--device", "cpu", "--backend", "loop", "--length", "300", "--hidden-size", "8"]
    for row in rows_of("long_context.py", *options):
        assert row["status"] == "wrong"
        assert row["relative_error"] > 2e-2


def test_first_calls_are_timed_with_the_kernels_that_they_compile(rows_of, monkeypatch, capsys):
    real = operators.bd_lru

    def scan(gates, *arguments, backend):
        # As Triton leaves machine code, and what belongs to it.
        kernel = "both" if gates.requires_grad else "forward"
        cache = Path(os.environ["TRITON_CACHE_DIR"])
        if not (cache / kernel).exists():
            time.sleep(0.2)
            (cache / kernel).mkdir()
            for suffix in ("cubin", "json"):
                (cache / kernel / f"{kernel}.{suffix}").touch()
        return real(gates, *arguments, backend="loop")

    monkeypatch.setattr(operators, "bd_lru", scan)
    lags = operators.h_lru
    monkeypatch.setattr(operators, "h_lru", lambda *given, backend: lags(*given, backend="loop"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    rows = rows_of("cold_start.py", "--device", "cpu", "--dtype", "float32", "--shapes", "2x3x4x5")
    found = [(row["case"]["recurrence"], row["case"]["direction"], row["kernels"]) for row in rows]
    assert found == [
        ("bd_lru", "forward", ["forward"]),
        ("bd_lru", "forward_backward", ["both"]),
        ("h_lru", "forward", []),
        ("h_lru", "forward_backward", []),
    ]
    for row in rows:
        assert row["case"].items() >= {"batch_size": 2, "length": 3, "block_size": 5}.items()
        assert (row["first_call_s"] > 0.2) == bool(row["kernels"])
        assert 0 < row["second_call_s"] < 0.2
    text = capsys.readouterr().out
    assert "compiled 1: both" in text


def test_gradients_of_every_kernel_are_checked(tmp_path):
    options = ["--device", "cpu", "--backend", "loop", "--sizes", "1", "2", "--workers", "1"]
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, SCRIPTS / "gradients.py", path, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert done.stdout.count("measured") == len(rows) == 2 * 3 * 3
    cases = [row["case"] for row in rows]
    assert {(case["recurrence"], case["gate"], case["block_size"]) for case in cases} == {
        (*kernel, size)
        for kernel in (("bd_lru", "softmax"), ("h_lru", "softmax"), ("bd_lru", "householder"))
        for size in (1, 2)
    }
    for row in rows:
        assert row["repeats"] is True
        assert row["errors"].keys() == {
            "states", "final_state", "d_gates", "d_values", "d_initial_state"
        }  # fmt: skip
        assert max(row["errors"].values()) <= (1e-5 if row["dtype"] == "float32" else 2e-2)
    assert {(row["dtype"], row["case"]["chunk"]) for row in rows} == {
        ("float32", 0), ("float32", 48), ("bfloat16", 0)
    }  # fmt: skip


def test_gradients_that_are_not_written_or_not_repeated_are_noticed(monkeypatch):
    names = runpy.run_path(SCRIPTS / "gradients.py")
    case = names["Case"]("bd_lru", "softmax", 2, "float32", 0, length=3, num_blocks=2)
    real = operators.bd_lru

    def forget(gates, values, gate, initial, *, backend):
        states, final = real(gates, values, gate, initial, backend="loop")
        return states + 0 * torch.empty_like(states), final

    monkeypatch.setattr(operators, "bd_lru", forget)
    row = names["_row"](case, "cpu", "loop")
    assert (row["status"], row["errors"]) == ("wrong", {})
    runs = []

    def wander(gates, values, gate, initial, *, backend):
        runs.append(1e-7 * len(runs))
        states, final = real(gates, values, gate, initial, backend="loop")
        return states * (1 + runs[-1]), final

    monkeypatch.setattr(operators, "bd_lru", wander)
    row = names["_row"](case, "cpu", "loop")
    assert (row["status"], row["repeats"]) == ("measured", False)


def gpu_row(benchmark, case, **values):
    return {
        "benchmark": benchmark,
        "device": "NVIDIA H200",
        "started_utc": "one process",
        "dtype": "bfloat16",
        "status": "measured",
        "case": case,
        **values,
    }


def operator_row(
    size,
    ratio,
    recurrence="bd_lru",
    num_blocks=None,
    provider="statemix",
    batch_size=8,
    **values,
):
    case = {
        "recurrence": recurrence,
        "direction": "forward_backward",
        "batch_size": batch_size,
        "length": 2048,
        "num_blocks": num_blocks or 768 // size,
        "block_size": size,
    }
    more = {"ratios": {"copy": {"p50": ratio}}, "time_s": {"p50": 6e-4}, "memory_bytes": 100}
    return gpu_row("ops", case, provider=provider, **(more | values))


def layer_row(speed, hidden_size=1024, batch_size=8, **values):
    case = {"hidden_size": hidden_size, "batch_size": batch_size, "length": 2048}
    layer = values.pop("layer")
    more = {"projections": False, "compiled": False, "num_parameters": 33_000_000}
    more |= {"saved_bytes_per_token": 30_700, "memory_bytes": 100}
    more |= {"label": layer["name"], "foreign_kernels": False}
    return gpu_row("layers", case, layer=layer, tokens_per_s=speed, **(more | values))


def block_layer(size, backend="triton"):
    return {"name": "bd_lru", "block_size": size, "backend": backend}


@pytest.fixture
def verdicts(monkeypatch, tmp_path, capsys):
    """Return a function: rows -> the lines of the table by the beginning of their names."""

    def table(rows, tests=("",)):
        path = tmp_path / "gpu.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        logs = [tmp_path / f"tests-{number}.log" for number in range(len(tests))]
        for log, text in zip(logs, tests, strict=True):
            log.write_text(text)
        command = ["gpu_targets.py", str(path), "--tests", *map(str, logs)]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(SCRIPTS / "gpu_targets.py")["main"]()
        lines = capsys.readouterr().out.splitlines()
        return lambda name: re.split(
            r"  +", next(line for line in lines if line.startswith(name)).strip()
        )[1:]

    return table


def test_without_rows_no_target_is_decided(verdicts):
    of = verdicts([])
    assert of("BD-LRU m=16, ") == ["not measured", "<= 2", "<= 1.5"]
    assert of("spread") == ["not measured", "<= 20", "<= 10"]
    assert of("float32") == ["not measured", "<= 1e-05", "<= 1e-06"]
    assert of("kernels compiled") == ["not measured"]
    assert of("random shapes") == ["not measured", ">= 200"]
    assert of("tests of the kernels") == of("results that differ") == ["not measured", "<= 0"]


def test_the_last_row_of_an_operator_is_compared_with_both_limits(verdicts):
    of = verdicts([operator_row(4, 9.0), operator_row(4, 1.5), operator_row(16, 1.5)])
    assert of("BD-LRU m=4,") == ["1.5 x", "<= 1.6 met", "<= 1.25 missed"]
    assert of("BD-LRU m=16,") == ["1.5 x", "<= 2 met", "<= 1.5 met"]


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "float32"},
        {"status": "wrong", "ratios": {}},
        {"device": "cpu"},
        {"provider": "paper"},
        {"num_blocks": 64},
        {"recurrence": "h_lru"},
    ],
)
def test_rows_of_something_else_decide_nothing(verdicts, other):
    assert verdicts([operator_row(4, 1.0, **other)])("BD-LRU m=4,")[0] == "not measured"


def test_speeds_of_layers_and_their_spread(verdicts):
    sizes = (1, 2, 3, 4, 5, 6, 8, 16)
    rows = [
        layer_row(2.5e6 + 1e5 * size, 960 if size == 16 else 1024, layer=block_layer(size))
        for size in sizes
    ]
    rows += [
        layer_row(9e6, layer=block_layer(4), projections=True),
        layer_row(5e5, layer=block_layer(4, "associative"), compiled=True),
        layer_row(9e6, layer=block_layer(4), num_parameters=30_000_000),
    ]
    of = verdicts(rows)
    assert of("layer of 33M parameters, m=1 ") == ["2.6 Mtok/s", ">= 2.2 met", ">= 2.7 missed"]
    assert of("layer of 33M parameters, m=4 ") == ["2.9 Mtok/s", ">= 2.2 met", ">= 2.7 met"]
    # From 2.6 to 4.1.
    assert of("spread") == ["36.6 %", "<= 20 missed", "<= 10 missed"]
    paper = "layer of 33M parameters, m=4: the paper's"
    assert of(paper) == ["5.8 x", ">= 5 met"]
    # Neither a form that is not compiled nor another process decides.
    for other in ({"compiled": False}, {"started_utc": "another process"}):
        assert verdicts([*rows[:-2], rows[-2] | other])(paper) == ["not measured", ">= 5"]
    # Of some block sizes alone there is no spread.
    assert verdicts(rows[1:])("spread")[0] == "not measured"


def test_lags_are_compared_with_the_companion_form(verdicts):
    lag = {"name": "h_lru", "num_channels": 768, "order": 16, "backend": "triton"}
    of = verdicts(
        [
            operator_row(16, 1.5, "h_lru", 768, memory_bytes=400),
            operator_row(16, 1.5, "h_lru", 768, batch_size=2, time_s={"p50": 9.0}),
            operator_row(16, 99.0, "h_lru", 768, "paper", batch_size=2, memory_bytes=1500),
            # Of another batch nothing is compared.
            operator_row(16, 99.0, "h_lru", 768, "paper", memory_bytes=9999),
            layer_row(1e6, 768, 2, layer=lag),
        ]
    )
    companion = lag | {"backend": "associative"}
    both = [
        layer_row(1e6, 768, 2, layer=lag),
        layer_row(1e3, 768, 2, layer=companion, memory_bytes=700, saved_bytes_per_token=1),
        layer_row(1e3, 768, 2, layer=companion, memory_bytes=9000, compiled=True),
        layer_row(1e3, 768, 8, layer=companion, memory_bytes=9000),
    ]
    assert verdicts(both)("a layer of H-LRU m=16") == ["7 x", ">= 8 missed"]
    name = "H-LRU m=16 of 768 channels, "
    assert of(f"{name}forward and backward") == ["0.6 ms", "<= 1 met", "<= 0.5 missed"]
    assert of(f"{name}peak memory") == ["15 x", ">= 8 met"]
    assert of(f"a layer of {name}peak memory")[0] == "not measured"
    assert of(f"{name}saved") == ["30.7 kB", "<= 32 met", "<= 32 met"]


@pytest.mark.parametrize(("ours", "paper"), [(0, 1500), (100, 0), (None, 1500), (0, 0)])
def test_memory_of_nothing_is_not_measured(verdicts, ours, paper):
    of = verdicts(
        [
            operator_row(16, 1.5, "h_lru", 768, batch_size=2, memory_bytes=ours),
            operator_row(16, 99.0, "h_lru", 768, "paper", batch_size=2, memory_bytes=paper),
        ]
    )
    assert of("H-LRU m=16 of 768 channels, peak memory")[0] == "not measured"


def test_a_layer_does_not_decide_what_is_asked_of_a_model(verdicts):
    case = {"recurrence": "bd_lru", "batch_size": 2048, "hidden_size": 768, "block_size": 4}
    rows = [
        gpu_row("decode", case, provider=name, ratios={"projections": {"p50": ratio}})
        for name, ratio in (
            ("statemix", 1.5),
            ("mamba2", 9.0),
            ("delta_net num_heads=6", 99.0),
            ("delta_net num_heads=6 use_forget_gate=true", 6.0),
        )
    ]
    of = verdicts(rows)
    assert of("decoding 2048 sequences, Mamba-2") == ["6 x", ">= 3 not decided", ">= 5 not decided"]
    assert of("decoding 2048 sequences, Gated")[0] == "4 x"
    of = verdicts([row | {"dtype": "float32"} for row in rows])
    assert of("decoding 2048 sequences, Mamba-2")[0] == "not measured"


def test_long_sequences_and_first_steps(verdicts):
    long = {"length": 2**20, "hidden_size": 768, "block_size": 4}
    steps = [
        gpu_row("cold_start", {"block_size": size, "direction": direction}, kernels=kernels)
        | {"first_call_s": seconds}
        for size, direction, seconds, kernels in (
            (4, "forward", 0.5, ["local_forward"]),
            (4, "forward_backward", 0.75, ["local_backward"]),
            (16, "forward", 1.5, ["chunk_forward", "carries"]),
            (16, "forward_backward", 1.0, []),
            # Without its backward pass it is no step.
            (8, "forward", 9.0, ["local_forward"]),
        )
    ]
    times = {"provider": "kept", "time_s": {"p50": 0.06}, "memory_bytes": 23_000_000_000}
    of = verdicts([gpu_row("long_context", long, **times), *steps])
    name = "a million tokens, batch 1, m=4, one layer, gates"
    assert of(f"{name} kept, time") == ["60 ms", "<= 80 met", "<= 50 missed"]
    assert of(f"{name} kept, peak") == ["23 GB", "<= 20 missed", "<= 20 missed"]
    assert of(f"{name} computed again, peak")[0] == "not measured"
    assert of("first step, cold") == ["2.5 s", "<= 2 missed", "<= 2 missed"]
    assert of("kernels compiled") == ["4 kernels"]
    warm = [row | {"kernels": []} for row in steps]
    assert of("first step, cold")[1] != verdicts(warm)("first step, cold")[1] == "<= 2 not decided"


def peer_row(label, speed, **values):
    layer = {"name": label.split()[0].lower()}
    return layer_row(speed, layer=layer, **{"label": label, "foreign_kernels": True} | values)


def test_peers_are_compared_at_equal_parameters_and_in_one_process(verdicts):
    ours = layer_row(3e6, layer=block_layer(4))
    rows = [
        ours,
        peer_row("Gated DeltaProduct n=4 [-1, 1]", 1e6),
        peer_row("Gated DeltaNet [-1, 1]", 4e6),
        peer_row("DeltaNet [-1, 1]", 9e6),
        peer_row("Mamba-2 S=128", 3.75e6),
    ]
    of = verdicts(rows)
    name = "layer of 33M parameters, m=4: "
    assert of(f"{name}Gated DeltaProduct") == ["3 x", ">= 1 met"]
    assert of(f"{name}Gated DeltaNet") == ["0.75 x", ">= 1 missed"]
    assert of(f"{name}Mamba-2") == ["0.8 x", ">= 0.769 met"]
    for other in (
        {"foreign_kernels": False},
        {"started_utc": "another process"},
        {"num_parameters": 30_000_000},
        {"dtype": "float32"},
        {"status": "skipped"},
    ):
        of = verdicts([ours, peer_row("Mamba-2 S=128", 3.75e6, **other)])
        assert of(f"{name}Mamba-2") == ["not measured", ">= 0.769"]


def test_operators_of_peers_are_compared_with_ours(verdicts):
    ratios = {"gated_delta_product": 3.0, "gated_delta_net": 0.9, "mamba2": 0.5, "delta_net": 9.0}
    of = verdicts(
        [
            operator_row(4, 1.0, provider=peer, ratios={"statemix": {"p50": ratio}})
            for peer, ratio in ratios.items()
        ]
    )
    name = "BD-LRU m=4, forward and backward, "
    assert of(f"{name}Gated DeltaProduct") == ["3 x", ">= 1 met"]
    assert of(f"{name}Gated DeltaNet") == ["0.9 x", ">= 1 missed"]
    assert of(f"{name}Mamba-2") == ["0.5 x", ">= 0.769 missed"]


def gradient_rows(**values):
    names = ("bd_lru", "softmax"), ("h_lru", "softmax"), ("bd_lru", "householder")
    return [
        gpu_row("gradients", {"recurrence": recurrence, "gate": gate, "block_size": size})
        | {"dtype": dtype, "errors": {"d_gates": error, "states": 0.0}, "repeats": True}
        | values
        for recurrence, gate in names
        for size in range(1, 17)
        for dtype, error in (("float32", 2e-6), ("bfloat16", 1e-2))
    ]


def test_gradients_are_judged_by_the_worst_of_every_kernel(verdicts):
    rows = gradient_rows()
    of = verdicts(rows)
    assert of("float32") == ["2e-06", "<= 1e-05 met", "<= 1e-06 missed"]
    assert of("bfloat16") == ["0.01", "<= 0.02 met"]
    assert of("results with entries") == of("results that differ") == ["0 cases", "<= 0 met"]
    # One that is missing, is no number, or wanders.
    of = verdicts(rows[1:])
    assert of("float32") == ["2e-06", "<= 1e-05 not decided", "<= 1e-06 not decided"]
    assert of("bfloat16")[1] == "<= 0.02 met"
    assert of("results that differ") == ["0 cases", "<= 0 not decided"]
    of = verdicts([rows[0] | {"status": "wrong", "errors": {}}, *rows[1:]])
    assert of("float32") == ["inf", "<= 1e-05 missed", "<= 1e-06 missed"]
    assert of("results with entries") == ["1 cases", "<= 0 missed"]
    of = verdicts([*rows[:-1], rows[-1] | {"repeats": False}])
    assert of("results that differ") == ["1 cases", "<= 0 missed"]
    # What was repeated counts alone.
    assert verdicts([rows[0] | {"errors": {"states": 1.0}}, *rows])("float32")[0] == "2e-06"


@pytest.mark.parametrize("workers", [False, True])
def test_tests_are_counted_as_they_are_printed(verdicts, workers):
    def line(name, outcome):
        test = f"tests/ops/triton/test_kernels.py::{name}[[5, 0]-0]"
        return f"[gw1] [  5%] {outcome} {test} \n" if workers else f"{test} {outcome}  [  5%]\n"

    name = "test_random_shapes_equal_the_reference"
    passed = "".join(line(name, "PASSED") for _ in range(10)) + line("test_a", "SKIPPED")
    end = "===== 10 passed, 1 skipped in 9.12s =====\n"
    of = verdicts([], [passed + end, end])
    assert of("random shapes") == ["200 shapes", ">= 200 met"]
    assert of("tests of the kernels") == ["0 tests", "<= 0 met"]
    # Either was stopped.
    for texts in ([passed, end], [passed + end, ""]):
        of = verdicts([], texts)
        assert of("random shapes") == ["200 shapes", ">= 200 met"]
        assert of("tests of the kernels") == ["0 tests", "<= 0 not decided"]
    text = passed + line(name, "FAILED") + "== short test summary info ==\nFAILED a::b\n"
    of = verdicts([], [end, text + "===== 1 failed, 10 passed in 9.12s =====\n"])
    assert of("tests of the kernels") == ["1 tests", "<= 0 missed"]
    # Proofs that were not reached decide nothing, but one that failed does.
    graph, proof = "test_a_graph_replays_a_step", "steps that a CUDA graph replays"
    three, two = (line(graph, "PASSED") * count for count in (3, 2))
    assert verdicts([], [three])(proof) == ["3 tests", ">= 3 met"]
    assert verdicts([], [two])(proof) == ["2 tests", ">= 3 not decided"]
    assert verdicts([], [two + line(graph, "FAILED")])(proof) == ["2 tests", ">= 3 missed"]
    assert verdicts([], [line(graph, "FAILED")])(proof) == ["0 tests", ">= 3 missed"]
    assert verdicts([], [line(graph, "SKIPPED")])(proof) == ["not measured", ">= 3"]


def test_errors_are_shown_at_every_size_beside_their_bounds(monkeypatch):
    names = runpy.run_path(SCRIPTS / "gpu_targets.py")
    rows = gradient_rows()
    rows[0]["errors"]["d_values"] = 3e-5
    _, titles, *sizes = names["errors_by_size"](rows).splitlines()
    assert titles.split() == ["m", "float32", "(<=", "1e-05)", "bfloat16", "(<=", "0.02)"]
    assert sizes[0].split() == ["1", "3.0e-05", "missed", "1.0e-02"]
    assert [line.split() for line in sizes[1:]] == [
        [str(size), "2.0e-06", "1.0e-02"] for size in range(2, 17)
    ]
    assert names["errors_by_size"]([]) == ""


def test_what_has_no_time_is_listed_with_its_reason():
    names = runpy.run_path(SCRIPTS / "gpu_targets.py")
    wrong = operator_row(4, 1.0, status="failed", reason="RuntimeError: an illegal\nmemory access")
    skipped = layer_row(1.0, layer=block_layer(4), status="skipped", reason="out", provider="a")
    _, *lines = names["untimed"]([operator_row(4, 1.0), wrong, skipped, wrong]).splitlines()
    assert lines == [
        "  ops bd_lru forward_backward 8x2048x192x4 statemix failed: RuntimeError: an illegal "
        "memory access",
        "  layers 1024x8x2048 a skipped: out",
    ]
    assert names["untimed"]([operator_row(4, 1.0)]) == ""


def test_the_card_is_named_that_the_targets_are_for():
    card = runpy.run_path(SCRIPTS / "gpu_targets.py")["card"]
    row = operator_row(4, 1.0)
    assert card([row, row]) == "Targets of an H200; measured: NVIDIA H200"
    other = card([row | {"device": "NVIDIA H100 80GB HBM3"}])
    assert other.startswith("Targets of an H200; measured: NVIDIA H100 80GB HBM3\n")
    assert "do not decide those of an H200" in other
    for device in ("NVIDIA GH200 480GB", "NVIDIA A100"):
        assert "do not decide" in card([row, row | {"device": device}])
    assert card([]) == "Targets of an H200; measured: none"


def test_a_process_that_dies_loses_no_gradients(tmp_path):
    """All processes of a pool end with it, and what they had is tried again."""
    died = tmp_path / "died"
    (tmp_path / "sitecustomize.py").write_text(f"""
import os, sys
if "spawn_main" in " ".join(sys.orig_argv) and not os.path.exists({str(died)!r}):
    open({str(died)!r}, "w").close()
    os._exit(1)
""")
    options = ["--device", "cpu", "--backend", "loop", "--sizes", "1", "--workers", "2"]
    path = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, SCRIPTS / "gradients.py", path, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert died.exists()
    assert done.returncode == 0, done.stderr
    assert "failed: " in done.stdout
    kernels = {
        tuple(json.loads(line)["case"].values())[:2] for line in path.read_text().split("\n")[:-1]
    }
    assert len(kernels) == 3


def test_gradients_that_cannot_be_checked_are_named(tmp_path):
    options = ["--device", "cpu", "--backend", "triton", "--sizes", "1", "--workers", "1"]
    command = [sys.executable, SCRIPTS / "gradients.py", tmp_path / "rows.jsonl", *options]
    environment = {name: value for name, value in os.environ.items() if "TRITON" not in name}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    # Each of them a second time, by itself.
    assert done.stdout.count("bd_lru softmax 1 failed: ") == 2


def test_a_first_call_that_fails_ends_no_other(rows_of, monkeypatch, capsys):
    def fail(*given, **options):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(operators, "bd_lru", fail)
    lags = operators.h_lru
    monkeypatch.setattr(operators, "h_lru", lambda *given, backend: lags(*given, backend="loop"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    rows = rows_of("cold_start.py", "--device", "cpu", "--dtype", "float32", "--shapes", "2x3x4x5")
    assert [row["case"]["recurrence"] for row in rows] == ["h_lru", "h_lru"]
    assert rows_of.status == 1
    assert capsys.readouterr().out.count("bd_lru forward failed") == 1


def test_a_long_sequence_that_fails_is_a_row(rows_of, monkeypatch):
    def fail(self, x, *rest):
        raise AssertionError("shapes disagree")

    monkeypatch.setattr(BDLRU, "forward", fail)
    options = ["--device", "cpu", "--backend", "loop", "--length", "300", "--hidden-size", "8"]
    rows = rows_of("long_context.py", *options)
    assert [row["status"] for row in rows] == ["failed", "failed"]
    assert rows_of.status == 1


def test_models_that_track_are_timed_in_training_and_once_trained(rows_of, monkeypatch, tmp_path):
    def config(layer):
        return RunConfig(
            task=TaskSpec("permutation", group="S_3", length=6, min_length=2),
            model=ModelConfig(layers=(layer,), hidden_size=8, bos=True),
            batches=BatchConfig(size=4),
            schedules=ScheduleConfig(num_steps=2),
            evaluation=EvaluationConfig(test_size=8, validation_size=8),
        )

    plain, iterating = config(LayerSpec("lstm")), config(LayerSpec("fp_rnn", max_iterations=2))
    conditions = (
        Measured("fp-a5", "S_3, two generators", "LSTM", (plain,)),
        Measured("fp-a5", "S_3, two generators", "FP-RNN", (iterating,)),
        Measured("fp-a5", "A_5, two generators", "LSTM", (plain,)),
    )
    suite = FixedPointSuite("fp-a5", "tiny", lambda size: conditions)
    monkeypatch.setitem(suites.SUITES, "fp-a5", suite)
    train(plain, tmp_path / "runs" / key(plain))
    rows = rows_of(
        "tracking_costs.py", "--runs", str(tmp_path / "runs"), "--group", "S_3", "--rounds", "3"
    )
    # Only one of the two has been trained.
    assert [(row["work"], row["model"], row["length"]) for row in rows] == [
        ("train", "LSTM", 6),
        ("train", "FP-RNN", 6),
        ("answer", "LSTM", 6),
        ("answer long", "LSTM", 48),
    ]
    for row in rows:
        assert row["tokens_per_s"] == pytest.approx(4 * row["length"] / row["time_s"]["p50"])
        assert ("LSTM" in row["ratios"]) == (row["model"] == "FP-RNN")
        assert row["threads"] == 1
