"""FP-Mamba: its fixed points against plain recurrences that iterate one token at a time."""

import math

import pytest
import torch
from torch.nn import functional

from statemix.layers import FPRNN, FPMamba1, FPMamba2
from statemix.layers.state import tensors

BOTH = [FPMamba1, FPMamba2]
CONVERGED = {"max_iterations": 400, "tolerance": 1e-14, "damping": 1.0, "contraction": 0.5}


def build(kind, *, seed=0, **options):
    if kind is FPMamba2:
        options.setdefault("head_dim", 4)
    if kind is not FPRNN:
        options["d_state"] = 3
    else:
        # Above the rates that random biases give, which would need longer to forget.
        options.pop("damping", None)
    layer = kind(6, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(seed)
    layer.reset_parameters(generator)
    with torch.no_grad():
        # Of every size: at their initial values, biases and skips would hide mistakes.
        for name, parameter in layer.named_parameters():
            if name in ("D", "norm_bias", "norm_weight", "dt_bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator).double())
    return layer


def tokens(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def normalised(v, eps=1e-6):
    return v / (v.square().sum(-1, keepdim=True) + eps).sqrt()


def projected(layer, x):
    """x, z, B, C, Delta and A of every token, as the docstrings define them."""
    inner, size = layer.inner_size, layer.d_state
    if isinstance(layer, FPMamba1):
        to_mix, z = layer.in_proj(x).split([inner, inner], -1)
        values = convolved(layer, to_mix)
        low, B, C = layer.x_proj(values).split([math.ceil(6 / 16), size, size], -1)
        return values, z, B, C, functional.softplus(layer.dt_proj(low)), -layer.A_log.exp()
    widths = [inner, inner + 2 * size, layer.num_heads]
    z, to_mix, raw = layer.in_proj(x).split(widths, -1)
    values, B, C = convolved(layer, to_mix).split([inner, size, size], -1)
    steps = functional.softplus(raw + layer.dt_bias).repeat_interleave(layer.head_dim, -1)
    rates = -layer.A_log.exp().repeat_interleave(layer.head_dim)
    return values, z, B, C, steps, rates.unsqueeze(-1).expand(inner, size)


def convolved(layer, x):
    padded = functional.pad(x, (0, 0, layer.d_conv - 1, 0))
    weight, bias = layer.conv.weight, layer.conv.bias
    length = x.shape[1]
    return functional.silu(
        bias + sum(weight[j] * padded[:, j : j + length] for j in range(layer.d_conv))
    )


def map_at(layer, projections, t, last, *, feedback=True):
    """The map from a token's y, and the state before it, to both; ``last`` is the y before it."""
    values, z, B, C, steps, A = projections
    skip = layer.D if isinstance(layer, FPMamba1) else layer.D.repeat_interleave(layer.head_dim)
    prepared = layer.state_mixer.prepare(values)
    at_t = [p._replace(constant=p.constant[:, t]) for p in prepared]
    coefficients = layer.state_mixer.coefficients([p(last) for p in at_t])
    both = torch.cat([B[:, t], C[:, t]], -1)
    if feedback:
        both = both + last @ scaled_rows(layer.map_proj).T
    b, c = map(normalised, both.chunk(2, -1))
    step, value = steps[:, t], values[:, t]
    share = 1.0
    if layer.contraction is not None:
        most = (step + skip.abs()).amax(-1, keepdim=True) * layer.state_mixer.bound
        share = (layer.contraction / most).clamp(max=1)

    def mapped(y, state):
        u = value - share * layer.state_mixer.deviation(coefficients, value - y)
        state = (step.unsqueeze(-1) * A).exp() * state
        state = state + (step * u).unsqueeze(-1) * b.unsqueeze(-2)
        y = (state * c.unsqueeze(-2)).sum(-1) + skip * u
        return (normed(layer, y, z[:, t]) if layer.contraction is None else y), state

    return mapped


def scaled_rows(linear):
    return linear.gain.unsqueeze(-1) * functional.normalize(linear.weight, dim=1)


def read_out(layer, y, z, last, *, feedback=True):
    """The output of a token with this y, after the y before it."""
    read = y if layer.contraction is None else normed(layer, y, z)
    if isinstance(layer, FPMamba1):
        opened = z + last @ scaled_rows(layer.gate_proj).T if feedback else z
        read = functional.silu(opened) * read
    return layer.out_proj(read)


def zeros(layer, x):
    """The y and the state before the first token."""
    y = torch.zeros(len(x), layer.inner_size, dtype=torch.float64)
    return y, torch.zeros(*y.shape, layer.d_state, dtype=torch.float64)


def oracle(layer, x, iterations=200, *, feedback=True):
    """Outputs by a loop over tokens; y_t is iterated while the token before stays as it is.

    Without feedback no token sees the output of the one before.
    """
    projections = projected(layer, x)
    before, state = zeros(layer, x)
    outputs = []
    for t in range(x.shape[1]):
        last = before if feedback else torch.zeros_like(before)
        mapped = map_at(layer, projections, t, last, feedback=feedback)
        y = torch.zeros_like(before)
        for _ in range(iterations):
            y, new = mapped(y, state)
        outputs.append(read_out(layer, y, projections[1][:, t], last, feedback=feedback))
        state, before = new, y
    return torch.stack(outputs, 1), state, before


def iterated_together(layer, x, iterations):
    """Outputs after iterations of all tokens, each after the last iterate of the one before."""
    projections = projected(layer, x)
    first, initial = zeros(layer, x)
    iterates = [first] * x.shape[1]
    for _ in range(iterations):
        state, found = initial, []
        for t, (last, y) in enumerate(zip([first, *iterates], iterates, strict=False)):
            y, state = map_at(layer, projections, t, last)(y, state)
            found.append(y)
        iterates = found
    outputs = [
        read_out(layer, y, projections[1][:, t], last)
        for t, (last, y) in enumerate(zip([first, *iterates], iterates, strict=False))
    ]
    return torch.stack(outputs, 1)


def normed(layer, o, z):
    if isinstance(layer, FPMamba1):
        return functional.layer_norm(o, o.shape[-1:], layer.norm_weight, layer.norm_bias, eps=1e-5)
    gated = o * functional.silu(z)
    return gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.norm_weight


@pytest.mark.parametrize(
    ("mixer", "rank", "mixer_inputs"),
    [
        ("householder", 2, "both"),
        ("dplr", 2, "both"),
        ("kronecker", 1, "sum"),
        ("monarch", 3, "token"),
    ],
)
@pytest.mark.parametrize("kind", BOTH)
def test_a_sequence_equals_tokens_that_are_iterated_one_by_one(kind, mixer, rank, mixer_inputs):
    layer = build(kind, mixer=mixer, rank=rank, mixer_inputs=mixer_inputs, **CONVERGED)
    x = tokens(3, 6, 6)
    y, state = layer(x)
    expected, ssm, output = oracle(layer, x, feedback=mixer_inputs != "token")
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(state.ssm.flatten(1), ssm.flatten(1), rtol=0, atol=1e-10)
    torch.testing.assert_close(state.output, output, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("contraction", "mixer_inputs"), [(None, "both"), (0.5, "token")])
@pytest.mark.parametrize("kind", [*BOTH, FPRNN])
def test_a_single_iteration_is_the_diagonal_layer(kind, contraction, mixer_inputs):
    layer = build(kind, max_iterations=1, mixer_inputs=mixer_inputs, contraction=contraction)
    x = tokens(3, 8, 6)
    y, state = layer(x)
    assert layer.reports()["iterations"] == 1
    if kind is not FPRNN:
        expected, ssm, _ = oracle(layer, x, iterations=1, feedback=False)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(state.ssm.flatten(1), ssm.flatten(1), rtol=0, atol=1e-12)
    # Nor do pieces see the outputs of earlier ones, but through the state of the scan.
    first, between = layer(x[:, :3])
    second, _ = layer(x[:, 3:], between)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_the_published_form_iterates_the_normalised_output(kind):
    layer = build(kind, max_iterations=3, tolerance=1e-14, damping=1.0)
    x = tokens(3, 3, 6)
    y, _ = layer(x)
    # The last application is to the first iterate or the second, whichever has the lower residual.
    found = torch.stack([iterated_together(layer, x, n) for n in (2, 3)])
    errors = (y - found).abs().amax((2, 3))
    assert (errors.amin(0) < 1e-12).all()


@pytest.mark.parametrize("kind", BOTH)
def test_implicit_gradients_are_those_of_all_iterations(kind):
    x = tokens(2, 6, 6)

    def gradients(gradient):
        layer = build(kind, gradient=gradient, **CONVERGED)
        y, state = layer(x)
        loss = (y * tokens(2, 6, 6, seed=3)).sum() + state.ssm.square().sum() + state.output.sum()
        return torch.autograd.grad(loss, list(layer.parameters()))

    for implicit, unrolled in zip(gradients("implicit"), gradients("unrolled"), strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-7, atol=1e-9)


def test_second_derivatives_are_right_or_refused():
    x, weights = tokens(1, 4, 6).requires_grad_(), tokens(1, 4, 6, seed=3)
    for gradient in (1, 3, "implicit"):
        layer = build(FPMamba2, gradient=gradient, **CONVERGED)
        # A linear loss and a curved one.
        for loss in ((layer(x)[0] * weights).sum(), layer(x)[0].square().sum()):
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            with pytest.raises(RuntimeError, match="fixed point cannot be differentiated again"):
                first.square().sum().backward()
    unrolled = build(FPMamba2, gradient="unrolled", **CONVERGED)
    assert torch.autograd.gradgradcheck(lambda x: unrolled(x)[0], (x,))
    # A single application is not approximated.
    single = build(FPMamba2, **CONVERGED | {"max_iterations": 1})
    assert torch.autograd.gradgradcheck(lambda x: single(x)[0], (x,))


@pytest.mark.parametrize("kind", [FPRNN, *BOTH])
def test_transforms_of_iterations_are_right_or_refused(kind):
    options = CONVERGED | ({"solver": "iterate"} if kind is FPRNN else {})
    layer, x = build(kind, gradient=2, **options), tokens(3, 4, 6)
    one = x[:1]

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x[None],))[0].sin().sum()

    parameters = dict(layer.named_parameters())
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for number, sequence in enumerate(x):
        expected = torch.autograd.grad(loss(parameters, sequence), list(parameters.values()))
        alone = [gradient[number] for gradient in found.values()]
        torch.testing.assert_close(alone, list(expected), rtol=1e-9, atol=1e-11)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x)[0], one)
    torch.testing.assert_close(torch.func.jacrev(lambda x: layer(x)[0])(one), jacobian)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.func.jacrev(torch.func.jacrev(lambda x: layer(x)[0].sum()))(one)
    one.requires_grad_()
    y = layer(one)[0].flatten()
    rows = torch.eye(len(y), dtype=y.dtype)
    (batched,) = torch.autograd.grad(y, one, rows, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(batched.reshape(jacobian.shape), jacobian)
    with pytest.raises(RuntimeError, match=r"batched gradients .* must come without create_graph"):
        torch.autograd.grad(y, one, rows, is_grads_batched=True, create_graph=True)
    layer.gradient = "implicit"
    with pytest.raises(RuntimeError, match=r"torch.func needs gradient='unrolled' or a number"):
        torch.func.grad(loss)(parameters, x[0])


@pytest.mark.parametrize("kind", [FPRNN, *BOTH])
def test_windows_lead_to_the_same_fixed_point_with_less_work(kind):
    x, lengths = 10 * tokens(2, 40, 6), torch.tensor([0, 40, 45, 80])
    options = CONVERGED | {"max_iterations": 400, "tolerance": 1e-12, "contraction": 0.9}
    whole, windows = (build(kind, window=window, **options) for window in (None, 8))
    results = []
    for layer in (whole, windows):
        with torch.no_grad():
            # A strong dependence on the token before, so that tokens converge one by one.
            for linear in layer.state_mixer.linears:
                linear.gain.mul_(12)
        y, state = layer(x)
        gradients = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
        packed, _ = layer(x.reshape(1, 80, 6), cu_seqlens=lengths)
        results.append((y, *(part for _, part in tensors(state)), *gradients, packed))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    whole(x)
    windows(x)
    iterations = [layer.reports()["iterations"] for layer in (whole, windows)]
    assert iterations[1] < 0.9 * iterations[0]
    # A window as long as the sequence is none.
    whole.window = 40
    whole(x)
    assert whole.reports()["iterations"] == iterations[0]
