"""Every registered layer in every variant that its options spell out.

A test that asks for ``build`` runs over all of them, one that asks for ``build_gated`` over those
that have gates, and one that asks for ``build_first`` over the first variant of every layer: what
it tests does not depend on the options. All are ``build(dtype=..., seed=..., **more_options)``.
"""

from itertools import islice
from typing import Literal, get_args, get_origin

import pytest
import torch

from statemix import layers
from statemix.layers.state import tensors
from statemix.registry import REQUIRED

HIDDEN_SIZE = 6


def tokens(batch, length, seed=1, dtype=torch.float64):
    """Return random inputs of width 6."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, HIDDEN_SIZE, generator=generator, dtype=dtype)


def check_equation(layer, reference, x, *state):
    """Compare a layer on one sequence with its equation: outputs, final state, and gradients.

    ``reference`` returns outputs (T, width) and the first part of the state.
    """
    x.requires_grad_()
    y, after = layer(x, *state)
    expected, final = reference(layer, x[0])
    after = next(tensors(after))[1][0]
    torch.testing.assert_close((y[0], after), (expected, final), rtol=1e-10, atol=1e-11)
    leaves = [x, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(y.sin().sum() + after.cos().sum(), leaves),
        torch.autograd.grad(expected.sin().sum() + final.cos().sum(), leaves),
        rtol=1e-8,
        atol=1e-9,
    )


# Values of the required options. There are as many units as channels, as "pointwise" requires.
SIZES = {
    "num_blocks": 6,
    "block_size": 3,
    "num_channels": 6,
    "order": 3,
    "num_heads": 2,
    "kernel_size": 3,
}
# Values of options whose defaults do not fit so few channels.
SMALL = {
    "mamba2": {"d_state": 5, "head_dim": 4},
    "attention": {"num_heads": 3},
    "fp_rnn": {"rank": 2},
}
# What layers promise holds where the iteration converges.
CONVERGED = {
    "contraction": 0.5,
    "max_iterations": 120,
    "tolerance": 1e-14,
    "gradient": "implicit",
}
SMALL |= {
    name: CONVERGED | {"rank": 2, "d_state": 3, "damping": 1.0}
    for name in ("fp_mamba1", "fp_mamba2")
}
SMALL["fp_mamba2"]["head_dim"] = 4
# Options whose choices have tests of their own: iterating takes a hundred times as long.
ITERATIVE = ("fp_rnn", "fp_mamba1", "fp_mamba2")
LEFT_OUT = {name: {"mixer_inputs", "budget", "mixer", "solver"} for name in ITERATIVE}
# Further variants of layers whose options are not all closed sets.
VARIANTS = {
    "bd_lru": [
        {"checkpoint_every": 2},
        {"value_channels": 2, "block_size": 1, "gate": "householder", "initial_state": "learned"},
        {"value_channels": 2, "gate": "column_softmax", "initial_state": "unit"},
    ],
    "h_lru": [{"checkpoint_every": 2}],
    "delta_net": [{"conv_size": 0, "head_dim": 2, "expand_v": 2}],
    "delta_product": [{"conv_size": 1, "num_householder": 2, "use_output_gate": True}],
    "mamba2": [{"d_conv": 0}],
    "lstm": [{"memory_size": 4}],
    "fp_rnn": [
        {"mixer_inputs": "token"},
        {"mixer": "monarch", "mixer_inputs": "sum", "contraction": 0.9},
        {"mixer": "kronecker", "rank": 1, **CONVERGED},
    ],
}


# One small variant of each layer, which iterates at most twice, for tests of machinery.
SMALLEST = {
    "bd_lru": {"num_blocks": 4, "block_size": 2, "initial_state": "learned"},
    "h_lru": {"num_channels": 8, "order": 2},
    "delta_net": {"num_heads": 2},
    "delta_product": {"num_heads": 2, "num_householder": 2, "use_forget_gate": True},
    "mamba2": {"d_state": 4, "head_dim": 8},
    "conv": {"kernel_size": 3},
    "attention": {"num_heads": 2, "rope": True},
    "fp_rnn": {"mixer_inputs": "token"},
    "fp_mamba1": {"d_state": 4, "max_iterations": 2, "tolerance": 100.0},
    "fp_mamba2": {"d_state": 4, "head_dim": 8, "max_iterations": 2, "tolerance": 100.0},
}


@pytest.fixture(params=list(layers.LAYERS))
def make(request):
    """Return a function that builds one small layer of width 8 with a name and more options."""

    def build(**more):
        options = SMALLEST.get(request.param, {}) | more
        layer = layers.build(request.param, hidden_size=8, **options)
        layer.reset_parameters(torch.Generator().manual_seed(0))
        return layer

    return build


def _variants(name):
    """Return the required options alone, then with the next other choice of every closed set."""
    known = layers.LAYERS.options(name)
    required = {
        option: SIZES[option] for option, (_, default) in known.items() if default is REQUIRED
    }
    required |= SMALL.get(name, {})
    others = {
        option: [choice for choice in get_args(kind) or (False, True) if choice != default]
        for option, (kind, default) in known.items()
        if option not in LEFT_OUT.get(name, ()) and (get_origin(kind) is Literal or kind is bool)
    }
    rows = [
        {option: choices[n % len(choices)] for option, choices in others.items()}
        for n in range(max(map(len, others.values()), default=0))
    ]
    yield name, required
    for changed in rows + VARIANTS.get(name, []):
        shown = "-".join(f"{option}={choice}" for option, choice in changed.items())
        yield f"{name}-{shown}", required | changed


def _builder(name, options):
    def build(dtype=torch.float64, seed=0, **more):
        layer = layers.build(name, hidden_size=HIDDEN_SIZE, dtype=dtype, **(options | more))
        generator = torch.Generator().manual_seed(seed)
        layer.reset_parameters(generator)
        if getattr(layer, "learned_state", None) is not None:
            # At its initial zero, a learned state would be the same as none.
            torch.nn.init.uniform_(layer.learned_state, -1, 1, generator=generator)
        return layer

    return build


def pytest_generate_tests(metafunc):
    names = list(layers.LAYERS)
    gated = [name for name in names if "gate_temperature" in layers.LAYERS.options(name)]
    for fixture, those in [("build", names), ("build_gated", gated), ("build_first", names)]:
        if fixture in metafunc.fixturenames:
            most = 1 if fixture == "build_first" else None
            cases = [case for name in those for case in islice(_variants(name), most)]
            if fixture == "build_gated":
                # Tests of gates look at those of all tokens at once.
                cases = [case for case in cases if "checkpoint_every" not in case[1]]
            metafunc.parametrize(
                fixture,
                [_builder(label.split("-")[0], options) for label, options in cases],
                ids=[label for label, _ in cases],
            )
