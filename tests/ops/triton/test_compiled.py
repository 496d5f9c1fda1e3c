"""The machine code of the Triton kernels, which compile without a GPU."""

import os

import pytest

from statemix.bench.compiled import KERNELS, OPERATORS, Variant, compiled
from statemix.settings import SettingError

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets"
)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("size", [1, 4])
def test_no_register_is_spilled_and_loads_are_wide(operator, kernel, size):
    found = compiled(Variant(operator, kernel, size))
    assert found.spilled == 0
    assert found.registers <= 255
    # Eight neighbouring gates of 16 bits are one load.
    if kernel.startswith("local"):
        assert found.load == 16
    # Issuing takes less time than moving the bytes.
    assert found.issue < 1


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_for_every_target(kernel, target):
    found = compiled(Variant("block", kernel, 3, target=target))
    assert (found.spilled, found.registers > 0) == (0, True)


@pytest.mark.parametrize("gate", ["sigmoid", "relu", "signed", "tanh", "none", "given"])
def test_kernels_compile_for_every_family(gate):
    assert compiled(Variant("block", "local_backward", 2, gate=gate, packed=True)).spilled == 0
    assert compiled(Variant("lag", "local_forward", 2, "float32", gate)).spilled == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operator": "blocks"}, "operator must be one of"),
        ({"kernel": "forward"}, "kernel must be one of"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"target": "sm_1"}, "target must be one of"),
        ({"gate": "soft"}, "gate must be one of"),
        ({"size": 0}, "size must be at least 1, got 0"),
    ],
)
def test_unknown_variants_are_named(options, message):
    known = {"operator": "block", "kernel": "local_forward", "size": 2}
    with pytest.raises(SettingError, match=message):
        Variant(**(known | options))
