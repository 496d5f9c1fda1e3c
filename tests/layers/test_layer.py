"""The contract of every layer, tested on all layers and all their variants."""

import itertools
import warnings

import pytest
import torch
from tests.layers.conftest import tokens
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from statemix import layers
from statemix.layers import BDLRU, Attention, Flops, map_state, take_rows
from statemix.layers.state import tensors

HIDDEN_SIZE = 6
GROWING = (Attention,)  # layers whose state has an entry per token, in its second axis
# Sums of at most a few dozen terms of order one, in another order.
TIGHT = {"rtol": 1e-12, "atol": 1e-13}


def some_state(layer, batch, *, seed=2):
    if isinstance(layer, GROWING):
        with torch.no_grad():
            return layer(tokens(batch, 3, seed=seed, dtype=layer.init_state(0)[0].dtype))[1]
    generator = torch.Generator().manual_seed(seed)
    return map_state(
        lambda part: torch.randn(part.shape, generator=generator, dtype=part.dtype),
        layer.init_state(batch),
    )


def parts(state):
    return [part for _, part in tensors(state)]


def shapes(state):
    return [(name, part.shape) for name, part in tensors(state)]


def shapes_after(layer, batch, length):
    """Shapes of the states of a batch after so many tokens."""
    alone = shapes(layer.state_after(length))
    return [(name, (batch, *shape[1:])) for name, shape in alone]


def replaced(state, place, change):
    """A state whose part number ``place`` is changed."""
    number = iter(range(len(parts(state))))
    return map_state(lambda part: change(part) if next(number) == place else part, state)


def test_outputs_and_states_have_the_shapes_and_dtypes_that_were_foreseen(build):
    layer = build()
    for batch, length in [(2, 5), (1, 1), (3, 0), (0, 4), (0, 0)]:
        x = tokens(batch, length)
        y, state = layer(x)
        assert (y.shape, y.dtype, y.requires_grad) == (x.shape, torch.float64, True)
        assert type(state) is type(layer.init_state(batch))
        foreseen = layer.state_after(length)
        assert {part.device.type for part in parts(foreseen)} == {"meta"}
        assert dtypes(foreseen) == dtypes(state) == dtypes(layer.init_state(batch))
        assert shapes(state) == shapes_after(layer, batch, length)
        if not isinstance(layer, GROWING):
            assert sum(part.numel() for part in parts(state)) == batch * layer.state_size


def test_a_layer_counts_reports_and_shows(build):
    layer = build()
    flops, more = layer.flops_per_token(7), layer.flops_per_token(8)
    assert isinstance(flops, Flops)
    assert all(type(part) is int and part >= 0 for part in flops)
    assert flops.total == sum(flops)
    assert (more > flops) if isinstance(layer, GROWING) else (more == flops)
    layer(tokens(2, 4))
    assert all(part.shape == () and not part.requires_grad for part in layer.reports().values())
    for attribute in layer.schedulable:
        setattr(layer, attribute, getattr(layer, attribute))
    if hasattr(layer, "gate_temperature"):
        layer.gate_temperature = 0.25
    shown = layer.extra_repr()
    for name in type(layer).__init__.__annotations__:
        if name not in ("device", "dtype", "return"):
            assert f"{name}={getattr(layer, name)!r}" in shown


def test_no_tokens_leave_the_state_as_it_was(build_first):
    layer = build_first()
    state = some_state(layer, 2)
    _, after = layer(tokens(2, 0), state)
    torch.testing.assert_close(after, state, rtol=0, atol=0)
    # Nor do empty packed sequences.
    y, after = layer(tokens(1, 0), state, torch.zeros(3, dtype=torch.int32))
    assert y.shape == (1, 0, HIDDEN_SIZE)
    torch.testing.assert_close(after, state, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"cu_seqlens must rise .* length 0, got \[0, 5\]"):
        layer(tokens(1, 0), None, torch.tensor([0, 5]))


def test_steps_from_no_state_equal_the_sequence(build):
    layer, x, state = build(), tokens(2, 7), None
    y, final = layer(x)
    for t, x_t in enumerate(x.unbind(1)):
        y_t, state = layer.step(x_t, state)
        torch.testing.assert_close(y_t, y[:, t], **TIGHT)
    torch.testing.assert_close(state, final, **TIGHT)
    given = layer.step(x[:, 0], layer.init_state(2))
    torch.testing.assert_close(layer.step(x[:, 0], None), given, rtol=0, atol=0)


