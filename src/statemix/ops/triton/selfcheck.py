"""Whether the kernels of a backend are right on a device: a quick check, and a complete one.

``backend=None`` uses the Triton kernels of an operator on a GPU once a quick check there has agreed
with the reference in float64, in the same process.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS

# Largest error of a tensor over its largest entry.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


class CheckedCase(NamedTuple):
    """One problem of a check; ``lengths`` are the steps of one sequence, or of packed ones."""

    operator: str
    gate: str
    size: int
    dtype: torch.dtype = torch.float32
    lengths: tuple[int, ...] = (6,)

    def __str__(self) -> str:
        lengths = "+".join(map(str, self.lengths))
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.operator} {self.gate} m={self.size} {dtype} T={lengths}"


class CheckVerdict(NamedTuple):
    """What a check of one case has shown; ``detail`` is the largest error, or the error message."""

    case: str
    outcome: Literal["agrees", "disagrees", "fails", "needs memory"]
    detail: str


# So few units run in chunks from 64 steps on.
_CHUNKED = (80, 1, 70)
QUICK = {
    "block": (
        CheckedCase("block", "softmax", 2),
        CheckedCase("block", "softmax", 2, lengths=_CHUNKED),
        CheckedCase("block", "householder", 2),
    ),
    "lag": (CheckedCase("lag", "softmax", 2), CheckedCase("lag", "softmax", 2, lengths=_CHUNKED)),
}
"""Operator -> cases that are checked before ``backend=None`` chooses its kernels."""


def complete_cases() -> Iterator[CheckedCase]:
    """Yield the cases of a complete check: every family with sizes, dtypes and lengths in turn."""
    turns = itertools.cycle(
        itertools.product([(6,), _CHUNKED, (3, 0, 4), (96,)], [*TOLERANCES][::-1])
    )
    for operator in QUICK:
        yield from QUICK[operator]
        for gate in sorted(BACKENDS["triton"].families):
            if operator == "block" or gate != "householder":
                # The families of a kernel differ in a row alone: one of them has all sizes.
                every = gate in ("softmax", "householder")
                for size in (1, 2, 3, 4, 8, 16) if every else (1, 3, 8):
                    lengths, dtype = next(turns)
                    yield CheckedCase(operator, gate, size, dtype, lengths)


def check_kernels(
    device: torch.device | str, backend: str, cases: Iterable[CheckedCase] | None = None
) -> Iterator[CheckVerdict]:
    """Check a backend and yield a verdict for each case; the complete check takes minutes."""
    place = torch.device(device)

    def examine(case: CheckedCase) -> CheckVerdict:
        """Compare forward and backward pass with those of the reference in float64."""
        return compare(
            str(case),
            lambda: _outcome(case, backend, place, case.dtype),
            lambda: _outcome(case, "reference", torch.device("cpu"), torch.float64),
            TOLERANCES[case.dtype],
        )

    # In threads, modes, transforms and tracers of the caller do not see the check, and Triton
    # compiles several kernels at once.
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        # A caller that stops early cancels the cases that have not begun.
        yield from pool.map(examine, complete_cases() if cases is None else cases)


def compare(
    case: str,
    kernels: Callable[[], Mapping[str, Tensor]],
    reference: Callable[[], Mapping[str, Tensor]],
    tolerance: float,
) -> CheckVerdict:
    """Compare what kernels compute, results and gradients by name, with the reference."""
    try:
        found = {name: tensor.detach().cpu().double() for name, tensor in kernels().items()}
    # Compilers raise errors of any kind, and none may stop a program that has another way.
    except Exception as error:  # noqa: BLE001
        short = isinstance(error, torch.OutOfMemoryError)
        message = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return CheckVerdict(case, "needs memory" if short else "fails", message)
    errors = {}
    for name, tensor in reference().items():
        wanted = tensor.detach()
        largest = (found[name] - wanted).abs().max()
        errors[name] = float(largest / wanted.abs().max().clamp(min=1e-30))
    # A NaN is the largest error.
    worst = max(errors, key=lambda name: (errors[name] != errors[name], errors[name]))
    detail = f"error of {worst} {errors[worst]:.1e}, tolerance {tolerance:.0e}"
    return CheckVerdict(case, "agrees" if errors[worst] <= tolerance else "disagrees", detail)


def _outcome(
    case: CheckedCase, backend: str, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return results and gradients of a case; they are the same numbers in every ``dtype``."""
    from statemix import ops

    generator = torch.Generator().manual_seed(0)
    units, size, sequences = 5, case.size, len(case.lengths)
    rows = (1, sum(case.lengths), units, *((size,) if case.operator == "block" else ()))

    def normal(shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(case.dtype).to(device, dtype)

    # Gates that nothing normalises must stay small, or states explode.
    gates = normal((*rows, size + 1), 0.5 / (size + 1) if case.gate == "none" else 1.0)
    values, d_states = normal(rows), normal(rows)
    wide = torch.promote_types(dtype, torch.float32)
    initial, d_final = (normal((sequences, units, size)).to(wide) for _ in range(2))
    arguments = [tensor.requires_grad_() for tensor in (gates, values, initial)]
    bounds = None
    if sequences > 1:
        bounds = torch.tensor([0, *itertools.accumulate(case.lengths)], device=device)
    run = {"block": ops.bd_lru, "lag": ops.h_lru}[case.operator]
    results = run(gates, values, case.gate, initial, bounds, temperature=0.7, backend=backend)
    gradients = torch.autograd.grad(results, arguments, (d_states, d_final))
    names = ("states", "final_state", "d_gates", "d_values", "d_initial_state")
    return dict(zip(names, (*results, *gradients), strict=True))


_lock = threading.Lock()
_known: dict[tuple[str, torch.device, str], str | None] = {}


def distrust(operator: str, device: torch.device, backend: str = "triton") -> str | None:
    """Return why the kernels of an operator must not be chosen on a device, or None.

    The process keeps the verdict of its first call, unless memory was short.
    """
    with _lock:
        key = operator, device, backend
        if key in _known:
            return _known[key]
        examined = check_kernels(device, backend, QUICK[operator])
        wrong = [verdict for verdict in examined if verdict.outcome != "agrees"]
        fault = None
        if wrong:
            told = "; ".join(f"{one.case} {one.outcome} ({one.detail})" for one in wrong)
            fault = (
                f"backend {backend!r} has failed its self-check on {device}: {told}. "
                "Please report this with the output of `statemix doctor --check`"
            )
        if all(verdict.outcome != "needs memory" for verdict in wrong):
            _known[key] = fault
        return fault
