"""The common base of BDLRU and HLRU: temperature, selectivity, initial state, transforms."""

import copy
import itertools
import math

import pytest
import torch
from tests.layers.conftest import tokens
from torch.nn.utils.parametrize import register_parametrization

from statemix import ops
from statemix.errors import OptionError
from statemix.layers import BDLRU, HLRU, gated_recurrence

HIDDEN_SIZE = 6
# Tracing an autograd.Function makes Dynamo itself instantiate the class.
compiling = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
TIGHT = {"rtol": 1e-12, "atol": 1e-13}
GATES = [name for name, gate in ops.GATES.items() if not gate.blocks_only]


def gate_parameters(layer):
    return [p for name, p in layer.named_parameters() if name.startswith("gate_")]


def with_divided_gates(layer, temperature):
    """A copy whose gate parameters are divided by hand instead."""
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in gate_parameters(twin):
            parameter /= temperature
    return twin


def test_temperature_divides_the_raw_gates(build_gated):
    x = tokens(2, 6)
    for temperature in (1 / 8, 4.0):
        layer = build_gated()
        twin = with_divided_gates(layer, temperature)
        buffer = layer.temperature
        layer.gate_temperature = temperature
        assert layer.temperature is buffer
        found, expected = layer(x), twin(x)
        torch.testing.assert_close(found, expected, **TIGHT)
        assert not torch.allclose(found[0], build_gated()(x)[0])
        state = layer.init_state(2)
        torch.testing.assert_close(layer.step(x[:, 0], state), twin.step(x[:, 0], state), **TIGHT)
        for y, _ in (found, expected):
            y.square().sum().backward()
        for ours, theirs in zip(gate_parameters(layer), gate_parameters(twin), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad / temperature, **TIGHT)


def test_temperature_travels_with_the_state_dict_and_is_not_trained_or_rounded(build_gated):
    layer, other = build_gated(torch.float32, gate_temperature=0.3), build_gated(torch.float32)
    exact = layer.gate_temperature
    assert layer.state_dict()["temperature"].item() == exact
    assert "temperature" not in dict(layer.named_parameters())
    other.load_state_dict(layer.state_dict())
    assert other.gate_temperature == copy.deepcopy(layer).gate_temperature == exact
    assert layer.bfloat16().gate_temperature == exact
    assert layer.half().double().gate_temperature == exact
    assert layer.temperature.dtype == torch.float64
    assert layer.float().gate_temperature == exact


def test_a_layer_built_on_meta_is_whole_once_materialised_and_reset(build_gated):
    layer = build_gated(gate_temperature=0.25)
    with torch.device("meta"):
        ghost = build_gated(gate_temperature=0.25)
    assert "gate_temperature=0.25" in repr(ghost)
    ghost.bfloat16().to_empty(device="cpu")
    assert ghost.temperature.dtype == torch.float32
    ghost.to(layer.value_proj.weight.dtype)
    for model in (ghost, layer):
        model.reset_parameters(torch.Generator().manual_seed(5))
    torch.testing.assert_close(ghost.state_dict(), layer.state_dict(), rtol=0, atol=0)


def test_bad_temperatures_are_refused_and_change_nothing():
    layer = BDLRU(4, num_blocks=2, block_size=2, gate_temperature=0.5)
    for value in (0.0, -1.0, math.inf, math.nan, 1e-60, "1", True, None):
        with pytest.raises(OptionError, match=r"^gate_temperature must be (positive|a number)"):
            layer.gate_temperature = value
        assert layer.gate_temperature == 0.5


UNITS = ["bd_lru", "h_lru", "h_lru-observer"]


def layers_of_units(**options):
    shared = {"hidden_size": HIDDEN_SIZE, "dtype": torch.float64} | options
    return [
        BDLRU(num_blocks=HIDDEN_SIZE, block_size=3, **shared),
        HLRU(num_channels=HIDDEN_SIZE, order=3, **shared),
        HLRU(num_channels=HIDDEN_SIZE, order=3, realization="observer", **shared),
    ]


