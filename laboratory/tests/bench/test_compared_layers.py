"""Names of layers in tables and figures."""

import pytest

from statemix.layers import LAYERS
from statemix_lab.bench.compared_layers import LOOKS, compared, display_name, layer_label


@pytest.mark.parametrize(
    ("layer", "options", "label"),
    [
        ("bd_lru", {"block_size": 4}, "BD-LRU m=4"),
        ("h_lru", {"order": 2}, "H-LRU m=2"),
        ("lstm", {}, "LSTM"),
        ("mamba2", {}, "Mamba-2 S=128"),
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


def test_every_layer_has_a_name_a_colour_and_options_of_a_common_size():
    assert LOOKS.keys() == compared(64).keys() == LAYERS.keys()
