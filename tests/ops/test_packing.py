"""Packed sequences equal padded ones and single ones, in results and in every gradient."""

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.conftest import RECURRENCES, in_pairs, usable

from statemix.ops.packing import Chunks, pack, unpack

LENGTHS = {
    "ragged": (3, 1, 7, 2),
    "with empty ones": (0, 4, 0, 0, 5, 0),
    "one": (6,),
    "one empty": (0,),
    "only empty ones": (0, 0, 0),
}
VARIANTS = {
    "blocks": ("blocks", {}),
    "lags": ("lags", {}),
    "observer": ("lags", {"realization": "observer"}),
}


def singles(p, gate, **options):
    """The outcome of every sequence on its own, joined as the packed outcome is."""
    bounds = p.cu_seqlens.tolist()
    outcomes = []
    for n, (start, stop) in enumerate(pairwise(bounds)):
        steps = {name: getattr(p, name)[:, start:stop] for name in ("gates", "values", "d_states")}
        rows = {name: getattr(p, name)[n : n + 1] for name in ("initial_state", "d_final_state")}
        single = p.replace(**steps, **rows, cu_seqlens=None)
        outcomes.append(single.outcome(gate, **options))
    return {
        name: torch.cat([outcome[name] for outcome in outcomes], 0 if "al_state" in name else 1)
        for name in outcomes[0]
    }


@in_pairs(variant=list(VARIANTS), lengths=list(LENGTHS), **usable())
def test_packed_sequences_equal_single_ones(problem, agree, variant, lengths, backend):
    kind, options = VARIANTS[variant]
    p = problem(kind, blocks=18, lengths=LENGTHS[lengths])
    actual = p.outcome(backend=backend, **options)
    agree(actual, singles(p, "softmax", backend=backend, **options))


def test_packed_sequences_equal_single_ones_bit_for_bit(problem, identical, kind, stepwise_backend):
    p = problem(kind, blocks=21, lengths=LENGTHS["ragged"]).to(torch.float32)
    packed, single = (
        p.outcome(backend=stepwise_backend),
        singles(p, "softmax", backend=stepwise_backend),
    )
    names = ("states", "final_state")
    identical([packed[name] for name in names], [single[name] for name in names])


@pytest.mark.parametrize("variant", VARIANTS)
def test_sequences_without_steps_hand_on_their_initial_state(problem, variant, backend):
    kind, options = VARIANTS[variant]
    p = problem(kind, lengths=(2, 0, 3))
    outcome = p.outcome(backend=backend, cotangents=("final_state",), **options)
    assert outcome["final_state"][1].equal(p.initial_state[1])
    assert outcome["d_initial_state"][1].equal(p.d_final_state[1])
    # A row of no sequences is empty.
    p = problem(kind, lengths=())
    outcome = p.outcome(backend=backend, **options)
    assert outcome["states"].shape == p.values.shape
    assert outcome["final_state"].shape == (0, 3, 3)
    assert outcome["d_gates"].shape == p.gates.shape


def test_bounds_may_be_narrow_and_lie_apart_in_memory(problem, identical, kind, backend):
    p = problem(kind, lengths=(2, 0, 3))
    apart = torch.stack([p.cu_seqlens, torch.full_like(p.cu_seqlens, 99)], 1)[:, 0]
    for bounds in (p.cu_seqlens.int(), apart):
        found = p.replace(cu_seqlens=bounds).outcome(backend=backend)
        identical(found, p.outcome(backend=backend))


@pytest.mark.parametrize("variant", VARIANTS)
def test_bounds_are_not_read_back_from_a_device(problem, variant, portable_backend):
    """Tensors on meta have no values: reading one, by tolist, item or an if, fails."""
    kind, options = VARIANTS[variant]
    p = problem(kind, lengths=LENGTHS["ragged"]).on("meta")
    with pytest.raises(RuntimeError, match="meta tensor"):
        p.cu_seqlens.tolist()
    outcome = p.outcome(backend=portable_backend, **options)
    assert outcome["states"].shape == p.values.shape
    assert outcome["d_gates"].shape == p.gates.shape