def test_two_chunks_equal_the_whole(build):
    layer = build()
    x, state = tokens(2, 9), some_state(layer, 2)
    whole, final = layer(x, state)
    for split in (0, 1, 6):
        head, carried = layer(x[:, :split], state)
        tail, last = layer(x[:, split:], carried)
        torch.testing.assert_close(torch.cat([head, tail], 1), whole, **TIGHT)
        torch.testing.assert_close(last, final, **TIGHT)


@pytest.mark.parametrize("given_state", [False, True])
def test_packed_sequences_equal_single_ones(build, given_state):
    layer = build()
    lengths = [0, 4, 1, 0, 0, 2, 5, 0]  # empty ones first, between and last; one token; two
    x = tokens(1, sum(lengths)).requires_grad_()
    states = some_state(layer, len(lengths))
    cu_seqlens = (
        torch.tensor([0, *lengths]).cumsum(0).to(torch.int64 if given_state else torch.int32)
    )
    y, final = layer(x, states if given_state else None, cu_seqlens)

    alone = [
        layer(piece, take_rows(states, torch.tensor([n])) if given_state else None)
        for n, piece in enumerate(x.split(lengths, dim=1))
    ]
    expected_y = torch.cat([y for y, _ in alone], dim=1)
    # States that grow have the length of the longest, the others have the same shape.
    expected_final = map_state(
        lambda *rows: pad_sequence([row[0] for row in rows], batch_first=True),
        *(final for _, final in alone),
    )
    torch.testing.assert_close(y, expected_y, **TIGHT)
    torch.testing.assert_close(final, expected_final, **TIGHT)
    leaves = [x, *layer.parameters()]

    def gradients(y, final):
        loss = y.square().sum() + sum(part.sin().sum() for part in parts(final))
        return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)

    torch.testing.assert_close(
        gradients(y, final), gradients(expected_y, expected_final), rtol=1e-10, atol=1e-12
    )


def test_a_generator_or_a_state_dict_decides_every_parameter(build):
    first, second = build(seed=3), build(seed=3)
    second.load_state_dict(first.state_dict())
    second.reset_parameters(torch.Generator().manual_seed(4))
    unchanged = [
        name
        for name, parameter in second.named_parameters()
        if torch.equal(parameter, first.get_parameter(name))
    ]
    # Only the weights of norms and skips start as a constant, and biases of state mixers; the
    # rates of FP-Mamba1 are 1, 2, ...
    assert all(
        name == "A_log" or (second.get_parameter(name) == ("bias" not in name)).all()
        for name in unchanged
    )
    x = tokens(2, 5)
    expected = second(x)
    assert not torch.equal(first(x)[0], expected[0])
    first.load_state_dict(second.state_dict())
    torch.testing.assert_close(first(x), expected, rtol=0, atol=0)
    second.reset_parameters(torch.Generator().manual_seed(4))
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)


def test_every_parameter_gets_a_gradient(build):
    layer = build()
    y, _ = layer(tokens(2, 5))
    y.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.filterwarnings("ignore:the (implicit gradient|fixed point)")
def test_activation_checkpointing_keeps_the_gradients(build):
    # The fused kernels take float32.
    layer, x = build(dtype=torch.float32), tokens(2, 5, dtype=torch.float32)

    def gradients(y, _):
        return torch.autograd.grad(y.sin().sum(), list(layer.parameters()))

    found = gradients(*checkpoint(layer, x, use_reentrant=False))
    torch.testing.assert_close(found, gradients(*layer(x)), rtol=0, atol=0)


def dtypes(state):
    return {part.dtype for part in parts(state)}


def test_bfloat16_module_keeps_a_float32_state(build):
    layer, exact = build(torch.float32).bfloat16(), build(torch.float32)
    exact.load_state_dict(layer.state_dict())
    x = tokens(2, 7, dtype=torch.bfloat16)
    y, state = layer(x)
    assert y.dtype == torch.bfloat16
    assert dtypes(state) == dtypes(layer.init_state(2)) == {torch.float32}
    # Half a dozen roundings to 8 bits on the way, of numbers of order one.
    torch.testing.assert_close(y.float(), exact(x.float())[0], rtol=0.05, atol=0.05)
    y_t, state = layer.step(x[:, 0], layer.init_state(2))
    assert (y_t.dtype, dtypes(state)) == (torch.bfloat16, {torch.float32})
    torch.testing.assert_close(y_t, y[:, 0], rtol=0.05, atol=0.02)


