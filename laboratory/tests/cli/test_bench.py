"""``statemix bench`` measures, prints a table of at most 100 columns, and stores rows."""

import json

import pytest
import torch

from statemix import ops
from statemix.errors import RequestError, RunsFailedError
from statemix.layers import LAYERS
from statemix_lab.bench import step_timing, timed_devices
from statemix_lab.bench.harness import COPY, Measurement, Spread
from statemix_lab.bench.operator_timing import LOOP, OURS, PAPER
from statemix_lab.cli.bench import bench_decode, bench_options, parse
from statemix_lab.cli.bench.bench_layers import _short
from statemix_lab.cli.bench.bench_options import open_console, print_setting
from statemix_lab.studies.throughput_rows import read

TINY = ["--shapes", "2x6x4", "3x2x4x5", "--block-sizes", "1", "2", "--orders", "3", "--rounds", "4"]


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_is(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(timed_devices, "reuse_freed_memory", lambda: True)
    monkeypatch.setattr(timed_devices, "map_large_blocks", lambda: True)
    yield
    torch.set_num_threads(threads)


def bench(capsys, *arguments):
    parse(["ops", *arguments]).run()
    return capsys.readouterr().out


def table_width(text):
    """Width of what is printed before the last line, which holds the path of the rows."""
    *lines, last = text.splitlines()
    assert last.startswith("rows appended to ")
    return max(map(len, lines))


def test_every_case_has_a_row_per_provider_in_a_table_of_100_columns(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    text = bench(capsys, *TINY, "--output", str(path))
    assert table_width(text) <= 100
    # BD-LRU at m = 1, 2 and the shape's own 5, H-LRU at 3 and 5; both directions of each.
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(kept) == 4 * 10
    assert {row["provider"] for row in kept} == {COPY, OURS, LOOP, PAPER}
    for row in kept:
        if row["status"] == "skipped":  # The kernels need a compiler.
            assert row["provider"] == OURS
            continue
        assert row["status"] == "measured"
        assert row["rounds"] == 4
        assert row["time_s"]["p20"] <= row["time_s"]["p50"] <= row["time_s"]["p80"]
        assert (COPY in row["ratios"]) == (row["provider"] != COPY)
        assert row["memory_bytes"] > 0 or row["provider"] == COPY
        assert row["dtype"] == "float32"
        assert {"commit", "command", "packages", "cpu", "backends", "threads"} <= row.keys()
    for title in (
        "BD-LRU, forward, B=2 T=6 H=4",
        "BD-LRU, forward + backward, B=2 T=6 H=4",
        "H-LRU, forward + backward, B=3 T=2 H=4",
    ):
        assert sum(line.strip() == title for line in text.splitlines()) == 1
    assert "[10/10]" in text


def test_only_the_providers_asked_for_are_measured(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    options = ["--shapes", "1x2x2", "--block-sizes", "1", "--orders", "2", "--rounds", "3"]
    text = bench(capsys, *options, "--providers", COPY, LOOP, "--output", str(path))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["provider"] for row in kept] == [COPY, LOOP] * 4
    assert {row["device"] for row in kept} == {"cpu"}
    assert "device cpu, float32" in text


def test_peers_are_measured_beside_the_operator_and_described(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    options = ["--shapes", "2x6x8x4", "--recurrences", "bd_lru", "--rounds", "3"]
    names = ["lstm", "gated_delta_product"]
    text = bench(
        capsys, *options, "--providers", COPY, OURS, "--peers", *names, "--output", str(path)
    )
    assert table_width(text) <= 100
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["provider"] for row in kept] == [COPY, OURS, *names] * 2
    for row in kept:
        assert ("peer" in row) == (row["provider"] in names)
        if row["provider"] in names:
            assert (row["status"], row["rounds"]) == ("measured", 3)
            assert row["roofline"]["p50"] > 0
            assert COPY in row["ratios"]
            assert row["memory_bytes"] > 0
    lines = text.splitlines()
    assert sum("gated_delta_product" in line for line in lines) == 2 + 1
    assert (
        "  lstm: torch.nn.LSTM of width 16 with its weights; entries of state: 32, ours 32" in lines
    )


@pytest.mark.parametrize(
    ("device", "version", "said"),
    [
        ("cpu", None, "torch 2.13, backends: loop (PyTorch)"),
        (
            "NVIDIA H200",
            None,
            "TF32 is off, flash-linear-attention not installed, backends",
        ),
        ("NVIDIA H200", "0.6.1", "TF32 is off, flash-linear-attention 0.6.1, backends"),
    ],
)
def test_on_a_gpu_it_is_said_whether_the_kernels_of_peers_are_there(capsys, device, version, said):
    process = {
        "backends": {"loop": "PyTorch"},
        "omp_proc_bind": None,
        "cpu": "AMD EPYC",
        "cpu_count": 2,
        "threads": 1,
        "device": device,
        "graphs": False,
        "packages": {"torch": "2.13", "flash-linear-attention": version},
    }
    print_setting(open_console(None), process, "bfloat16", "remark")
    assert said in " ".join(capsys.readouterr().out.split())


def test_rows_of_two_runs_are_both_kept(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    options = ["--shapes", "1x2x2", "--recurrences", "bd_lru", "--block-sizes", "1"]
    for threads in ("1", "2"):
        bench(capsys, *options, "--threads", threads, "--rounds", "3", "--output", str(path))
    kept = [json.loads(line)["threads"] for line in path.read_text().splitlines()]
    assert kept == [1] * 8 + [2] * 8


def test_case_too_large_for_memory_is_skipped_and_says_so(capsys, monkeypatch, tmp_path):
    scan = ops.h_lru

    def short(*arguments, backend):
        if backend == "associative":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return scan(*arguments, backend=backend)

    monkeypatch.setattr(ops, "h_lru", short)
    path = tmp_path / "ops.jsonl"
    options = ["--shapes", "1x2x2", "--recurrences", "h_lru", "--orders", "2", "--rounds", "3"]
    text = bench(capsys, *options, "--output", str(path))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    skipped = [row for row in kept if row["provider"] == PAPER]
    assert len(skipped) == 2
    assert all(row["status"] == "skipped" and row["time_s"] is None for row in skipped)
    assert "out of memory: DefaultCPUAllocator" in " ".join(text.split())


def test_quick_run_shortens_what_is_long(capsys, tmp_path):
    path = tmp_path / "ops.jsonl"
    options = [
        "--shapes",
        "1x256x2",
        "1x5x2",
        "--recurrences",
        "bd_lru",
        "--block-sizes",
        "1",
        "--quick",
    ]
    bench(capsys, *options, "--output", str(path))
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["case"]["length"] for row in kept} == {32, 5}
    assert max(row["rounds"] for row in kept) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "8x2048"], "shapes must be BxTxH or BxTxHxm with positive sizes, got"),
        (["--block-sizes", "0"], r"block_sizes must be at least 1, got \(0,\)"),
        (["--orders", "-1"], r"orders must be at least 1, got \(-1,\)"),
        (["--rounds", "0"], r"rounds must be in 1\.\.1000000, got 0"),
        (["--rounds", str(10**12)], r"rounds must be in 1\.\.1000000, got"),
        (["--budget-s", "0"], "budget_s must be positive and finite, got 0.0"),
        (["--budget-s", "nan"], "budget_s must be a valid number, got 'nan'"),
        (["--budget-s", "inf"], "budget_s must be a valid number, got 'inf'"),
        (["--threads", "0"], r"threads must be in 1\.\.\d+ .*, got 0"),
        (["--threads", "100000"], r"threads must be in 1\.\.\d+ .*, got 100000"),
        # Requests beyond any machine are refused at once.
        (["--shapes", "1000000x1000000x1000"], "shapes must fit into memory"),
        (["--shapes", "1x1048576x1x1"], r"shapes must have lengths below 2\^20, got 1048576"),
        (["--block-sizes", "100000000"], "shapes must fit into memory"),
        (["--output", "/dev/null/ops.jsonl"], "output must be a writable file, got"),
    ],
)
def test_bad_option_is_named_before_anything_is_measured(arguments, message):
    with pytest.raises(RequestError, match=message):
        parse(["ops", *arguments]).run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "statemix bench must be followed by one of .* got ''"),
        (["nothing"], "statemix bench must be followed by one of .* got 'nothing'"),
        (["ops", "--dtype", "int8"], "dtype must be 'float32', .* got 'int8'"),
        (["ops", "--recurrences", "lstm"], "must be 'bd_lru' or 'h_lru', got 'lstm'"),
    ],
)
def test_unknown_choice_is_refused_by_the_parser(arguments, message):
    with pytest.raises(RequestError, match=message):
        parse(arguments)


