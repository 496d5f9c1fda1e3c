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
def test_an_unknown_instruction_set_is_refused_where_kernels_are_used(monkeypatch):
    monkeypatch.setattr(loader, "_asked", "AVX2")
    gates, values = torch.zeros(1, 2, 3, 2), torch.zeros(1, 2, 3)
    for use in (cpu.instruction_set, lambda: ops.h_lru(gates, values)):
        with pytest.raises(ValueError, match=f"CPU_ISA must be one of {ACCEPTED}, got 'AVX2'"):
            use()


@pytest.mark.kernels
def test_a_known_instruction_set_is_an_upper_bound():
    names = loader.INSTRUCTION_SETS
    for value in (None, "", "avx2"):
        bound = names.index(value) if value else len(names)
        assert names.index(in_process(value, PRINT_CHOICE).stdout.strip()) <= bound


@pytest.mark.kernels
def test_an_unknown_instruction_set_is_one_line_of_a_command(tmp_path):
    """Importing the library does not yet complain."""
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
