"""FLOPs of the layers: against hand counts, PyTorch's counter, and the paper's Table 5."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from statemix import layers, ops
from statemix.layers import LSTM, Flops
from statemix.layers.fixed_point.mixers import build_mixer

# Every entry counts one token by hand: rows of weights, then the state, then what is left.
HAND_COUNTS = {
    # 24 gates, 6 values and 6 readouts see 6 channels; 6 rows of 4 gates are exponentials, summed
    # and divided.
    "bd_lru": (
        {"num_blocks": 2, "block_size": 3},
        Flops(2 * 6 * (24 + 6 + 6), 2 * 24, 6 * 3 * 4),
    ),
    # The 18 rows of 4 gates first scale and shift one channel each.
    "bd_lru pointwise": (
        {"num_blocks": 6, "block_size": 3, "selective": "pointwise"},
        Flops(2 * 6 * (18 + 18), 2 * 72, 2 * 72 + 18 * 12),
    ),
    "bd_lru constant": (
        {"num_blocks": 2, "block_size": 3, "selective": False},
        Flops(2 * 6 * (6 + 6), 2 * 24, 0),
    ),
    # One block: mean and shift (5), sigmoid (3), 1 - a_0; three times |u|^2 (6), c (4), c u (3),
    # A c u (18) and its outer product (18); (1 - a_0) A (9).
    "bd_lru householder": (
        {"num_blocks": 1, "block_size": 3, "gate": "householder"},
        Flops(2 * 6 * (12 + 3 + 3), 2 * 12, 5 + 3 + 1 + 3 * (6 + 4 + 3 + 18 + 18) + 9),
    ),
    "h_lru": (
        {"num_channels": 5, "order": 2},
        Flops(2 * 6 * (15 + 5 + 10), 2 * 15, 3 * 15),
    ),
    "h_lru observer": (
        {"num_channels": 5, "order": 2, "realization": "observer", "readout": "current"},
        Flops(2 * 6 * (15 + 5 + 5), 2 * 15, 3 * 15),
    ),
    # Per channel: three sigmoids of 3, two hyperbolic tangents of 6, and four operations.
    "lstm": ({}, Flops(2 * 24 * 6, 2 * 24 * 6 + 25 * 6, 0)),
    "lstm with a memory of 4": (
        {"memory_size": 4},
        Flops(2 * 16 * 6 + 2 * 4 * 6, 2 * 16 * 4 + 25 * 4, 0),
    ),
    # Two heads of 2 x 4; maps to 16 q, k, v, 2 strengths, 2 decays and 8 gates, and from 8 values.
    # Convolution: 16 channels of 4 taps and SiLU. A head: lengths of q and k, scale of q, norm,
    # strength and its use, decay, gate.
    "delta_net": (
        {
            "num_heads": 2, "head_dim": 2, "expand_v": 2,
            "use_forget_gate": True, "use_output_gate": True,
        },
        Flops(
            2 * 6 * (16 + 2 + 2 + 8 + 8),
            2 * 8 * 7,
            16 * (8 + 4) + 2 * (2 * 7 + 2 + 18 + (4 + 4) + 5 + 4 * 5),
        ),
    ),
    # A head of 3 x 3; maps to 9 q, k, v, a strength, a decay and 3 gates, and from 3 values.
    "delta_net with an odd number of values": (
        {
            "num_heads": 1, "head_dim": 3, "conv_size": 0,
            "use_forget_gate": True, "use_output_gate": True,
        },
        Flops(
            2 * 6 * (9 + 1 + 1 + 3 + 3),
            9 * 7,
            9 * 4 + (2 * 10 + 3 + 14 + (4 + 3) + 5 + 3 * 5),
        ),
    ),
    "delta_product": (
        {"num_heads": 2, "num_householder": 3, "conv_size": 0, "allow_neg_eigval": False},
        Flops(
            2 * 6 * (6 + 18 + 18 + 6 + 6),
            2 * 9 * 14,
            42 * 4 + 2 * (4 * 10 + 3 + 14 + 3 * (3 + 3)),
        ),
    ),
    # Three heads of 4 x 5; maps to 12 z, 22 x, B, C and 3 steps, and from 12 values. Convolution of
    # 22 channels; per head softplus, product, exponential; Delta x; D x; silu(z) o; norm.
    "mamba2": (
        {"d_state": 5, "head_dim": 4},
        Flops(
            2 * 6 * (12 + 22 + 3 + 12),
            5 * 3 * 4 * 5,
            22 * (8 + 4) + 3 * 5 + 12 + 24 + 12 * 5 + 50,
        ),
    ),
    "conv": ({"kernel_size": 3}, Flops(2 * 3 * 36, 0, 0)),
    "conv depthwise": ({"kernel_size": 3, "depthwise": True}, Flops(2 * 3 * 6, 0, 0)),
    # Ten keys and values of 6 channels, softmax of ten in 3 heads; six pairs of q and k rotate.
    "attention without positions": (
        {"num_heads": 3},
        Flops(2 * 6 * 24, 10 * (2 * 6 + 2 * 6 + 3 * 3), 0),
    ),
    "attention": (
        {"num_heads": 3, "rope": True},
        Flops(2 * 6 * 24, 10 * (2 * 6 + 2 * 6 + 3 * 3), 6 * 6),
    ),
    # Twelve entries. Maps to 24 channels, twice to 12, from 24 to 12, and to 2 x 12 + 2 of the
    # mixer; 16 iterations: its maps of the state before, two vectors with SiLU and lengths,
    # two doubled sigmoids, two reflections of 4 x 12 + 1 and their difference from v; v and its
    # mixture, 1 - lambda and the product, the scan. Three SiLUs, a sigmoid, products, a norm.
    "fp_rnn": (
        {"expand": 2, "rank": 2},
        Flops(
            2 * 6 * 24 + 2 * 12 * (12 + 12 + 24 + 26 + 6),
            16 * (2 * 12 * 26 + 2 * (12 * 4 + 37 + 3 + 1) + 2 * 49 + 12 + 12 * 4 + 24),
            12 * (3 * 4 + 3 + 3) + 50,
        ),
    ),
    # Twelve channels of 3 entries. Maps to 24 channels, from 12 to a step and 2 x 3, from the step
    # to 12, for the gate, out, and 2 x 12 + 2 of the mixer. 16 iterations and one for the state:
    # the mixer's map of y, two vectors and strengths, two reflections, x - y and u; maps to 2 x 3
    # and lengths; Delta u, Delta A and its exponential, products with b, the scan, the readout,
    # D u; mean, centre, length, bias. Convolution; softplus and bias of the steps; the gate.
    "fp_mamba1": (
        {"d_state": 3, "rank": 2},
        Flops(
            2 * 12 * (12 + 7 + 1 + 12 + 6) + 2 * 12 * 26,
            17
            * (
                2 * 12 * 26
                + (2 * (12 * 4 + 37 + 3 + 1) + 2 * 49 + 12)
                + (2 * 12 * 6 + 6 + 2 * 10 + 2 * 12)
                + (12 + 72 + 36 + 72 + 72 + 24)
                + (3 * 12 + 50)
            ),
            12 * (8 + 4) + 12 * 3 + 12 + 12 * 6,
        ),
    ),
    # As before with three heads of 4; maps to 12 z, 18 x, B, C and 3 steps. The state decays (1),
    # receives an outer product (2) and is read (2); Delta u, D u; silu(z), product, norm.
    "fp_mamba2": (
        {"d_state": 3, "head_dim": 4, "rank": 2},
        Flops(
            2 * 6 * (12 + 18 + 3 + 12) + 2 * 12 * 26,
            17
            * (
                2 * 12 * 26
                + (2 * (12 * 4 + 37 + 3 + 1) + 2 * 49 + 12)
                + (2 * 12 * 6 + 6 + 2 * 10 + 2 * 12)
                + (5 * 36 + 12 + 24)
                + (12 * 5 + 50)
            ),
            18 * (8 + 4) + 3 * 5,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HAND_COUNTS)
def test_flops_are_those_of_a_hand_count(case):
    options, expected = HAND_COUNTS[case]
    layer = layers.build(case.split()[0], hidden_size=6, device="meta", **options)
    assert layer.flops_per_token(10) == expected


def test_every_layer_has_a_hand_count():
    assert {case.split()[0] for case in HAND_COUNTS} == set(layers.LAYERS)


# Per mixer of six entries: its FLOPs, and those of one that is contractive.
MIXERS = {
    # Two vectors with SiLU (24) and lengths (19), two sigmoids, doubled unless contractive; two
    # reflections of 4 x 6 + 1 and their difference from v.
    ("householder", 2): (2 * (24 + 19 + 4) + 2 * 25 + 6, 2 * (24 + 19 + 3) + 2 * 25 + 6),
    ("dplr", 2): (2 * (24 + 19 + 4) + 2 * 25, 2 * (24 + 19 + 3) + 2 * 25),
    # Matrices of 2 x 2 and 3 x 3: SiLU of their triangles, squares, lengths of rows, sigmoids and
    # their use; v as 2 x 3 times both, then doubled. Otherwise they are bounded: three times all
    # entries, two times the rows, three numbers, and the quotients.
    ("kronecker", 1): (
        (12 + 16 + 14 + 6 + 4) + (24 + 54 + 30 + 9 + 9) + (24 + 36) + 6,
        (12 + 16 + 14 + 6 + 4) + (24 + 54 + 30 + 9 + 9) + (24 + 36) + (23 + 45),
    ),
    # Three blocks of 2 x 2: SiLU of the triangle and its square; squares or magnitudes, their sums,
    # the maximum and, unless contractive, a root; sigmoid, quotient and product; the block times v.
    ("monarch", 2): (
        3 * ((12 + 16) + (4 + 4 + 2 + 1) + (3 + 1 + 4) + 8),
        3 * ((12 + 16) + (4 + 4 + 2) + (3 + 1 + 4) + 8),
    ),
}


@pytest.mark.parametrize("contractive", [False, True])
@pytest.mark.parametrize(("name", "rank"), MIXERS)
def test_flops_of_state_mixers_are_those_of_a_hand_count(name, rank, contractive):
    mixer = build_mixer(name, 6, "both", rank, contractive=contractive, device="meta")
    assert mixer.flops == MIXERS[name, rank][contractive]


def counted(call):
    """FLOPs that PyTorch's counter sees: in modules with weights, and elsewhere."""
    with FlopCounterMode(display=False) as counter:
        call()
    by_module = {
        name: sum(flops.values())
        for name, flops in counter.get_flop_counts().items()
        # A layer may call itself.
        if "." in name
        or name not in ("Global", *(kind.__name__ for kind in layers.LAYERS.values()))
    }
    return sum(by_module.values()), counter.get_total_flops() - sum(by_module.values())


