"""Whether the kernels of a backend are right on a device: a quick check, and a complete one.

``backend=None`` uses the Triton kernels of an operator on a GPU once a quick check there has agreed
with the reference in float64. The verdict on its numbers is kept for the device, the versions of
PyTorch and Triton, and the source of the kernels, in a file of the user's cache.
"""

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from statemix.ops.backends import BACKENDS

# Largest error of a tensor over its largest entry.
TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 3e-2,
    torch.float16: 1e-2,
}


class CheckedCase(NamedTuple):
    """One problem of a check.

    Attributes:
        operator: "block" or "lag".
        gate: gate family.
        size: m.
        dtype: dtype of gates and values.
        lengths: steps of the sequences: one sequence, or several packed ones. So few units run in
            chunks from 64 steps on.
    """

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
    """What a check of one case has shown.

    Attributes:
        case: the problem, in words.
        outcome: "agrees" if states, final state and all gradients are those of the reference;
            "disagrees" if one is not; "fails" if the kernels cannot be compiled or run; and "needs
            memory" if the device has too little at the moment.
        detail: largest relative error, with the name of its tensor, or the error message.
    """

    case: str
    outcome: Literal["agrees", "disagrees", "fails", "needs memory"]
    detail: str


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
    """Yield the cases of a complete check: every family with sizes, dtypes and lengths in turn.

    The families of a module of kernels differ in a row alone: one of them has all sizes.
    """
    turns = itertools.cycle(
        itertools.product([(6,), _CHUNKED, (3, 0, 4), (96,)], [*TOLERANCES][::-1])
    )
    for operator in QUICK:
        yield from QUICK[operator]
        for gate in sorted(BACKENDS["triton"].families):
            if operator == "block" or gate != "householder":
                every = gate in ("softmax", "householder")
                for size in (1, 2, 3, 4, 8, 16) if every else (1, 3, 8):
                    lengths, dtype = next(turns)
                    yield CheckedCase(operator, gate, size, dtype, lengths)


def check_kernels(
    device: torch.device | str | None = None, backend: str = "triton"
) -> Iterator[CheckVerdict]:
    """Run the complete check on a device, which takes minutes, and yield a verdict for each case.

    Args:
        device: device of the kernels; None means "cuda".
        backend: name of the backend.
    """
    return _examined(complete_cases(), backend, torch.device(device or "cuda"))


def _examined(
    cases: Iterable[CheckedCase], backend: str, device: torch.device
) -> Iterator[CheckVerdict]:
    """Yield the verdicts of cases, each examined in a thread of its own.

    So modes, transforms and tracers of the caller do not see the check, and Triton compiles several
    kernels at once.
    """
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        # A caller that stops early cancels the cases that have not begun.
        yield from pool.map(lambda case: examine(case, backend, device), cases)


def examine(case: CheckedCase, backend: str, device: torch.device) -> CheckVerdict:
    """Compare the backend's forward and backward pass with those of the reference in float64."""
    try:
        leaves, cotangents, bounds = _problem(case)
        found = _outcome(case, backend, device, leaves, cotangents, bounds)
    except torch.OutOfMemoryError as error:
        return CheckVerdict(str(case), "needs memory", _first_line(error))
    # Compilers raise errors of any kind, and none may stop a program that has another backend.
    except Exception as error:  # noqa: BLE001
        return CheckVerdict(str(case), "fails", _first_line(error))
    exact = [tensor.double() for tensor in leaves], [tensor.double() for tensor in cotangents]
    expected = _outcome(case, "reference", torch.device("cpu"), *exact, bounds)
    errors = {
        name: float((found[name].cpu().double() - wanted).abs().max())
        / max(float(wanted.abs().max()), 1e-30)
        for name, wanted in expected.items()
    }
    # A NaN is the largest error.
    worst = max(errors, key=lambda name: (errors[name] != errors[name], errors[name]))
    agrees = errors[worst] <= TOLERANCES[case.dtype]
    detail = f"error of {worst} {errors[worst]:.1e}, tolerance {TOLERANCES[case.dtype]:.0e}"
    return CheckVerdict(str(case), "agrees" if agrees else "disagrees", detail)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _problem(case: CheckedCase) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """Return gates, values and initial state, cotangents of the results, and bounds if packed."""
    generator = torch.Generator().manual_seed(0)
    units, size, length = 5, case.size, sum(case.lengths)
    rows = (1, length, units, *((size,) if case.operator == "block" else ()))
    state = (len(case.lengths), units, size)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    # Gates that nothing normalises must stay small, or states explode.
    scale = 0.5 / (size + 1) if case.gate == "none" else 1.0
    leaves = [(normal(*rows, size + 1) * scale).to(case.dtype), normal(*rows).to(case.dtype)]
    wide = torch.promote_types(case.dtype, torch.float32)
    leaves.append(normal(*state).to(wide))
    cotangents = [normal(*rows).to(case.dtype), normal(*state).to(wide)]
    bounds = torch.tensor([0, *itertools.accumulate(case.lengths)])
    return leaves, cotangents, bounds if len(case.lengths) > 1 else None


