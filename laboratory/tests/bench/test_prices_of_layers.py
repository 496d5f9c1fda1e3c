"""Layers of a comparison: which ones, their prices, and requests that are refused."""

import pytest
import torch

from statemix import ops
from statemix.errors import RequestError
from statemix.layers import LAYERS, LayerSpec, price
from statemix.ops import BackendUnavailableError
from statemix_lab.bench import compared_layers as bench_entries
from statemix_lab.bench.compared_layers import LayerCase, layer_label, layers_of_dtype
from statemix_lab.bench.timed_devices import Cpu

CASE = LayerCase(hidden_size=8, batch_size=2, length=70)
# The test's own layers register themselves later.
COMPARED = list(LAYERS)
F32 = torch.float32


def entries(specs, case=CASE, dtype=torch.float32):
    return bench_entries.entries({spec.name: spec for spec in specs}, case, dtype, Cpu())


def test_every_layer_of_the_library_is_compared_and_none_of_the_users(toys):
    assert [spec.name for spec in layers_of_dtype(8, torch.float32)] == COMPARED
    assert "solver" in LAYERS
    for entry in entries(layers_of_dtype(8, torch.float32)):
        options = {"hidden_size": 8, "length": 70, "dtype": torch.float32}
        assert entry.price == price(entry.spec, **options)
        assert entry.label == layer_label(entry.spec.name, entry.spec.options)


def test_layers_that_iterate_are_not_compared_in_16_bits():
    listed = {spec.name for spec in layers_of_dtype(8, torch.bfloat16)}
    assert listed == {name for name in COMPARED if not LAYERS[name].iterative} != set(COMPARED)
    message = "^layers must not iterate in bfloat16, .*, got fp_rnn$"
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("fp_rnn")], dtype=torch.bfloat16)


def test_saved_bytes_are_those_of_a_token():
    (conv,) = entries([LayerSpec("conv", kernel_size=3)])
    # The input, with two tokens of padding.
    assert conv.saved_bytes == 4 * 8 * (70 + 2) / 70
    short, long = (
        entries([LayerSpec("lstm")], LayerCase(8, 2, length))[0].saved_bytes
        for length in (512, 100_000)
    )
    # Longer sequences are not needed to measure it.
    assert short == long


def test_a_layer_that_asks_for_a_missing_backend_says_what_is_missing():
    kernels = dict(ops.BACKENDS["loop"].kernels)
    ops.BACKENDS.register(ops.Backend("broken", kernels, unavailable=lambda: "no such machine"))
    try:
        spec = LayerSpec("bd_lru", num_blocks=2, block_size=2, backend="broken")
        with pytest.raises(BackendUnavailableError, match="no such machine"):
            entries([spec])
    finally:
        ops.BACKENDS.remove("broken")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (LayerCase(0, 1, 1), r"hidden_size must be in 1\.\.2\^31 - 1, got 0"),
        (LayerCase(1, -1, 1), r"batch_size must be in 1\.\.2\^31 - 1, got -1"),
        (
            LayerCase(1, 2**31, 1),
            r"batch_size must be in 1\.\.2\^31 - 1, got 2147483648",
        ),
        (LayerCase(1, 1, 2**20), r"length must be in 1\.\.2\^20 - 1, got 1048576"),
        (
            LayerCase(256, 10**6, 10**5),
            r"batch_size x length x hidden_size must fit into memory \(.* GB\), got "
            r"1000000 x 100000 x 256, which needs",
        ),
    ],
)
def test_sizes_are_refused(case, message):
    with pytest.raises(RequestError, match=message):
        bench_entries.check_case(case, torch.float32, 2**37)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LayerSpec("bd_lru", num_blocks=0, block_size=2), "layers: num_blocks must be at least 1"),
        (LayerSpec("attention", num_heads=3), "layers: num_heads must divide hidden_size, got 3"),
        (
            LayerSpec("conv", kernel_size=2**31 - 1),
            r"layers must fit into memory \(.*\), got conv of width 8, which needs",
        ),
        # Not even "meta" can hold the shape of its weights.
        (LayerSpec("delta_net", num_heads=2**30, head_dim=2**30), "layers must fit into memory"),
    ],
)
def test_layers_are_refused_before_anything_is_allocated(spec, message, monkeypatch):
    monkeypatch.setattr(bench_entries, "_saved_bytes", lambda *arguments: pytest.fail("allocated"))
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("lstm"), spec])


def test_a_fault_of_a_layer_is_not_blamed_on_memory(monkeypatch):
    def fail(*arguments, **options):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(bench_entries, "price", fail)
    with pytest.raises(NotImplementedError, match="no such operator"):
        entries([LayerSpec("lstm")])


def test_a_call_that_would_take_hours_is_refused():
    long = LayerCase(hidden_size=256, batch_size=1, length=300_000)
    entries([LayerSpec("conv", kernel_size=2)], long)
    message = r"layers must need at most 1e14 FLOPs .* 1 x 300000 tokens, got attention, .* 1.4e"
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("attention", num_heads=4)], long)


def scanned(*sizes):
    return [LayerSpec("bd_lru", num_blocks=2, block_size=m, backend="associative") for m in sizes]


def named_entries(specs):
    return bench_entries.entries(
        {f"m{one.options['block_size']}": one for one in specs}, CASE, F32, Cpu()
    )


def test_layers_of_the_papers_scan_are_compiled_beside_the_others():
    loop = LayerSpec("bd_lru", num_blocks=2, block_size=3, backend="loop")
    found = bench_entries.with_variants(named_entries([*scanned(2), loop]), compiled=True)
    assert [(one.name, one.compiled, one.title) for one in found] == [
        ("m2", False, "BD-LRU m=2, associative"),
        ("m2 compiled", True, "BD-LRU m=2, compiled"),
        ("m3", False, "BD-LRU m=3, loop"),
    ]


@pytest.mark.parametrize(("sizes", "count"), [((), 0), (range(1, 10), 9)])
def test_a_number_of_layers_that_cannot_be_compiled_is_refused(sizes, count):
    listed = named_entries(scanned(*sizes))
    with pytest.raises(RequestError, match=f"^compiled must be used with 1 to 8 .*, got {count}$"):
        bench_entries.with_variants(listed, compiled=True)
    if count:
        assert len(bench_entries.with_variants(listed[:-1], compiled=True)) == 16


def test_projections_need_a_layer_that_has_them():
    with pytest.raises(RequestError, match="projections must be used with a layer bd_lru or h_lru"):
        bench_entries.with_variants(entries([LayerSpec("lstm")]), projections=True)