@in_pairs(variant=list(VARIANTS), number=[float("nan"), float("inf")], **usable())
def test_a_spoilt_sequence_spoils_no_other(problem, identical, variant, number, backend):
    kind, options = VARIANTS[variant]
    p = problem(kind, lengths=(3, 2, 0, 4))
    clean = p.outcome(backend=backend, **options)
    values, state, d_states = p.values.clone(), p.initial_state.clone(), p.d_states.clone()
    values[:, 3:5] = state[1] = d_states[:, 3:5] = number
    spoilt = p.replace(values=values, initial_state=state, d_states=d_states)
    outcome = spoilt.outcome(backend=backend, **options)
    steps, rows = [0, 1, 2, 5, 6, 7, 8], [0, 2, 3]
    for name, tensor in outcome.items():
        whole = name in ("final_state", "d_initial_state")
        kept = tensor[rows] if whole else tensor[:, steps]
        wanted = clean[name][rows] if whole else clean[name][:, steps]
        torch.testing.assert_close(kept, wanted, rtol=1e-12, atol=1e-12)
    assert not outcome["states"][:, 3:5].isfinite().any()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(1, 12))
def test_chunks_cover_every_step_of_their_sequence_once(lengths, chunk):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    found = Chunks.of(bounds, sum(lengths), chunk)
    assert torch.equal(found.bounds, bounds)
    # An empty sequence has a chunk, and the last chunk of each has no map.
    counts = [max(1, -(-length // chunk)) for length in lengths]
    chunks = [n for n, count in enumerate(counts) for _ in range(count)]
    maps = [n for n, count in enumerate(counts) for _ in range(count - 1)]
    most = (sum(lengths) - 1) // chunk
    for owners, wanted, size in (
        (found.of_chunks, chunks, len(lengths) + most), (found.of_maps, maps, most)
    ):  # fmt: skip
        assert owners.tolist() == wanted + [-1] * (size - len(wanted))
    assert found.firsts.tolist() == [sum(n < k for n in maps) for k in range(len(lengths) + 1)]


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6), st.integers(1, 9))
def test_chunks_of_bounds_that_nothing_checked_cover_every_step_once(bounds, chunk):
    """On a GPU nothing reads the bounds, so kernels must stay within memory whatever they are."""
    found = Chunks.of(torch.tensor(bounds), 20, chunk)
    lengths = found.bounds.diff()
    assert (found.bounds[0], found.bounds[-1], lengths.min() >= 0) == (0, 20, True)
    same = Chunks.of(found.bounds, 20, chunk)
    assert all(torch.equal(one, other) for one, other in zip(found, same, strict=True))


@in_pairs(variant=list(VARIANTS), lengths=[None, (3, 0, 4), (0,)], size=[1, 2], **usable())
def test_final_states_own_their_memory_and_may_be_changed(problem, variant, size, lengths, backend):
    kind, options = VARIANTS[variant]
    p, run = problem(kind, size=size, lengths=lengths).to(torch.float32), RECURRENCES[kind]
    for gates in (p.gates, p.gates.requires_grad_()):
        states, final = run(
            gates, p.values, "softmax", p.initial_state, p.cu_seqlens, backend=backend, **options
        )
        assert final.untyped_storage().nbytes() == final.numel() * final.element_size()
        assert states.untyped_storage().data_ptr() != final.untyped_storage().data_ptr()
        final[0] = 0


MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])


def test_tokens_ids_and_further_axes_are_packed_too():
    tokens = torch.arange(12).view(2, 6)
    packed, bounds = pack(tokens, MASK[:2])
    assert packed.tolist() == [[2, 3, 4, 5, 6, 7, 8]]
    assert bounds.tolist() == [0, 4, 7]
    assert unpack(packed, MASK[:2]).tolist() == (tokens * MASK[:2]).tolist()
    assert pack(torch.zeros(2, 6, 3, 2), MASK[:2])[0].shape == (1, 7, 3, 2)
    for wrong, message in ((packed[:, :1], "the 7 tokens of"), (packed.view(7, 1), "one row")):
        with pytest.raises(ValueError, match=f"packed must have {message}"):
            unpack(wrong, MASK[:2])


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([[1, 1]], TypeError, "attention_mask must be a tensor, got list"),
        (MASK[0], ValueError, "attention_mask must have shape (B, T), got (6,)"),
        (MASK[:3], ValueError, "attention_mask must have shape (B=2, T=6), got (3, 6)"),
        (MASK[:2].float(), TypeError, "must be bool or integer, got torch.float32"),
        (2 * MASK[:2], ValueError, "attention_mask must be 0 or 1, got 2"),
        (MASK[:2].to("meta"), ValueError, "attention_mask must be on cpu, got meta"),
    ],
)
def test_bad_masks_are_named(mask, error, message):
    with pytest.raises(error, match=re.escape(message)):
        pack(torch.zeros(2, 6, 4), mask)
