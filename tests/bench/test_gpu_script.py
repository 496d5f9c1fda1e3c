"""The script for a machine with a GPU: what can be said of it without one.

A stand-in for Python notes the commands that the script would run, and lets some of them fail.
"""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from statemix.bench import ops
from statemix.bench.peers import NAMES
from statemix.cli.bench import parse
from statemix.cli.bench.decode import Decode
from statemix.cli.bench.layers import Layers
from statemix.cli.bench.ops import Ops
from statemix.layers import LAYERS, LayerSpec, price

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"

STAND_IN = """\
#!{python}
import json, os, sys, time
with open({log!r}, "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
words = " ".join(sys.argv[1:])
if "gpu_targets.py" in words:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
time.sleep({seconds} if "bench" in words and "gpu_needs" not in words else 0)
sys.exit({failing!r} in words)
"""


def execute(folder, failing="nothing fails", seconds=0.0, limit=None):
    """Return the finished process, and the arguments of every call of Python in order."""
    folder.mkdir(exist_ok=True)
    log, python = folder / "calls.jsonl", folder / "python"
    values = {"python": sys.executable, "log": str(log), "failing": failing, "seconds": seconds}
    python.write_text(STAND_IN.format(**values))
    python.chmod(0o755)
    shutil.copy("/bin/true", folder / "nvidia-smi")
    chosen = {"PYTHON": str(python), "PATH": f"{folder}:{os.environ['PATH']}"}
    if limit is not None:
        chosen["GPU_SECONDS"] = str(limit)
    done = subprocess.run(
        [SCRIPT, folder / "rows"],
        capture_output=True,
        text=True,
        env={**os.environ, **chosen},
        timeout=120,
    )
    return done, [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The script when nothing fails."""
    return execute(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def kept(whole):
    """The benchmarks whose rows are kept."""
    return benchmarks(whole[1])[0]


def benchmarks(calls):
    """The benchmarks as the command line gets them: those that are kept, and the others."""
    kept, warming = [], []
    for _, _, *words in (call for call in calls if call[:3] == ["-m", "statemix", "bench"]):
        (kept if "--output" in words else warming).append(parse(words[1:]).benchmark)
    return kept, warming


def test_it_checks_measures_and_prints_the_table(whole):
    done, calls = whole
    assert done.returncode == 0, done.stdout
    kept, warming = benchmarks(calls)
    kinds = Counter(type(one).__name__ for one in kept)
    assert kinds == {"Ops": 7, "Layers": 8, "Decode": 1}
    assert all(one.device == "cuda" for one in kept + warming)
    scripts = [call[0] for call in calls if call[0].startswith("benchmarks/")]
    assert scripts == [
        "benchmarks/gpu_needs.py", "benchmarks/cold_start.py", "benchmarks/gradients.py",
        "benchmarks/long_context.py", "benchmarks/gpu_targets.py",
    ]  # fmt: skip
    (tests,) = (call for call in calls if "pytest" in call[:2])
    assert Path(SCRIPT.parents[1], tests[-1]).exists()
    assert "BD-LRU m=4, forward and backward over a copy" in done.stdout
    assert done.stdout.count("not measured") > 20
    assert "all parts ran" in done.stdout


def places(one):
    """What a benchmark runs: recurrences or layers, at sizes."""
    if isinstance(one, Layers):
        return {(one.hidden_size, repr(spec), one.dtype) for spec in one.layers}
    assert isinstance(one, Ops)
    cases = ops.cases(one.recurrences, one._shapes(), one.block_sizes, one.orders)
    kinds = [name for name in (*one.providers, *one.peers) if name != ops.COPY]
    return {(name, case, one.dtype, one.graphs) for name in kinds for case in cases}


def test_what_is_compiled_side_by_side_is_measured_later(whole):
    kept, warming = benchmarks(whole[1])
    measured = {place for one in kept if not isinstance(one, Decode) for place in places(one)}
    for one in warming:
        assert (one.rounds, one.output) == (1, None)
        assert places(one) < measured
    # All of ours and of peers in the first parts, each once; the paper's scan compiles nothing.
    early = [place for one in warming for place in places(one)]
    assert len(early) == len(set(early))
    assert {place for one in kept[:5] for place in places(one) if place[0] != "paper"} == {
        *early,
        *(place for place in places(kept[1]) if place[0] == ops.OURS),
    }


def test_a_part_that_fails_ends_no_other(whole, tmp_path):
    done, calls = execute(tmp_path, failing="bench decode")
    assert done.returncode == 1
    assert "== decoding: exit status 1\n" in done.stdout
    assert done.stdout.count("exit status") == 1
    # The paths of the rows differ.
    named = [
        Counter(" ".join(call[:4] if call[0] == "-m" else call[:1]) for call in each)
        for each in (calls, whole[1])
    ]
    assert named[0] == named[1]


def test_ours_are_measured_even_if_a_layer_of_peers_fails(whole, tmp_path):
    done, calls = execute(tmp_path, failing="delta_product num_heads=25")
    (alone,) = (
        parse(words.split()[3:]).benchmark
        for words in map(" ".join, calls)
        if " --output " in words and "delta_product" not in words and "num_blocks=8064" in words
    )
    (whole_part,) = (one for one in benchmarks(whole[1])[0] if len(getattr(one, "layers", ())) > 9)
    assert alone.layers == whole_part.layers[:8]
    assert "== layers of 33M parameters: exit status 1\n" in done.stdout
    assert "some parts did not run" in done.stdout
    assert "a million tokens" in done.stdout


def test_it_ends_in_time_and_names_what_was_not_started(tmp_path):
    start = time.monotonic()
    # 17 s of it are for the table and for ending a part.
    done, calls = execute(tmp_path, seconds=1.5, limit=23)
    assert time.monotonic() - start < 23
    assert done.returncode == 1
    skipped = re.findall(r"^== (.*): not started, no time is left$", done.stdout, re.MULTILINE)
    assert skipped
    assert skipped[-1] == "a layer of hidden size 768, compiled as in the paper"
    # The most important come first.
    assert "gradients at every m, against the float64 reference" not in skipped
    assert calls[-1][0] == "benchmarks/gpu_targets.py"
    assert "float32 against float64, every kernel" in done.stdout


def test_a_part_is_stopped_when_the_time_ends(tmp_path):
    start = time.monotonic()
    done, _ = execute(tmp_path, seconds=60, limit=20)
    assert time.monotonic() - start < 20
    (stopped,) = re.findall(r"^== cold start: .* stopped after (\d) s$", done.stdout, re.MULTILINE)
    assert 1 <= int(stopped) <= 3


def test_without_any_time_it_starts_nothing_and_says_so(tmp_path):
    done, calls = execute(tmp_path, seconds=60, limit=17)
    assert not [call for call in calls if "bench" in call or "pytest" in call]
    assert done.stdout.count("not started, no time is left") == done.stdout.count("\n== ") // 2
    assert calls[-1][0] == "benchmarks/gpu_targets.py"


def test_without_being_told_it_ends_within_nine_minutes():
    (seconds,) = re.findall(r"GPU_SECONDS:-(\d+)", SCRIPT.read_text())
    assert int(seconds) < 540


def test_the_first_parts_have_the_time_that_their_limits_say():
    """Until the paper's scan is compiled; 17 s are for the table and for ending a part."""
    text = SCRIPT.read_text()
    first, _, _ = text.partition("Up to here")
    limits = re.findall(r"^(?:part|bench) (\d+) ", first, re.MULTILINE)
    (warming,) = re.findall(r"-gt (\d+) \] && limit=\1", first)
    (seconds,) = re.findall(r"GPU_SECONDS:-(\d+)", first)
    assert len(limits) == 13
    assert sum(map(int, limits)) + int(warming) <= int(seconds) - 17


def test_random_shapes_are_counted_as_the_tests_draw_them():
    targets = runpy.run_path(SCRIPT.with_name("gpu_targets.py"))
    text = Path(SCRIPT.parents[1], "tests/ops/triton/test_kernels.py").read_text()
    (layouts,) = re.findall(r"^LAYOUTS = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    (shapes,) = re.findall(r'max_examples=\d+ if DEVICE == "cpu" else (\d+)', text)
    assert int(shapes) == targets["_SHAPES_OF_A_TEST"]
    assert int(shapes) * layouts.count("\n") == 200


def parameters(spec, hidden_size):
    # The price does not depend on the backend, which is not available here.
    options = {name: value for name, value in spec.options.items() if name != "backend"}
    return price(LayerSpec(spec.name, **options), hidden_size=hidden_size, length=1).num_parameters


def test_layers_of_33m_parameters_have_them(kept):
    large = [one for one in kept if isinstance(one, Layers) and one.hidden_size == 1024]
    assert len(large) == 3
    (widest,) = (one for one in kept if isinstance(one, Layers) and one.hidden_size == 960)
    for one in (*large, widest):
        for spec in one.layers:
            if spec.name in ("bd_lru", "h_lru"):
                assert parameters(spec, one.hidden_size) == pytest.approx(33e6, rel=0.01), spec
                units = spec.options.get("num_blocks", spec.options.get("num_channels"))
                assert units % 16 == 0
    assert [spec.options["block_size"] for spec in widest.layers] == [16]
    for one in large:
        for spec in one.layers:
            assert parameters(spec, 1024) == pytest.approx(33e6, rel=0.06), spec
    sizes = [spec.options.get("block_size") for spec in large[0].layers if spec.name == "bd_lru"]
    assert sizes == [1, 2, 3, 4, 5, 6, 8]
    labels = {LAYERS[spec.name].label(spec.options) for spec in large[0].layers}
    assert {
        "Mamba-2 S=128",
        "DeltaNet [-1, 1]",
        "Gated DeltaNet [-1, 1]",
        "Gated DeltaProduct n=4 [-1, 1]",
    } < labels
    # The limit of Figure 3.
    ours = [spec for one in large for spec in one.layers if spec.name == "bd_lru"]
    assert all(abs(parameters(spec, 1024) - 33e6) <= 0.05 * 33e6 for spec in ours)


def test_the_papers_scan_is_compiled_at_both_comparisons(kept):
    compiled = [one for one in kept if isinstance(one, Layers) and one.compiled]
    assert [one.hidden_size for one in compiled] == [1024, 768]
    for one in compiled:
        assert (one.batch_size, one.length) == ((8,), (2048,))
        assert [spec.options["backend"] for spec in one.layers] == ["triton", "associative"]


def test_figure_3_gets_two_places_on_every_axis(kept):
    listed = [one for one in kept if isinstance(one, Layers)]
    for hidden_size in (768, 1024):
        places = [(one.batch_size, one.length) for one in listed if one.hidden_size == hidden_size]
        assert any(len(batches) > 1 and len(lengths) > 1 for batches, lengths in places)
    (blocks,) = (one for one in listed if one.hidden_size == 128)
    assert {spec.options["num_blocks"] for spec in blocks.layers} == {128}
    assert len({spec.options["block_size"] for spec in blocks.layers}) > 1


def test_its_operators_have_the_entries_that_it_says(kept):
    plain, peers, lags, *others = (one for one in kept if isinstance(one, Ops))
    for shape in (*plain._shapes(), *peers._shapes()):
        # 160 blocks of m = 5 are a multiple of 16.
        assert shape.num_blocks * shape.block_size == pytest.approx(768, rel=0.05)
        assert shape.num_blocks % 16 == 0
        assert shape.batch_size * shape.length == 16_384
    assert [shape.block_size for shape in plain._shapes()] == [1, 2, 3, 4, 5, 6, 8, 16]
    assert set(peers.peers) == set(NAMES)
    assert (lags.recurrences, "paper" in lags.providers) == (("h_lru",), True)
    assert lags._shapes() == [(8, 2048, 768, None)]
    assert lags.orders == (16,)
    swept = [one for one in others if one.chunks]
    assert [shape.batch_size for one in swept for shape in one._shapes()] == [1, 32, 128]
    # One chunk is among them.
    assert all(0 in one.chunks and "statemix" in one.providers for one in swept)
    (decode,) = (one for one in kept if isinstance(one, Decode))
    assert max(decode.batch_sizes) == 2048
    assert {spec.name for spec in decode.peers} == {"lstm", "mamba2", "delta_net"}


def test_without_what_it_needs_it_starts_nothing(tmp_path):
    done, calls = execute(tmp_path, failing="benchmarks/gpu_needs.py")
    assert done.returncode == 2
    assert calls == [["benchmarks/gpu_needs.py"]]


def test_all_that_is_missing_is_named_in_one_line(monkeypatch, capsys):
    names = runpy.run_path(SCRIPT.with_name("gpu_needs.py"))
    found = {name: None if name in ("typeguard", "triton") else "" for name in names["NEEDED"]}
    monkeypatch.setitem(names["main"].__globals__, "find_spec", found.get)
    assert names["main"]() == 1
    assert capsys.readouterr().out.splitlines() == [
        "benchmarks/gpu.sh needs packages that are not installed: typeguard triton"
    ]


def test_all_that_benchmarks_import_is_needed():
    """Of other packages than Statemix's, with those that these import."""
    words = ["layers", "--layers", "bd_lru", "num_blocks=2", "block_size=2", "--device", "cuda"]
    code = f"""
import sys
from statemix.bench import compiled, decode, entries, layers, peers, rows
from statemix.cli.bench import decode, layers, ops, parse
parse({words})
found = {{name: module for name, module in sys.modules.items() if "." not in name}}
print(*(name for name in found if "site-packages" in str(getattr(found[name], "__file__", ""))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    foreign = set(done.stdout.split())
    needed = runpy.run_path(SCRIPT.with_name("gpu_needs.py"))["NEEDED"]
    # The package itself may be installed, torch brings a package, and setuptools a hook.
    foreign -= {"statemix", "torchgen", "_distutils_hack"}
    assert {"torch", "tyro", "pydantic"} < foreign <= needed.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    done = subprocess.run(
        [SCRIPT, tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
        timeout=120,
    )
    assert done.returncode == 2
    assert "needs a GPU that PyTorch can use" in done.stdout