class Exact(torch.nn.Module):
    """Replaces the projection of the gates, without rounding.

    A matrix product may add in another order for one token than for many.
    """

    def __init__(self, projection):
        super().__init__()
        repeats = -(-projection.out_features // projection.in_features)
        self.factors = torch.arange(1, projection.out_features + 1) % 7 - 3
        self.repeats = repeats
        self.weight = projection.weight  # tells the dtype of the state

    def forward(self, x):
        columns = x.repeat(*(1,) * (x.ndim - 1), self.repeats)[..., : len(self.factors)]
        return columns * self.factors.to(x)


@pytest.mark.parametrize("backend", [b.name for b in ops.BACKENDS.values() if b.stepwise])
@torch.no_grad()
def test_steps_equal_the_sequence_bit_for_bit_at_any_temperature(device, backend):
    x = tokens(3, 5, dtype=torch.float32).to(device)
    every = [
        layer
        for gate, temperature in itertools.product(GATES, (1.0, 0.3, 1 / 64))
        for layer in layers_of_units(
            dtype=torch.float32, gate=gate, backend=backend, gate_temperature=temperature
        )[:2]
    ]
    for layer in every:
        layer.gate_proj = Exact(layer.gate_proj)
        layer.value_proj = Exact(layer.value_proj)
        layer.to(device)
        _, final = layer(x)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                state = layer.init_state(3)
                for x_t in x.unbind(1):
                    _, state = layer.step(x_t, state)
                torch.testing.assert_close(state, final, rtol=0, atol=0)


def raw_gates(layer, x):
    """The raw gates as the operator receives them, beside the temperature: (B, T, H, ...)."""
    return layer._raw_gates(x, x.dtype)


@pytest.mark.parametrize("layer", layers_of_units(selective="pointwise"), ids=UNITS)
def test_pointwise_gates_see_their_own_channel_alone(layer):
    x = tokens(2, 4)
    jacobian = torch.autograd.functional.jacobian(lambda x: raw_gates(layer, x), x[:1, :1])
    jacobian = jacobian[0, 0].reshape(HIDDEN_SIZE, -1, HIDDEN_SIZE)  # unit, gate, channel
    weights = layer.gate_weight.reshape(HIDDEN_SIZE, -1)
    for unit in range(HIDDEN_SIZE):
        expected = torch.zeros_like(jacobian[unit])
        expected[:, unit] = weights[unit]
        torch.testing.assert_close(jacobian[unit], expected, **TIGHT)


class Adapted(torch.nn.Module):
    """A projection with an added part, like an adapter."""

    def __init__(self, projection):
        super().__init__()
        self.projection = projection

    def forward(self, x):
        y = self.projection(x)
        return y + y.square()


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def wrap(layer, name):
    setattr(layer, name, Adapted(getattr(layer, name)))


def replace_forward(layer, name):
    projection = getattr(layer, name)
    forward = projection.forward
    projection.forward = lambda x: forward(x).square()


def compile_doubled(layer, name):
    projection = getattr(layer, name)
    # What `projection.compile()` sets; the compiler passes over modules of torch.nn by themselves.
    projection._compiled_call_impl = lambda x: 2 * projection.forward(x)


CHANGES = {
    "wrapper": wrap,
    "other forward": replace_forward,
    "parametrisation": lambda layer, name: register_parametrization(
        getattr(layer, name), "weight", Doubled()
    ),
    "forward hook": lambda layer, name: getattr(layer, name).register_forward_hook(
        lambda *call: call[2] ** 2
    ),
    "forward pre-hook": lambda layer, name: getattr(layer, name).register_forward_pre_hook(
        lambda _, x: (2 * x[0],)
    ),
}


@pytest.mark.parametrize("name", ["value_proj", "gate_proj", "out_proj"])
@pytest.mark.parametrize("change", [*CHANGES.values(), compile_doubled], ids=[*CHANGES, "compiled"])
@torch.inference_mode()
def test_a_changed_projection_acts_in_direct_steps(change, name):
    x = tokens(2, 1)
    for layer in layers_of_units():
        state = torch.randn_like(layer.init_state(2))
        before, _ = layer.step(x[:, 0], state)
        change(layer, name)
        y, final = layer.step(x[:, 0], state)
        assert not torch.allclose(y, before)
        expected, last = layer(x, state)
        torch.testing.assert_close(y, expected[:, 0], **TIGHT)
        torch.testing.assert_close(final, last, **TIGHT)


@pytest.mark.parametrize("layer", layers_of_units(selective=False), ids=UNITS)
def test_constant_gates_take_no_memory_per_token_and_make_the_layer_linear(layer):
    gates = raw_gates(layer, tokens(2, 4))
    torch.testing.assert_close(gates, layer.gate_bias.expand(gates.shape), rtol=0, atol=0)
    assert gates.stride()[:2] == (0, 0)
    x, z = tokens(2, 6), tokens(2, 6, seed=7)
    both = layer(2 * x - 3 * z)[0]
    torch.testing.assert_close(both, 2 * layer(x)[0] - 3 * layer(z)[0], **TIGHT)


@pytest.mark.parametrize("layer", layers_of_units(initial_state="learned"), ids=UNITS)
def test_a_learned_initial_state_is_the_state_given_by_default(layer):
    x = tokens(2, 4)
    fresh = layer(x)
    torch.testing.assert_close(fresh, layer(x, torch.zeros_like(layer.init_state(2))))

    torch.nn.init.normal_(layer.learned_state, generator=torch.Generator().manual_seed(0))
    explicit = layer.learned_state.detach().expand(2, -1, -1)
    torch.testing.assert_close(layer(x), layer(x, explicit), rtol=0, atol=0)
    assert not torch.allclose(layer(x)[0], fresh[0])

    (learned,) = torch.autograd.grad(layer(x)[0].square().sum(), [layer.learned_state])
    explicit.requires_grad_()
    (given,) = torch.autograd.grad(layer(x, explicit)[0].square().sum(), [explicit])
    torch.testing.assert_close(learned, given.sum(0), **TIGHT)
    assert learned.abs().min() > 0


def test_biases_of_input_gates_begin_where_they_should(build_gated):
    for bias in (0.0, -6.0):
        layer, plain = build_gated(input_gate_bias=bias), build_gated()
        x = tokens(2, 5)
        for cleared in (False, True):
            raw, usual = (one._raw_gates(x, x.dtype) for one in (layer, plain))
            torch.testing.assert_close(raw[..., -1], usual[..., -1] + bias, **TIGHT)
            torch.testing.assert_close(raw[..., :-1], usual[..., :-1], **TIGHT)
            if not cleared:
                layer.zero_biases()
                plain.zero_biases()
        # It is a beginning, and not a constant.
        assert layer._raw_gates(x, x.dtype)[..., -1].requires_grad


def test_training_adds_noise_to_every_raw_gate(build_gated):
    layer, plain = build_gated(gate_noise=0.25), build_gated()
    assert "gate_noise=0.25" in repr(layer)
    plain.load_state_dict(layer.state_dict())
    x = tokens(4, 50)
    seen = []
    layer._add_noise = lambda raw, std: seen.append(raw) or type(layer)._add_noise(layer, raw, std)
    torch.manual_seed(0)
    noisy = layer(x)[0]
    torch.manual_seed(0)
    (gates,) = seen
    noise = type(layer)._add_noise(layer, gates, 0.25) - gates
    assert noise.std().item() == pytest.approx(0.25, rel=0.1)
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    # The gates of no two entries, units or tokens have one noise.
    assert noise.unique().numel() == noise.numel()
    plain._add_noise = lambda gates, _: gates + noise
    torch.testing.assert_close(noisy, plain(x)[0], **TIGHT)
    assert (noisy - layer.eval()(x)[0]).abs().max() > 1e-3


def test_neither_evaluation_nor_steps_nor_analysis_have_noise(build_gated):
    layer, plain = build_gated(gate_noise=0.5), build_gated()
    plain.load_state_dict(layer.state_dict())
    x = tokens(2, 3)
    torch.testing.assert_close(
        layer.recurrence(x).transitions, plain.recurrence(x).transitions, **TIGHT
    )
    state = plain.init_state(2)
    torch.testing.assert_close(layer.step(x[:, 0], state), plain.step(x[:, 0], state), **TIGHT)
    torch.testing.assert_close(layer.eval()(x), plain.eval()(x), **TIGHT)
    layer.gate_noise = 0
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), **TIGHT)