def test_projections_are_the_products_with_weights_that_pytorch_counts(build):
    layer = build().to("meta")
    _, state = layer(torch.empty(1, 4, 6, dtype=torch.float64, device="meta"))
    token = torch.empty(1, 6, dtype=torch.float64, device="meta")
    with_weights, _ = counted(lambda: layer.step(token, state))
    # An LSTM also has weights that its state multiplies.
    recurrent = 2 * layer.lstm.weight_hh_l0.numel() if isinstance(layer, LSTM) else 0
    assert layer.flops_per_token(5).projections == with_weights - recurrent


def test_attention_compares_with_as_many_tokens_as_pytorch_counts():
    layer = layers.build("attention", hidden_size=6, num_heads=3, device="meta")
    _, state = layer(torch.empty(1, 9, 6, device="meta"))
    _, elsewhere = counted(lambda: layer.step(torch.empty(1, 6, device="meta"), state))
    assert layer.flops_per_token(10).transition == elsewhere + 3 * (3 * 10)


@pytest.mark.parametrize("n", [1, 3])
def test_deltaproduct_updates_and_reads_as_its_equation(n):
    layer = layers.build("delta_product", hidden_size=8, num_heads=2, num_householder=n, expand_v=2)

    def token():
        S, k, v = (torch.empty(2, *shape, device="meta") for shape in [(4, 8), (4, 1), (8, 1)])
        for _ in range(n):
            S = S + k @ (v - S.mT @ k).mT
        return S.mT @ k

    assert layer.flops_per_token(1).transition == sum(counted(token))


