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
import zipfile
from collections import Counter
from dataclasses import asdict
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from statemix.bench import decode, ops
from statemix.bench.peers import NAMES
from statemix.bench.roofline import COPY
from statemix.cli.bench import parse
from statemix.cli.bench.common import name_of
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
{then}
if "zipfile" in words or "gpu_targets.py" in words:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
time.sleep({seconds} if "bench" in words and "gpu_needs" not in words else 0)
sys.exit({failing!r} in words)
"""


def execute(
    folder,
    failing="nothing fails",
    seconds=0.0,
    limit=None,
    script=SCRIPT,
    then="",
    **environment,
):
    """Return the finished process, and the arguments of every call of Python in order."""
    folder.mkdir(exist_ok=True)
    log, python = folder / "calls.jsonl", folder / "python"
    log.unlink(missing_ok=True)
    values = {"python": sys.executable, "log": str(log), "failing": failing, "seconds": seconds}
    python.write_text(STAND_IN.format(**values, then=then))
    python.chmod(0o755)
    shutil.copy("/bin/true", folder / "nvidia-smi")
    chosen = {"PYTHON": str(python), "PATH": f"{folder}:{os.environ['PATH']}", **environment}
    if limit is not None:
        chosen["GPU_SECONDS"] = str(limit)
    done = subprocess.run(
        [script, folder / "rows"],
        capture_output=True,
        text=True,
        env={**os.environ, **chosen},
        timeout=120,
    )
    calls = log.read_text().splitlines() if log.exists() else []
    return done, [json.loads(line) for line in calls]


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
    assert kinds == {"Ops": 9, "Layers": 9, "Decode": 1}
    assert all(one.device == "cuda" for one in kept + warming)
    scripts = [call[0] for call in calls if call[0].startswith("benchmarks/")]
    assert scripts == [
        "benchmarks/gpu_needs.py", "benchmarks/cold_start.py", "benchmarks/gradients.py",
        "benchmarks/long_context.py", "benchmarks/gpu_targets.py",
    ]  # fmt: skip
    tests = [call for call in calls if "pytest" in call[:2]]
    assert [[Path(word).name for word in call if word.startswith("tests/")] for call in tests] == [
        # What only a GPU can prove comes first.
        ["test_steps.py", "test_sizes.py"], ["test_kernels.py"], ["test_sizes.py", "test_launch.py"]
    ]  # fmt: skip
    for word in (word for call in tests for word in call if word.startswith("tests/")):
        assert Path(SCRIPT.parents[1], word).exists()
    # Every proof is selected, and no test of sizes is left out.
    targets = runpy.run_path(SCRIPT.with_name("gpu_targets.py"))
    chosen, others = (call[call.index("-k") + 1] for call in (tests[0], tests[2]))
    assert others == f"not ({chosen.removeprefix('test_steps or ')})"
    for test, _ in targets["PROOFS"].values():
        assert "step" in test or any(word in test for word in chosen.split(" or "))
    logs = calls[-1][calls[-1].index("--tests") + 1 :]
    assert [log.rpartition("-")[2] for log in logs] == ["proofs.log", "tests.log"]
    assert "BD-LRU m=4, forward and backward over a copy" in done.stdout
    assert done.stdout.count("not measured") > 20
    assert "all parts ran" in done.stdout


def places(one):
    """What a benchmark runs: recurrences or layers, at sizes."""
    if isinstance(one, Layers):
        size = one.hidden_size, one.batch_size, one.length
        return {(size, repr(spec), one.dtype) for spec in one.layers}
    assert isinstance(one, Ops)
    cases = ops.cases(one.recurrences, one._shapes(), one.block_sizes, one.orders)
    kinds = [name for name in (*one.providers, *one.peers) if name != COPY]
    return {(name, repr(case), one.dtype) for name in kinds for case in cases}


def test_what_is_compiled_side_by_side_is_measured_later(whole):
    kept, warming = benchmarks(whole[1])
    measured = {place for one in kept if not isinstance(one, Decode) for place in places(one)}
    for one in warming:
        assert (one.rounds, one.output) == (1, None)
        assert places(one) <= measured
    # All of ours and of peers in the first parts, each once; the paper's scan compiles nothing.
    early = [place for one in warming for place in places(one)]
    assert len(early) == len(set(early))
    first = {place for one in kept[:8] for place in places(one)}
    assert {place for place in first if "associative" not in place[1] and place[0] != "paper"} == {
        *early
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


def rows_of(one, process):
    """Rows as a benchmark would store them, with one time for all."""
    common = {"device": "NVIDIA H200", "status": "measured", "dtype": one.dtype}
    common |= {"started_utc": process, "time_s": {"p50": 1e-3}, "memory_bytes": 1}
    if isinstance(one, Ops):
        kind, cases = "ops", ops.cases(one.recurrences, one._shapes(), one.block_sizes, one.orders)
        names = [(case, name) for case in cases for name in (*one.providers, *one.peers)]
        relative = (COPY, ops.OURS)
    elif isinstance(one, Decode):
        sizes = one.recurrences, one.batch_sizes, one.hidden_sizes, one.block_sizes
        kind, cases = "decode", decode.cases(*sizes)
        peers = [name_of(spec) for spec in one.peers]
        names = [(case, name) for case in cases for name in (decode.STEP, *peers)]
        relative = (decode.PROJECTIONS,)
    else:
        yield from layer_rows(one, common)
        return
    for case, name in names:
        ratios = {other: {"p50": 1.0} for other in relative}
        found = {"benchmark": kind, "case": asdict(case), "provider": name, "ratios": ratios}
        yield common | found


def layer_rows(one, common):
    cases = [(b, t) for b in one.batch_size for t in one.length]
    for (batch_size, length), spec, compiled in product(cases, one.layers, (False, True)):
        if compiled and not (one.compiled and spec.options.get("backend") == "associative"):
            continue
        case = {"hidden_size": one.hidden_size, "batch_size": batch_size, "length": length}
        foreign = spec.name in ("mamba2", "delta_net", "delta_product")
        found = {"benchmark": "layers", "case": case, "layer": spec.to_plain(), "tokens_per_s": 1.0}
        found |= {"label": LAYERS[spec.name].label(spec.options), "compiled": compiled}
        found |= {"num_parameters": parameters(spec, one.hidden_size), "projections": False}
        found |= {"foreign_kernels": foreign, "saved_bytes_per_token": 1}
        yield common | found


def test_what_it_measures_decides_every_target_of_the_table(kept):
    targets = runpy.run_path(SCRIPT.with_name("gpu_targets.py"))
    rows = [row for number, one in enumerate(kept) for row in rows_of(one, f"process {number}")]
    for line in targets["lines"](rows, []):
        # Other scripts measure these, and their rows have tests of their own.
        others = ("float", "bfloat", "results", "decoding steps", "steps", "packed", "gradients")
        others += ("random", "tests", "a million", "first step", "kernels compiled")
        if not line.name.startswith(others):
            assert line.measured is not None, line.name
            assert line.decides == (not line.name.startswith("decoding")), line.name
    # Before the paper's scan is compiled, which takes the longest.
    early = [
        row for number, one in enumerate(kept[:8]) for row in rows_of(one, f"process {number}")
    ]
    missing = [line.name for line in targets["lines"](early, []) if line.measured is None]
    assert sum(name.startswith(("BD-LRU", "H-LRU", "layer", "spread")) for name in missing) == 1
    assert "layer of 33M parameters, m=4: the paper's compiled scan over ours" in missing


def test_peers_that_end_a_process_end_none_of_ours(kept):
    """Ours have been measured before, but for one beside which the peers are measured."""
    foreign = [
        position
        for position, one in enumerate(kept)
        if getattr(one, "peers", ())
        or any(spec.name not in ("bd_lru", "h_lru") for spec in getattr(one, "layers", ()))
    ]
    assert foreign[0] > 5
    operators, layers = (kept[position] for position in foreign[:2])
    assert ops.OURS in operators.providers
    assert layers.layers[0].options["block_size"] == 4


def test_what_is_not_ready_in_time_leaves_time_for_what_is(kept):
    """Each benchmark has a limit that is shorter than its part's."""
    limits = re.findall(r"^bench (\d+) ", SCRIPT.read_text(), re.MULTILINE)
    for one, limit in zip(kept, map(int, limits), strict=True):
        assert 5 <= one.limit_s <= limit - 9


