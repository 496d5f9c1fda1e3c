"""Every backend equals the reference in float64: states, final state and every gradient."""

import torch
from tests.ops.conftest import FAMILIES, RECURRENCES, SCANS, families_of, in_pairs, usable

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# 18 blocks: above most vector widths and a multiple of none.
SHAPES = [
    {"batch": 1, "length": 5, "blocks": 18},
    {"length": 4, "blocks": 21},
    {"lengths": (2, 0, 3), "blocks": 5},
    {"lengths": (3, 1, 7, 2), "blocks": 18},
]


def expected_outcome(p, gate, temperature=1.0, **options):
    """The outcome of the reference in float64, on the exact numbers of ``p``.

    By hand: divided gates, and their gradients divided again.
    """
    exact = p.to(torch.float64)
    exact = exact.replace(gates=exact.gates / temperature)
    found = exact.outcome(gate, backend="reference", **options)
    return found | {"d_gates": found["d_gates"] / temperature}


@in_pairs(
    **{
        "kind,gate,realization": [
            *((*family, None) for family in FAMILIES),
            *(("lags", gate, "observer") for gate in families_of("lags")),
        ]
    },
    size=[3, 1, 2, 4, 5, 6, 8, 9, 16],
    dtype=DTYPES,
    shape=SHAPES,
    temperature=[None, 0.3, torch.tensor(1 / 4)],
    **usable("other_backend"),
)
def test_backend_equals_the_reference(
    problem, agree, tolerances_of, device, kind, gate, realization, size, dtype, shape,
    temperature, other_backend,
):  # fmt: skip
    p = problem(kind, **shape, size=size, gate=gate, seed=size).to(dtype)
    options = {} if realization is None else {"realization": realization}
    tau = temperature.to(device) if torch.is_tensor(temperature) else temperature
    actual = p.outcome(gate, temperature=tau, backend=other_backend, **options)
    assert actual["states"].dtype == actual["d_gates"].dtype == dtype
    assert actual["final_state"].dtype == torch.promote_types(dtype, torch.float32)
    expected = expected_outcome(p, gate, float(temperature or 1), **options)
    agree(actual, expected, tolerances_of(other_backend, dtype))


@in_pairs(
    kind=list(RECURRENCES),
    batch=[3, 0, 1],
    length=[4, 0, 1, 2, 37],
    blocks=[3, 0, 1, 16, 17, 21, 40],
    size=[1, 2, 4, 16],
    dtype=DTYPES[:3],
    **usable("other_backend"),
)
def test_backend_equals_the_reference_at_any_shape(
    problem, agree, tolerances_of, kind, batch, length, blocks, size, dtype, other_backend
):
    p = problem(kind, batch=batch, length=length, blocks=blocks, size=size, seed=blocks).to(dtype)
    actual, expected = p.outcome(backend=other_backend), expected_outcome(p, "softmax")
    agree(actual, expected, tolerances_of(other_backend, dtype))


def extreme(p, kind_of_gates):
    """The problem with gates that are tiny, huge, or huge in one place and zero elsewhere."""
    if kind_of_gates == "adversarial":
        winner = torch.zeros_like(p.gates).scatter_(-1, p.gates.argmax(-1, keepdim=True), 1e4)
        return p.replace(gates=winner * p.gates[..., :1].sign())
    scale = {"tiny": 1e-4, "huge": 1e4, "hugest": 1e4 / p.gates.abs().clamp(min=1e-9)}
    return p.replace(gates=p.gates * scale[kind_of_gates])


@in_pairs(
    **{"kind,gate": FAMILIES},
    size=[1, 3, 7],
    dtype=DTYPES[:2],
    gates=["tiny", "huge", "hugest", "adversarial"],
    **usable("other_backend"),
)
def test_backend_equals_the_reference_with_extreme_gates(
    problem, agree, kind, gate, size, dtype, gates, other_backend
):
    p = extreme(problem(kind, length=6, blocks=4, size=size, seed=7), gates).to(dtype)
    actual, expected = p.outcome(gate, backend=other_backend), expected_outcome(p, gate)
    assert all(tensor.isfinite().all() for tensor in actual.values())
    if gates != "tiny":
        # Where one gate wins, its gradient is a difference of equal terms: what can be asked for is
        # a small error beside these terms, |lam| |u| f'/S, not beside what is left of them.
        terms = actual["d_values"].abs().max() + p.d_states.abs().max() * p.values.abs().max()
        terms = terms * (1e-4 if gate in ("relu", "signed") else 1.0)
        expected["d_gates"] = torch.cat(
            [expected["d_gates"].flatten(), terms.double().cpu().view(1)]
        )
        actual["d_gates"] = torch.cat([actual["d_gates"].flatten(), terms.view(1)])
    agree(actual, expected)


@in_pairs(
    **{"kind,gate": FAMILIES},
    cotangents=[("states",), ("final_state",)],
    lengths=[None, (3, 0, 4)],
    **usable("other_backend"),
)
def test_gradients_flow_through_initial_and_final_state(
    problem, agree, kind, gate, cotangents, lengths, other_backend
):
    p = problem(kind, lengths=lengths, gate=gate)
    actual = p.outcome(gate, backend=other_backend, cotangents=cotangents)
    agree(actual, expected_outcome(p, gate, cotangents=cotangents))
    assert actual["d_gates"].abs().max() > 0
    assert actual["d_initial_state"].abs().max() > 0


