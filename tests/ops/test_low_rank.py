"""Transitions that are diagonal plus low rank, against dense blocks in float64."""

import pytest
import torch
from tests.ops.conftest import RUNS, Problem, check_agreement, covering, in_pairs
from tests.ops.test_packing import LENGTHS, singles
from torch.func import grad, vmap

from statemix import ops
from statemix.ops.registered import scan_backward, scan_forward

BACKENDS = [
    name
    for name, backend in ops.BACKENDS.items()
    if "low_rank" in backend.kernels and backend.unavailable() is None
]
STEPWISE = [name for name in BACKENDS if ops.BACKENDS[name].stepwise]
REGISTERED = [name for name in BACKENDS if not ops.BACKENDS[name].differentiates("low_rank")]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    {"batch": 2, "length": 7, "heads": 3, "entries": 21},
    {"batch": 1, "length": 1, "heads": 1, "entries": 1},
    {"batch": 2, "length": 0, "heads": 2, "entries": 3},
    {"batch": 1, "length": 70, "heads": 1, "entries": 5},
    {"batch": 1, "length": 9, "heads": 2, "entries": 64},
    {"batch": 0, "length": 3, "heads": 2, "entries": 4},
    {"batch": 2, "length": 3, "heads": 0, "entries": 4},
    {"lengths": (3, 1, 0, 30, 0), "heads": 2, "entries": 17},
    {"lengths": (0, 0), "heads": 3, "entries": 2},
]


