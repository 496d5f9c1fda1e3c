"""``statemix bench`` measures, prints a table of at most 100 columns, and stores rows."""

import json

import pytest
import torch

from statemix import ops
from statemix.errors import RequestError, RunsFailedError
from statemix.layers import LAYERS
from statemix_lab.bench import peer_timing, step_timing
from statemix_lab.bench.harness import COPY, Measurement, Spread
from statemix_lab.bench.operator_timing import LOOP, OURS, PAPER, OperatorCase
from statemix_lab.cli.bench import bench_decode, parse
from statemix_lab.cli.bench.bench_options import number_text
from statemix_lab.studies.throughput import read

pytestmark = pytest.mark.usefixtures("process_kept")

TINY_LAYERS = ["--hidden-size", "8", "--batch-size", "2", "--length", "5"]


@pytest.fixture
def bench(capsys, tmp_path):
    """``bench(*words)`` runs a benchmark of three rounds and returns its text and rows."""
    path = tmp_path / "rows.jsonl"

    def run(*words):
        words = [*words, "--output", str(path)]
        parse(words if "--rounds" in words else [*words, "--rounds", "3"]).run()
        text = capsys.readouterr().out
        *lines, last = text.splitlines()
        assert last == f"rows appended to {path}"
        assert max(len(line) for line in lines if " skipped: " not in line) <= 100
        return text, [json.loads(line) for line in path.read_text().splitlines()]

    return run


def test_every_case_has_a_row_per_provider_in_a_table(bench):
    sizes = ["--shapes", "2x6x4", "3x2x4x5", "--block-sizes", "1", "2", "--orders", "3"]
    text, kept = bench("ops", *sizes, "--rounds", "4")
    # BD-LRU at m = 1, 2 and the shape's own 5, H-LRU at 3 and 5; both directions of each.
    assert len(kept) == 4 * 10
    assert {row["provider"] for row in kept} == {COPY, OURS, LOOP, PAPER}
    for row in kept:
        if row["status"] == "skipped":  # The kernels need a compiler.
            assert row["provider"] == OURS
            continue
        assert (row["status"], row["rounds"]) == ("measured", 4)
        assert row["time_s"]["p20"] <= row["time_s"]["p50"] <= row["time_s"]["p80"]
        assert (COPY in row["ratios"]) == (row["provider"] != COPY)
        assert row["memory_bytes"] > 0 or row["provider"] == COPY
        assert (row["dtype"], row["device"]) == ("float32", "cpu")
        assert {"commit", "command", "packages", "cpu", "backends", "threads"} <= row.keys()
    for title in (
        "BD-LRU, forward, B=2 T=6 H=4",
        "BD-LRU, forward + backward, B=2 T=6 H=4",
        "H-LRU, forward + backward, B=3 T=2 H=4",
    ):
        assert sum(line.strip() == title for line in text.splitlines()) == 1
    assert "[10/10]" in text
    assert "device cpu, float32" in text


def test_peers_are_measured_beside_the_chosen_providers_and_described(bench):
    names = ["lstm", "gated_delta_product"]
    options = ["--recurrences", "bd_lru", "--providers", COPY, OURS, "--peers", *names]
    text, kept = bench("ops", "--shapes", "2x6x8x4", *options)
    assert [row["provider"] for row in kept] == [COPY, OURS, *names] * 2
    for row in kept:
        assert ("peer" in row) == (row["provider"] in names)
        if "peer" in row:
            assert row["peer"] == peer_timing.sizes(row["provider"], OperatorCase(**row["case"]))
        if row["provider"] in names:
            assert (row["status"], row["rounds"]) == ("measured", 3)
            assert row["roofline"]["p50"] > 0
            assert COPY in row["ratios"]
    lines = text.splitlines()
    assert sum("gated_delta_product" in line for line in lines) == 2 + 1
    described = "  lstm: torch.nn.LSTM of width 16 with its weights; entries of state: 32, ours 32"
    assert described in lines