def test_help_shows_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(["ops", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in (
        "recurrences",
        "shapes",
        "block-sizes",
        "orders",
        "dtype",
        "chunks",
        "compiled",
        "rounds",
    ):
        assert f"--{option}" in text
    for option in ("budget-s", "threads", "quick", "output"):
        assert f"--{option}" in text


def test_steps_are_timed_against_their_projections(capsys, tmp_path, monkeypatch):
    path = tmp_path / "decode.jsonl"
    options = ["--hidden-sizes", "8", "--batch-sizes", "1", "3", "--rounds", "3", "--threads", "1"]
    peers = ["--peers", "lstm", "delta_net", "num_heads=2"]
    options += ["--backends", "loop"]
    parse(["decode", *options, *peers, "--output", str(path)]).run()
    text = capsys.readouterr().out
    assert table_width(text) <= 100
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [
        (row["case"]["recurrence"], row["case"]["batch_size"], row["provider"]) for row in kept
    ] == [
        (recurrence, batch_size, provider)
        for recurrence in ("bd_lru", "h_lru")
        for batch_size in (1, 3)
        for provider in (
            *("projections", "statemix", "statemix backend=loop"),
            *("lstm", "delta_net num_heads=2", COPY),
        )
    ]
    for row in kept:
        assert (row["status"], row["rounds"], row["threads"]) == ("measured", 3, 1)
        assert (row["provider"] != "projections") == ("projections" in row["ratios"])
        assert (row["provider"] != COPY) == (COPY in row["ratios"])
        assert (row["provider"] in ("projections", COPY)) == (row["roofline"] is None)
        assert (row["device"], row["graphs"]) == ("cpu", False)
    moved = {row["provider"]: row["moved_bytes"] for row in kept}
    assert moved["statemix"] == moved["statemix backend=loop"] == moved[COPY]
    assert len({moved[name] for name in ("statemix", "lstm", "delta_net num_heads=2")}) == 3
    assert "H-LRU m=4, width 8, B=3" in text
    with pytest.raises(RequestError, match=r"rounds must be in 1\.\.1000000, got 0"):
        parse(["decode", "--rounds", "0"]).run()
    with pytest.raises(RequestError, match="graphs must be used with --device cuda, got cpu"):
        parse(["decode", "--graphs"]).run()
    with pytest.raises(RequestError, match=r"backend must be one of .* got 'gpu'"):
        parse(["decode", "--backends", "gpu"]).run()


def test_decoding_in_16_bits_says_so_everywhere(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(step_timing, "STEPS_PER_CALL", 5)
    tolerances, dtypes = [], []
    measure, build = bench_options.measure, step_timing._layer
    monkeypatch.setattr(
        bench_options,
        "measure",
        lambda *given, **options: (
            tolerances.append(options["tolerance"]) or measure(*given, **options)
        ),
    )
    monkeypatch.setattr(
        step_timing,
        "_layer",
        lambda case, dtype, *rest: dtypes.append(dtype) or build(case, dtype, *rest),
    )
    path = tmp_path / "rows.jsonl"
    words = ["--hidden-sizes", "8", "--batch-sizes", "1", "--recurrences", "bd_lru", "--peers"]
    words += ["--dtype", "bfloat16", "--rounds", "3", "--output", str(path)]
    parse(["decode", *words]).run()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["dtype"] for row in kept} == {"bfloat16"}
    assert {*dtypes} == {torch.bfloat16}
    assert tolerances == [2e-2]
    assert "device cpu, bfloat16, torch" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("batch_size", [64, 2048])
def test_times_of_decoding_are_per_step(batch_size):
    case = step_timing.StepCase("bd_lru", batch_size, 4, 2)
    one = Measurement("statemix", "", "measured", rounds=3, time_s=Spread(1.0, 2.0, 3.0))
    table = bench_decode._table([(case, [one])], lambda case, one: {"roofline": {"p50": 0.125}})
    _, _, time, _, _, roofline, rounds = (next(iter(column.cells)) for column in table.columns)
    assert time == bench_options.number_text(1e6 * 2.0 / case.steps_per_call)
    assert (roofline, rounds) == ("0.12", "3")


@pytest.mark.parametrize("limit", ["0", "inf", "nan", "-1"])
def test_limits_that_are_none_are_refused(limit):
    with pytest.raises(RequestError, match=r"limit_s must be (positive and finite|a valid number)"):
        parse(["decode", "--hidden-sizes", "8", "--rounds", "3", "--limit-s", limit]).run()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("benchmark", ["ops", "layers", "decode"])
def test_a_gpu_that_is_missing_is_said_before_anything_is_measured(benchmark):
    with pytest.raises(RequestError, match=r"device must be available .* got cuda"):
        parse([benchmark, "--device", "cuda"]).run()


TINY_LAYERS = ["--hidden-size", "8", "--batch-size", "2", "--length", "5", "--rounds", "3"]


def test_every_layer_has_its_price_and_its_speed_in_a_table_of_100_columns(capsys, tmp_path):
    path = tmp_path / "layers.jsonl"
    parse(["layers", *TINY_LAYERS, "--threads", "1", "--output", str(path)]).run()
    text = capsys.readouterr().out
    assert table_width(text) <= 100
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    exact = list(LAYERS)
    assert sorted(row["layer"]["name"] for row in kept) == sorted(exact)
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


def test_layers_are_chosen_as_for_training_and_an_lstm_is_always_there(capsys, tmp_path):
    path = tmp_path / "layers.jsonl"
    words = [
        "h_lru",
        "num_channels=3",
        "order=2",
        "gate=tanh",
        "h_lru",
        "num_channels=4",
        "order=2",
    ]
    parse(["layers", "--layers", *words, *TINY_LAYERS, "--output", str(path)]).run()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["provider"] for row in kept] == [
        "lstm",
        "h_lru num_channels=3 order=2 gate=tanh",
        "h_lru num_channels=4 order=2",
    ]
    assert "H-LRU m=2: h_lru num_channels=4 order=2" in capsys.readouterr().out


def test_a_layer_of_ones_own_is_imported_and_compared(capsys, toys, tmp_path):
    options = ["--imports", "statemix_toys", "--layers", "solver", "iterations=2"]
    path = tmp_path / "layers.jsonl"
    parse(["layers", *options, *TINY_LAYERS, "--dtype", "float64", "--output", str(path)]).run()
    text = capsys.readouterr().out
    # It counts no FLOPs, and its state has one entry.
    (shown,) = [line.split() for line in text.splitlines() if line.startswith("  solver  ")]
    assert shown[1:5] == ["72", "1", "-", "-"]
    row = json.loads(path.read_text().splitlines()[1])
    assert (row["layer"]["iterations"], row["flops"], row["dtype"]) == (2, None, "float64")


def test_layers_are_measured_at_every_batch_size_and_length(capsys, tmp_path):
    path = tmp_path / "layers.jsonl"
    words = ["--layers", "conv", "kernel_size=2", "--batch-size", "1", "3", "--length", "4", "6"]
    options = ["--hidden-size", "8", "--rounds", "3", "--output", str(path)]
    parse(["layers", *words, *options]).run()
    text = capsys.readouterr().out
    kept = [json.loads(line) for line in path.read_text().splitlines()]
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


def test_a_layer_stands_beside_its_projections_if_asked(capsys, tmp_path):
    path = tmp_path / "layers.jsonl"
    words = ["h_lru", "num_channels=4", "order=2"]
    parse(
        ["layers", "--layers", *words, "--projections", "--output", str(path), *TINY_LAYERS]
    ).run()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    part = f"{' '.join(words)} projections"
    assert [(row["provider"], row["projections"]) for row in rows] == [
        ("lstm", False),
        (" ".join(words), False),
        (part, True),
    ]
    assert rows[1]["ratios"][part]["p50"] > 0
    assert rows[2]["saved_bytes_per_token"] is rows[2]["roofline"] is None
    text = capsys.readouterr().out
    above = next(line.split() for line in text.splitlines() if "H-LRU" in line)
    assert above[-1] != "-"
    (alone,) = [line.split() for line in text.splitlines() if "its projections" in line]
    assert alone[2:8] == ["-"] * 6
    # Figures show layers only.
    assert [point.provider for point in read([path])] == ["lstm", " ".join(words)]


def test_layers_of_the_papers_scan_are_also_compiled_if_asked(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("statemix_lab.bench.layer_timing.autotuned", lambda layer: layer)
    path = tmp_path / "layers.jsonl"
    words = ["bd_lru", "num_blocks=2", "block_size=3", "backend=associative"]
    options = ["--compiled", "--output", str(path), *TINY_LAYERS]
    parse(["layers", "--layers", *words, *options]).run()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["provider"], row["compiled"]) for row in kept] == [
        ("lstm", False),
        (" ".join(words), False),
        (f"{' '.join(words)} compiled", True),
    ]
    text = capsys.readouterr().out
    (shown,) = [line.split() for line in text.splitlines() if "BD-LRU m=3, compiled" in line]
    assert shown[8] == "-"  # saved bytes
    # It is no layer that --layers reads.
    assert "associative compiled" not in text