def make(rank=2, *, batch=2, length=7, heads=3, entries=21, lengths=None, seed=0):
    """Decays of both signs, some of them zero, and products of norm about 1/2, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    cu_seqlens, sequences = None, batch
    if lengths is not None:
        batch, length, sequences = 1, sum(lengths), len(lengths)
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    rows = (batch, length, heads)
    transitions = normal(*rows, 1 + 2 * rank, entries) * (0.5 / rank / entries) ** 0.5
    transitions[..., 0, :] = (normal(*rows, entries) / 2).clamp(-1, 1)
    transitions[..., 0, ::4] = 0
    return Problem(
        "low rank",
        *(transitions, normal(*rows, entries), normal(sequences, heads, entries)),
        *(normal(*rows, entries), normal(sequences, heads, entries), cu_seqlens),
    )


def dense(p):
    """The outcome by dense blocks diag(d) + sum_i u_i w_i^T, in float64."""
    exact = p.to(torch.float64)
    leaves = [leaf.requires_grad_() for leaf in exact.leaves]
    d, *vectors = leaves[0].unbind(-2)
    rank = len(vectors) // 2
    blocks = torch.diag_embed(d)
    for u, w in zip(vectors[:rank], vectors[rank:], strict=True):
        blocks = blocks + u.unsqueeze(-1) * w.unsqueeze(-2)
    results = ops.block_scan(blocks, *leaves[1:], p.cu_seqlens, backend="reference")
    gradients = torch.autograd.grad(
        results, leaves, (exact.d_states, exact.d_final_state), materialize_grads=True
    )
    names = ("states", "final_state", "d_gates", "d_values", "d_initial_state")
    return dict(zip(names, (*results, *gradients), strict=True))


@in_pairs(shape=SHAPES, rank=range(1, 9), dtype=DTYPES, backend=BACKENDS)
def test_states_and_gradients_are_those_of_the_recurrence(agree, shape, rank, dtype, backend):
    p = make(rank, **shape, seed=rank).to(dtype)
    found = p.outcome(backend=backend)
    assert found["states"].dtype == found["d_gates"].dtype == dtype
    assert found["final_state"].dtype == torch.promote_types(dtype, torch.float32)
    agree(found, dense(p))


@in_pairs(backend=BACKENDS, lengths=[None, (2, 0, 3)], rank=[1, 2])
def test_gradients_match_finite_differences(rank, lengths, backend):
    p = make(rank, batch=1, length=3, heads=2, entries=2, lengths=lengths)
    leaves = [leaf.requires_grad_() for leaf in p.leaves]
    assert torch.autograd.gradcheck(
        lambda *leaves: ops.low_rank_scan(*leaves, p.cu_seqlens, backend=backend), leaves
    )


@in_pairs(lengths=list(LENGTHS), rank=[1, 3], backend=BACKENDS)
def test_packed_sequences_equal_single_ones(agree, identical, rank, lengths, backend):
    p = make(rank, lengths=LENGTHS[lengths]).to(torch.float32)
    packed, single = p.outcome(backend=backend), singles(p, None, backend=backend)
    agree(packed, single)
    if backend in STEPWISE:
        identical(*([one[name] for name in ("states", "final_state")] for one in (packed, single)))


@in_pairs(number=[float("nan"), float("inf")], backend=BACKENDS)
def test_a_spoilt_sequence_spoils_no_other(agree, number, backend):
    p = make(lengths=(9, 2, 0, 12))
    clean = p.outcome(backend=backend)
    values, state, d_states = p.values.clone(), p.initial_state.clone(), p.d_states.clone()
    values[:, 9:11] = state[1] = d_states[:, 9:11] = number
    spoilt = p.replace(values=values, initial_state=state, d_states=d_states)
    found = spoilt.outcome(backend=backend)
    steps, rows = [*range(9), *range(11, 23)], [0, 2, 3]
    for name in found:
        kept = (rows,) if "al_state" in name else (slice(None), steps)
        agree({name: found[name][kept]}, {name: clean[name][kept]})
    assert not found["states"][:, 9:11].isfinite().any()


@in_pairs(backend=BACKENDS, entries=[1, 3, 21])
def test_an_infinite_state_stays_infinite(entries, backend):
    """Lanes behind the entries of a head must not turn their sums into NaN."""
    p = make(entries=entries).to(torch.float32)
    state = torch.full_like(p.initial_state, float("inf"))
    states, _ = ops.low_rank_scan(torch.ones_like(p.gates), p.values, state, backend=backend)
    assert (states == float("inf")).all()


@in_pairs(backend=STEPWISE, dtype=DTYPES, entries=[1, 8, 21])
def test_pieces_and_steps_equal_the_whole_bit_for_bit(identical, dtype, entries, backend):
    p = make(length=5, entries=entries).to(dtype)

    def run(piece, state):
        return ops.low_rank_scan(p.gates[:, piece], p.values[:, piece], state, backend=backend)

    whole = run(slice(None), p.initial_state)
    for split in range(6):
        head, state = run(slice(0, split), p.initial_state)
        tail, state = run(slice(split, None), state)
        identical((torch.cat([head, tail], 1), state), whole)
    state, states = p.initial_state, []
    for a_t, b_t in zip(p.gates.unbind(1), p.values.unbind(1), strict=True):
        h_t, state = ops.low_rank_step(a_t, b_t, state, backend=backend)
        states.append(h_t)
    identical((torch.stack(states, 1), state), whole)


@in_pairs(backend=BACKENDS, dtype=DTYPES[:3])
def test_any_memory_order_and_autocast_change_no_bit(identical, dtype, backend):
    p = make().to(dtype)
    expected = p.outcome(backend=backend)
    negated = torch._neg_view(-p.gates)
    names = ("gates", "values", "initial_state", "d_states", "d_final_state")
    backwards = {name: getattr(p, name).mT.contiguous().mT for name in names}
    apart = {name: torch.stack([getattr(p, name)] * 2, -1)[..., 0] for name in names}
    for changes in ({"gates": negated}, backwards, apart):
        found = p.replace(**changes).outcome(backend=backend)
        # Sums of PyTorch may depend on the order in memory.
        (identical if backend == "cpu" else check_agreement)(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        identical(p.outcome(backend=backend), expected)


@pytest.mark.kernels
@in_pairs(dtype=DTYPES[:3], entries=[32, 40, 21], heads=[1, 3])
def test_parts_and_threads_of_a_large_problem_change_no_bit(identical, dtype, heads, entries):
    """The whole streams its results past the caches or fetches them first; one row does not."""
    p = make(batch=2, length=4, heads=heads, entries=entries).to(dtype)
    repeats = (12 << 20) // (p.gates.numel() * p.gates.element_size())
    times = {name: getattr(p, name) for name in ("gates", "values", "d_states")}
    times = {k: v.repeat(1, repeats, *(1,) * (v.ndim - 2)) for k, v in times.items()}
    large = p.replace(**times)
    torch.set_num_threads(3)
    whole = large.outcome(backend="cpu")
    torch.set_num_threads(1)
    names = (*times, "initial_state", "d_final_state")
    for row in range(2):
        part = large.replace(**{name: getattr(large, name)[row : row + 1] for name in names})
        expected = {name: tensor[row : row + 1] for name, tensor in whole.items()}
        identical(part.outcome(backend="cpu"), expected)


@in_pairs(backend=BACKENDS, lengths=[None, (2, 0, 3)])
def test_gradients_under_vmap_equal_a_loop_of_gradients(agree, lengths, backend):
    problems = [make(lengths=lengths, entries=5, seed=seed) for seed in range(3)]
    leaves = [torch.stack(tensors) for tensors in zip(*(p.leaves for p in problems), strict=True)]

    def loss(*leaves):
        states, final = ops.low_rank_scan(*leaves, problems[0].cu_seqlens, backend=backend)
        return states.sin().sum() + final.square().sum()

    gradient = grad(loss, argnums=(0, 1, 2))
    wanted = map(torch.stack, zip(*(gradient(*p.leaves) for p in problems), strict=True))
    expected = dict(enumerate(wanted))
    agree(dict(enumerate(vmap(gradient)(*leaves))), expected)
    of_vmap = grad(lambda *leaves: vmap(loss)(*leaves).sum(), argnums=(0, 1, 2))
    agree(dict(enumerate(of_vmap(*leaves))), expected)


# torch 2.13's tracer instantiates the autograd function, which torch itself warns of.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("case", covering(backend=BACKENDS, lengths=[None, (2, 0, 3)]), ids=str)
def test_compiles_without_a_graph_break(agree, case):
    p = make(length=3, entries=4, lengths=case["lengths"])
    expected = p.outcome(backend=case["backend"])
    with pytest.MonkeyPatch.context() as patch:
        compiled = torch.compile(ops.low_rank_scan, backend="aot_eager", fullgraph=True)
        patch.setitem(RUNS, "low rank", lambda a, b, _, *rest, **kw: compiled(a, b, *rest, **kw))
        agree(p.outcome(backend=case["backend"]), expected)
    step = torch.compile(ops.low_rank_step, backend="aot_eager", fullgraph=True)
    given = p.gates[:, 0], p.values[:, 0], p.initial_state[:1].expand(len(p.values), -1, -1)
    agree(
        *(
            dict(enumerate(run(*given, backend=case["backend"])))
            for run in (step, ops.low_rank_step)
        )
    )


@in_pairs(
    backend=REGISTERED,
    **{"lengths,dtype": [(None, torch.bfloat16), ((2, 0, 3), torch.float32), ((0,), DTYPES[0])]},
)
def test_operators_pass_opcheck(lengths, dtype, backend):
    p = make(lengths=lengths, entries=5).to(dtype)
    if dtype not in ops.BACKENDS[backend].dtypes:
        p = p.to(torch.float32)
    a, b, h_0 = p.gates.movedim(-1, 2), p.values.transpose(2, 3), p.initial_state.transpose(1, 2)
    scan = (a, b, h_0, p.cu_seqlens, None, "low_rank", backend, "given", True)
    torch.library.opcheck(scan_forward, scan)
    states, final_state, saved = scan_forward(*scan)
    cotangents = (torch.ones_like(states), torch.ones_like(final_state))
    torch.library.opcheck(scan_backward, (*cotangents, states, *scan, *saved))


@pytest.mark.parametrize("backend", REGISTERED)
def test_bounds_are_not_read_back_from_a_device(backend):
    if ops.BACKENDS[backend].devices is not None:
        pytest.skip("it has no tensors on meta")
    p = make(lengths=(3, 0, 6)).on("meta")
    outcome = p.outcome(backend=backend)
    assert outcome["states"].shape == p.values.shape
    assert outcome["d_gates"].shape == p.gates.shape


def test_the_rule_of_flash_linear_attention_is_a_special_case():
    """Its state has a column for each value, and its arithmetic is float32."""
    naive = pytest.importorskip("fla.ops.generalized_delta_rule.dplr.naive")
    B, H, T, K, V = 2, 3, 20, 8, 5
    q, k, a, b = (torch.randn(B, H, T, K) / K**0.5 for _ in range(4))
    v, decays = torch.randn(B, H, T, V), -torch.rand(B, H, T, K)
    o, S = naive.dplr_recurrence(q, k, v, a, b, decays)
    # (V, B, T, H, ...): columns of values are further sequences.
    rows = torch.stack([decays.exp(), b, a], dim=-2).transpose(1, 2).expand(V, B, T, H, 3, K)
    inputs = (v.movedim(-1, 0).unsqueeze(-1) * k).transpose(2, 3)
    states, final = ops.low_rank_scan(rows.flatten(0, 1), inputs.flatten(0, 1))
    read = (states.unflatten(0, (V, B)) * q.transpose(1, 2)).sum(-1) / K**0.5
    torch.testing.assert_close(read.permute(1, 3, 2, 0), o, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(final.unflatten(0, (V, B)).movedim(0, -1), S, rtol=1e-5, atol=1e-5)
