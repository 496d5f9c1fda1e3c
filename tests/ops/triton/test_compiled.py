"""The machine code of the Triton kernels, which compile without a GPU.

What is asserted of the committed table is in tests/test_kernel_documents.py, which needs no
compiler; ``make test-compiled`` compiles every configuration.
"""

import json
import os
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from statemix import provenance
from statemix.bench.compiled import (
    KERNELS,
    OPERATORS,
    TARGETS,
    Variant,
    compiled,
    families_of,
)
from statemix.bench.configurations import configurations
from statemix.bench.predicted import Code, problem_of, times_of
from statemix.errors import SettingError
from statemix.ops.triton import plan

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets"
)

ROOT = Path(__file__).parents[3]
(TABLE,) = (ROOT / "results" / "bench").glob("kernels-*.jsonl")


def entries():
    """Yield each entry of the plan, at the largest block size for which it is chosen.

    Blocks above 8 take up to ten seconds to compile: they are left to ``make test-compiled``.
    """
    for table, full in ((plan._SHAPES, False), (plan._FULL, True)):
        for (kernels, name), shapes in table.items():
            of_name = KERNELS[2:4] if name == "chunk" else (name,)
            sizes = (size for size, _ in shapes if size <= 8)
            yield from ((kernels, kernel, size, full) for size in sizes for kernel in of_name)


@pytest.mark.parametrize(("kernels", "kernel", "size", "full"), list(entries()))
def test_every_entry_of_the_plan_spills_no_register(kernels, kernel, size, full):
    gate = "householder" if kernels == "reflect" else "softmax"
    operator = "lag" if kernels == "lag" else "block"
    found = compiled(Variant(operator, kernel, size, gate=gate, full=full))
    assert found.spilled == 0
    assert found.registers <= 255
    # Neighbouring gates of 16 bits are one load.
    assert found.load == 2 * found.lanes // 32
    # If all that the plan reads at once is in flight, and as the machine code has it.
    code = Code(operator, kernel, size, 2, *found[:5], 1, 1, found.instructions, found.functions)
    times = times_of(code, problem_of(operator, size, full=full))
    # Maps of reflections are limited by their instructions from m = 4 on.
    assert times.waited < 1.3 * max(times.moved, times.issued)
    assert found.wait < (1.75 if kernel.startswith("chunk") else 1.31)


@pytest.mark.parametrize(
    ("gate", "dtype", "of_gates", "of_row"),
    [
        # A power, and the reciprocal of the sum of a row.
        ("softmax", "bfloat16", 1, 1),
        # A power and a reciprocal, and the power of the unit of a row.
        ("sigmoid", "bfloat16", 2, 2),
        # An instruction of the GPU, or a power and a reciprocal.
        ("tanh", "bfloat16", 1, 1),
        ("tanh", "float16", 2, 1),
        ("tanh", "float32", 2, 1),
    ],
)
@pytest.mark.parametrize("kernel", ["local_forward", "chunk_backward"])
def test_special_functions_are_counted(kernel, gate, dtype, of_gates, of_row):
    found = compiled(Variant("block", kernel, 4, dtype, gate))
    assert found.functions == of_gates + of_row / 5
    assert found.special == pytest.approx(
        found.issue * 8 * found.functions / found.instructions, 3e-3
    )


@pytest.mark.parametrize("kernels", ["block", "lag", "reflect"])
@pytest.mark.parametrize("kernel", KERNELS[:4])
def test_packed_sequences_spill_no_register(kernels, kernel):
    gate = {"reflect": "householder", "block": "sigmoid", "lag": "signed"}[kernels]
    operator = "lag" if kernels == "lag" else "block"
    ragged = kernel != "chunk_forward"
    options = {"gate": gate, "dtype": "float32", "packed": True, "ragged": ragged}
    sizes = (4,) if kernel.startswith("chunk") else (4, 8) if kernels == "lag" else (4, 6)
    for size in sizes:
        assert compiled(Variant(operator, kernel, size, **options)).spilled == 0


