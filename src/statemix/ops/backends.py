"""Backends as data: one record per backend says where it runs and which operators it computes.

A new backend needs its kernels, one record, and one line in ``ops/__init__.py``.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statemix.ops.checks import FLOATING, BackendUnavailableError
from statemix.ops.layout import at_least_float32
from statemix.registry import Registry

GIVEN = "given"
"""Stands for a gate family where coefficients are given and need no normalising."""


class Scan(NamedTuple):
    """One scan: the arguments of a kernel, and of the registered operators in this order.

    Arguments are checked. They share one device and one dtype of the backend's ``dtypes``, but the
    initial state has the dtype of states. Their memory order is arbitrary.

    Attributes:
        coefficients: raw gates if the backend normalises their family, else transitions or lag
            coefficients, (B, T, H, ...).
        inputs: values or inputs, (B, T, H, ...); blocks may have channels, (B, T, H, m, C).
        initial_state: h_0, (N, H, m), or (N, H, m, C) with channels; float32 or float64.
        cu_seqlens: bounds of N packed sequences, (N+1,), or None. They have been validated on the
            CPU; on other devices their values must not be read back.
        temperature: 0-d divisor of raw gates, or None.
        operator: name of the operator.
        backend: name of the backend.
        gate: family that the backend normalises, or "given".
        keep: whether a backward pass may follow.
    """

    coefficients: Tensor
    inputs: Tensor
    initial_state: Tensor
    cu_seqlens: Tensor | None
    temperature: Tensor | None
    operator: str
    backend: str
    gate: str
    keep: bool

    @property
    def kernel(self) -> "Kernel":
        """The backend's kernel of the operator."""
        return BACKENDS[self.backend].kernels[self.operator]


Results = tuple[Tensor, Tensor, tuple[Tensor, ...]]
"""States (B, T, H, ...), final state (N, H, m), and what the backward needs beside the states."""

Step = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(coefficients, inputs, state, temperature) -> h_t, state: one step of decoding.

Arguments may have other axes than those of a scan, if they have the same order in memory. h_t has
the shape of the inputs.
"""


@dataclass(frozen=True)
class Kernel:
    """How a backend computes one operator.

    Attributes:
        forward: scan -> :data:`Results`. States have the dtype of the inputs or of the initial
            state, and the final state that of the initial state. The saved tensors, at most
            two, are opaque to the rest of the library; there are none if ``scan.keep`` is False.
            Results share no memory with arguments or with each other.
        backward: (scan, d_states, d_final_state, states, saved) -> gradients of coefficients,
            inputs and initial state, each in its argument's dtype. None in place of the function
            means that autograd differentiates ``forward``, which consists of PyTorch functions and
            saves nothing.
        empty: scan -> :data:`Results` that ``forward`` would return, uninitialised, in the same
            memory order. It computes with sizes alone, which a compiler may know by name only. None
            means that states have the dtype of the initial state and that nothing is saved.
        prepare_step: scan of one step -> :data:`Step` that runs all scans whose tensors share
            shapes, strides, dtypes and device with these, under the same number of threads; or
            None, for instance if the tensors would have to be copied. None in place of the function
            means that ``forward`` runs single steps, too.
        channels: families (or "given") for which inputs and states may have a last axis of channels
            that share the coefficients of their block.
    """

    forward: Callable[[Scan], Results]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None
    empty: Callable[[Scan], Results] | None = None
    prepare_step: Callable[[Scan], Step | None] | None = None
    channels: Collection[str] = ()


@dataclass(frozen=True)
class Backend:
    """One way to compute the operators.

    Attributes:
        name: name that users pass as ``backend=``.
        kernels: operator -> kernel. Operators implemented in PyTorch add theirs by :meth:`add`.
        devices: supported device types; None means any.
        dtypes: dtypes that the kernels accept. Arguments of another dtype are widened to the dtype
            of the state.
        families: gate families that the kernels normalise themselves.
        unavailable: returns None, or a sentence that says why the backend cannot run on this
            machine and what to install.
        detail: returns the variant in use on this machine, such as the instruction set.
        automatic: True if ``backend=None`` may choose the backend.
        distrust: (operator, device) -> why ``backend=None`` must not choose the backend there, or
            None, as after a check of its results. None in place of the function means never.
        slow: True if the automatic choice of the backend deserves a warning.
        stepwise: True if the backend computes one step after another, so that splitting a sequence
            anywhere gives bit-identical results.
    """

    name: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    devices: Collection[str] | None = None
    dtypes: Collection[torch.dtype] = (torch.float32, torch.float64)
    families: Collection[str] = ()
    unavailable: Callable[[], str | None] = lambda: None
    detail: Callable[[], str] = lambda: "PyTorch"
    automatic: bool = False
    distrust: Callable[[str, torch.device], str | None] | None = None
    slow: bool = False
    stepwise: bool = True

    def add(self, operator: str, kernel: Kernel) -> None:
        """Add the kernel of an operator that the backend does not have."""
        if operator in self.kernels:
            raise ValueError(f"backend {self.name!r} already has a kernel of {operator!r}")
        self.kernels[operator] = kernel

    def differentiates(self, operator: str) -> bool:
        """Return whether autograd differentiates the operator, to any order."""
        return operator in self.kernels and self.kernels[operator].backward is None

    def refusal(self, operator: str, device_type: str, dtype: torch.dtype) -> str | None:
        """Return why the backend does not support an operator on such tensors, or None."""
        if operator not in self.kernels:
            return f"backend {self.name!r} has no kernel of operator {operator!r}"
        if self.devices is not None and device_type not in self.devices:
            return f"backend {self.name!r} needs tensors on {' or '.join(self.devices)}"
        if dtype not in self.dtypes and at_least_float32(dtype) not in self.dtypes:
            known = " or ".join(str(one).removeprefix("torch.") for one in self.dtypes)
            return f"backend {self.name!r} needs tensors of {known}"
        return None

    def obstacle(self, operator: str, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why ``backend=None`` cannot choose the backend for such tensors, or None."""
        reason = self.refusal(operator, device.type, dtype) or reason_of(self.name)
        if reason is None and self.automatic and self.distrust is not None:
            reason = distrust_of(self.name, operator, str(device))
        return reason


