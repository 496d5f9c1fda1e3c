"""The operators under opcheck, torch.compile and torch.func."""

import pytest
import torch
from tests.ops.conftest import RECURRENCES, SCANS, in_pairs, usable
from torch._dynamo.testing import CompileCounter
from torch.func import grad, vmap

from statemix import ops
from statemix.ops.registered import scan_backward, scan_forward

VARIANTS = {
    "blocks": ("blocks", {}),
    "lags": ("lags", {}),
    "observer": ("lags", {"realization": "observer"}),
}


@in_pairs(
    **{
        "lengths,dtype": [(None, torch.bfloat16), ((2, 0, 3), torch.float32), ((0,), torch.float64)]
    },
    kind=list(RECURRENCES),
    **usable("registered_backend"),
)
def test_operators_pass_opcheck(problem, device, kind, lengths, dtype, registered_backend):
    p = problem(kind, gate="none", lengths=lengths).to(dtype)
    gates, values, temperature, gate = p.gates, p.values, None, "softmax"
    if gate not in ops.BACKENDS[registered_backend].families:
        wide = p.initial_state.dtype
        gates, values, gate = p.gates[..., :-1].to(wide), p.values.to(wide), "given"
    elif dtype == torch.float32:
        temperature = torch.tensor(0.5, device=device)
    tensors = gates, values, p.initial_state, p.cu_seqlens, temperature
    names = {"blocks": "block", "lags": "lag"}[kind], registered_backend, gate
    torch.library.opcheck(scan_forward, (*tensors, *names, True))
    states, final_state, saved = scan_forward(*tensors, *names, True)
    cotangents = (torch.ones_like(states), torch.ones_like(final_state))
    torch.library.opcheck(scan_backward, (*cotangents, states, *tensors, *names, True, *saved))
    assert scan_forward(*tensors, *names, False)[2] == []


@in_pairs(
    dtype=[torch.float32, torch.bfloat16],
    result=[0, 1],
    kind=list(RECURRENCES),
    **usable("registered_backend"),
)
def test_batched_gradients_equal_a_loop(
    problem, identical, kind, result, dtype, registered_backend
):
    p = problem(kind).to(dtype)
    gates = p.gates.requires_grad_()
    y = RECURRENCES[kind](gates, p.values, backend=registered_backend)[result]
    cotangents = torch.randn(3, *y.shape).to(y)
    options = {"retain_graph": True}
    (batched,) = torch.autograd.grad(y, gates, cotangents, is_grads_batched=True, **options)
    single = [torch.autograd.grad(y, gates, one, **options)[0] for one in cotangents]
    identical({0: batched}, {0: torch.stack(single)})
    with pytest.raises(RuntimeError, match=r"batched gradients .* without create_graph"):
        torch.autograd.grad(y, gates, cotangents, is_grads_batched=True, create_graph=True)
    zeros = torch._efficientzerotensor(y.shape, dtype=y.dtype, device=y.device)
    (none,) = torch.autograd.grad(y, gates, zeros)
    assert not none.any()


def trained(scan, p, gate, **options):
    """All results and gradients of one forward and backward pass."""
    leaves = [leaf.clone().requires_grad_() for leaf in p.leaves]
    results = scan(leaves[0], leaves[1], gate, leaves[2], p.cu_seqlens, **options)
    gradients = torch.autograd.grad(results, leaves, (p.d_states, p.d_final_state))
    return dict(enumerate((*results, *gradients)))


# torch 2.13's tracer instantiates the autograd function, which torch itself warns of.
tracer_warns = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@tracer_warns
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("variant", "gate", "backend", "lengths"),
    [
        ("blocks", "softmax", "cpu", None), ("lags", "softmax", "cpu", (2, 0, 3)),
        ("observer", "tanh", "cpu", None), ("observer", "tanh", "loop", (2, 0, 3)),
        ("blocks", "column_softmax", "cpu", (2, 0, 3)), ("blocks", "householder", "loop", None),
        ("lags", "relu", "loop", (2, 0, 3)), ("blocks", "householder", "triton", (2, 0, 3)),
        ("lags", "none", "triton", None),
        # These are compiled step by step.
        ("lags", "softmax", "reference", (2, 0, 3)), ("blocks", "softmax", "associative", None),
    ],
)  # fmt: skip
def test_compiles_without_a_graph_break(problem, agree, variant, gate, backend, lengths):
    kind, options = VARIANTS[variant]
    options = options | {"backend": backend}
    p = problem(kind, length=3, lengths=lengths, gate=gate)
    compiled = torch.compile(RECURRENCES[kind], backend="aot_eager", fullgraph=True)
    agree(trained(compiled, p, gate, **options), trained(RECURRENCES[kind], p, gate, **options))


@tracer_warns
@pytest.mark.usefixtures("fresh_compiler")
def test_scans_and_steps_compile_without_a_graph_break(problem, identical, kind):
    p = problem(kind, gate="none")
    a, b, state = p.gates[..., :-1], p.values, p.initial_state
    step, gated = {
        "blocks": (ops.block_step, ops.bd_lru_step), "lags": (ops.lag_step, ops.h_lru_step)
    }[kind]  # fmt: skip
    for function, *inputs in [
        (SCANS[kind], a, b), (step, a[:, 0], b[:, 0]), (gated, p.gates[:, 0], b[:, 0])
    ]:  # fmt: skip
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        identical(compiled(*inputs, state), function(*inputs, state))