# Rounding may keep iterates in float32 from meeting the tolerance of those in float64.
@pytest.mark.filterwarnings("ignore:.*not converged:UserWarning")
def test_autocast_computes_in_bfloat16_and_keeps_a_float32_state(build):
    layer = build(torch.float32)
    x = tokens(2, 7, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x.float())
        y_t, state_t = layer.step(x[:, 0], layer.init_state(2))
    assert (y.dtype, dtypes(state)) == (torch.bfloat16, {torch.float32})
    assert (y_t.dtype, dtypes(state_t)) == (torch.bfloat16, {torch.float32})
    torch.testing.assert_close(y.float(), layer(x.float())[0], rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


def test_an_lstm_without_bfloat16_in_hardware_computes_in_float32(monkeypatch):
    monkeypatch.setattr("statemix.layers.lstm._LACKS_BFLOAT16", True)
    x = tokens(2, 7, dtype=torch.bfloat16)
    layer = layers.LSTM(x.shape[-1])
    wanted, _ = layer(x.float())
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            y, state = layer(x.to(dtype))
        assert dtypes(state) == {torch.float32}
        assert torch.equal(y, wanted.bfloat16())
    with torch.autocast("cpu", torch.float16):
        packed, _ = layer(x.float()[:1], None, torch.tensor([0, 7, 7]))
        exact, _ = layer.double()(x.double()[:1], None, torch.tensor([0, 7]))
    assert torch.equal(packed, wanted[:1].half())
    assert (packed.dtype, exact.dtype) == (torch.float16, torch.float64)


def test_autocast_takes_neither_float64_nor_integers(build_first):
    layer, x = build_first(torch.float32), tokens(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(TypeError, match=r"float64; convert it$"):
            layer(x.double())
        with pytest.raises(TypeError, match=r"x must .*int64; convert it$"):
            layer(x.long())


def test_a_whole_layer_on_meta_computes_shapes(build_first):
    layer, x = build_first().to("meta"), tokens(2, 4).to("meta")
    y, state = layer(x)
    y_t, state_t = layer.step(x[:, 0], state)
    assert (y.shape, y_t.shape) == (x.shape, x[:, 0].shape)
    assert shapes(state) == shapes_after(layer, 2, 4)
    assert shapes(state_t) == shapes_after(layer, 2, 5)
    on = {t.device.type for t in (y, y_t, *parts(state), *parts(state_t))}
    assert on == {"meta"}
    with pytest.raises(TypeError, match=r"x must have the dtype .*float64.*float32"):
        layer(x.float())
    with pytest.raises(ValueError, match=r"state[.\w]* must be on meta, got cpu"):
        layer(x, map_state(lambda part: torch.zeros_like(part, device="cpu"), state))


META = torch.zeros(2, 4, 6, device="meta")
BAD_CALLS = [
    ({"x": torch.zeros(4, 6)}, ValueError, r"x must have shape \(B, T, hidden_size=6\), got"),
    ({"x": torch.zeros(2, 4, 6)}, TypeError, r"x must have the dtype .*float64.*float32"),
    ({"x": META.long()}, ValueError, "x must be on the device of the parameters .*, got meta"),
    ({"x": [[0.0]]}, TypeError, "x must be a tensor, got list"),
    ({"cu_seqlens": torch.tensor([0, 4])}, ValueError, r"cu_seqlens needs .*got B = 2"),
    ({"cu_seqlens": torch.tensor([0.0, 4.0])}, TypeError, "cu_seqlens must be int32 or int64"),
    (
        {"cu_seqlens": torch.tensor([0, 4], device="meta"), "x": tokens(1, 4)},
        ValueError,
        "cu_seqlens must be on cpu, got meta",
    ),
    ({"x_t": torch.zeros(2, 5)}, ValueError, r"x_t must have shape \(B, hidden_size=6\), got"),
    ({"x_t": torch.zeros(2, 6)}, TypeError, "x_t must have the dtype"),
    ({"x_t": META[:, 0]}, ValueError, "x_t must be on the device of the parameters"),
    ({"x_t": torch.zeros(2, 5), "state": None}, ValueError, "x_t must have shape"),
    ({"attention_mask": torch.ones(2, 4)}, TypeError, "unexpected keyword .*'attention_mask'"),
]


def test_bad_input_is_named(build_first):
    layer = build_first()
    for changed, error, message in BAD_CALLS:
        call, usual = layer, {"x": tokens(2, 4)}
        if "x_t" in changed:
            call, usual = layer.step, {"state": layer.init_state(2)}
        with pytest.raises(error, match=message):
            call(**usual | changed)
    with pytest.raises(TypeError, match="positional argument"):
        type(layer)(HIDDEN_SIZE, 2)


# One wrong part of a state of two sequences, and the end of the message.
WRONG_PARTS = [
    (lambda part: part[:1], ValueError, r"must have shape \(B=2, .*got \(1, "),
    (lambda part: part[..., 0], ValueError, r"must have shape \(B=2, .*got \("),
    (lambda part: part.repeat_interleave(2, -1), ValueError, r"must have shape \(B=2, "),
    (lambda part: part.long(), TypeError, r"must be floating \(.*, got torch\.int64"),
    (lambda part: part.to(torch.float8_e5m2), TypeError, r"must be floating \(float32, .*float8"),
    (lambda part: part.to("meta"), ValueError, "must be on cpu, got meta"),
    (lambda part: None, TypeError, "must be a tensor, got NoneType"),
]


def test_a_state_with_one_wrong_part_is_refused_by_name(build_first):
    layer = build_first()
    state = some_state(layer, 2)
    for (change, error, message), (place, (name, _)) in itertools.product(
        WRONG_PARTS, enumerate(tensors(state))
    ):
        bad_state = replaced(state, place, change)
        if bad_state is None:  # which asks for a fresh start
            continue
        with pytest.raises(error, match=f"^{name} {message}"):
            layer.step(tokens(2, 1)[:, 0], bad_state)
        with pytest.raises(error, match=f"^{name} {message}"):
            layer(tokens(2, 4), bad_state)


def test_a_state_of_another_structure_is_refused(build_first):
    layer = build_first()
    state = some_state(layer, 2)
    others = [[state], (state, state, state), {"state": state}, 3, "state"]
    for other in others:
        message = rf"^state must be an? \w+, got {type(other).__name__}$"
        with pytest.raises(TypeError, match=message):
            layer(tokens(2, 4), other)
        with pytest.raises(TypeError, match=message):
            layer.step(tokens(2, 1)[:, 0], other)


def test_a_packed_batch_needs_a_state_of_every_sequence(build_first):
    layer = build_first()
    with pytest.raises(ValueError, match=r"state[.\w]* must have shape \(N=3, .*got \(2, "):
        layer(tokens(1, 4), layer.init_state(2), torch.tensor([0, 1, 2, 4]))


def test_device_and_dtype_are_checked_by_constructors_and_by_init_state(build_first):
    layer = build_first()
    bad = [
        ({"dtype": torch.int64}, TypeError, "dtype must be one of .*, got torch.int64"),
        ({"dtype": "float"}, TypeError, "dtype must be one of .*, got 'float'"),
        *(({"device": d}, ValueError, "^device must exist") for d in ("nonsense", 1.5, "hpu")),
    ]
    for arguments, error, message in bad:
        with pytest.raises(error, match=message):
            layer.init_state(2, **arguments)
        with pytest.raises(error, match=message):
            build_first(**arguments)


def test_the_number_of_states_is_checked(build_first):
    layer = build_first()
    for size, error in [(-1, ValueError), (2**31, ValueError), (True, TypeError), (1.5, TypeError)]:
        with pytest.raises(error, match=r"^batch_size must be"):
            layer.init_state(size, device="meta")
    for size in (0, 2**31 - 1):
        assert {len(part) for part in parts(layer.init_state(size, "meta"))} == {size}


def test_a_traced_layer_takes_another_batch(make):
    layer, x = make().eval(), torch.randn(3, 4, 8)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, x[:2])
        torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 4, 1), (8,), ()])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_takes_one_token_per_sequence(mode, shape):
    layer = BDLRU(4, num_blocks=2, block_size=2)
    with mode(), pytest.raises(ValueError, match=r"^x_t must have shape \(B, hidden_size=4\), got"):
        layer.step(torch.zeros(shape), layer.init_state(2))
    with mode(), pytest.raises(ValueError, match=r"^state must have shape \(B=2, num_blocks=2, "):
        layer.step(torch.zeros(2, 4), layer.init_state(4))
