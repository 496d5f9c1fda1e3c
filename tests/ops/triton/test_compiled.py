"""The machine code of the Triton kernels, which compile without a GPU."""

import json
import os
from itertools import product
from pathlib import Path

import pytest

from statemix.bench.compiled import (
    KERNELS,
    OPERATORS,
    TARGETS,
    Variant,
    compiled,
    families_of,
)
from statemix.settings import SettingError

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets"
)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("size", "tempered"), [(1, True), (4, True), (4, False)])
def test_no_register_is_spilled_and_loads_are_wide(operator, kernel, size, tempered):
    found = compiled(Variant(operator, kernel, size, tempered=tempered))
    assert found.spilled == 0
    assert found.registers <= 255
    # Eight neighbouring gates of 16 bits are one load.
    if kernel.startswith("local"):
        assert found.load == 16
    # Issuing takes less time than moving the bytes.
    assert found.issue < 1


@pytest.mark.parametrize("kernel", ["chunk_forward", "chunk_backward"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("size", "most"), [(7, 1), (8, 1.06)])
def test_maps_of_large_blocks_take_about_the_time_of_their_bytes(operator, kernel, size, most):
    """With a temperature, as in layers: it takes no instruction, as part of the base of powers."""
    found = compiled(Variant(operator, kernel, size))
    assert found.spilled == 0
    assert found.issue < most


@pytest.mark.parametrize(
    "options",
    [
        {"size": 4, "gate": "sigmoid"},
        {"size": 4, "gate": "relu"},
        {"size": 4, "dtype": "float32"},
        {"size": 6, "gate": "signed"},
        {"size": 8, "gate": "sigmoid", "packed": True},
        {"size": 16},
    ],
    ids=str,
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_backward_passes_that_need_more_registers_hold_fewer_lanes(operator, options):
    assert compiled(Variant(operator, "local_backward", **options)).spilled == 0


@pytest.mark.parametrize(
    "options",
    [
        {"size": 8, "gate": "sigmoid", "packed": True, "ragged": True},
        {"size": 8, "gate": "signed"},
        {"size": 16, "gate": "given"},
    ],
    ids=str,
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_forward_passes_that_need_more_registers_hold_fewer_lanes(operator, options):
    assert compiled(Variant(operator, "local_forward", **options)).spilled == 0


@pytest.mark.parametrize(("gate", "most"), [("sigmoid", 0.9), ("signed", 0.8), ("tanh", 1.05)])
@pytest.mark.parametrize("kernel", ["local_forward", "local_backward"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_local_scans_of_families_take_about_the_time_of_their_bytes(operator, kernel, gate, most):
    found = compiled(Variant(operator, kernel, 4, gate=gate))
    assert found.spilled == 0
    assert found.issue < most


@pytest.mark.parametrize(("width", "load", "most"), [(200, 16, 0.64), (196, 8, 0.7), (191, 2, 1.2)])
@pytest.mark.parametrize("kernel", ["local_forward", "local_backward"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_loads_are_as_wide_as_the_number_of_units_allows(operator, kernel, width, load, most):
    found = compiled(Variant(operator, kernel, 4, width=width))
    assert (found.spilled, found.load) == (0, load)
    assert found.issue < most


@pytest.mark.parametrize("kernel", ["chunk_forward", "chunk_backward"])
@pytest.mark.parametrize("width", [200, 191])
def test_maps_of_odd_widths_take_less_time_than_their_bytes(kernel, width):
    found = compiled(Variant("block", kernel, 4, width=width))
    assert found.spilled == 0
    assert found.issue < 1


@pytest.mark.parametrize("kernel", KERNELS[:4])
@pytest.mark.parametrize("size", [1, 4])
def test_reflections_spill_no_register_and_local_scans_wait_for_memory(kernel, size):
    found = compiled(Variant("block", kernel, size, gate="householder"))
    assert found.spilled == 0
    if kernel.startswith("local"):
        assert found.load == 16
        assert found.issue < 1
    else:
        assert found.issue < 1.3


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gate", ["softmax", "householder"])
def test_kernels_compile_for_every_target(kernel, target, gate):
    found = compiled(Variant("block", kernel, 3, gate=gate, target=target))
    assert (found.spilled, found.registers > 0) == (0, True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kernel", KERNELS[:4])
def test_reflections_compile_for_every_dtype(kernel, dtype):
    assert compiled(Variant("block", kernel, 2, dtype, "householder", packed=True)).spilled == 0


@pytest.mark.parametrize("kernel", KERNELS[:4])
def test_reflections_compile_in_double_precision(kernel):
    # Pairs of registers: those of the adjoint do not suffice above m = 1.
    size = 1 if kernel == "local_backward" else 2
    found = compiled(Variant("block", kernel, size, "float64", "householder"))
    assert (found.load, found.spilled) == (16, 0)


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
        ({"operator": "lag", "gate": "householder"}, "gate must be one of"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"width": 0}, "width must be at least 1, got 0"),
    ],
)
def test_unknown_variants_are_named(options, message):
    known = {"operator": "block", "kernel": "local_forward", "size": 2}
    with pytest.raises(SettingError, match=message):
        Variant(**(known | options))


ROOT = Path(__file__).parents[3]
# The table of the kernels as they are.
TABLE = ROOT / "results" / "bench" / "kernels-798e486.jsonl"
REFLECTIONS = ROOT / "results" / "bench" / "kernels-householder-798e486.jsonl"


def committed(table=TABLE):
    return [json.loads(line) for line in table.read_text().splitlines()]


def of_layers():
    """Rows of the kernels that layers run by default, with a temperature and 192 units."""
    wanted = {
        "target": "sm_90", "dtype": "bfloat16", "gate": "softmax", "packed": False,
        "ragged": False, "tempered": True, "width": 192,
    }  # fmt: skip
    return [
        row
        for row in committed()
        if all(row.get(name, value) == value for name, value in wanted.items())
    ]


def test_the_committed_table_has_every_choice_on_an_h200():
    rows = {(row["operator"], row["kernel"], row["size"]): row for row in of_layers()}
    assert rows.keys() == set(product(OPERATORS, KERNELS, range(1, 17)))
    for (_, kernel, size), row in rows.items():
        assert row["spilled"] == 0
        if not kernel.startswith("chunk") or size <= 7:
            assert row["issue"] < 1


def test_the_committed_table_has_every_target_family_and_dtype():
    rows = committed() + committed(REFLECTIONS)
    for operator, kernel in product(OPERATORS, KERNELS[:4]):
        for name, wanted in (
            ("target", set(TARGETS)),
            ("gate", set(families_of(operator))),
            ("dtype", {"bfloat16", "float16", "float32", "float64"}),
            ("packed", {True, False}),
        ):
            assert wanted == {
                row[name] for row in rows if (row["operator"], row["kernel"]) == (operator, kernel)
            }


def test_the_document_shows_the_committed_table():
    text = (ROOT / "docs" / "kernels.md").read_text()
    table = text.partition("<!-- issue -->\n")[2].partition("\n\n")[0].splitlines()
    sizes = [int(cell.strip(" m=")) for cell in table[0].split("|")[2:-1]]
    issue = {(row["operator"], row["kernel"], row["size"]): row["issue"] for row in of_layers()}
    spilled = [row["spilled"] for row in committed() if row["spilled"]]
    among = f"Of its {len(committed())} kernels, for all\ntargets, families and dtypes"
    assert f"{among}, {len(spilled)} spill {min(spilled)} to {max(spilled)} bytes" in text
    names = {"BD-LRU": "block", "H-LRU": "lag"}
    shown = {}
    for line in table[2:]:
        name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        model, _, kernel = name.partition(", ")
        for size, cell in zip(sizes, cells, strict=True):
            shown[names[model], kernel.replace(" ", "_"), size] = cell
    assert shown == {
        key: f"{value:.2f}" for key, value in issue.items() if key[1:] in {k[1:] for k in shown}
    }
    assert len(shown) == len(OPERATORS) * 4 * len(sizes)


def test_the_document_shows_the_reflections():
    issue = {}
    for row in committed(REFLECTIONS):
        assert (row["target"], row["dtype"], row["gate"]) == ("sm_90", "bfloat16", "householder")
        assert row["spilled"] == 0
        assert row["issue"] < 1 or row["kernel"].startswith("chunk")
        issue[row["kernel"], row["size"]] = f"{row['issue']:.2f}"
    assert issue.keys() == set(product(KERNELS[:4], range(1, 9)))
    text = (ROOT / "docs" / "kernels.md").read_text()
    assert REFLECTIONS.name in text
    table = text.partition("<!-- reflected -->\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split("|")[1:-1] for line in table[2:]] == [
        [f" BD-LRU, {kernel.replace('_', ' ')} "]
        + [f" {issue[kernel, size]} " for size in (1, 2, 3, 4, 5, 6, 8)]
        for kernel in KERNELS[:4]
    ]