def test_a_layer_too_large_for_memory_keeps_its_price(capsys, monkeypatch, tmp_path):
    def short(self, *arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(LAYERS["conv"], "forward", short)
    parse(["layers", "--layers", "conv", "kernel_size=2", *TINY_LAYERS]).run()
    text = capsys.readouterr().out
    (shown,) = [line.split() for line in text.splitlines() if line.startswith("  Convolution K=2 ")]
    assert shown[-1] == "skipped"
    assert "  Convolution K=2: conv kernel_size=2\n" in text
    assert "  conv kernel_size=2 skipped: out of memory: DefaultCPUAlloc" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hidden-size", "0"], "hidden_size must be in 1"),
        (["--batch-size", "-1"], "batch_size must be in 1"),
        (["--length", "1000000000"], r"length must be in 1\.\.2\^20 - 1"),
        (["--batch-size", "1000000000"], "batch_size x length x hidden_size must fit into memory"),
        (["--layers", "bd_lru", "num_blocks=0", "block_size=1"], "num_blocks must be at least 1"),
        (["--layers", "conv", "kernel_size=2000000000"], "layers must fit into memory"),
        (["--batch-size", "2", "0"], "batch_size must be in 1"),
        (
            ["--projections", "--layers", "lstm"],
            "projections must be used with a layer bd_lru or h_lru, got none",
        ),
        (["--compiled"], "compiled must be used with 1 to 8 layers of backend=associative, got 0"),
        (["--rounds", "0"], r"rounds must be in 1\.\.1000000, got 0"),
        (["--imports", "no_such_module"], "imports must name importable modules"),
    ],
)
def test_bad_option_of_layers_is_named_before_anything_is_measured(arguments, message, capsys):
    with pytest.raises(RequestError, match=message):
        parse(["layers", *arguments]).run()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "gru"], "layer must be one of"),
        (["--layers", "bd_lru"], "num_blocks, block_size of layer 'bd_lru' must be given"),
        (["--layers", "order=3"], "a name must come before its options, got 'order=3'"),
    ],
)
def test_unknown_layers_are_refused_by_the_parser(arguments, message):
    with pytest.raises(RequestError, match=message):
        parse(["layers", *arguments])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (7.4, "7"), (999, "999"), (999.6, "1.00k"), (1024, "1.02k"), (9994, "9.99k"),
        (9996, "10.0k"), (99_960, "100k"), (999_400, "999k"), (999_600, "1.00M"), (7.37e6, "7.37M"),
        (2.5e9, "2.50G"), (3.2e12, "3200G"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(number, text):
    assert _short(number) == text


@pytest.mark.parametrize(
    "command",
    [
        ["ops", "--shapes", "1x2x2x2", "--recurrences", "bd_lru"],
        ["decode", "--batch-sizes", "1", "--hidden-sizes", "8", "--recurrences", "bd_lru"],
        ["layers", "--layers", "conv", "kernel_size=2", "--hidden-size", "4"],
    ],
    ids=lambda command: command[0],
)
def test_what_fails_is_a_row_and_the_command_says_so(command, capsys, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    more = ["--rounds", "3", "--output", str(path)]
    with pytest.raises(RunsFailedError, match="of the measurements failed, the first"):
        parse([*command, *more, "--limit-s", "1e-9"]).run()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["status"] for row in kept} == {"failed"}
    assert f"rows appended to {path}" in capsys.readouterr().out
    with pytest.raises(RequestError, match=r"limit_s must be positive and finite, got -1\.0"):
        parse([*command, *more, "--limit-s", "-1"]).run()
    path.unlink()
    parse([*command, *more, "--limit-s", "600"]).run()
    assert all(json.loads(line)["status"] != "failed" for line in path.read_text().splitlines())