@pytest.mark.parametrize("gate", ["relu", "tanh"])
@pytest.mark.parametrize("size", [6, 8])
def test_gradients_in_float64_spill_nothing_up_to_eight(size, gate):
    options = {"dtype": "float64", "packed": True, "ragged": True}
    assert compiled(Variant("block", "local_backward", size, gate=gate, **options)).spilled == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_for_every_target(kernel, target):
    found = compiled(Variant("block", kernel, 3, target=target))
    assert (found.spilled, found.registers > 0) == (0, True)
    assert (found.predicted_us is None) == (target == "gfx942")


@pytest.mark.parametrize(
    ("width", "full", "load", "most"),
    [(200, True, 16, 0.54), (196, True, 8, 0.56), (194, False, 4, 0.57), (191, False, 2, 0.6)],
)
@pytest.mark.parametrize("kernel", ["local_forward", "local_backward"])
def test_loads_are_as_wide_as_the_number_of_units_allows(kernel, width, full, load, most):
    found = compiled(Variant("block", kernel, 2, width=width, full=full))
    assert (found.spilled, found.load) == (0, load)
    assert found.issue < most


def test_a_number_of_steps_or_chunks_makes_no_other_kernel():
    from statemix.ops.triton.problems import KERNELS as MODULES

    for module in MODULES.values():
        for kernel in KERNELS[:4]:
            parameters = getattr(module, kernel).params
            sizes = {p.name for p in parameters if p.do_not_specialize}
            assert sizes == {p.name for p in parameters} & {
                "T", "num_rows", "num_chunks", "num_maps", "maps_of_row", "chunk"
            }  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_maps_compile_for_every_dtype(operator, dtype):
    assert compiled(Variant(operator, "chunk_forward", 8, dtype)).spilled == 0


@pytest.mark.parametrize("gate", ["relu", "tanh", "none", "given"])
def test_kernels_compile_for_every_family(gate):
    assert compiled(Variant("block", "local_backward", 2, gate=gate, ragged=True)).spilled == 0


def compared():
    """Some rows of the committed table: small ones, as those compile fast."""
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    return [row for row in rows if row["size"] <= 4][::60]


@pytest.mark.parametrize("row", compared(), ids=lambda row: f"{row['kernel']}-{row['target']}")
def test_the_committed_table_is_what_the_compiler_gives(row):
    if row["packages"]["triton"] != provenance.version("triton"):
        pytest.skip(f"the rows are of Triton {row['packages']['triton']}")
    variant = Variant(**{name: row[name] for name in Variant.__dataclass_fields__})
    found = compiled(variant)._asdict()
    del found["seconds"]
    assert found == {name: row[name] for name in found}


def test_every_configuration_is_listed_once_and_in_rounds():
    every = list(configurations())
    assert len(set(every)) == len(every)
    assert {variant.target for variant in every} == set(TARGETS)
    for operator in OPERATORS:
        for kernel in KERNELS[:4]:
            about = operator, kernel, "sm_90"
            mine = [v for v in every if (v.operator, v.kernel, v.target) == about]
            assert {v.size for v in mine} == set(range(1, 17))
            assert {v.gate for v in mine} == set(families_of(operator))
            assert {v.dtype for v in mine} == {"bfloat16", "float16", "float32", "float64"}
            assert len({(v.packed, v.tempered) for v in mine}) == 4
    # The first round has each kernel, family, m and target once.
    round_of = Counter((v.operator, v.kernel, v.size, v.gate, v.target) for v in every)
    first = list(islice(every, len(round_of)))
    assert len({(v.operator, v.kernel, v.size, v.gate, v.target) for v in first}) == len(round_of)
    assert {v.dtype for v in first} == {"bfloat16", "float16", "float32", "float64"}
    assert (len(every), len(round_of)) == (449_024, 4_096)
    assert f"{len(every):,} configurations" in (text := (ROOT / "docs" / "kernels.md").read_text())
    assert f"round of {len(round_of):,}" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operator": "blocks"}, "operator must be one of"),
        ({"kernel": "forward"}, "kernel must be one of"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"target": "sm_1"}, "target must be one of"),
        ({"gate": "soft"}, "gate must be one of"),
        ({"operator": "lag", "gate": "householder"}, "gate must be one of"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"width": 0}, "width must be at least 1, got 0"),
    ],
)
def test_unknown_variants_are_named(options, message):
    known = {"operator": "block", "kernel": "local_forward", "size": 2}
    with pytest.raises(SettingError, match=message):
        Variant(**(known | options))