@pytest.mark.parametrize(
    "bounds", [None, [0, 3, 3, 10], [0, 0, 4, 8, 10, 10]], ids=["batch", "packed", "at the cuts"]
)
def test_what_is_computed_again_has_the_same_gradients(bounds):
    cu_seqlens = None if bounds is None else torch.tensor(bounds)
    given = tokens(2 if bounds is None else 1, 10)
    for layer in layers_of_units():
        state = torch.randn(len(given) if bounds is None else len(bounds) - 1, HIDDEN_SIZE, 3)
        found = []
        for layer.checkpoint_every in (None, 1, 4, 99):
            layer.zero_grad()
            leaves = [given.clone().requires_grad_(), state.double().requires_grad_()]
            y, final = layer(*leaves, cu_seqlens)
            (y.square().sum() + final.pow(3).sum()).backward()
            found.append([y, final, *(leaf.grad for leaf in (*leaves, *layer.parameters()))])
            found[-1] = [tensor.detach().clone() for tensor in found[-1]]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], **TIGHT)


def test_what_is_computed_again_has_the_temperature_of_the_first_time():
    for layer in layers_of_units(checkpoint_every=2):
        gradients = []
        for temperature in (1.0, 0.25):
            layer.zero_grad()
            layer.gate_temperature = 1.0
            y, _ = layer(tokens(2, 7))
            layer.gate_temperature = temperature
            y.square().sum().backward()
            gradients.append(layer.gate_proj.weight.grad)
        assert torch.equal(*gradients)


