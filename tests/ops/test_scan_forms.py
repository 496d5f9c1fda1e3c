"""The scan of transitions of any form, against the plain recurrence with dense matrices."""

import pytest
import torch

from statemix import scan, scan_step

FORMS = ("diagonal", "dense", "low_rank", "maps")


def problem(form, batch=2, length=9, heads=2, size=3, seed=0):
    """Transitions of a form, inputs, and the same transitions as matrices."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(batch, length, heads, *shape, generator=generator, dtype=torch.float64)

    inputs = draw(size)
    if form == "diagonal":
        given = draw(size)
        return given, inputs, torch.diag_embed(given)
    if form == "dense":
        given = draw(size, size)
        return given, inputs, given
    if form == "low_rank":
        d, u, w = given = draw(size), draw(2, size), draw(2, size)
        return given, inputs, torch.diag_embed(d) + u.mT @ w
    given = torch.randint(size, inputs.shape, generator=generator)
    return given, inputs, torch.nn.functional.one_hot(given, size).double()


def dense(matrices, inputs, state):
    states = []
    for A, b in zip(matrices.unbind(1), inputs.unbind(1), strict=True):
        state = (A @ state.unsqueeze(-1)).squeeze(-1) + b
        states.append(state)
    return torch.stack(states, 1) if states else inputs.clone(), state


def map_form(function, given):
    return tuple(map(function, given)) if isinstance(given, tuple) else function(given)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 9])
@pytest.mark.parametrize("form", FORMS)
def test_states_are_those_of_the_recurrence(form, length):
    given, inputs, matrices = problem(form, length=length)
    state = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for initial in (state, None):
        expected = dense(matrices, inputs, torch.zeros_like(state) if initial is None else initial)
        torch.testing.assert_close(scan(given, inputs, initial), expected)


@pytest.mark.parametrize("form", FORMS)
def test_packed_sequences_pieces_and_steps(form):
    given, inputs, matrices = problem(form, batch=1, length=11)
    bounds = torch.tensor([0, 4, 4, 5, 11])
    state = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    spans = [slice(a, b) for a, b in bounds.unfold(0, 2, 1).tolist()]
    pairs = [
        dense(matrices[:, span], inputs[:, span], state[n : n + 1]) for n, span in enumerate(spans)
    ]
    expected = (torch.cat([states for states, _ in pairs], 1), torch.cat([h for _, h in pairs]))
    torch.testing.assert_close(scan(given, inputs, state, bounds), expected)
    whole = dense(matrices, inputs, state[:1])
    carried, pieces = state[:1], []
    for span in (slice(3), slice(3, 4), slice(4, 11)):
        part = map_form(lambda one, span=span: one[:, span], given)
        states, carried = scan(part, inputs[:, span], carried)
        pieces.append(states)
    torch.testing.assert_close((torch.cat(pieces, 1), carried), whole)
    carried, steps = state[:1], []
    for t in range(11):
        part = map_form(lambda one, t=t: one[:, t], given)
        h, carried = scan_step(part, inputs[:, t], carried)
        steps.append(h)
    torch.testing.assert_close((torch.stack(steps, 1), carried), whole)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_and_transforms(form):
    given, inputs, _ = problem(form, length=5)
    parts = given if isinstance(given, tuple) else (given,)
    floating = [one.requires_grad_() for one in parts if one.is_floating_point()]

    def run(inputs, state, *transitions):
        form = given if not transitions else transitions if len(transitions) > 1 else transitions[0]
        return scan(form, inputs, state)

    state = torch.ones(2, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(run, (inputs.requires_grad_(), state, *floating))
    several = torch.stack([inputs, 2 * inputs])
    mapped = torch.vmap(lambda x: scan(given, x)[0])(several)
    torch.testing.assert_close(mapped, torch.stack([scan(given, x)[0] for x in several]))
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs, state, *floating), run(inputs, state, *floating))


def test_index_maps_are_exact_at_every_length():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(1, 4097, 1, 5, generator=generator).argsort(-1)
    state = torch.tensor([[[0.1, 0.2, 0.3, float("inf"), -0.5]]])
    states, final = scan(maps, torch.zeros(maps.shape), state)
    held = state[0, 0]
    for step in maps[0, :, 0]:
        held = held[step]
    assert torch.equal(final[0, 0], held)
    assert torch.equal(states[0, -1, 0], held)


def test_bad_arguments_of_a_step_are_named():
    x = torch.ones(2, 3, 2)
    with pytest.raises(TypeError, match=r"tuple \(d, u, w\), got list"):
        scan_step([x, x, x], x, x)
    with pytest.raises(TypeError, match="state must be a tensor, got NoneType"):
        scan_step(x, x, None)
    with pytest.raises(ValueError, match=r"initial_state must have shape \(B=2, H=3, m=2\)"):
        scan(x[:, None], x[:, None], x.mT)


def test_narrow_inputs_have_wide_states():
    for form in FORMS:
        given, inputs, matrices = problem(form)
        narrow = map_form(lambda x: x.bfloat16() if x.is_floating_point() else x, given)
        states, final = scan(narrow, inputs.bfloat16())
        assert (states.dtype, final.dtype) == (torch.bfloat16, torch.float32)
        expected = dense(matrices, inputs, torch.zeros(2, 2, 3, dtype=torch.float64))
        torch.testing.assert_close(final.double(), expected[1], rtol=0.1, atol=0.3)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (
            torch.zeros(1, 4, 1, 2).int(),
            {"inputs": torch.zeros(1, 4, 1, 2).int()},
            TypeError,
            "inputs must be floating",
        ),
        (
            torch.ones(1, 4, 1),
            {},
            ValueError,
            r"transitions must have shape \(B=1, T=4, H=1, m=2\)",
        ),
        (
            torch.ones(1, 4, 1, 2),
            {"cu_seqlens": [0, 4], "initial_state": torch.ones(1, 1, 2)},
            TypeError,
            "cu_seqlens must be a tensor",
        ),
        (
            torch.zeros(1, 4, 1, 2, device="meta").int(),
            {},
            ValueError,
            "transitions must be on cpu",
        ),
        ((torch.ones(1, 4, 1, 2),) * 2, {}, ValueError, r"must be a tensor or \(d, u, w\), got 2"),
        (None, {}, TypeError, r"transitions must be a tensor or a tuple \(d, u, w\), got NoneType"),
        (torch.full((1, 4, 1, 2), 2), {}, ValueError, "transitions must be from 0 to 1, got 2"),
        (torch.full((1, 4, 1, 2), -1), {}, ValueError, "transitions must be from 0 to 1, got -1"),
        (torch.ones(1, 4, 1, 2) > 0, {}, TypeError, "transitions must be floating, int32 or int64"),
        (
            torch.zeros(1, 4, 1, 2).int(),
            {"backend": "loop"},
            ValueError,
            "backend must be None for",
        ),
        (torch.ones(1, 4, 1, 2), {"initial_state": torch.ones(1, 2)}, ValueError, "initial_state"),
    ],
)
def test_wrong_arguments_are_named(given, options, error, message):
    with pytest.raises(error, match=message):
        scan(given, **{"inputs": torch.zeros(1, 4, 1, 2)} | options)


def test_there_may_be_no_heads():
    for form in FORMS:
        given, inputs, _ = problem(form, heads=0)
        states, final = scan(given, inputs, torch.zeros(2, 0, 3, dtype=torch.float64))
        assert (states.shape, final.shape) == (inputs.shape, (2, 0, 3))
