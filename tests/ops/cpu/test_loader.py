"""STATEMIX_CPU_ISA: valid and invalid requests for an instruction set."""

import os
import subprocess
import sys

import pytest
import torch

from statemix import ops
from statemix.ops import cpu
from statemix.ops.cpu import loader

ACCEPTED = "baseline, avx2, avx512, avx512_bf16"


@pytest.mark.kernels
@pytest.mark.parametrize("value", ["bogus", "AVX2", "avx2 ", "avx1024"])
def test_an_unknown_instruction_set_is_refused_where_kernels_are_used(value, monkeypatch):
    monkeypatch.setattr(loader, "_asked", value)
    gates, values = torch.zeros(1, 2, 3, 2), torch.zeros(1, 2, 3)
    for use in (
        loader.require,
        cpu.instruction_set,
        lambda: ops.h_lru(gates, values),
        lambda: ops.h_lru(gates, values, backend="cpu"),
    ):
        with pytest.raises(ValueError, match="STATEMIX_CPU_ISA must be one of") as caught:
            use()
        assert str(caught.value) == f"STATEMIX_CPU_ISA must be one of {ACCEPTED}, got {value!r}"


@pytest.mark.kernels
@pytest.mark.parametrize("value", [None, "", *loader.INSTRUCTION_SETS])
def test_a_known_instruction_set_is_an_upper_bound(value):
    names = loader.INSTRUCTION_SETS
    bound = names.index(value) if value else len(names)
    assert names.index(in_process(value, PRINT_CHOICE).stdout.strip()) <= bound


def test_an_unknown_instruction_set_does_not_keep_the_library_from_being_imported():
    assert in_process("bogus", "import statemix").returncode == 0


@pytest.mark.kernels
def test_an_unknown_instruction_set_is_one_line_of_a_command(tmp_path):
    command = f"train --folder {tmp_path / 'run'} --schedules.num-steps 1".split()
    done = in_process("bogus", f"from statemix.cli.main import main; exit(main({command}))")
    assert done.returncode == 2
    assert done.stderr == f"statemix: STATEMIX_CPU_ISA must be one of {ACCEPTED}, got 'bogus'\n"


PRINT_CHOICE = "from statemix.ops import cpu; print(cpu.instruction_set())"


def in_process(value, code):
    environment = {name: text for name, text in os.environ.items() if name != "STATEMIX_CPU_ISA"}
    if value is not None:
        environment["STATEMIX_CPU_ISA"] = value
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
