"""The contract of every layer, tested on all layers and all their variants."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from statemix import layers
from statemix.errors import OptionError
from statemix.layers import BDLRU, Attention, Flops, map_state, option_checks, take_rows
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.layers.state import tensors

HIDDEN_SIZE = 6
GROWING = (Attention,)  # layers whose state has an entry per token, in its second axis
# Sums of at most a few dozen terms of order one, in another order.
TIGHT = {"rtol": 1e-12, "atol": 1e-13}


def tokens(batch, length, *, seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, HIDDEN_SIZE, generator=generator, dtype=dtype)


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


def test_output_has_the_shape_of_the_input_and_the_state_of_init_state(build):
    layer = build()
    for batch, length in [(2, 5), (1, 1), (3, 0), (0, 4), (0, 0)]:
        x = tokens(batch, length)
        y, state = layer(x)
        assert y.shape == x.shape
        assert type(state) is type(layer.init_state(batch))
        assert shapes(state) == shapes_after(layer, batch, length)
        if not isinstance(layer, GROWING):
            assert sum(part.numel() for part in parts(state)) == batch * layer.state_size


def test_the_state_after_some_tokens_is_foreseen(build):
    layer = build()
    for length in (0, 1, 5):
        _, state = layer(tokens(1, length))
        foreseen = layer.state_after(length)
        assert shapes(foreseen) == shapes(state)
        assert dtypes(foreseen) == dtypes(state)
        assert {part.device.type for part in parts(foreseen)} == {"meta"}


def test_a_layer_counts_its_flops(build):
    layer = build()
    flops = layer.flops_per_token(7)
    assert isinstance(flops, Flops)
    assert all(type(part) is int and part >= 0 for part in flops)
    assert flops.total == flops.projections + flops.transition + flops.other
    more = layer.flops_per_token(8)
    assert (more > flops) if isinstance(layer, GROWING) else (more == flops)


def test_no_tokens_leave_the_state_as_it_was(build):
    layer = build()
    state = some_state(layer, 2)
    _, after = layer(tokens(2, 0), state)
    torch.testing.assert_close(after, state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, TIGHT), (torch.float32, {"rtol": 1e-5, "atol": 1e-6})]
)
def test_steps_equal_the_sequence(build, dtype, tolerance):
    layer = build(dtype)
    x = tokens(2, 7, dtype=dtype)
    y, final = layer(x)
    state = layer.init_state(2)
    for t, x_t in enumerate(x.unbind(1)):
        y_t, state = layer.step(x_t, state)
        torch.testing.assert_close(y_t, y[:, t], **tolerance)
    torch.testing.assert_close(state, final, **tolerance)


def test_two_chunks_equal_the_whole(build):
    layer = build()
    x, state = tokens(2, 9), some_state(layer, 2)
    whole, final = layer(x, state)
    for split in (0, 1, 2, 6, 9):
        head, carried = layer(x[:, :split], state)
        tail, last = layer(x[:, split:], carried)
        torch.testing.assert_close(torch.cat([head, tail], 1), whole, **TIGHT)
        torch.testing.assert_close(last, final, **TIGHT)


@pytest.mark.parametrize(
    ("given_state", "index_dtype"), [(False, torch.int32), (True, torch.int64)]
)
def test_packed_sequences_equal_single_ones(build, given_state, index_dtype):
    layer = build()
    lengths = [0, 4, 1, 0, 0, 2, 5, 0]  # empty ones first, between and last; one token; two
    x = tokens(1, sum(lengths)).requires_grad_()
    states = some_state(layer, len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(index_dtype)
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


def test_only_empty_sequences_keep_their_states(build):
    layer = build()
    states = some_state(layer, 3)
    y, final = layer(tokens(1, 0), states, torch.zeros(4, dtype=torch.int32))
    assert y.shape == (1, 0, HIDDEN_SIZE)
    torch.testing.assert_close(final, states, rtol=0, atol=0)


def test_bounds_beyond_no_tokens_are_refused(build_first):
    with pytest.raises(ValueError, match=r"cu_seqlens must rise .* length 0, got \[0, 5\]"):
        build_first()(tokens(1, 0), None, torch.tensor([0, 5]))


def test_a_loaded_state_dict_gives_the_same_outputs(build):
    layer, other = build(seed=0), build(seed=1)
    x = tokens(2, 5)
    assert not torch.equal(other(x)[0], layer(x)[0])
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


def test_a_generator_decides_every_parameter(build):
    first, second = build(seed=3), build(seed=3)
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
    first.reset_parameters(torch.Generator().manual_seed(4))
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)


def test_every_parameter_gets_a_gradient(build):
    layer = build()
    y, _ = layer(tokens(2, 5))
    y.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


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
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
def test_autocast_computes_in_bfloat16_and_keeps_a_float32_state(build, x_dtype):
    layer = build(torch.float32)
    x = tokens(2, 7, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x.to(x_dtype))
        y_t, state_t = layer.step(x[:, 0].to(x_dtype), layer.init_state(2))
    assert (y.dtype, dtypes(state)) == (torch.bfloat16, {torch.float32})
    assert (y_t.dtype, dtypes(state_t)) == (torch.bfloat16, {torch.float32})
    torch.testing.assert_close(y.float(), layer(x.float())[0], rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
def test_an_lstm_without_bfloat16_in_hardware_computes_in_float32(monkeypatch, x_dtype):
    monkeypatch.setattr("statemix.layers.lstm._LACKS_BFLOAT16", True)
    x = tokens(2, 7, dtype=torch.bfloat16)
    layer = layers.LSTM(x.shape[-1])
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x.to(x_dtype))
    assert (y.dtype, dtypes(state)) == (torch.bfloat16, {torch.float32})
    wanted, _ = layer(x.float())
    assert torch.equal(y, wanted.bfloat16())


def test_float64_stays_float64(build):
    layer = build()
    y, state = layer(tokens(1, 3))
    assert y.dtype == torch.float64
    assert dtypes(state) == dtypes(layer.init_state(1)) == {torch.float64}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (None, torch.float64)],
)
def test_init_state_is_never_narrower_than_float32(build_first, dtype, expected):
    assert dtypes(build_first().init_state(2, "cpu", dtype)) == {expected}


def test_a_whole_layer_on_meta_computes_shapes(build):
    layer, x = build().to("meta"), tokens(2, 4).to("meta")
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


def test_repr_shows_every_option(build):
    layer = build()
    if hasattr(layer, "gate_temperature"):
        layer.gate_temperature = 0.25
    shown = layer.extra_repr()
    for name in type(layer).__init__.__annotations__:
        if name not in ("device", "dtype", "return"):
            assert f"{name}={getattr(layer, name)!r}" in shown


def test_three_lines_put_a_layer_into_a_model_of_ones_own():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.mixer = BDLRU(hidden_size=8, num_blocks=4, block_size=2)
            self.head = nn.Linear(8, 10)

        def forward(self, ids, state=None):
            y, state = self.mixer(self.embed(ids), state)
            return self.head(y), state

    model = Model()
    ids = torch.arange(20).view(2, 10) % 10
    logits, _ = model(ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    before.backward()
    optimizer.step()
    after = nn.functional.cross_entropy(model(ids)[0].flatten(0, 1), ids.flatten())
    assert after < before

    y_t, _ = model.mixer.step(model.embed(ids[:, 0]), model.mixer.init_state(2))
    torch.testing.assert_close(model.head(y_t), model(ids)[0][:, 0])


def bad(layer, **changed):
    """A call of ``forward`` or ``step`` with some arguments replaced."""
    if "x_t" in changed:
        return layer.step(**({"state": layer.init_state(2)} | changed))
    return layer(**({"x": tokens(2, 4)} | changed))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": torch.zeros(4, 6)}, ValueError, r"x must have shape \(B, T, hidden_size=6\), got"),
        ({"x": torch.zeros(2, 4, 5)}, ValueError, r"x must .*hidden_size=6\), got \(2, 4, 5\)"),
        ({"x": torch.zeros(2, 4, 6)}, TypeError, r"x must have the dtype .*float64.*float32"),
        (
            {"x": torch.zeros(2, 4, 6, dtype=torch.int64)},
            TypeError,
            "x must have the dtype .*int64",
        ),
        ({"x": [[0.0]]}, TypeError, "x must be a tensor, got list"),
        ({"cu_seqlens": torch.tensor([0, 4])}, ValueError, r"cu_seqlens needs .*got B = 2"),
        ({"cu_seqlens": [0, 4]}, TypeError, "cu_seqlens must be a tensor, got list"),
        ({"cu_seqlens": torch.tensor([0.0, 4.0])}, TypeError, "cu_seqlens must be int32 or int64"),
        ({"cu_seqlens": torch.tensor([[0, 4]])}, ValueError, r"cu_seqlens must have shape \(N\+1,"),
        ({"x_t": torch.zeros(2, 5)}, ValueError, r"x_t must have shape \(B, hidden_size=6\), got"),
        ({"x_t": torch.zeros(2, 1, 6)}, ValueError, r"x_t must have shape \(B, hidden_size=6\)"),
        ({"x_t": torch.zeros(2, 6)}, TypeError, "x_t must have the dtype"),
        (
            {"x": torch.zeros(2, 4, 6, device="meta")},
            ValueError,
            r"x must be on the device of the parameters \(cpu\), got meta",
        ),
        (
            {"x_t": torch.zeros(2, 6, device="meta")},
            ValueError,
            r"x_t must be on the device of the parameters \(cpu\), got meta",
        ),
        (
            {"cu_seqlens": torch.tensor([0, 4], device="meta"), "x": tokens(1, 4)},
            ValueError,
            "cu_seqlens must be on cpu, got meta",
        ),
    ],
)
def test_bad_input_is_named(build_first, changed, error, message):
    with pytest.raises(error, match=message):
        bad(build_first(), **changed)


# One wrong part of a state of two sequences, and the end of the message.
WRONG_PARTS = {
    "rows": (lambda part: part[:1], ValueError, r"must have shape \(B=2, .*got \(1, "),
    "rank": (lambda part: part[..., 0], ValueError, r"must have shape \(B=2, .*got \("),
    "width": (lambda part: part.repeat_interleave(2, -1), ValueError, r"must have shape \(B=2, "),
    "dtype": (lambda part: part.long(), TypeError, r"must be floating \(.*, got torch\.int64"),
    "eight bits": (
        lambda part: part.to(torch.float8_e5m2),
        TypeError,
        r"must be floating \(float32, .*, got torch\.float8_e5m2",
    ),
    "device": (lambda part: part.to("meta"), ValueError, "must be on cpu, got meta"),
    "no tensor": (lambda part: None, TypeError, "must be a tensor, got NoneType"),
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_a_state_with_one_wrong_part_is_refused_by_name(build_first, wrong):
    layer = build_first()
    change, error, message = WRONG_PARTS[wrong]
    state = some_state(layer, 2)
    for place, (name, _) in enumerate(tensors(state)):
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


def test_a_step_without_a_state_is_the_first(build):
    layer, x_t = build(), tokens(2, 1)[:, 0]
    given = layer.step(x_t, layer.init_state(2))
    torch.testing.assert_close(layer.step(x_t, None), given, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^x_t must have shape \(B, hidden_size=6\)"):
        layer.step(x_t[:, 1:], None)


def test_a_packed_batch_needs_a_state_of_every_sequence(build_first):
    layer = build_first()
    with pytest.raises(ValueError, match=r"state[.\w]* must have shape \(N=3, .*got \(2, "):
        layer(tokens(1, 4), layer.init_state(2), torch.tensor([0, 1, 2, 4]))


def test_rows_of_a_state_can_be_selected_repeated_and_reordered(build):
    layer = build()
    x, more = tokens(3, 4), tokens(3, 2, seed=5)
    _, state = layer(x)
    rows = torch.tensor([2, 0, 2, 1])
    _, expected = layer(x[rows])
    torch.testing.assert_close(take_rows(state, rows), expected, **TIGHT)
    whole, _ = layer(torch.cat([x, more], 1)[rows])
    torch.testing.assert_close(layer(more[rows], take_rows(state, rows))[0], whole[:, 4:], **TIGHT)


def test_a_layer_reports_nothing_or_scalars_without_a_gradient(build):
    layer = build()
    layer(tokens(2, 4))
    for number in layer.reports().values():
        assert number.shape == ()
        assert not number.requires_grad


def test_schedulable_attributes_can_be_read_and_assigned(build):
    layer = build()
    for attribute in layer.schedulable:
        setattr(layer, attribute, getattr(layer, attribute))


def exists(device):
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError):
        return False
    return True


# Devices that PyTorch knows but that are not here; each is missing in a way of its own.
ABSENT = [
    device
    for name in ("cuda", "cuda:99", "mps", "xla", "hpu")
    for device in (name, torch.device(name))
    if not exists(device)
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": -1}, ValueError, r"batch_size must be in 0..2\^31 - 1, got -1"),
        ({"batch_size": 10**400}, ValueError, r"batch_size must be in 0..2\^31 - 1"),
        ({"batch_size": True}, TypeError, "batch_size must be an int, got True"),
        ({"batch_size": 1.5}, TypeError, "batch_size must be an int, got 1.5"),
        ({"batch_size": torch.tensor(2)}, TypeError, r"batch_size must be an int, got tensor"),
        ({"dtype": torch.int64}, TypeError, "dtype must be one of .*, got torch.int64"),
        ({"dtype": "float"}, TypeError, "dtype must be one of .*, got 'float'"),
        ({"device": "nonsense"}, ValueError, "device must exist, got 'nonsense'"),
        ({"device": 1.5}, TypeError, "device must be a device, a name or None, got 1.5"),
        ({"device": 2**70}, ValueError, "device must exist"),
        *(
            ({"device": device}, ValueError, f"^device must exist, got '{device}': [^\n]+$")
            for device in ABSENT
        ),
    ],
)
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
def test_arguments_of_init_state_are_checked(initial_state, arguments, error, message):
    for layer in (
        layers.BDLRU(4, num_blocks=2, block_size=2, initial_state=initial_state),
        layers.HLRU(4, num_channels=2, order=2, initial_state=initial_state),
        layers.LSTM(4),
        layers.DeltaNet(4, num_heads=2),
        layers.Mamba2(4, head_dim=4),
        layers.CausalConv(4, kernel_size=2),
        layers.Attention(4, num_heads=2),
    ):
        with pytest.raises(error, match=message):
            layer.init_state(**{"batch_size": 2} | arguments)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("device", "nonsense", ValueError),
        *(("device", device, ValueError) for device in ABSENT),
        ("dtype", torch.int64, TypeError),
    ],
)
def test_constructors_check_device_and_dtype(name, value, error):
    for build in (
        lambda **more: layers.BDLRU(4, num_blocks=2, block_size=2, **more),
        lambda **more: layers.HLRU(4, num_channels=2, order=2, **more),
        lambda **more: layers.LSTM(4, **more),
        lambda **more: layers.DeltaNet(4, num_heads=2, **more),
        lambda **more: layers.Mamba2(4, head_dim=4, **more),
        lambda **more: layers.CausalConv(4, kernel_size=2, **more),
        lambda **more: layers.Attention(4, num_heads=2, **more),
    ):
        with pytest.raises(error, match=f"{name} must"):
            build(**{name: value})


def test_sizes_beyond_any_memory_are_refused():
    with pytest.raises(
        ValueError, match=r"hidden_size must be below 2\^31, got 9223372036854775808"
    ):
        layers.LSTM(2**63)
    with pytest.raises(OptionError, match="gate_temperature must be a number"):
        layers.BDLRU(
            4, num_blocks=2, block_size=2, gate_temperature=torch.nn.Parameter(torch.ones(1))
        )
    with pytest.raises(ValueError, match="gate_temperature must be positive and finite"):
        layers.BDLRU(4, num_blocks=2, block_size=2, gate_temperature=10**400)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
@pytest.mark.parametrize("selective", [True, "pointwise", False])
def test_dynamic_quantisation_changes_results_little(selective, initial_state):
    """Its linear maps hold 8-bit weights instead of parameters."""
    options = {"selective": selective, "initial_state": initial_state}
    for layer in (
        layers.BDLRU(8, num_blocks=8, block_size=2, **options),
        layers.HLRU(8, num_channels=8, order=2, **options),
        layers.LSTM(8),
    ):
        quantised = torch.ao.quantization.quantize_dynamic(layer, dtype=torch.qint8)
        x = torch.randn(2, 5, 8)
        y, state = quantised(x)
        torch.testing.assert_close(y, layer(x)[0], atol=0.05, rtol=0)
        again, _ = quantised(x, state)
        torch.testing.assert_close(again, layer(x, layer(x)[1])[0], atol=0.05, rtol=0)
        assert quantised.state_size == layer.state_size
        with torch.inference_mode():
            y_t, _ = quantised.step(x[:, 0], quantised.init_state(2))
        torch.testing.assert_close(y_t, layer(x)[0][:, 0], atol=0.05, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["delta_product", "mamba2", "conv", "attention"])
def test_dynamic_quantisation_keeps_the_baselines_working(name):
    options = {
        "delta_product": {"num_heads": 2, "use_forget_gate": True, "use_output_gate": True},
        "mamba2": {"d_state": 4, "head_dim": 4},
        "conv": {"kernel_size": 2},
        "attention": {"num_heads": 2, "rope": True},
    }
    layer = layers.build(name, hidden_size=8, **options[name])
    layer.reset_parameters(torch.Generator().manual_seed(0))
    quantised = torch.ao.quantization.quantize_dynamic(layer, dtype=torch.qint8)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    y, state = quantised(x)
    # Norms magnify the errors of small outputs.
    torch.testing.assert_close(y, layer(x)[0], atol=0.2, rtol=0)
    y_t, _ = quantised.step(x[:, 0], state)
    torch.testing.assert_close(y_t, layer.step(x[:, 0], layer(x)[1])[0], atol=0.2, rtol=0)
    assert quantised.state_size == layer.state_size


def test_masks_are_refused_with_the_argument_that_packs(build_first):
    layer, mask = build_first(), torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"^state must be .* got a mask; .* with cu_seqlens$"):
        layer(tokens(2, 4), mask)
    with pytest.raises(TypeError, match=r"unexpected argument 'attention_mask'; .* cu_seqlens$"):
        layer(tokens(2, 4), attention_mask=mask)
    with pytest.raises(TypeError, match=r"unexpected argument 'h0'$"):
        layer(tokens(2, 4), h0=None)


def test_a_traced_layer_takes_another_batch(build):
    layer = build().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, tokens(2, 4))
        torch.testing.assert_close(traced(tokens(3, 4)), layer(tokens(3, 4)))


def test_sizes_are_named(build_first):
    layer = build_first()
    with pytest.raises(TypeError, match="positional argument"):
        type(layer)(HIDDEN_SIZE, 2)


def test_a_layer_needs_every_method_of_the_interface():
    methods = {"forward", "step", "init_state", "reset_parameters"}
    for missing in methods:
        some = {name: getattr(layers.LSTM, name) for name in methods - {missing}}
        with pytest.raises(TypeError, match=f"abstract method '?{missing}"):
            type("Incomplete", (layers.Layer,), some)()
    # A class between the interface and its layers has methods of its own to be given.
    assert GatedRecurrence.__abstractmethods__ == {
        *("_run", "_state_axes"),
        *("_kernel", "_step_of_units", "_read_out", "_input_gates_of"),
    }


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 4, 1), (8,), ()])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_takes_one_token_per_sequence(mode, shape):
    layer = BDLRU(4, num_blocks=2, block_size=2)
    with mode(), pytest.raises(ValueError, match=r"^x_t must have shape \(B, hidden_size=4\), got"):
        layer.step(torch.zeros(shape), layer.init_state(2))
    with mode(), pytest.raises(ValueError, match=r"^state must have shape \(B=2, num_blocks=2, "):
        layer.step(torch.zeros(2, 4), layer.init_state(4))


@pytest.mark.parametrize(
    ("construct", "units"),
    [
        (lambda: BDLRU(4, num_blocks=1, block_size=2**31 - 1), "num_blocks"),
        (lambda: BDLRU(4, num_blocks=2**20, block_size=2**10), "num_blocks"),
        (lambda: layers.HLRU(4, num_channels=2**20, order=2**12), "num_channels"),
    ],
)
def test_more_gates_than_can_be_counted_are_refused(construct, units):
    with pytest.raises(ValueError, match=rf"^{units} must give fewer than 2\^31 gates per token"):
        construct()


def test_sizes_end_below_two_to_the_31st():
    option_checks.check_sizes(first=1, last=2**31 - 1)
    with pytest.raises(ValueError, match=r"^last must be below 2\^31, got 2147483648$"):
        option_checks.check_sizes(first=1, last=2**31)
    layer = BDLRU(4, num_blocks=2, block_size=2)
    assert len(layer.init_state(2**31 - 1, device="meta")) == 2**31 - 1
    assert len(layer.init_state(0)) == 0
    for number in (-1, 2**31):
        with pytest.raises(ValueError, match=r"^batch_size must be"):
            layer.init_state(number, device="meta")
