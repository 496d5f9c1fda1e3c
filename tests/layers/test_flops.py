"""FLOPs of the layers, against hand counts."""

import pytest

from statemix import layers, ops
from statemix.layers import Flops
from statemix.layers.fixed_point.mixers import build_mixer

# Every entry counts one token by hand: rows of weights, then the state, then what is left.
HAND_COUNTS = {
    # 24 gates, 6 values and 6 readouts see 6 channels; 6 rows of 4 gates are exponentials, summed
    # and divided.
    "bd_lru": (
        {"num_blocks": 2, "block_size": 3},
        Flops(2 * 6 * (24 + 6 + 6), 2 * 24, 6 * 3 * 4),
    ),
    "h_lru": (
        {"num_channels": 5, "order": 2},
        Flops(2 * 6 * (15 + 5 + 10), 2 * 15, 3 * 15),
    ),
    # Per channel: three sigmoids of 3, two hyperbolic tangents of 6, and four operations.
    "lstm": ({}, Flops(2 * 24 * 6, 2 * 24 * 6 + 25 * 6, 0)),
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
    # Ten keys and values of 6 channels, softmax of ten in 3 heads; six pairs of q and k rotate.
    "attention": (
        {"num_heads": 3, "rope": True},
        Flops(2 * 6 * 24, 10 * (2 * 6 + 2 * 6 + 3 * 3), 6 * 6),
    ),
    # Twelve entries. Maps to 24 channels, twice to 12, from 24 to 12, and to 2 x 12 + 2 of the
    # mixer, which then maps the state before. Two vectors with SiLU and lengths, two doubled
    # sigmoids; three products of vectors by shares, one without, and the entries of a system of
    # two; its solution; two products before and two after it, and the sum. Then v, its shares and
    # the state. Three SiLUs, a sigmoid, products, a norm.
    "fp_rnn": (
        {"expand": 2, "rank": 2},
        Flops(
            2 * 6 * 24 + 2 * 12 * (12 + 12 + 24 + 26 + 6),
            2 * 12 * 26
            + 2 * (12 * 4 + 37 + 3 + 1)
            + (2 * 12 + 3 * 24 + 24 + 3 * 4)
            + (5 + 8 + 2)
            + (4 * 12 * 2 + 2 * 12)
            + 12 * 4,
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


@pytest.mark.parametrize("name", layers.LAYERS)
def test_flops_are_those_of_a_hand_count(name):
    options, expected = HAND_COUNTS[name]
    layer = layers.build(name, hidden_size=6, device="meta", **options)
    assert layer.flops_per_token(10) == expected


# Per mixer of six entries: its FLOPs, and those of one that is contractive; what the solution of a
# system takes in place of the product: products of pairs of vectors by shares (12 + 36), below the
# diagonal without (12), the entries of the system (12), its factors and use (5 + 8 + 2), vectors
# times v and weights (48), shares and sum (12).
MIXERS = {
    # Two vectors with SiLU (24) and lengths (19), two sigmoids, doubled unless contractive; two
    # reflections of 4 x 6 + 1 and their difference from v.
    ("householder", 2): (
        2 * (24 + 19 + 4) + 2 * 25 + 6,
        2 * (24 + 19 + 3) + 2 * 25 + 6,
        2 * (24 + 19 + 4) + (12 + 36 + 12 + 12) + 15 + 48 + 12,
    ),
    ("dplr", 2): (
        2 * (24 + 19 + 4) + 2 * 25,
        2 * (24 + 19 + 3) + 2 * 25,
        2 * (24 + 19 + 4) + (12 + 36 + 12) + 15 + 48 + 12,
    ),
    # Matrices of 2 x 2 and 3 x 3: SiLU of their triangles, squares, lengths of rows, sigmoids and
    # their use; v as 2 x 3 times both, then doubled. Otherwise they are bounded: three times all
    # entries, two times the rows, three numbers, and the quotients.
    ("kronecker", 1): (
        (12 + 16 + 14 + 6 + 4) + (24 + 54 + 30 + 9 + 9) + (24 + 36) + 6,
        (12 + 16 + 14 + 6 + 4) + (24 + 54 + 30 + 9 + 9) + (24 + 36) + (23 + 45),
        None,
    ),
    # Three blocks of 2 x 2: SiLU of the triangle and its square; squares or magnitudes, their sums,
    # the maximum and, unless contractive, a root; sigmoid, quotient and product; the block times v.
    # A system of two has four entries and five FLOPs for its factors.
    ("monarch", 2): (
        3 * ((12 + 16) + (4 + 4 + 2 + 1) + (3 + 1 + 4) + 8),
        3 * ((12 + 16) + (4 + 4 + 2) + (3 + 1 + 4) + 8),
        3 * ((12 + 16) + (4 + 4 + 2 + 1) + (3 + 1 + 4) + 8 + 4 + 5),
    ),
}


@pytest.mark.parametrize(("name", "rank"), MIXERS)
def test_flops_of_state_mixers_are_those_of_a_hand_count(name, rank):
    *expected, solution = MIXERS[name, rank]
    mixers = [
        build_mixer(name, 6, "both", rank, contractive=contractive, device="meta")
        for contractive in (False, True)
    ]
    assert [mixer.flops for mixer in mixers] == expected
    assert getattr(mixers[0], "resolvent_flops", None) == solution
    # Iterations repeat the product.
    few, many = (
        layers.FPRNN(6, mixer=name, rank=rank, solver="iterate", max_iterations=n) for n in (1, 3)
    )
    each = expected[0] + mixers[0].projections + 6 * 6
    costs = [layer.flops_per_token(9).transition for layer in (few, many)]
    assert costs == [each, 3 * each]


# The gates of a row of three entries, or of a block of three rows.
ROW = {"softmax": 3 * 4, "sigmoid": 5 * 4, "relu": 3 * 4, "none": 0, "signed": 3 * 4, "tanh": 9 * 4}
BLOCK = {"householder": 9 + 3 * 10 + 3 * 39 + 9, "column_softmax": 3 * 9 + 12 + 9}


def test_flops_of_gates_are_those_of_a_hand_count():
    assert {name: family.flops(3) for name, family in ops.GATES.items()} == ROW | BLOCK
    # Constant gates are normalised once, hence for free.
    layer = layers.HLRU(6, num_channels=5, order=2, selective=False)
    assert layer.flops_per_token(1).other == 0