def test_case_too_large_for_memory_is_skipped_and_says_so(bench, monkeypatch):
    scan = ops.h_lru

    def short(*arguments, backend):
        if backend == "associative":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return scan(*arguments, backend=backend)

    monkeypatch.setattr(ops, "h_lru", short)
    text, kept = bench("ops", "--shapes", "1x2x2x2", "--recurrences", "h_lru")
    skipped = [row for row in kept if row["provider"] == PAPER]
    assert [(row["status"], row["time_s"]) for row in skipped] == [("skipped", None)] * 2
    assert "out of memory: DefaultCPUAllocator" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ops", "--shapes", "8x2048"], "shapes must be BxTxH or BxTxHxm"),
        (["ops", "--block-sizes", "0"], r"block_sizes must be at least 1, got \(0,\)"),
        (["ops", "--rounds", "0"], r"rounds must be in 1\.\.1000000, got 0"),
        (["ops", "--budget-s", "0"], "budget_s must be positive, got 0.0"),
        (["ops", "--threads", "100000"], r"threads must be in 1\.\.\d+ .*, got 100000"),
        (["ops", "--chunks", "64"], "chunks must be used with --device cuda, got cpu"),
        (["ops", "--output", "/dev/null/ops.jsonl"], "output must be a writable file, got"),
        # Requests beyond any machine are refused at once.
        (["ops", "--shapes", "1000x1000000x100000"], "shapes must fit into memory"),
        (["ops", "--shapes", "1x1048576x1x1"], r"shapes must have lengths below 2\^20, got 1048"),
        (["decode", "--graphs"], "graphs must be used with --device cuda, got cpu"),
        (["decode", "--limit-s", "-1"], "limit_s must be positive, got -1.0"),
        (["layers", "--hidden-size", "0"], "hidden_size must be at least 1, got 0"),
        (["layers", "--batch-size", "1000000000"], "batch_size x length x hidden_size must fit"),
        (["layers", "--layers", "bd_lru", "num_blocks=0", "block_size=1"], "num_blocks must be"),
        (["layers", "--projections", "--layers", "lstm"], "projections must be used with a layer"),
        (["layers", "--compiled"], "compiled must be used with 1 to 8 layers .*, got 0"),
        (["layers", "--imports", "no_such_module"], "imports must name importable modules"),
        # The parser refuses these.
        ([], "statemix bench must be followed by one of .* got ''"),
        (["ops", "--dtype", "int8"], "dtype must be 'float32', .* got 'int8'"),
        (["layers", "--layers", "gru"], "layer must be one of"),
        (["layers", "--layers", "order=3"], "a name must come before its options, got 'order=3'"),
    ],
)
def test_bad_option_is_named_before_anything_is_measured(arguments, message, capsys):
    with pytest.raises(RequestError, match=message):
        parse(arguments).run()
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("benchmark", ["ops", "layers", "decode"])
def test_a_gpu_that_is_missing_is_said_before_anything_is_measured(benchmark):
    with pytest.raises(RequestError, match=r"device must be available .* got cuda"):
        parse([benchmark, "--device", "cuda"]).run()


def test_steps_are_timed_against_their_projections(bench, monkeypatch):
    monkeypatch.setattr(step_timing, "STEPS_PER_CALL", 20)
    options = ["--hidden-sizes", "8", "--batch-sizes", "1", "3", "--threads", "1"]
    text, kept = bench("decode", *options, "--peers", "lstm", "delta_net", "num_heads=2")
    names = ("projections", "statemix", "lstm", "delta_net num_heads=2", COPY)
    assert [
        (row["case"]["recurrence"], row["case"]["batch_size"], row["provider"]) for row in kept
    ] == [
        (recurrence, batch_size, provider)
        for recurrence in ("bd_lru", "h_lru")
        for batch_size in (1, 3)
        for provider in names
    ]
    for row in kept:
        assert (row["status"], row["rounds"], row["threads"]) == ("measured", 3, 1)
        assert (row["provider"] != "projections") == ("projections" in row["ratios"])
        assert (row["provider"] != COPY) == (COPY in row["ratios"])
        assert (row["provider"] in ("projections", COPY)) == (row["roofline"] is None)
        assert (row["device"], row["graphs"]) == ("cpu", False)
    moved = {row["provider"]: row["moved_bytes"] for row in kept}
    assert moved["statemix"] == moved[COPY]
    assert len({moved[name] for name in names[1:4]}) == 3
    assert "H-LRU m=4, width 8, B=3" in text


def test_times_of_decoding_are_per_step():
    case = step_timing.StepCase("bd_lru", 2048, 4, 2)
    measured = Measurement("statemix", "", "measured", rounds=3, time_s=Spread(1.0, 2.0, 3.0))
    table = bench_decode._table([(case, [measured])], lambda *_: {"roofline": {"p50": 0.125}})
    _, _, time, _, _, roofline, rounds = (next(iter(column.cells)) for column in table.columns)
    assert time == number_text(1e6 * 2.0 / case.steps_per_call)
    assert (roofline, rounds) == ("0.12", "3")


