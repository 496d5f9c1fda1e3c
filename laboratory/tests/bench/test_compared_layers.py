"""Layers of a comparison: which ones, their names and prices, and requests that are refused."""

import pytest
import torch

from statemix.errors import RequestError
from statemix.layers import LAYERS, LayerSpec, price
from statemix_lab.bench import compared_layers as bench_entries
from statemix_lab.bench.compared_layers import (
    LOOKS,
    LayerCase,
    compared,
    display_name,
    layer_label,
    layers_of_dtype,
)
from statemix_lab.bench.timed_devices import Cpu

CASE = LayerCase(hidden_size=8, batch_size=2, length=70)
# The test's own layers register themselves later.
COMPARED = list(LAYERS)
F32 = torch.float32


def entries(specs, case=CASE, dtype=F32):
    named = {f"{spec.name}{number}": spec for number, spec in enumerate(specs)}
    return bench_entries.entries(named, case, dtype, Cpu())


@pytest.mark.parametrize(
    ("layer", "options", "label"),
    [
        ("bd_lru", {"block_size": 4}, "BD-LRU m=4"),
        ("h_lru", {"order": 2}, "H-LRU m=2"),
        ("lstm", {}, "LSTM"),
        ("mamba2", {"d_state": 16}, "Mamba-2 S=16"),
        ("delta_net", {"allow_neg_eigval": False}, "DeltaNet [0, 1]"),
        ("delta_product", {"use_forget_gate": True}, "Gated DeltaProduct n=4 [-1, 1]"),
        ("attention", {"rope": True}, "Attention with RoPE"),
        ("conv", {"kernel_size": 4, "depthwise": True}, "Depthwise convolution K=4"),
        ("fp_mamba1", {"rank": 2}, "FP-Mamba1 householder 2"),
        ("fp_mamba2", {"mixer": "kronecker"}, "FP-Mamba2 kronecker"),
        ("own", {"size": 3}, "own"),
    ],
)
def test_labels_tell_the_sizes_apart(layer, options, label):
    assert layer_label(layer, options) == label
    assert label.startswith(("Gated", "Depthwise", display_name(layer)))


def test_every_layer_of_the_library_is_compared_and_none_of_the_users(toys):
    assert LOOKS.keys() == {*COMPARED}
    assert [spec.name for spec in layers_of_dtype(8, F32)] == list(compared(8)) == COMPARED
    assert "solver" in LAYERS
    for entry in entries(layers_of_dtype(8, F32)):
        assert entry.price == price(entry.spec, hidden_size=8, length=70, dtype=F32)
        assert entry.label == layer_label(entry.spec.name, entry.spec.options)


def test_layers_that_iterate_are_not_compared_in_16_bits():
    listed = {spec.name for spec in layers_of_dtype(8, torch.bfloat16)}
    assert listed == {name for name in COMPARED if not LAYERS[name].iterative} != set(COMPARED)
    with pytest.raises(RequestError, match=r"^layers must not iterate in .*, got fp_mamba1"):
        entries([LayerSpec("fp_mamba1")], dtype=torch.bfloat16)


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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LayerSpec("bd_lru", num_blocks=0, block_size=2), "layers: num_blocks must be at least 1"),
        (LayerSpec("conv", kernel_size=2**31 - 1), "layers must fit into memory .*, got conv1 of"),
        # Not even "meta" can hold the shape of its weights.
        (LayerSpec("delta_net", num_heads=2**30, head_dim=2**30), "layers must fit into memory"),
    ],
)
def test_layers_are_refused_before_anything_is_allocated(spec, message, monkeypatch):
    monkeypatch.setattr(bench_entries, "_saved_bytes", lambda *arguments: pytest.fail("allocated"))
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("lstm"), spec])


def scanned(block_size, backend="associative"):
    return LayerSpec("bd_lru", num_blocks=2, block_size=block_size, backend=backend)


def test_layers_of_the_papers_scan_are_compiled_beside_the_others():
    found = bench_entries.with_variants(entries([scanned(2), scanned(3, "loop")]), compiled=True)
    assert [(one.name, one.compiled, one.title) for one in found] == [
        ("bd_lru0", False, "BD-LRU m=2, associative"),
        ("bd_lru0 compiled", True, "BD-LRU m=2, compiled"),
        ("bd_lru1", False, "BD-LRU m=3, loop"),
    ]


def test_variants_that_no_layer_has_are_refused():
    for count in (0, 9):
        listed = entries([scanned(2)] * count)
        message = f"^compiled must be used with 1 to 8 .*, got {count}$"
        with pytest.raises(RequestError, match=message):
            bench_entries.with_variants(listed, compiled=True)
    assert len(bench_entries.with_variants(listed[:-1], compiled=True)) == 16
    with pytest.raises(RequestError, match="projections must be used with a layer bd_lru or h_lru"):
        bench_entries.with_variants(entries([LayerSpec("lstm")]), projections=True)