def _outcome(
    case: CheckedCase,
    backend: str,
    device: torch.device,
    leaves: list[Tensor],
    cotangents: list[Tensor],
    bounds: Tensor | None,
) -> dict[str, Tensor]:
    from statemix import ops

    run = {"block": ops.bd_lru, "lag": ops.h_lru}[case.operator]
    gates, values, initial = (leaf.to(device).requires_grad_() for leaf in leaves)
    bounds = None if bounds is None else bounds.to(device)
    results = run(gates, values, case.gate, initial, bounds, temperature=0.7, backend=backend)
    arguments = (gates, values, initial)
    gradients = torch.autograd.grad(results, arguments, [one.to(device) for one in cotangents])
    names = ("states", "final_state", "d_gates", "d_values", "d_initial_state")
    tensors = (*(result.detach() for result in results), *gradients)
    return dict(zip(names, tensors, strict=True))


_lock = threading.Lock()
_known: dict[tuple[str, torch.device, str], str | None] = {}


def distrust(operator: str, device: torch.device, backend: str = "triton") -> str | None:
    """Return why the kernels of an operator must not be chosen on a device, or None.

    The quick check runs once for each device, version of PyTorch and Triton, and source of the
    kernels. Its verdict is remembered in :func:`cache_file`, unless a kernel failed to run.
    """
    with _lock:
        key = operator, device, backend
        if key not in _known:
            name = _fingerprint(operator, device, backend)
            fault = _read().get(name)
            if not isinstance(fault, str):
                verdicts = list(_examined(QUICK[operator], backend, device))
                fault = _fault(verdicts, device, backend)
                # What fails to run may have a cause that passes, such as a full disk.
                if all(verdict.outcome in ("agrees", "disagrees") for verdict in verdicts):
                    _remember(name, fault)
            _known[key] = fault or None
        return _known[key]


def _fault(verdicts: list[CheckVerdict], device: torch.device, backend: str) -> str:
    """Return what is wrong, or an empty string."""
    wrong = [
        f"{verdict.case} {verdict.outcome} ({verdict.detail})"
        for verdict in verdicts
        if verdict.outcome != "agrees"
    ]
    if not wrong:
        return ""
    return (
        f"backend {backend!r} has failed its self-check on {_name_of(device)}: "
        f"{'; '.join(wrong)}. Please report this with the output of `statemix doctor --check`"
    )


def cache_file() -> Path:
    """Return the file that remembers verdicts."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"
    return base / "statemix" / "kernels.json"


def _fingerprint(operator: str, device: torch.device, backend: str) -> str:
    """Return everything that a verdict depends on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "unknown"
    platform = torch.version.hip or torch.version.cuda
    return (
        f"{backend} {operator} on {_name_of(device)}, torch {torch.__version__}, platform "
        f"{platform}, triton {triton}, kernels {digest.hexdigest()[:16]}"
    )


def _name_of(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} ({properties.major}.{properties.minor})"


def _read() -> dict[str, object]:
    try:
        found = json.loads(cache_file().read_text(encoding="utf-8"))
    # No file, no permission, no text, no JSON, or no home.
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(name: str, verdict: str) -> None:
    """Write a verdict; where nothing can be written, the next process checks again."""
    with contextlib.suppress(OSError, RuntimeError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_read() | {name: verdict}, indent=1)
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(partial, path)
        except OSError:
            os.unlink(partial)
            raise
