"""Random problems for the recurrences, their outcomes, and comparisons of outcomes.

"blocks" is BD-LRU, "lags" is H-LRU, and "low rank" (test_low_rank.py) has no gates. A problem holds
leaves and fixed cotangents, so that all paths differentiate the same linear function of states and
final state.
"""

import dataclasses
import itertools
import os

import pytest
import torch
from torch import Tensor

from statemix import ops

RECURRENCES = {"blocks": ops.bd_lru, "lags": ops.h_lru}
SCANS = {"blocks": ops.block_scan, "lags": ops.lag_scan}
RUNS = RECURRENCES | {
    "low rank": lambda a, b, gate, *rest, **options: ops.low_rank_scan(a, b, *rest, **options)
}

# Largest error over largest magnitude of a block, by the dtype of the result. float64: sums of a
# few hundred terms. float32: the target of the kernels. 16 bits: results are rounded once, to half
# an ulp, while states are carried in float32 (final states are judged as float32).
TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Arguments of one recurrence, and the cotangents of its two results."""

    kind: str
    gates: Tensor
    values: Tensor
    initial_state: Tensor
    d_states: Tensor
    d_final_state: Tensor
    cu_seqlens: Tensor | None = None

    @property
    def leaves(self):
        return self.gates, self.values, self.initial_state

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def on(self, device):
        """On another device."""
        tensors = {name: value for name, value in vars(self).items() if torch.is_tensor(value)}
        return self.replace(**{name: tensor.to(device) for name, tensor in tensors.items()})

    def to(self, dtype):
        """Rounded to ``dtype``; the states to float32 at least, as the library carries them."""
        wide = torch.promote_types(dtype, torch.float32)
        return self.replace(
            gates=self.gates.to(dtype),
            values=self.values.to(dtype),
            initial_state=self.initial_state.to(wide),
            d_states=self.d_states.to(dtype),
            d_final_state=self.d_final_state.to(wide),
        )

    def outcome(self, gate="softmax", *, cotangents=("states", "final_state"), **options):
        """States, final state and all gradients, by name; of the reference, on the CPU."""
        p = self
        if options.get("backend") == "reference" and not self.values.is_meta:
            p = self.on("cpu")
        leaves = [leaf.detach().requires_grad_() for leaf in p.leaves]
        results = RUNS[p.kind](*leaves[:2], gate, leaves[2], p.cu_seqlens, **options)
        named = dict(zip(("states", "final_state"), results, strict=True))
        incoming = [getattr(p, f"d_{name}") for name in cotangents]
        outgoing = [named[name] for name in cotangents]
        gradients = torch.autograd.grad(outgoing, leaves, incoming, materialize_grads=True)
        return {name: tensor.detach() for name, tensor in named.items()} | dict(
            zip(("d_gates", "d_values", "d_initial_state"), gradients, strict=True)
        )


def make_problem(
    kind,
    *,
    batch=2,
    length=7,
    blocks=3,
    size=3,
    channels=None,
    lengths=None,
    seed=0,
    scale=1.0,
    gate="softmax",
):
    """Normal gates times ``scale``, in float64; ``lengths`` packs sequences into one row.

    ``channels`` is the number of value channels of blocks, None for values without their axis.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    cu_seqlens, sequences = None, batch
    if lengths is not None:
        batch, length, sequences = 1, sum(lengths), len(lengths)
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    rows = (batch, length, blocks) + ((size,) if kind == "blocks" else ())
    if gate == "none":
        scale = scale * 0.5 / (size + 1)  # un-normalised: rows must stay short or states explode
    columns = () if channels is None else (channels,)
    return Problem(
        kind,
        normal(*rows, size + 1) * scale,
        normal(*rows, *columns),
        normal(sequences, blocks, size, *columns),
        normal(*rows, *columns),
        normal(sequences, blocks, size, *columns),
        cu_seqlens,
    )


# Entries may be differences of larger terms, each rounded in the dtype of the states: this many
# units of rounding of the tensor's largest entry are no error.
ROUNDINGS = 16


def check_agreement(actual, expected, tolerances=None):
    """Each block of ``actual`` equals that of ``expected``, up to its own dtype's tolerance.

    A block is one unit at one step, or the state of one unit. Devices may differ.
    """
    assert actual.keys() == expected.keys()
    errors = {}
    for name, tensor in actual.items():
        tensor, wanted = tensor.detach().cpu(), expected[name].detach().cpu().double()
        assert tensor.shape == wanted.shape, name
        if tensor.numel():
            axes = 2 if name in ("final_state", "d_initial_state") else 3
            error, size = (
                entries.abs().reshape(*entries.shape[:axes], -1).amax(-1)
                for entries in (tensor.double() - wanted, wanted)
            )
            limit = (tolerances or TOLERANCES)[tensor.dtype]
            rounding = torch.finfo(torch.promote_types(tensor.dtype, torch.float32)).eps
            largest = size.max().clamp(min=1e-30)
            allowed = limit * size + ROUNDINGS * rounding * largest
            allowed = allowed.clamp(max=limit * float(largest))
            if not (error <= allowed).all():  # NaN must not pass
                worst = (error / allowed).argmax()
                found, block = float(error.flatten()[worst]), float(size.flatten()[worst])
                errors[name] = f"{found:.2e} in a block of {block:.2e}, tolerance {limit:.0e}"
    assert not errors, errors


