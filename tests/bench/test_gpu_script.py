"""The script for a machine with a GPU: what can be said of it without one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from statemix.cli.bench import parse
from statemix.cli.bench.layers import Layers
from statemix.cli.bench.ops import Ops
from statemix.layers import LayerSpec, price

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
TEXT = SCRIPT.read_text()


def commands():
    """The options of its benchmarks, as the command line would get them."""
    joined = TEXT.replace("\\\n", " ").replace('"$rows"', "rows.jsonl")
    for line in re.findall(r"statemix bench ([^'\n]*)'", joined):
        yield parse(shlex.split(line)).benchmark


def test_its_benchmarks_are_understood():
    kinds = [type(one).__name__ for one in commands()]
    assert kinds == ["Ops", "Ops", "Layers", "Decode"]
    assert all(one.device == "cuda" for one in commands())


def test_its_layers_have_the_parameters_that_it_says():
    (layers,) = (one for one in commands() if isinstance(one, Layers))
    for asked in layers.layers:
        # Its price does not depend on the backend, which is not available here.
        options = {name: value for name, value in asked.options.items() if name != "backend"}
        spec = LayerSpec(asked.name, **options)
        paid = price(spec, hidden_size=layers.hidden_size, length=1)
        assert paid.num_parameters == pytest.approx(33e6, rel=0.06), spec


def test_its_operators_have_the_entries_that_it_says():
    first, _ = (one for one in commands() if isinstance(one, Ops))
    for shape in first._shapes():
        assert shape.num_blocks * shape.block_size == pytest.approx(768, rel=0.01)
        assert shape.batch_size * shape.length == 16_384


def test_it_ends_within_nine_minutes():
    assert sum(map(int, re.findall(r"^part (\d+) ", TEXT, re.MULTILINE))) <= 540


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