def test_every_layer_has_its_price_and_its_speed(bench):
    text, kept = bench("layers", *TINY_LAYERS, "--threads", "1")
    assert sorted(row["layer"]["name"] for row in kept) == sorted(LAYERS)
    for row in kept:
        assert (row["status"], row["rounds"], row["threads"]) == ("measured", 3, 1)
        assert row["case"] == {"hidden_size": 8, "batch_size": 2, "length": 5}
        assert row["tokens_per_s"] == 10 / row["time_s"]["p50"]
        assert ("lstm" in row["ratios"]) == (row["provider"] != "lstm")
        assert row["roofline"]["p50"] > 0
        assert {"commit", "command", "packages", "cpu", "flops", "decode_bytes"} <= row.keys()
        assert row["label"] in text
    lines = [line.split() for line in text.splitlines()]
    (attention,) = [line[1:] for line in lines if line[:1] == ["Attention"]]
    assert attention[:4] == ["256", "85", "687", "175"]
    assert "  BD-LRU m=4: bd_lru num_blocks=8 block_size=4" in text


def test_a_layer_of_ones_own_is_imported_and_compared_with_an_lstm(bench, toys):
    words = ["--layers", "solver", "iterations=2", "h_lru", "num_channels=3", "order=2"]
    options = ["--imports", "statemix_toys", "--dtype", "float64"]
    text, kept = bench("layers", *words, *options, *TINY_LAYERS)
    assert [row["provider"] for row in kept] == [
        "lstm",
        "solver iterations=2",
        "h_lru num_channels=3 order=2",
    ]
    own = kept[1]
    assert (own["layer"]["iterations"], own["flops"], own["dtype"]) == (2, None, "float64")
    assert "H-LRU m=2: h_lru num_channels=3 order=2" in text


def test_layers_are_measured_at_every_batch_size_and_length(bench):
    words = ["--layers", "conv", "kernel_size=2", "--batch-size", "1", "3", "--length", "4", "6"]
    text, kept = bench("layers", *words, "--hidden-size", "8")
    assert [(row["provider"], *row["case"].values()) for row in kept] == [
        (name, 8, batch_size, length)
        for batch_size in (1, 3)
        for length in (4, 6)
        for name in ("lstm", "conv kernel_size=2")
    ]
    # A convolution keeps its input, with one token of padding.
    saved = {row["case"]["length"]: row["saved_bytes_per_token"] for row in kept[1::2]}
    assert saved == {length: 4 * 8 * (length + 1) / length for length in (4, 6)}
    assert "[4/4] Training with one layer, width 8, B=3 T=6" in text
    assert text.count("  Convolution K=2: conv kernel_size=2\n") == 1


def test_a_layer_stands_beside_its_projections_and_its_compiled_form_if_asked(
    bench, monkeypatch, tmp_path
):
    monkeypatch.setattr("statemix_lab.bench.layer_timing.autotuned", lambda layer: layer)
    name = "bd_lru num_blocks=2 block_size=3 backend=associative"
    options = ["--projections", "--compiled", *TINY_LAYERS]
    text, rows = bench("layers", "--layers", *name.split(), *options)
    assert [(row["provider"], row["projections"], row["compiled"]) for row in rows] == [
        ("lstm", False, False),
        (name, False, False),
        (f"{name} projections", True, False),
        (f"{name} compiled", False, True),
    ]
    assert rows[1]["ratios"][f"{name} projections"]["p50"] > 0
    assert rows[2]["saved_bytes_per_token"] is rows[2]["roofline"] is None
    # It is no layer that --layers reads.
    assert "associative compiled" not in text
    # Figures show layers only.
    points = read([tmp_path / "rows.jsonl"])
    assert [point.provider for point in points] == ["lstm", name, f"{name} compiled"]


def test_what_fails_is_a_row_and_the_command_says_so(capsys, tmp_path):
    path, command = tmp_path / "rows.jsonl", ["ops", "--shapes", "1x2x2x2"]
    with pytest.raises(RunsFailedError, match="of the measurements failed, the first"):
        parse([*command, "--output", str(path), "--limit-s", "1e-9"]).run()
    assert {json.loads(line)["status"] for line in path.read_text().splitlines()} == {"failed"}
    assert f"rows appended to {path}" in capsys.readouterr().out
