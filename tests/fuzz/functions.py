"""Calls of the operators, judged by the definition in float64."""

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import COMPUTED, require
from torch import Tensor

from statemix import ops

NAME = "functions"
SHARE = 4
LIMIT_S = 20.0

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Largest error over largest magnitude, by the dtype of the result (those of tests/ops).
TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}
# Rounding may change a result by several times what it changes in the definition in the precision
# of the states, with arguments that a random change of one unit in the last place moved.
_AMPLIFICATION = 64
_ENTRIES = 20_000


def prepare(folder: Path) -> None:
    """Nothing is needed."""


def run(r: random.Random, folder: Path, prepared: Path) -> str:
    """Check one call."""
    r.choices(list(_RECIPES), list(_RECIPES.values()))[0](r)
    return COMPUTED


@dataclass
class Problem:
    """Arguments of one operator by name: tensors and other options."""

    function: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]

    def describe(self) -> str:
        shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        dtype = next(iter(self.tensors.values())).dtype
        options = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in self.options.items()}
        return f"{self.function} {shapes} {dtype} {options}"


def check(r: random.Random) -> None:
    """Draw a problem and compare results and gradients with those of the definition."""
    problem = draw(r)
    actual = outcome(problem, differentiated=True)
    wide = {name: tensor.double() for name, tensor in problem.tensors.items()}
    options = problem.options | {"backend": "reference"}
    expected = outcome(Problem(problem.function, wide, options), differentiated=True)
    states = torch.promote_types(next(iter(problem.tensors.values())).dtype, torch.float32)
    generator = torch.Generator().manual_seed(r.getrandbits(32))
    shaken = {
        name: (tensor * (1 + torch.finfo(states).eps * noise(tensor, generator))).to(states)
        for name, tensor in wide.items()
    }
    changed = outcome(Problem(problem.function, shaken, options), differentiated=True)
    for name, tensor in actual.items():
        wanted, where = expected[name], f"{name} of {problem.describe()}"
        require(tensor.shape == wanted.shape, f"shape {tuple(tensor.shape)} of {where}")
        limit = TOLERANCES[tensor.dtype] * max(largest(wanted), 1.0)
        limit += _AMPLIFICATION * largest(changed[name] - wanted)
        error = largest(tensor.double() - wanted)
        require(error <= limit, f"error {error:.1e} above {limit:.1e} in {where}")


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return 2 * torch.rand(like.shape, generator=generator, dtype=torch.float64) - 1


def largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def outcome(problem: Problem, *, differentiated: bool) -> dict[str, Tensor]:
    """Results by name, and the gradients of all tensors."""
    function: Callable[..., Any] = getattr(ops, problem.function)
    tensors = dict(problem.tensors)
    weights = [tensors.pop(name) for name in ("d_first", "d_second")]
    leaves = {
        name: tensor.detach().requires_grad_(differentiated) for name, tensor in tensors.items()
    }
    results = function(**leaves, **problem.options)
    found = dict(zip(("first", "second"), results, strict=True))
    # Without any step, a result may not depend on any argument.
    linked = [(one, w.to(one.dtype)) for one, w in zip(results, weights, strict=True)
              if one.requires_grad]  # fmt: skip
    if linked:
        ends, cotangents = zip(*linked, strict=True)
        inputs = list(leaves.values())
        gradients = torch.autograd.grad(ends, inputs, cotangents, materialize_grads=True)
        found |= {f"d_{name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {name: tensor.detach() for name, tensor in found.items()}


def draw(r: random.Random) -> Problem:
    """Draw the arguments of one of the operators, at any size and in any memory order."""
    blocks, gated, step = r.random() < 0.5, r.random() < 0.7, r.random() < 0.25
    rank = 0 if gated else r.choice([0, 0, 1, 2, 3, 8])
    blocks = blocks or rank > 0
    B, H = r.choice([0, 1, 1, 2, 3, 5]), r.choice([0, 1, 1, 2, 3, 7, 8, 9, 16, 17, 33])
    m = r.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16])
    T = r.choice([0, 1, 1, 2, 3, 4, 5, 8, 9, 17, 40])
    T = min(T, max(1, _ENTRIES // max(1, B * H * m * (m + 1 if blocks else 1))))
    options: dict[str, Any] = {}
    sequences = B
    if not step and r.random() < 0.3:
        B, sequences = 1, r.choice([0, 1, 1, 2, 3, 5])
        lengths = [r.choice([0, 0, 1, 1, 2, 3, 7]) for _ in range(sequences)]
        T, bounds = sum(lengths), torch.tensor([0, *lengths]).cumsum(0)
        options["cu_seqlens"] = arranged(r, bounds.to(r.choice([torch.int32, torch.int64])))
    dtype = r.choice(DTYPES)
    backends = ops.BACKENDS.values()
    usable = [
        b.name
        for b in backends
        if b.obstacle("low_rank" if rank else "block", torch.device("cpu"), torch.float32) is None
    ]
    options["backend"] = r.choice([None, *usable, "cpu" if "cpu" in usable else None])
    generator = torch.Generator().manual_seed(r.getrandbits(63))

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return arranged(r, drawn.to(dtype))

    time = () if step else (T,)
    row = (m,) if blocks else ()
    values = (B, *time, H, *row)
    tensors: dict[str, Tensor] = {}
    if gated:
        families = [f.name for f in ops.GATES.values() if blocks or not f.blocks_only]
        options["gate"] = r.choice(families)
        steep = r.choice([0.1, 1.0, 5.0])
        if options["gate"] == "none":
            steep = 0.5 / (m + 1)
        elif r.random() < 0.4:
            number = r.choice([0.5, 1.0, 2.0, 10 ** r.uniform(-1, 2)])
            exact = torch.tensor(number, dtype=torch.float64)
            options["temperature"] = r.choice([number, exact])
        tensors["gates"] = normal(*values, m + 1, scale=steep)
        tensors["values"] = normal(*values)
        function = "bd_lru" if blocks else "h_lru"
        if not blocks and r.random() < 0.5:
            options["realization"] = r.choice(ops.REALIZATIONS)
    elif rank:
        scale = r.choice([0.0, 0.3, 1.0]) / (1 + 2 * rank * m) ** 0.5
        tensors["transitions"] = normal(*values[:-1], 1 + 2 * rank, m, scale=scale)
        tensors["inputs"] = normal(*values)
        function = "low_rank_scan"
    else:
        name = "transitions" if blocks else "coefficients"
        tensors[name] = normal(*values, m, scale=r.choice([0.0, 0.3, 1.0]) / m)
        tensors["inputs"] = normal(*values)
        function = "block_scan" if blocks else "lag_scan"
    if step or r.random() < 0.7:
        wide = torch.promote_types(dtype, torch.float32)
        state = normal(sequences, H, m)
        tensors["state" if step else "initial_state"] = state.to(r.choice([dtype, wide, wide]))
    tensors["d_first"] = normal(*values)
    tensors["d_second"] = normal(sequences, H, m)
    if step:
        function = f"{function.removesuffix('_scan')}_step"
    known = inspect.signature(getattr(ops, function)).parameters
    return Problem(function, tensors, {k: v for k, v in options.items() if k in known})


def arranged(r: random.Random, tensor: Tensor) -> Tensor:
    """The same entries in another order or place in memory."""
    kind = r.choice(["same", "same", "permuted", "strided", "negative", "parameter"])
    if kind == "permuted":
        order = r.sample(range(tensor.ndim), tensor.ndim)
        back = sorted(range(tensor.ndim), key=order.__getitem__)
        return tensor.permute(order).contiguous().permute(back)
    if kind == "strided" and tensor.ndim:
        return torch.stack([tensor, tensor], -1)[..., 0]
    if not tensor.dtype.is_floating_point:
        return tensor
    if kind == "negative":
        # The imaginary part of a conjugate: PyTorch negates such a tensor only when it is read.
        return torch._neg_view(-tensor)
    return torch.nn.Parameter(tensor) if kind == "parameter" else tensor


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
        same = torch.equal(tensor, usual[name]) and tensor.dtype == usual[name].dtype
        require(same, f"{name} differs in inference mode: {problem.describe()}")


_RECIPES: dict[Callable[[random.Random], None], float] = {check: 6, check_step_in_inference: 2}