def tolerances_of_backend(backend, dtype):
    """Tolerances of a backend for inputs of some dtype; None for the usual ones.

    Kernels for GPUs keep states in the dtype of the values, and Triton's interpreter truncates to
    bfloat16: gradients of 16 bits are computed from states of 16 bits, within 2e-2 of a block.
    """
    if backend != "triton" or dtype.itemsize > 2:
        return None
    return {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-2}


def check_equality(actual, expected):
    """Each entry of ``actual`` equals that of ``expected`` bit for bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.fixture
def problem(device):
    """Makes problems on the device of the backend under test."""

    def make(*arguments, **options):
        return make_problem(*arguments, **options).on(device)

    return make


# As fixtures, so that tests need not import them.
agree = pytest.fixture(scope="session")(lambda: check_agreement)
tolerances_of = pytest.fixture(scope="session")(lambda: tolerances_of_backend)
identical = pytest.fixture(scope="session")(lambda: check_equality)


def covering(**axes):
    """Return few combinations of values, in which each pair of values of two axes occurs.

    The first combinations have the first values; all are dictionaries of one value for each axis.
    """
    missing = dict.fromkeys(
        ((a, i), (b, j))
        for a, b in itertools.combinations(axes, 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    )
    cases = []
    while missing:
        case = dict(next(iter(missing)))

        def gain(axis, i, case=case):
            return sum(
                ((axis, i), other) in missing or (other, (axis, i)) in missing
                for other in case.items()
            )

        for axis in axes:
            if axis not in case:
                case[axis] = max(range(len(axes[axis])), key=lambda i, axis=axis: gain(axis, i))
        for a, b in itertools.combinations(axes, 2):
            missing.pop(((a, case[a]), (b, case[b])), None)
        cases.append({axis: axes[axis][case[axis]] for axis in axes})
    return cases


def in_pairs(**axes):
    """Parametrize a test by :func:`covering` combinations; a name "a,b" has tuples for values."""
    names = ",".join(axes).split(",")
    cases = []
    for case in covering(**axes):
        values = [
            value for axis, given in case.items() for value in (given if "," in axis else (given,))
        ]
        shown = "-".join(str(value).removeprefix("torch.").replace(" ", "") for value in values)
        cases.append(pytest.param(*values, id=shown))
    return pytest.mark.parametrize(names, cases)


def families_of(kind):
    families = ops.GATES.values()
    return [family.name for family in families if kind == "blocks" or not family.blocks_only]


FAMILIES = [(kind, gate) for kind in RECURRENCES for gate in families_of(kind)]
# A test with one of these fixtures runs over every matching backend, so that a newly registered
# backend is tested too. Backends that cannot run here are skipped.
BACKEND_FIXTURES = {
    "backend": lambda backend: True,
    "other_backend": lambda backend: backend.name != "reference",
    "stepwise_backend": lambda backend: backend.stepwise,
    "portable_backend": lambda backend: backend.devices is None,
    "registered_backend": lambda backend: not backend.differentiates("block"),
}


def names_of_backends(fixture="backend"):
    fits = BACKEND_FIXTURES[fixture]
    return [backend.name for backend in ops.BACKENDS.values() if fits(backend)]


def usable(fixture="backend"):
    """An axis for :func:`in_pairs`: the backends of a fixture that can run here.

    TESTED_BACKEND in the environment names one that all rows shall have, such as a new one.
    """
    names = names_of_backends(fixture)
    names = [name for name in names if ops.BACKENDS[name].unavailable() is None]
    tested = os.environ.get("TESTED_BACKEND")
    return {fixture: [tested] if tested in names else names}


def pytest_generate_tests(metafunc):
    """``kind`` runs over the recurrences, ``gate`` over the families it has, backends over all."""
    marked = {
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    }
    wanted = set(metafunc.fixturenames) - marked
    for fixture in BACKEND_FIXTURES:
        if fixture in wanted:
            metafunc.parametrize(fixture, names_of_backends(fixture))
    if {"kind", "gate"} <= wanted:
        metafunc.parametrize(("kind", "gate"), FAMILIES)
    elif "kind" in wanted:
        metafunc.parametrize("kind", list(RECURRENCES))
    elif "gate" in wanted:
        metafunc.parametrize("gate", list(ops.GATES))