def test_mamba2_updates_and_reads_as_its_equation():
    layer = layers.build("mamba2", hidden_size=8, d_state=5, head_dim=4)

    def token():
        S, x, B = (torch.empty(4, *shape, device="meta") for shape in [(4, 5), (4, 1), (5, 1)])
        return (S + x @ B.mT) @ B

    # The counter sees products of matrices only: the decay is one product per entry.
    assert layer.flops_per_token(1).transition == sum(counted(token)) + 4 * 4 * 5


@pytest.mark.parametrize(("H", "m", "C"), [(3, 2, 1), (64, 4, 1), (3, 2, 5)])
def test_block_transition_is_a_product_of_matrices_and_an_input_per_entry(H, m, C):
    layer = layers.build("bd_lru", hidden_size=6, num_blocks=H, block_size=m, value_channels=C)
    A, h = torch.empty(H, m, m, device="meta"), torch.empty(H, m, C, device="meta")
    assert layer.flops_per_token(1).transition == sum(counted(lambda: A @ h)) + 2 * H * m * C


def test_transitions_are_those_of_table_5_corrected():
    """Dubinin et al., Table 5, in letters of this library; the comments say what was corrected."""

    def transition(name, **options):
        layer = layers.build(name, hidden_size=256, device="meta", **options)
        return layer.flops_per_token(16).transition

    H, m, S, heads, d, n = 256, 4, 8, 8, 32, 4
    assert transition("lstm") == 8 * H**2 + 25 * H
    assert transition("h_lru", num_channels=H, order=m) == 2 * H * m + 2 * H
    # Printed: 2 H. With H blocks, the input has H m entries.
    assert transition("bd_lru", num_blocks=H, block_size=m) == 2 * H * m**2 + 2 * H * m
    # With one entry to a block or channel, both are one model.
    assert transition("bd_lru", num_blocks=H, block_size=1) == 4 * H
    assert transition("h_lru", num_channels=H, order=1) == 4 * H
    # Printed: 2 H S, the decay and the sum. The outer product and the readout are 3 H S.
    assert transition("mamba2", d_state=S) == 5 * (2 * H) * S
    # Printed: N_h (4 H + 4 H), as if the state were a vector.
    assert transition("delta_net", num_heads=heads) == 6 * heads * d * d
    assert transition("delta_product", num_heads=heads) == (4 * n + 2) * heads * d * d


@pytest.mark.parametrize("gate", list(ops.GATES))
def test_normalising_a_row_costs_what_its_formula_has(gate):
    expected = {
        "softmax": 3 * 5,  # exp, sum, quotient
        "sigmoid": 5 * 5,  # exp, sum, quotient; sum, quotient
        "relu": 3 * 5,  # maximum, sum, quotient
        "none": 0,
        "signed": 3 * 5,  # magnitude, sum, quotient
        "tanh": 9 * 5,  # 2 sigmoid(2 g) - 1 of 6; magnitude, sum, quotient
        "householder": (4 + 1 + 1 + 3 + 1) + 4 * (8 + 4) + 4 * (4 + 32 + 32) + 16,
        # Four columns of 4 and the input column of 5: exp, sum, quotient; then the kept share.
        "column_softmax": 4 * 3 * 4 + 3 * 5 + 16,
    }
    assert ops.GATES[gate].flops(4) == expected[gate]