def test_rows_of_a_copy_have_the_commit_that_it_is_told(whole, tmp_path):
    """A copy without its repository, even inside another one."""
    copy = tmp_path / "copy" / "benchmarks" / "gpu.sh"
    shutil.copytree(SCRIPT.parent, copy.parent)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for told, name in (("1234567890", "gpu-1234567"), ("", "gpu-unknown")):
        done, _ = execute(tmp_path / "run", script=copy, STATEMIX_COMMIT=told)
        assert f"{name}.jsonl" in done.stdout
    done, calls = execute(tmp_path / "run", script=copy, STATEMIX_COMMIT="../main")
    assert not calls
    assert (done.returncode, done.stdout) == (2, "STATEMIX_COMMIT must be a commit, got ../main\n")
    # The repository itself knows better.
    head = subprocess.run(
        ["git", "-C", SCRIPT.parent, "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout
    if head:
        assert f"gpu-{head[:7]}.jsonl" in whole[0].stdout


def test_kernels_are_compiled_by_as_many_processes_as_there_are_cores(tmp_path):
    (tmp_path / "nproc").write_text("#!/bin/sh\necho 3\n")
    (tmp_path / "nproc").chmod(0o755)
    log = tmp_path / "beside"
    count = f"""
if "--rounds 1 " in words:
    import glob, tempfile
    with tempfile.NamedTemporaryFile(prefix="warm", dir={str(tmp_path)!r}):
        time.sleep(0.2)
        with open({str(log)!r}, "a") as found:
            print(len(glob.glob({str(tmp_path / "warm*")!r})), file=found)
"""
    _, calls = execute(tmp_path, then=count)
    beside = [int(line) for line in log.read_text().split()]
    assert len(beside) == len(benchmarks(calls)[1]) > 20
    assert max(beside) == 3


def test_wheels_of_a_folder_are_used(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "toy-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy.py", "")
        program = zipfile.ZipInfo("toys/bin/tool")
        program.external_attr = 0o755 << 16
        wheel.writestr(program, "")
    log = tmp_path / "path"
    show = f"""
import importlib.util
toy = importlib.util.find_spec("toy")
tool = toy and os.access(os.path.join(os.path.dirname(toy.origin), "toys/bin/tool"), os.X_OK)
open({str(log)!r}, "a").write(str(bool(tool)) + " ")
"""
    execute(tmp_path / "run", then=show, limit=17, WHEELS=str(wheels))
    assert {*log.read_text().split()[1:]} == {"True"}
    execute(tmp_path / "run", then=show, limit=17)
    assert log.read_text().endswith("False ")


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
    (warming,) = re.findall(r"ends - SECONDS < (\d+) \? ends - SECONDS : \1", first)
    (seconds,) = re.findall(r"GPU_SECONDS:-(\d+)", first)
    assert len(limits) == 15
    assert sum(map(int, limits)) + int(warming) <= int(seconds) - 17


def test_proofs_are_counted_as_there_are_tests():
    targets = runpy.run_path(SCRIPT.with_name("gpu_targets.py"))
    files = [f"tests/ops/triton/test_{name}.py" for name in ("steps", "sizes")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=SCRIPT.parents[1], env=environment, capture_output=True, text=True
    )
    for test, count in targets["PROOFS"].values():
        assert done.stdout.count(f"::{test}[") == count, test


def test_random_shapes_are_counted_as_the_tests_draw_them():
    targets = runpy.run_path(SCRIPT.with_name("gpu_targets.py"))
    text = Path(SCRIPT.parents[1], "tests/ops/triton/test_kernels.py").read_text()
    (layouts,) = re.findall(r"^LAYOUTS = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    (shapes,) = re.findall(r"^EXAMPLES = -\(-(\d+) // len\(LAYOUTS\)\)", text, re.MULTILINE)
    assert int(shapes) == targets["_SHAPES_OF_A_TEST"] * layouts.count("\n") == 200


def parameters(spec, hidden_size):
    # The price does not depend on the backend, which is not available here.
    options = {name: value for name, value in spec.options.items() if name != "backend"}
    return price(LayerSpec(spec.name, **options), hidden_size=hidden_size, length=1).num_parameters


def test_layers_of_33m_parameters_have_them(kept):
    large = [one for one in kept if isinstance(one, Layers) and one.hidden_size == 1024]
    assert len(large) == 4
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
    labels = [{LAYERS[spec.name].label(spec.options) for spec in one.layers} for one in large]
    peers = {"Mamba-2 S=128", "Gated DeltaNet [-1, 1]", "Gated DeltaProduct n=4 [-1, 1]"}
    assert labels[1] == {"BD-LRU m=4", *peers}
    assert labels[3] == {*labels[1], "DeltaNet [-1, 1]"}
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
    plain, lags, few, peers, *others = (one for one in kept if isinstance(one, Ops))
    for shape in (*plain._shapes(), *peers._shapes()):
        # 160 blocks of m = 5 are a multiple of 16.
        assert shape.num_blocks * shape.block_size == pytest.approx(768, rel=0.05)
        assert shape.num_blocks % 16 == 0
        assert shape.batch_size * shape.length == 16_384
    assert [shape.block_size for shape in plain._shapes()] == [1, 2, 3, 4, 5, 6, 8, 16]
    assert {*peers.peers, *others[1].peers} == set(NAMES)
    for one in (lags, few):
        assert (one.recurrences, one.orders) == (("h_lru",), (16,))
    assert (lags._shapes(), lags.graphs) == ([(8, 2048, 768, None)], True)
    # A graph would keep the memory of the companion form, which is counted in another call.
    assert (few._shapes(), few.graphs) == ([(2, 2048, 768, None)], False)
    assert ("paper" in few.providers, "paper" in lags.providers) == (True, False)
    (layers,) = (one for one in kept if isinstance(one, Layers) and one.batch_size == (2,))
    assert [spec.options["backend"] for spec in layers.layers] == ["triton", "associative"]
    swept = [one for one in others if one.chunks]
    assert [shape.batch_size for one in swept for shape in one._shapes()] == [1, 32, 128]
    # One chunk is among them.
    assert all(0 in one.chunks and "statemix" in one.providers for one in swept)
    (steps,) = (one for one in kept if isinstance(one, Decode))
    # The batch of the target first, and in the dtype of the kernels.
    assert (steps.batch_sizes[0], steps.dtype) == (2048, "bfloat16")
    assert {spec.name for spec in steps.peers} == {"lstm", "mamba2", "delta_net"}


def test_without_what_it_needs_it_starts_nothing(tmp_path):
    done, calls = execute(tmp_path, failing="benchmarks/gpu_needs.py")
    assert done.returncode == 2
    assert calls == [["benchmarks/gpu_needs.py"]]


def needs(monkeypatch, missing):
    """The names of the script that checks, where these modules are missing."""
    names = runpy.run_path(SCRIPT.with_name("gpu_needs.py"))
    every = {*names["NEEDED"], *names["USED"]}
    found = {name: None if name in missing else "" for name in every}
    monkeypatch.setitem(names["main"].__globals__, "find_spec", found.get)
    return names


def test_all_that_is_missing_is_named_at_once_with_the_command_that_fetches_it(monkeypatch, capsys):
    assert needs(monkeypatch, ("typeguard", "triton", "fla"))["main"]() == 1
    needed, used, _, command, run = capsys.readouterr().out.splitlines()[:5]
    assert needed == "benchmarks/gpu.sh needs packages that are not installed: typeguard triton"
    assert used == "benchmarks/gpu.sh runs less without: fla-core"
    version = ".".join(map(str, sys.version_info[:2]))
    assert f"--python-version {version} -c constraints.txt " in command
    assert command.endswith("-d wheels typeguard triton fla-core")
    assert "WHEELS=wheels benchmarks/gpu.sh" in run


@pytest.mark.parametrize("tool", ["a C compiler", "the headers of Python"])
def test_a_compiler_is_needed_for_what_launches_kernels(monkeypatch, capsys, tool):
    names = needs(monkeypatch, ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CC", raising=False)
    paths = {"include": "/nowhere" if "headers" in tool else str(SCRIPT.parent)}
    monkeypatch.setattr("sysconfig.get_path", paths.get)
    monkeypatch.setattr(
        "shutil.which", lambda name: "cc" if name == "clang" and "headers" in tool else None
    )
    monkeypatch.setattr("pathlib.Path.exists", lambda path: str(path) != "/nowhere/Python.h")
    assert names["main"]() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"benchmarks/gpu.sh needs {tool}")


def test_without_what_makes_it_faster_it_runs(monkeypatch, capsys):
    names = needs(monkeypatch, ("xdist", "fla"))
    monkeypatch.setitem(names["main"].__globals__, "_lacking_tools", lambda: iter(()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert names["main"]() == 0
    assert "runs less without: pytest-xdist fla-core" in capsys.readouterr().out


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


def test_all_that_the_tests_need_is_needed():
    needed = runpy.run_path(SCRIPT.with_name("gpu_needs.py"))["NEEDED"]
    for package in ("pytest", "hypothesis"):
        for line in metadata.requires(package):
            required = Requirement(line)
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                assert required.name.lower() in needed.values(), package


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
    # Or Triton, or its compiler.
    assert "benchmarks/gpu.sh needs " in done.stdout
