"""A proof needs gates that no order of sums can move."""

import pytest
import torch

from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.proofs import certificate, harden, prove
from statemix.proofs.hardening import rounding_of, watch_gaps
from statemix.tasks import TaskSpec

AUTOMATON = TaskSpec("permutation", group="S_3").build().automaton()
# A block that loads every token holds the last one, and does not track.
OTHER = [[[-1] * 3] * 7]


def with_gap(model, gap, block=0):
    """The model with a second raw gate as much below the largest one of a row."""
    layer = model.backbone.blocks[0].mixer
    gates = layer.gate_proj.weight.view(3, 4, layer.num_blocks, -1)
    with torch.no_grad():
        row = gates[0, :, block, 1]
        # Not the entry that is copied.
        row[(int(row.argmax()) + 1) % 3] = row.max() - gap
    return model


@pytest.mark.parametrize("network", ["pruned", "hardened"])
def test_a_gap_is_stated_with_the_proof_unless_rounding_may_undo_it(of_group, monkeypatch, network):
    if network == "hardened":
        # As if it were a stack.
        monkeypatch.setattr(certificate, "can_prune", lambda _: False)
    for gap in (8.0, 0.125):
        found = prove(with_gap(of_group("S_3"), gap), AUTOMATON)
        assert (found.result.verdict, found.network, found.gate_margin) == ("proven", network, gap)
        assert found.to_plain()["gate_margin"] == gap
    near = prove(with_gap(of_group("S_3"), 2e-6), AUTOMATON)
    assert (near.result.verdict, near.network) == ("open", network)
    assert near.gate_margin == pytest.approx(2e-6, rel=0.3)
    said = f"rounding may swap two gates of a row or column, which differ by {near.gate_margin:.2g}"
    assert near.result.reason == said


def test_gates_of_blocks_that_are_not_read_do_not_count(of_group):
    model = with_gap(of_group("S_3", *OTHER), 2e-6, block=1)
    found = prove(model, AUTOMATON)
    assert found.tracking == (0,)
    assert (found.result.verdict, found.gate_margin) == ("proven", 8.0)


def test_all_units_of_all_layers_count_where_none_can_be_removed():
    layers = [
        LayerSpec("bd_lru", num_blocks=1, block_size=3),
        LayerSpec("h_lru", num_channels=2, order=2),
    ]
    hard = harden(TokenClassifier(6, {"answer": 6}, 10, layers, bos=True))
    with watch_gaps(hard) as gaps:
        assert gaps.finite is None
        hard(torch.tensor([[1, 2]]))
    seen = gaps.smallest
    for name in ("backbone.blocks.0", "backbone.blocks.1"):
        projection = hard.get_submodule(f"{name}.mixer.gate_proj")
        with torch.no_grad():
            projection.weight.zero_()
            projection.bias.zero_()
        with watch_gaps(hard) as gaps:
            hard(torch.tensor([[1, 2]]))
        assert (gaps.smallest, gaps.nearest) == (0.0, 0.0)
        # Gates that tie are in doubt even where nothing rounds.
        assert gaps.doubt.endswith("which differ by 0")
        with torch.no_grad():
            projection.bias.uniform_(-1, 1)
    assert seen > 0


def test_models_as_trained_and_gates_of_one_channel_state_no_gap(of_group):
    assert prove(of_group("S_3"), AUTOMATON, soft=True, max_pairs=50).gate_margin is None
    layer = LayerSpec("bd_lru", num_blocks=2, block_size=3, selective=False)
    constant = TokenClassifier(6, {"answer": 6}, 8, [layer], bos=True)
    found = prove(constant, AUTOMATON)
    assert (found.network, found.gate_margin) == ("hardened", None)


# Narrow inputs and outputs are rounded once each; sums have float32.
@pytest.mark.parametrize(
    ("dtype", "unit", "own"),
    [(torch.float64, 2**-53, 0), (torch.float32, 2**-24, 0), (torch.bfloat16, 2**-24, 2 * 2**-8)],
)
def test_the_bound_of_every_dtype(dtype, unit, own):
    projection = torch.nn.Linear(3, 1, dtype=dtype)
    with torch.no_grad():
        projection.weight.copy_(torch.tensor([[1.0, -2.0, 4.0]]))
        projection.bias.fill_(-1.0)
        found = rounding_of(projection, torch.tensor([1.0, -2.0, 0.5], dtype=dtype))
    # 1 + 4 + 2 of the products and 1 of the bias.
    assert found.double().item() == pytest.approx((38 * unit + own) * 8, rel=2**-7)


@pytest.mark.parametrize("hidden_size", [1, 300])
def test_the_bound_covers_every_order_of_a_sum(hidden_size):
    generator = torch.Generator().manual_seed(hidden_size)
    layer = LayerSpec("bd_lru", num_blocks=1, block_size=1).build(hidden_size=hidden_size)
    model = torch.nn.ModuleList([layer])
    x = torch.randn(1, 1, hidden_size, generator=generator)
    exact = layer.gate_proj.double()(x.double()).detach()
    layer.gate_proj.float()
    with watch_gaps(model) as gaps, torch.no_grad():
        layer(x)
    moved = gaps.smallest - gaps.nearest
    worst = 0.0
    for _ in range(50):
        order = torch.randperm(hidden_size, generator=generator)
        # One term after the other, in this order.
        total, weight = layer.gate_proj.bias.detach().clone(), layer.gate_proj.weight.detach()
        for place in order.tolist():
            total = total + x[0, 0, place] * weight[:, place]
        worst = max(worst, float((total.double() - exact[0, 0]).abs().max()))
    assert 2 * worst <= moved
    assert moved < 1e-2