BACKENDS: Registry[Backend] = Registry("backend")
"""Every backend, in the order in which ``backend=None`` prefers them."""


def reason_of(name: str) -> str | None:
    """Return why a backend cannot run on this machine, or None (a constant in compiled graphs)."""
    return BACKENDS[name].unavailable()


def distrust_of(name: str, operator: str, device: str) -> str | None:
    """Return why ``backend=None`` must not choose a backend there, or None (a constant, too)."""
    distrust = BACKENDS[name].distrust
    return None if distrust is None else distrust(operator, torch.device(device))


# All that torch.compiler.assume_constant_result does, but it imports the compiler, which would take
# up to a half of the start of every command.
reason_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
distrust_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_backend(name: str | None) -> None:
    """Check that a requested backend exists and can run here.

    Raises:
        SettingError: if there is no such backend.
        BackendUnavailableError: if the backend cannot run on this machine; the message says why.
    """
    if name is not None:
        _check_available(BACKENDS.find(name))


def _check_available(backend: Backend) -> None:
    reason = reason_of(backend.name)
    if reason is not None:
        raise BackendUnavailableError(reason)


_warned: set[tuple[str, str]] = set()


def resolve(name: str | None, operator: str, device: torch.device, dtype: torch.dtype) -> Backend:
    """Return the named backend if it can run on such tensors, or for None the preferred one."""
    if name is not None:
        backend = BACKENDS.find(name)
        refusal = backend.refusal(operator, device.type, dtype)
        if refusal is not None:
            raise ValueError(f"{refusal}, got {dtype} on {device}")
        _check_available(backend)
        return backend
    backend, used = _first(operator, device, dtype), device.type
    # Tensors on meta have no data: a model is being built, not run.
    is_silent = torch.compiler.is_compiling() or used == "meta"
    if backend.slow and not is_silent and (backend.name, used) not in _warned:
        _warned.add((backend.name, used))
        # The warning names code outside Statemix.
        level, frame = 1, sys._getframe()
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("statemix."):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"statemix uses the slow backend {backend.name!r} for tensors on {used}: "
            f"{_reasons(backend, operator, device, dtype)}. "
            f"Pass backend={backend.name!r} to use it without this warning",
            RuntimeWarning,
            stacklevel=level,
        )
    return backend


def default_backend(
    device: torch.device | str, operator: str = "block", dtype: torch.dtype = torch.float32
) -> str:
    """Return the name of the backend that ``backend=None`` chooses for an operator."""
    return _first(operator, torch.device(device), dtype).name


def report(
    devices: Sequence[str], dtypes: Sequence[torch.dtype] = FLOATING
) -> list[dict[str, Any]]:
    """Return the backend chosen for every operator, device and dtype, and why not the others."""
    operators = dict.fromkeys(name for backend in BACKENDS.values() for name in backend.kernels)
    rows = []
    for operator, device, dtype in product(operators, devices, dtypes):
        place = torch.device(device)
        chosen = _find_first(operator, place, dtype)
        others = {}
        for backend in BACKENDS.values():
            later = "comes later in the order of preference"
            passed_over = later if backend.automatic else "is used only if named explicitly"
            reason = backend.obstacle(operator, place, dtype)
            if backend is not chosen:
                others[backend.name] = reason or f"backend {backend.name!r} {passed_over}"
        row = {"operator": operator, "device": device, "dtype": str(dtype).removeprefix("torch.")}
        rows.append(row | {"backend": None if chosen is None else chosen.name, "others": others})
    return rows


def details() -> dict[str, str | None]:
    """Return name -> detail for every backend; None for a backend that cannot run here."""
    return {
        backend.name: backend.detail() if backend.unavailable() is None else None
        for backend in BACKENDS.values()
    }


def _find_first(operator: str, device: torch.device, dtype: torch.dtype) -> Backend | None:
    for backend in BACKENDS.values():
        if backend.automatic and backend.obstacle(operator, device, dtype) is None:
            return backend
    return None


def _first(operator: str, device: torch.device, dtype: torch.dtype) -> Backend:
    backend = _find_first(operator, device, dtype)
    if backend is not None:
        return backend
    reasons = _reasons(None, operator, device, dtype)
    raise BackendUnavailableError(
        f"no backend serves operator {operator!r} for {dtype} on {device.type}: {reasons}"
    )


def _reasons(
    chosen: Backend | None, operator: str, device: torch.device, dtype: torch.dtype
) -> str:
    """Return why the automatic backends before ``chosen`` cannot run."""
    reasons = []
    for backend in BACKENDS.values():
        if backend is chosen:
            break
        if backend.automatic:
            reasons.append(backend.obstacle(operator, device, dtype))
    return "; ".join(filter(None, reasons))
