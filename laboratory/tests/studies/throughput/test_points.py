"""Rows of the benchmark of layers become points, and bad lines are named."""

import pytest

from statemix.errors import RequestError
from statemix_lab.bench.harness import Spread
from statemix_lab.studies.throughput_rows import Setting, read

SIZES = {"hidden_size": 8, "batch_size": 2, "length": 5}
LOOP = "bd_lru num_blocks=4 block_size=2 backend=loop"
SCAN = "bd_lru num_blocks=4 block_size=2 backend=associative"


def test_a_row_is_a_point(row, write):
    (point,) = read([write([row(LOOP, **SIZES)])])
    assert point.setting == Setting("AMD EPYC", 2, "float32", False)
    assert point.setting.title == "AMD EPYC, 2 threads, float32"
    assert point.speed == Spread(5.0, 10.0, 20.0)  # 10 tokens in 2, 1 and 0.5 seconds
    assert tuple(dict(point.ratio).values()) == (1.0, 3.0, 4.0)
    assert (point.hidden_size, point.batch_size, point.length) == (8, 2, 5)
    assert (point.provider, point.layer.name, point.label) == (LOOP, "bd_lru", "BD-LRU m=2")
    assert (point.num_parameters, point.version, point.missing) == (1000, "abcdef0", "")


@pytest.mark.parametrize(
    ("layer", "implementation"),
    [
        (LOOP, "sequential"),
        (SCAN, "parallel"),
        (f"{SCAN} compiled", "autotuned"),
        ("bd_lru num_blocks=4 block_size=2 backend=cpu", "CPU kernels"),
        ("bd_lru num_blocks=4 block_size=2 backend=triton", "Triton kernels"),
        ("bd_lru num_blocks=4 block_size=2 backend=toy", "toy"),
        ("bd_lru num_blocks=4 block_size=2", ""),
        ("lstm", ""),
    ],
)
def test_implementations_are_called_as_in_the_paper(row, write, layer, implementation):
    (point,) = read([write([row(layer, **SIZES)])])
    assert point.implementation == implementation


def test_one_thread_is_one_thread(row, write):
    (point,) = read([write([row("lstm", **SIZES, threads=1)])])
    assert point.setting.title == "AMD EPYC, 1 thread, float32"


def test_a_gpu_has_no_threads(row, write):
    gpu = row("lstm", **SIZES, device="NVIDIA H200", graphs=True)
    (point,) = read([write([gpu])])
    assert point.setting == Setting("NVIDIA H200", None, "float32", True)
    assert point.setting.title == "NVIDIA H200, float32, CUDA graphs"


def test_rows_from_before_other_devices_were_measured_are_read(row, write):
    old = row("lstm", **SIZES)
    for name in ("device", "graphs", "compiled"):
        del old[name]
    (point,) = read([write([old])])
    assert point.setting == Setting("AMD EPYC", 2, "float32", False)


def test_the_last_of_repeated_rows_counts_if_it_has_a_time(row, write):
    skipped = {"time_s": None, "status": "skipped", "reason": "needs 9 GB", "ratios": {}}
    first, second = (row("lstm", **SIZES, num_parameters=number) for number in (1, 2))
    lost = row("lstm", **SIZES) | skipped
    found = read([write([lost, first], "a.jsonl"), write([second, lost], "b.jsonl")])
    assert [one.num_parameters for one in found] == [2]
    (point,) = read([write([lost])])
    assert (point.speed, point.missing) == (None, "skipped: needs 9 GB")


def test_rows_differ_by_setting_layer_and_sizes(row, write):
    rows = [
        row("lstm", **SIZES),
        row("lstm", **SIZES, threads=1),
        row("lstm", **SIZES, dtype="bfloat16"),
        row("lstm", **{**SIZES, "hidden_size": 9}),
        row("lstm", **{**SIZES, "batch_size": 9}),
        row("lstm", **{**SIZES, "length": 9}),
        row(SCAN, **SIZES),
        row(f"{SCAN} compiled", **SIZES),
    ]
    assert len(read([write([*rows, *rows])])) == len(rows)


def test_files_that_had_changed_are_marked(row, write):
    (point,) = read([write([row("lstm", **SIZES, tree_clean=False)])])
    assert point.version == "abcdef0+"


def test_rows_of_no_checkout_have_an_unknown_commit(row, write):
    (point,) = read([write([row("lstm", **SIZES, commit=None, tree_clean=None)])])
    assert point.version == "unknown"


def test_rows_of_other_benchmarks_are_skipped(row, write):
    assert read([write([{"benchmark": "ops"}, {"operator": "block"}])]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"case": None}, ":2: case.hidden_size .*, got nothing$"),
        ({"case": SIZES | {"length": 0}}, ":2: case.length must be greater than 0, got 0$"),
        ({"case": SIZES | {"length": 10**400}}, ":2: case.length must be less than 92"),
        ({"case": SIZES | {"length": True}}, ":2: case.length must be a valid integer, got True$"),
        (
            {"time_s": {"p20": 1.0, "p50": -1.0, "p80": 1}},
            ":2: time_s.p50 must be greater than 0, got -1",
        ),
        ({"time_s": {"p20": 1.0}}, ":2: time_s.p50 Field required, got nothing$"),
        ({"time_s": 3}, ":2: time_s must be a valid dictionary .*, got 3$"),
        ({"provider": 3}, ":2: provider must be a valid string, got 3$"),
        ({"num_parameters": 1.5}, ":2: num_parameters must be a valid integer, got 1.5$"),
        ({"threads": None}, ":2: threads must be given on a CPU, got "),
        ({"layer": {}}, ":2: layer.name Field required, got nothing$"),
        (
            {"layer": {"name": "bd_lru", "backend": 3}},
            ":2: layer.backend must be a valid string, got 3$",
        ),
        (
            {"layer": {"name": "bd_lru", "num_blocks": "x"}},
            ":2: layer.num_blocks must be a valid int",
        ),
    ],
)
def test_a_bad_field_is_named_with_its_file_and_line(row, write, change, message):
    rows = [row("lstm", **SIZES), row("lstm", **SIZES) | change]
    with pytest.raises(RequestError, match=f"rows.jsonl{message}"):
        read([write(rows)])


@pytest.mark.parametrize("line", ["{", "3", "", '{"a": NaN', "[" * 100_000])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"benchmark": "ops"}}\n{line}\n')
    with pytest.raises(RequestError, match=r"bad\.jsonl:2 must be a row of a benchmark, got "):
        read([path])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(RequestError, match=r"files must be readable, got '.*none' \(No such file"):
        read([tmp_path / "none"])
    with pytest.raises(RequestError, match=r"files must be readable, got '.*' \(Is a directory\)"):
        read([tmp_path])
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(RequestError, match=r"files must be readable, got '.*y' \(not text\)"):
        read([path])
