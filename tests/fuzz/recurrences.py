"""Well-formed problems for the operators, judged by the definition in float64."""

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cases import require
from torch import Tensor

from statemix import ops

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Largest error over largest magnitude, by the dtype of the result (those of tests/ops).
TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}
# Rounding is like a change of the arguments by a few units in the last place, and so may change a
# result by several times what a random change of one unit does.
_PERTURBATIONS = 2
_AMPLIFICATION = 64
_ENTRIES = 20_000


@dataclass
class Problem:
    """Arguments of one operator by name: tensors and other options."""

    function: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]

    def describe(self) -> str:
        shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        dtype = next(iter(self.tensors.values())).dtype
        options = {name: _shown(value) for name, value in self.options.items()}
        return f"{self.function} {shapes} {dtype} {options}"


def _shown(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def check(r: random.Random) -> None:
    """Draw a problem and compare results and gradients with those of the definition."""
    problem = draw(r)
    actual = outcome(problem, differentiated=True)
    wide = {name: tensor.double() for name, tensor in problem.tensors.items()}
    options = {k: v for k, v in problem.options.items() if k != "backend"}
    exact = Problem(problem.function, wide, options | {"backend": "reference"})
    expected = outcome(exact, differentiated=True)
    dtype = next(iter(problem.tensors.values())).dtype
    states = torch.promote_types(dtype, torch.float32)
    generator = torch.Generator().manual_seed(r.getrandbits(32))
    changes = {name: torch.zeros(()) for name in expected}
    for _ in range(_PERTURBATIONS):
        shaken = {
            name: tensor * (1 + torch.finfo(states).eps * noise(tensor, generator))
            for name, tensor in wide.items()
        }
        found = outcome(Problem(exact.function, shaken, exact.options), differentiated=True)
        for name, tensor in found.items():
            changes[name] = torch.maximum(changes[name], largest(tensor - expected[name]))
    bound = torch.finfo(states).max * room(problem)
    if not all(largest(x) <= bound for x in (*expected.values(), *changes.values())):
        return  # Intermediate results may overflow.
    for name, tensor in actual.items():
        wanted = expected[name]
        where = f"{name} of {problem.describe()}"
        require(tensor.shape == wanted.shape, f"shape {tuple(tensor.shape)} of {where}")
        if not wanted.isfinite().all() or tensor.numel() == 0:
            continue
        if _rounds_up(wanted, tensor):
            continue
        require(tensor.isfinite().all(), f"not finite: {where}")
        unit = largest(wanted)
        if name == "d_gates":
            unit = torch.maximum(unit, _terms(exact, expected))
        limit = TOLERANCES[tensor.dtype] * unit + _AMPLIFICATION * changes[name]
        limit += 1e6 * torch.finfo(states).tiny + torch.finfo(tensor.dtype).tiny
        error = largest(tensor.double() - wanted)
        require(error <= limit, f"error {error:.1e} above {limit:.1e} in {where}")


def room(problem: Problem) -> float:
    """Largest result, in units of the largest number, without overflow of intermediate results."""
    options = problem.options
    dtype = next(iter(problem.tensors.values())).dtype
    backend = options["backend"] or ops.default_backend("cpu", dtype=dtype)
    means = options.get("gate", "none") != "none" and options.get("realization") != "observer"
    return 0.5 if means and options["gate"] in ops.BACKENDS.find(backend).families else 1e-3


def _terms(problem: Problem, expected: dict[str, Tensor]) -> Tensor:
    """Size of the terms of which a gradient by gates is the sum: they may cancel each other."""
    tensors, options = problem.tensors, problem.options
    sizes = [largest(tensors.get(name, torch.zeros(()))) for name in ("values", "initial_state")]
    size = max(*sizes, largest(tensors.get("state", torch.zeros(()))), largest(expected["first"]))
    carried = [largest(expected.get(name, torch.zeros(()))) for name in _LEAVING]
    flow = max(largest(tensors["d_first"]), largest(tensors["d_second"]), *carried)
    temperature = float(options.get("temperature", 1.0))
    slope = torch.ones(())
    if options["gate"] in ("relu", "signed", "tanh") and tensors["gates"].numel():
        raw = tensors["gates"] / temperature
        read = {"relu": torch.relu, "tanh": torch.tanh}.get(options["gate"], torch.abs)
        slope = (1 / (read(raw).abs().sum(-1) + 1e-6)).max()
    return size * flow * slope / temperature


# Gradients that leave the recurrence are as large as those within it.
_LEAVING = ("d_values", "d_initial_state", "d_state")


def _rounds_up(wanted: Tensor, tensor: Tensor) -> bool:
    """Whether a narrower dtype cannot hold the result."""
    return bool(largest(wanted) > 0.5 * torch.finfo(tensor.dtype).max)


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return 2 * torch.rand(like.shape, generator=generator, dtype=torch.float64) - 1


def largest(tensor: Tensor) -> Tensor:
    return tensor.double().abs().max() if tensor.numel() else torch.zeros((), dtype=torch.float64)


def outcome(problem: Problem, *, differentiated: bool) -> dict[str, Tensor]:
    """Results by name, and the gradients of all tensors."""
    function: Callable[..., Any] = getattr(ops, problem.function)
    tensors = dict(problem.tensors)
    weights = {name: tensors.pop(name) for name in ("d_first", "d_second")}
    leaves = {
        name: tensor.detach().requires_grad_(differentiated) for name, tensor in tensors.items()
    }
    results = function(**leaves, **problem.options)
    names = ("first", "second")
    found = dict(zip(names, results, strict=True))
    if differentiated:
        cotangents = [weights[f"d_{name}"].to(found[name].dtype) for name in names]
        # Without any step, a result may not depend on any argument.
        linked = [n for n, result in enumerate(results) if result.requires_grad]
        gradients = (
            torch.autograd.grad(
                [results[n] for n in linked],
                list(leaves.values()),
                [cotangents[n] for n in linked],
                materialize_grads=True,
            )
            if linked
            else map(torch.zeros_like, leaves.values())
        )
        found |= {f"d_{name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {name: tensor.detach() for name, tensor in found.items()}


def draw(r: random.Random) -> Problem:
    """Draw the arguments of one of the operators, at any size and in any memory order."""
    blocks, gated, step = r.random() < 0.5, r.random() < 0.7, r.random() < 0.25
    B, H = r.choice([0, 1, 1, 2, 3, 5]), r.choice([0, 1, 1, 2, 3, 7, 8, 9, 16, 17, 33])
    m = r.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16])
    T = r.choice([0, 1, 1, 2, 3, 4, 5, 8, 9, 17, 40])
    T = min(T, max(1, _ENTRIES // max(1, B * H * m * (m + 1 if blocks else 1))))
    options: dict[str, Any] = {}
    sequences = B
    if not step and r.random() < 0.3:
        B, sequences = 1, r.choice([0, 1, 1, 2, 3, 5])
        lengths = [r.choice([0, 0, 1, 1, 2, 3, 7]) for _ in range(sequences)]
        T = sum(lengths)
        bounds = torch.tensor([0, *lengths], dtype=r.choice([torch.int32, torch.int64]))
        options["cu_seqlens"] = arranged(r, bounds.cumsum(0).to(bounds.dtype))
    dtype = r.choice(DTYPES)
    backends = ops.BACKENDS.values()
    usable = [
        b.name for b in backends if b.obstacle("block", torch.device("cpu"), torch.float32) is None
    ]
    options["backend"] = r.choice([None, *usable, "cpu" if "cpu" in usable else None])
    generator = torch.Generator().manual_seed(r.getrandbits(63))

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        bound = torch.finfo(dtype).max
        return arranged(r, drawn.clamp(-bound, bound).to(dtype))

    time = () if step else (T,)
    row = (m,) if blocks else ()
    values = (B, *time, H, *row)
    size = magnitude(r, dtype, 38)
    tensors: dict[str, Tensor] = {}
    if gated:
        families = [f.name for f in ops.GATES.values() if blocks or not f.blocks_only]
        options["gate"] = r.choice(families)
        # Gates must stay finite when the definition divides them by a temperature.
        steep = magnitude(r, dtype, 30) if r.random() < 0.3 else r.choice([0.1, 1.0, 5.0, 30.0])
        if options["gate"] == "none":
            steep = 0.5 / (m + 1)
        elif r.random() < 0.4:
            number = r.choice([0.125, 0.5, 1.0, 2.0, 100.0, 10 ** r.uniform(-3, 3)])
            exact = torch.tensor(number, dtype=torch.float64)
            options["temperature"] = r.choice([number, exact])
        tensors["gates"] = normal(*values, m + 1, scale=steep)
        tensors["values"] = normal(*values, scale=size)
        function = "bd_lru" if blocks else "h_lru"
        if not blocks and r.random() < 0.5:
            options["realization"] = r.choice(ops.REALIZATIONS)
        if not step and r.random() < 0.2:
            options["check_finite"] = True
    else:
        name = "transitions" if blocks else "coefficients"
        shape = (*values, m)
        tensors[name] = normal(*shape, scale=r.choice([0.0, 0.3, 1.0]) / m)
        tensors["inputs"] = normal(*values, scale=size)
        function = "block_scan" if blocks else "lag_scan"
    if step or r.random() < 0.7:
        wide = torch.promote_types(dtype, torch.float32)
        state = normal(sequences, H, m, scale=size)
        tensors["state" if step else "initial_state"] = state.to(r.choice([dtype, wide, wide]))
    tensors["d_first"] = normal(*values)
    tensors["d_second"] = normal(sequences, H, m)
    if step:
        function = {"block_scan": "block_step", "lag_scan": "lag_step"}.get(
            function, f"{function}_step"
        )
    known = inspect.signature(getattr(ops, function)).parameters
    return Problem(function, tensors, {k: v for k, v in options.items() if k in known})


def magnitude(r: random.Random, dtype: torch.dtype, exponent: int) -> float:
    """Mostly 1, else anything from tiny to 10**exponent, or as large as a dtype has room for."""
    if r.random() < 0.6:
        return 1.0
    # The definition computes in float64, too, and needs room there.
    high = {torch.float16: 4, torch.float64: 290}.get(dtype, exponent)
    return float(10 ** r.uniform(-4 if dtype == torch.float16 else -30, high))


def arranged(r: random.Random, tensor: Tensor) -> Tensor:
    """The same entries in another order or place in memory."""
    kind = r.choice(["same", "same", "permuted", "offset", "strided", "negative", "parameter"])
    if kind == "permuted":
        order = list(range(tensor.ndim))
        r.shuffle(order)
        back = [order.index(axis) for axis in range(tensor.ndim)]
        return tensor.permute(order).contiguous().permute(back)
    if kind == "offset":
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
    if kind == "strided" and tensor.ndim:
        wider = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 77)
        wider[..., 1::2] = tensor
        return wider[..., 1::2]
    if kind == "negative" and tensor.dtype.is_floating_point:
        # The imaginary part of a conjugate: PyTorch negates such a tensor only when it is read.
        return torch._neg_view(-tensor)
    if kind == "parameter" and tensor.dtype.is_floating_point:
        return torch.nn.Parameter(tensor)
    return tensor


def check_step_in_inference(r: random.Random) -> None:
    """Compare a step in inference mode, which calls its kernel directly, with the usual one."""
    problem = draw(r)
    while not problem.function.endswith("_step"):
        problem = draw(r)
    usual = outcome(problem, differentiated=False)
    with torch.inference_mode(), torch.no_grad():
        tensors = {k: v for k, v in problem.tensors.items() if not k.startswith("d_")}
        results = getattr(ops, problem.function)(**tensors, **problem.options)
    for name, tensor in zip(("first", "second"), results, strict=True):
        same = torch.equal(tensor.nan_to_num(1.5), usual[name].nan_to_num(1.5))
        require(same, f"{name} differs in inference mode: {problem.describe()}")
        require(tensor.dtype == usual[name].dtype, f"dtype in {problem.describe()}")