@tracer_warns
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("variant", ["blocks", "observer"])
def test_new_lengths_do_not_recompile(problem, agree, variant):
    kind, options = VARIANTS[variant]
    graphs = CompileCounter()
    compiled = torch.compile(RECURRENCES[kind], backend=graphs, fullgraph=True, dynamic=True)
    for length in (5, 6, 9, 17):
        p = problem(kind, length=length)
        expected = trained(RECURRENCES[kind], p, "softmax", **options)
        agree(trained(compiled, p, "softmax", **options), expected)
    assert graphs.frame_count == 1


def loss(kind, cu_seqlens=None, **options):
    def of(gates, values, h_0):
        states, final_state = RECURRENCES[kind](
            gates, values, "softmax", h_0, cu_seqlens, **options
        )
        return states.sin().sum() + final_state.square().sum()

    return of


@in_pairs(variant=list(VARIANTS), lengths=[None, (2, 0, 3)], **usable())
def test_gradients_under_vmap_equal_a_loop_of_gradients(problem, agree, variant, lengths, backend):
    kind, options = VARIANTS[variant]
    problems = [problem(kind, seed=seed, lengths=lengths) for seed in range(3)]
    leaves = [torch.stack(tensors) for tensors in zip(*(p.leaves for p in problems), strict=True)]
    one = loss(kind, problems[0].cu_seqlens, backend=backend, **options)
    gradient = grad(one, argnums=(0, 1, 2))
    wanted = map(torch.stack, zip(*(gradient(*p.leaves) for p in problems), strict=True))
    expected = dict(enumerate(wanted))
    agree(dict(enumerate(vmap(gradient)(*leaves))), expected)
    of_vmap = grad(lambda *leaves: vmap(one)(*leaves).sum(), argnums=(0, 1, 2))
    agree(dict(enumerate(of_vmap(*leaves))), expected)


# torch loads its own decompositions for forward mode by a deprecated route.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_mode_is_refused_rather_than_zero(problem, kind, registered_backend):
    """Even with gradients disabled, when the raw operators would drop the tangent."""
    p = problem(kind)

    def states(values):
        return RECURRENCES[kind](p.gates, values, backend=registered_backend)[0]

    message = r"values.* must have no tangent \(jvp\): .* with 'reference'"
    for mode in (torch.enable_grad, torch.no_grad):
        with mode(), pytest.raises(ValueError, match=message):
            torch.func.jvp(states, (p.values,), (torch.ones_like(p.values),))
        dual = torch.autograd.forward_ad
        with mode(), dual.dual_level(), pytest.raises(ValueError, match=r"values.* no tangent"):
            states(dual.make_dual(p.values, torch.ones_like(p.values)))


@in_pairs(
    disabled=[torch.no_grad, torch.inference_mode],
    dtype=[torch.float32, torch.bfloat16],
    kind=list(RECURRENCES),
    **usable("registered_backend"),
)
def test_inference_equals_training(problem, identical, kind, disabled, dtype, registered_backend):
    p = problem(kind).to(dtype)

    options = {"initial_state": p.initial_state, "backend": registered_backend}
    arguments = p.gates.requires_grad_(), p.values
    expected = RECURRENCES[kind](*arguments, **options)
    with disabled():
        actual = RECURRENCES[kind](*arguments, **options)
        assert not any(result.requires_grad for result in actual)
        identical(actual, tuple(result.detach() for result in expected))


def test_gradient_of_the_gradient_is_refused_rather_than_wrong(problem, kind, registered_backend):
    p = problem(kind)
    leaves = [leaf.clone().requires_grad_() for leaf in p.leaves]
    value = loss(kind, backend=registered_backend)(*leaves)
    (gradient,) = torch.autograd.grad(value, leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        gradient.square().sum().backward()
    gradient_of = grad(loss(kind, backend=registered_backend))
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        grad(lambda gates: gradient_of(gates, *p.leaves[1:]).square().sum())(p.gates)
    reference = grad(loss(kind, backend="reference"))
    twice = grad(lambda gates: reference(gates, *p.leaves[1:]).square().sum())(p.gates)
    assert twice.abs().max() > 0


def test_bounds_that_are_wrong_or_mapped_are_refused_under_vmap(
    problem, device, kind, registered_backend
):
    p = problem(kind, lengths=(2, 3))

    def run(values, bounds):
        options = {"cu_seqlens": bounds, "backend": registered_backend}
        return RECURRENCES[kind](p.gates, values, **options)[0]

    values, bounds = (torch.stack([x, x]) for x in (p.values, p.cu_seqlens))
    with pytest.raises(ValueError, match="cu_seqlens must not be mapped by vmap"):
        vmap(run, in_dims=(None, 0))(p.values, bounds)
    if device != "cpu":
        pytest.skip("bounds are read only on the CPU")
    for numbers in ((0, 2, 4), (1, 2, 5), (0, 2, 6)):
        with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to the length"):
            vmap(run, in_dims=(0, None))(values, torch.tensor(numbers))