def test_a_forward_of_the_user_needs_no_further_arguments():
    layer, x = BDLRU(6, num_blocks=3, block_size=2).eval(), tokens(2, 1)[:, 0].float()
    expected, inner = layer.step(x, None), layer.forward
    layer.forward = lambda x, state=None, cu_seqlens=None: inner(2 * x, state, cu_seqlens)
    torch.testing.assert_close(layer.step(x / 2, None), expected)


def saved(run, x, layer):
    """Bytes that the forward pass keeps, of tensors that are no parameters."""
    known = {one.untyped_storage().data_ptr() for one in (*layer.parameters(), x)}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = run(x)
    assert outputs[0].requires_grad
    return sum(kept.values())


def test_only_the_states_between_pieces_are_kept():
    x = tokens(3, 32)
    whole, pieces = (layers_of_units(checkpoint_every=every)[0] for every in (None, 8))
    states = 4 * pieces.init_state(3).numel() * x.element_size()
    assert saved(pieces, x, pieces) <= states < saved(whole, x, whole) / 8


def test_wrong_bounds_are_refused_before_a_row_is_cut():
    layer = layers_of_units(checkpoint_every=8)[0]
    for bounds in ([0, 3, 99], [1, 3, 32]):
        with pytest.raises(ValueError, match="cu_seqlens must"):
            layer(tokens(1, 32), None, torch.tensor(bounds))


def test_under_transforms_nothing_is_computed_again():
    layer, plain = layers_of_units(checkpoint_every=3)[0], layers_of_units()[0]
    plain.load_state_dict(layer.state_dict())
    parameters = dict(layer.named_parameters())

    def loss(p, of):
        return torch.func.functional_call(of, p, (tokens(2, 7),))[0].square().sum()

    found, expected = (torch.func.grad(loss)(parameters, of) for of in (layer, plain))
    torch.testing.assert_close(found, expected, **TIGHT)


def test_noise_and_hidden_blocks_are_drawn_once(monkeypatch):
    """A computation that is repeated sees the noise of the first time."""
    sizes = {"num_blocks": 6, "block_size": 2}
    for layer in (
        HLRU(6, num_channels=6, order=2, checkpoint_every=3, gate_noise=0.5),
        BDLRU(6, **sizes, checkpoint_every=3, gate_noise=0.5, block_dropout=0.5),
        BDLRU(6, **sizes, checkpoint_every=3, gate_noise=0.5).eval(),
    ):
        gradients = []
        for run in (gated_recurrence.checkpoint, lambda function, *given, **_: function(*given)):
            with monkeypatch.context() as patch:
                patch.setattr(gated_recurrence, "checkpoint", run)
                torch.manual_seed(0)
                x = tokens(2, 7, dtype=torch.float32).requires_grad_()
                layer(x)[0].sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def _hiding(channels=1, **options):
    """Return a layer whose output shows which of its six blocks the projection sees."""
    layer = BDLRU(
        6, num_blocks=6, block_size=2, value_channels=channels, dtype=torch.float64, **options
    )
    # Output k reads the first entry of block k. Blocks are innermost in the projection's order.
    weight = torch.zeros(6, 2 * channels, 6, dtype=torch.float64)
    weight[:, 0] = torch.eye(6)
    layer.out_proj.weight.data = weight.flatten(1)
    return layer