def test_no_initial_state_means_zeros(problem, identical, kind, backend):
    p = problem(kind)
    zeros = torch.zeros_like(p.initial_state)
    given = RECURRENCES[kind](p.gates, p.values, initial_state=zeros, backend=backend)
    identical(RECURRENCES[kind](p.gates, p.values, backend=backend), given)


@in_pairs(given=DTYPES[:3], kind=list(RECURRENCES), **usable())
def test_initial_state_of_another_dtype_is_taken(problem, kind, given, backend):
    p = problem(kind).to(torch.float32)
    p = p.replace(initial_state=p.initial_state.to(given))
    outcome = p.outcome(backend=backend)
    assert outcome["states"].dtype == outcome["final_state"].dtype == torch.float32
    assert outcome["d_initial_state"].dtype == given
    same = p.replace(initial_state=p.initial_state.float()).outcome(backend=backend)
    assert outcome["states"].equal(same["states"])


@in_pairs(kind=list(RECURRENCES), dtype=DTYPES[2:], **usable())
def test_scan_of_16_bits_carries_float32(problem, agree, tolerances_of, kind, dtype, backend):
    p = problem(kind, length=33, gate="none").to(dtype)
    a, b = p.gates[..., :-1], p.values
    scan = SCANS[kind]
    actual = dict(enumerate(scan(a, b, p.initial_state, backend=backend)))
    wide = [tensor.double() for tensor in (a, b, p.initial_state)]
    assert actual[0].dtype == dtype
    assert actual[1].dtype == torch.float32
    near = tolerances_of(backend, dtype)
    expected = dict(enumerate(scan(*wide, backend="reference")))
    agree(actual, expected, near and near | {torch.float32: 1e-5})


def test_autocast_does_not_round_float32_arguments(problem, identical, device, kind, other_backend):
    p = problem(kind).to(torch.float32)
    expected = p.outcome(backend=other_backend)
    with torch.autocast(device, torch.bfloat16):
        identical(p.outcome(backend=other_backend), expected)


# Bit for bit where one step follows the other; the parallel scan adds in another order.
@in_pairs(**{"kind,gate": FAMILIES}, dtype=DTYPES, **usable("stepwise_backend"))
def test_split_at_any_point_equals_the_whole_bit_for_bit(
    problem, agree, identical, kind, gate, dtype, stepwise_backend
):
    if gate == "householder":
        # PyTorch builds its transitions, in sums whose order depends on the length.
        def identical(actual, expected):
            agree(dict(enumerate(actual)), dict(enumerate(expected)))

    p = problem(kind, length=7, blocks=21, size=3, gate=gate).to(dtype)

    def run(piece, state):
        return RECURRENCES[kind](
            p.gates[:, piece], p.values[:, piece], gate, state, backend=stepwise_backend
        )

    whole = run(slice(None), p.initial_state)
    for split in range(8):
        head, state = run(slice(0, split), p.initial_state)
        tail, state = run(slice(split, None), state)
        identical((torch.cat([head, tail], 1), state), whole)


def blocks_innermost(tensor):
    return tensor.movedim(2, -1).contiguous().movedim(-1, 2)


LAYOUTS = {
    "blocks innermost": blocks_innermost,
    "time first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "every second step": lambda tensor: tensor.repeat_interleave(2, 1)[:, ::2],
    "a part of more blocks": lambda tensor: blocks_innermost(
        torch.cat([tensor, tensor, tensor], 2)
    )[:, :, 5:10],
    "reversed rows": lambda tensor: tensor.flip(-1).contiguous().flip(-1),
    "expanded over the batch": lambda tensor: tensor[:1].expand_as(tensor),
    "one number": lambda tensor: tensor.flatten()[0].expand_as(tensor),
}


@in_pairs(layout=list(LAYOUTS), kind=list(RECURRENCES), lengths=[None, (3, 0, 4)], **usable())
def test_memory_layout_does_not_matter(problem, agree, kind, layout, lengths, backend):
    p = problem(kind, blocks=5, lengths=lengths)
    relaid = {name: LAYOUTS[layout](getattr(p, name)) for name in ("gates", "values", "d_states")}
    if "expanded" in layout:
        for name in ("initial_state", "d_final_state"):
            relaid[name] = getattr(p, name)[:1, :1].expand_as(getattr(p, name))
    copies = {name: tensor.contiguous() for name, tensor in relaid.items()}
    before = [leaf.clone() for leaf in p.replace(**relaid).leaves]
    found = p.replace(**relaid).outcome(backend=backend)
    agree(found, p.replace(**copies).outcome(backend=backend))
    # Arguments are left as they were.
    assert all(map(torch.equal, p.replace(**relaid).leaves, before))


@in_pairs(gate=families_of("lags"), kind=list(RECURRENCES), **usable())
def test_nan_reaches_its_own_block_and_no_other(problem, kind, gate, backend):
    p = problem(kind, batch=1, length=4, blocks=20, gate=gate)
    p.gates[0, 2, 7].fill_(float("nan"))
    states, _ = RECURRENCES[kind](p.gates, p.values, gate, p.initial_state, backend=backend)
    bad = states.isnan().view(4, 20, -1).any(-1)
    assert bad[2:, 7].all()
    assert bad.sum() == 2
