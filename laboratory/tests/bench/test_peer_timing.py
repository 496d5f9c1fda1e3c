"""Operators of other layers: what they compute, what they are compared at, and where they run."""

import sys

import pytest
import torch

from statemix.errors import RequestError
from statemix.layers import fla
from statemix.layers.chunks import delta_rule, ssd
from statemix_lab.bench import operator_timing as ops
from statemix_lab.bench import peer_timing as peers
from statemix_lab.bench.harness import measure

F32, HALF = torch.float32, torch.bfloat16


def case(direction="forward_backward", batch_size=2, length=70, num_blocks=8, block_size=4):
    return ops.OperatorCase("bd_lru", direction, batch_size, length, num_blocks, block_size)


def provider(name, asked, dtype=F32, device="cpu"):
    return peers.provider(name, asked, dtype, device)


@pytest.mark.parametrize(
    ("name", "length", "dtype"),
    [
        *((name, 70, F32) for name in peers.NAMES),
        ("lstm", 5, HALF),
        ("mamba2", 5, torch.float64),
        ("gated_delta_net", 5, F32),
        ("gated_delta_product", 5, HALF),
    ],
)
def test_a_peer_gives_its_reference_result_and_a_wrong_one_is_noticed(name, length, dtype):
    one = provider(name, case(length=length), dtype)
    results = one.prepare()()
    assert all(part.dtype in (dtype, torch.promote_types(dtype, F32)) for part in results)
    assert not any(part.requires_grad for part in results)
    limit = ops.TOLERANCES[dtype]
    assert one.error(results) <= limit
    num_inputs = {"lstm": 1, "mamba2": 4, "delta_net": 4}.get(name, 5)
    for place in range(1 + num_inputs):
        wrong = list(results)
        wrong[place] = 1.1 * wrong[place]
        assert one.error(wrong) > 0.05


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "heads", "head_dim"),
    [(192, 4, 3, 16), (154, 5, 3, 16), (8, 4, 1, 5), (1, 1, 1, 1)],
)
def test_the_state_has_as_many_entries_as_ours_or_few_less(num_blocks, block_size, heads, head_dim):
    asked = case(num_blocks=num_blocks, block_size=block_size)
    for name in peers.NAMES[1:]:
        size = peers.sizes(name, asked)
        assert (size["num_heads"], size["head_dim"]) == (heads, head_dim)
        assert size["state_size"] == heads * head_dim**2 <= asked.state_size
    updates = [peers.sizes(name, asked).get("num_householder") for name in peers.NAMES[1:]]
    assert updates == [None, 1, 1, 4]
    hidden_size = peers.sizes("lstm", asked)["hidden_size"]
    # Both h and c are carried.
    assert hidden_size == max(1, num_blocks * block_size // 2)


def test_bytes_that_must_move_are_counted_by_hand():
    # Per token: 1 head of 5 x 5, so q, k, v and o have 5 numbers each, beta and g one.
    tokens = 2 * 70
    forward, both = case("forward"), case()
    read = {
        "mamba2": (5 + 5 + 5) * 4 + 4,
        "delta_net": (5 + 5 + 5) * 4 + 4,
        "gated_delta_net": (5 + 5 + 5) * 4 + 4 + 4,
        "gated_delta_product": (5 + 4 * 5 + 4 * 5) * 4 + 4 * 4 + 4,
    }
    for name, size in read.items():
        assert peers.moved_bytes(name, forward, F32) == tokens * (size + 20)
        assert peers.moved_bytes(name, both, F32) == tokens * (3 * size + 2 * 20)
    # Strengths and decays stay in float32.
    assert peers.moved_bytes("gated_delta_net", forward, HALF) == tokens * (15 * 2 + 4 + 4 + 10)
    weights = 8 * 16 * 16 + 8 * 16
    assert peers.moved_bytes("lstm", forward, F32) == 4 * (weights + 2 * tokens * 16)


def test_kernels_of_a_gpu_need_16_bits():
    peers.check(peers.NAMES, F32, "cpu")
    peers.check(peers.NAMES, HALF, "cuda")
    peers.check(["lstm"], F32, "cuda")
    message = "^peers on a GPU must be measured with dtype=bfloat16, got delta_net with float32: "
    with pytest.raises(RequestError, match=message):
        peers.check(["lstm", "delta_net"], F32, "cuda")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Stand-ins for the kernels, which take our tensors and round to 16 bits; returns the calls."""
    called = []

    def stand_in(name, real):
        def serve(*arguments):
            *tensors, memory, dtype = arguments
            called.append((name, dtype))
            assert (tensors[0].dtype, memory.dtype) == (HALF, F32)
            wide = [None if part is None else part.float() for part in tensors]
            outputs, final = real(*wide, memory)
            return outputs.to(dtype), final

        monkeypatch.setattr(fla, name, serve)

    stand_in("delta_rule", delta_rule)
    stand_in("ssd", ssd)
    real = peers._problem
    monkeypatch.setattr(
        peers, "_problem", lambda name, asked, dtype, device: real(
            name, asked, dtype, "cpu" if device == "cuda" else device
        )
    )  # fmt: skip
    monkeypatch.setattr(fla, "installed", lambda: True)
    return called


@pytest.mark.parametrize("name", peers.NAMES)
def test_on_a_gpu_the_kernels_of_flash_linear_attention_run(name, as_on_a_gpu):
    one = provider(name, case(), HALF, "cuda")
    results = one.prepare()()
    kernel = {"lstm": [], "mamba2": [("ssd", HALF)]}.get(name, [("delta_rule", HALF)])
    assert as_on_a_gpu == kernel
    assert one.error(results) <= ops.TOLERANCES[HALF]


def measured(name):
    (found,) = measure(
        [provider(name, case(), HALF, "cuda")],
        relative_to=(),
        rounds=3,
        budget_s=1,
        tolerance=ops.TOLERANCES[HALF],
        seed=0,
    )
    return found


@pytest.mark.usefixtures("as_on_a_gpu")
def test_without_the_package_a_peer_is_skipped_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(fla, "installed", lambda: False)
    monkeypatch.setitem(sys.modules, "fla", None)
    one = measured("delta_net")
    assert one.status == "skipped"
    assert one.reason == (
        "delta_net on a GPU needs flash-linear-attention, which is not installed: "
        "pip install 'statemix[peers]'"
    )
    assert measured("lstm").status == "measured"


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_kernel_that_fails_ends_no_other(monkeypatch):
    def fail(*arguments):
        raise AssertionError("this GPU is too old")

    monkeypatch.setattr(fla, "ssd", fail)
    one = measured("mamba2")
    assert one.status == "skipped"
    assert one.reason == "flash-linear-attention cannot run mamba2 here: this GPU is too old"
    assert measured("delta_net").status == "measured"