@pytest.mark.parametrize(("channels", "every"), [(1, None), (3, None), (1, 1)])
def test_training_hides_whole_blocks_from_the_output_projection(channels, every):
    layer, x = _hiding(channels, block_dropout=0.25, checkpoint_every=every), tokens(500, 3)
    assert "block_dropout=0.25" in repr(layer)
    torch.manual_seed(0)
    y, state = layer(x)
    expected, last = layer.eval()(x)
    assert torch.equal(state, last)
    shown = y / expected
    # At every position of a row alike, and those that are seen make up for the others.
    assert torch.equal(y == 0, (y == 0)[:, :1].expand_as(y))
    torch.testing.assert_close(y[y != 0], expected[y != 0] / 0.75, **TIGHT)
    hidden = (shown[:, 0] == 0).double()
    assert hidden.mean().item() == pytest.approx(0.25, abs=0.03)
    # Blocks are drawn apart from each other, and for each row, also of packed ones.
    assert (torch.corrcoef(hidden.T) - torch.eye(6)).abs().max() < 0.2
    torch.manual_seed(0)
    packed, _ = layer.train()(x.view(1, 1500, 6), None, torch.arange(0, 1501, 3))
    torch.testing.assert_close(packed.view(y.shape), y, **TIGHT)


def test_neither_steps_nor_evaluation_hide_blocks():
    layer, x = _hiding(block_dropout=0.9), tokens(3, 2)
    expected, _ = layer.eval()(x)
    layer.train()
    state = layer.init_state(3, dtype=torch.float64)
    torch.testing.assert_close(layer.step(x[:, 0], state)[0], expected[:, 0], **TIGHT)
    layer.register_forward_hook(lambda *_: None)  # Steps go through forward.
    torch.testing.assert_close(layer.step(x[:, 0], state)[0], expected[:, 0], **TIGHT)
    layer.block_dropout = 0
    torch.testing.assert_close(layer(x)[0], expected, **TIGHT)


def test_the_operators_get_the_backend_in_sequences_and_steps(monkeypatch):
    seen = []
    for name in ("bd_lru", "bd_lru_step", "h_lru", "h_lru_step"):
        operator = getattr(ops, name)

        def watched(*arguments, operator=operator, **options):
            seen.append(options.get("backend", "not passed on"))
            return operator(*arguments, **options)

        monkeypatch.setattr(ops, name, watched)
    x = tokens(2, 5)
    for layer in layers_of_units(backend="loop"):
        layer(x)
        layer.step(x[:, 0], layer.init_state(2))
    assert seen == ["loop"] * 6


@compiling
@pytest.mark.parametrize(
    "layer",
    [
        BDLRU(6, num_blocks=6, block_size=3, initial_state="learned", dtype=torch.float64),
        BDLRU(6, num_blocks=6, block_size=2, checkpoint_every=2, dtype=torch.float64),
        HLRU(6, num_channels=6, order=3, realization="observer", dtype=torch.float64),
    ],
    ids=["bd_lru", "computed again", "observer"],
)
def test_a_compiled_layer_has_no_graph_break_and_the_same_gradients(layer, monkeypatch):
    torch.compiler.reset()
    # As in a new process: the compiled call is the first that looks for a backend.
    monkeypatch.setattr(ops.BACKENDS, "_has_installed", False)
    state = (layer.init_state(2).detach() + 0.5).requires_grad_()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)

    def outputs_and_gradients(call):
        y, final = call(tokens(2, 5), state)
        loss = y.square().sum() + final.sin().sum()
        leaves = [state, *layer.parameters()]
        return y, final, torch.autograd.grad(loss, leaves, allow_unused=True)

    found, expected = outputs_and_gradients(compiled), outputs_and_gradients(layer)
    torch.testing.assert_close(found, expected, **TIGHT)


def test_vmap_of_grad_over_replicas_equals_a_loop(build_gated):
    replicas = [build_gated(seed=seed, gate_temperature=1 / (1 + seed)) for seed in range(3)]
    parameters, buffers = torch.func.stack_module_state(replicas)
    base = replicas[0]
    x = tokens(2, 5)

    def loss(parameters, buffers):
        y, state = torch.func.functional_call(base, (parameters, buffers), (x,))
        return y.square().sum() + state.sin().sum()

    stacked = torch.func.vmap(torch.func.grad(loss))(parameters, buffers)
    for n, replica in enumerate(replicas):
        y, state = replica(x)
        (y.square().sum() + state.sin().sum()).backward()
        for name, parameter in replica.named_parameters():
            torch.testing.assert_close(stacked[name][n], parameter.grad, rtol=1e-10, atol=1e-12)
