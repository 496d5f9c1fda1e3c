"""The seeded faults still fit the code, so that ``make faults`` can insert them."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def faults():
    spec = importlib.util.spec_from_file_location("faults", ROOT / "tests/faults/faults.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FAULTS


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_every_fault_matches_its_file_once(fault):
    assert (ROOT / fault.file).read_text().count(fault.old) == 1
    for test in fault.tests:
        assert (ROOT / test.partition("::")[0]).exists()
