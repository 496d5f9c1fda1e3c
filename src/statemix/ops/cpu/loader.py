"""Load the compiled CPU kernels with ctypes and call them on tensors."""

import ctypes
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statemix.errors import RequestError
from statemix.ops.backends import GIVEN
from statemix.ops.checks import BackendUnavailableError

LIBRARY = Path(__file__).with_name("kernels.so")
# Mirrors interface.h.
INTERFACE_VERSION = 8
FAMILIES = ("softmax", "sigmoid", "relu", "signed", "tanh", "none", "householder")
_CODES = {name: code for code, name in enumerate((*FAMILIES, GIVEN))}
ELEMENTS = (torch.float32, torch.float64, torch.bfloat16)

# The choices of dispatch.cpp, which ignores other values.
INSTRUCTION_SETS = ("baseline", "avx2", "avx512", "avx512_bf16")
# Read when the library is loaded (below). Empty means unset.
_asked = os.environ.get("STATEMIX_CPU_ISA", "")


class _Problem(ctypes.Structure):
    """Mirrors ``struct Problem`` of interface.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "length", "blocks", "size", "channels")),
        *((name, ctypes.c_int64) for name in ("gates_per_row", "sequences")),
        ("cu_seqlens", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("family", "element", "threads")),
        ("inverse_temperature", ctypes.c_double),
        ("gates", ctypes.c_void_p),
        *((f"gates_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row", "gate")),
        ("values", ctypes.c_void_p),
        *((f"values_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row", "channel")),
        ("initial_state", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("wide_states", ctypes.c_void_p),
        ("final_state", ctypes.c_void_p),
        ("d_states", ctypes.c_void_p),
        *((f"d_states_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row", "channel")),
        ("d_final_state", ctypes.c_void_p),
        ("d_gates", ctypes.c_void_p),
        ("d_values", ctypes.c_void_p),
        ("d_initial_state", ctypes.c_void_p),
    )


class _SelectiveScan(ctypes.Structure):
    """Mirrors ``struct SelectiveScan`` of interface.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "length", "columns", "channels", "parts")),
        *((name, ctypes.c_int64) for name in ("element", "threads")),
        *((name, ctypes.c_void_p) for name in ("steps", "rates", "inputs", "b", "c")),
        *((name, ctypes.c_void_p) for name in ("initial_state", "outputs", "final_state")),
        *((name, ctypes.c_void_p) for name in ("d_outputs", "d_final_state", "d_steps")),
        *((name, ctypes.c_void_p) for name in ("d_rates", "d_inputs", "d_b", "d_c")),
        ("d_initial_state", ctypes.c_void_p),
    )


class _FixedPoint(ctypes.Structure):
    """Mirrors ``struct FixedPoint`` of interface.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "length", "size", "rank", "product")),
        *((name, ctypes.c_int64) for name in ("element", "threads")),
        ("most", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("weight", "decays", "inputs", "initial_state")),
        *((name, ctypes.c_void_p) for name in ("vectors", "strengths", "raw", "states")),
        *((name, ctypes.c_void_p) for name in ("d_states", "d_vectors", "d_strengths")),
        *((name, ctypes.c_void_p) for name in ("d_decays", "d_inputs", "d_initial_state")),
    )


def load(path: Path) -> tuple[ctypes.CDLL | None, str | None]:
    """Load the kernels and return (kernels, None), or (None, why they cannot run and the cure)."""
    cure = "install a C++ compiler (g++ or clang++) and reinstall statemix, or use backend=None"
    if not path.exists():
        return None, f"backend 'cpu' needs compiled kernels, which this installation lacks: {cure}"
    try:
        library = ctypes.CDLL(str(path))
        version: int = library.statemix_interface_version()
    except (OSError, AttributeError) as error:
        return None, f"backend 'cpu' needs kernels for this machine, got {error}: {cure}"
    if version != INTERFACE_VERSION:
        return None, (
            f"backend 'cpu' needs kernels of interface version {INTERFACE_VERSION}, got {version}, "
            "built from other sources: reinstall statemix"
        )
    library.statemix_isa.restype = ctypes.c_char_p
    return library, None


# Load on import (about a millisecond): compiled graphs treat availability as a constant.
_library, _reason = load(LIBRARY)
# A forked child inherits the thread pool of GNU OpenMP but none of its threads, and would wait for
# them forever. If the pool is released before the fork, parent and child create new ones when they
# need them. Other OpenMP libraries handle forks themselves.
_pause: Any = getattr(_library, "omp_pause_resource_all", None)
if _pause is not None and not hasattr(_library, "__kmpc_fork_call"):
    os.register_at_fork(before=lambda: _pause(2))  # omp_pause_hard of omp.h


def unavailable() -> str | None:
    """Return why no kernels can run here, or None."""
    return _reason


def require() -> ctypes.CDLL:
    """Return the kernels; raise an error where there are none, or for an unknown set."""
    if _library is None:
        raise BackendUnavailableError(_reason)
    if _asked not in ("", *INSTRUCTION_SETS):
        choices = ", ".join(INSTRUCTION_SETS)
        raise RequestError(f"STATEMIX_CPU_ISA must be one of {choices}, got {_asked!r}")
    return _library


def instruction_set() -> str:
    """Return the instruction set that the kernels use on this processor."""
    name: bytes = require().statemix_isa()
    return name.decode()


def problem_of(
    gate: str, temperature: Tensor | None, cu_seqlens: Tensor | None, tensors: dict[str, Tensor]
) -> Any:
    """Return the argument of an exported function: it does not keep the tensors, by name, alive."""
    gates, values, initial_state = (tensors[n] for n in ("gates", "values", "initial_state"))
    problem = _Problem()
    problem.batch, problem.length, problem.blocks = values.shape[:3]
    problem.sequences, _, problem.size, *channels = initial_state.shape
    problem.channels = channels[0] if channels else 0
    problem.gates_per_row = gates.shape[-1]
    problem.cu_seqlens = None if cu_seqlens is None else cu_seqlens.data_ptr()
    problem.family = _CODES[gate]
    problem.element = ELEMENTS.index(values.dtype)
    problem.threads = torch.get_num_threads()
    problem.inverse_temperature = _inverse(temperature)
    strides = gates.stride()
    problem.gates_batch, problem.gates_time, problem.gates_gate = *strides[:2], strides[-1]
    # Lags have no axis of rows.
    problem.gates_row = strides[3] if len(strides) == 5 else 0
    # Lags have no axis of rows here either, and most blocks none of channels.
    problem.values_batch, problem.values_time, _, *inner = (*values.stride(), 0, 0)
    problem.values_row, problem.values_channel = inner[:2]
    if "d_states" in tensors:
        strides = tensors["d_states"].stride()
        problem.d_states_batch, problem.d_states_time, _, *inner = (*strides, 0, 0)
        problem.d_states_row, problem.d_states_channel = inner[:2]
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    return problem


def copy_of(problem: Any, temperature: Tensor | None) -> Any:
    """Return a copy with another temperature."""
    copy = _Problem.from_buffer_copy(problem)
    copy.inverse_temperature = _inverse(temperature)
    return copy


def _inverse(temperature: Tensor | None) -> float:
    divisor = 1.0 if temperature is None else float(temperature)
    # Like PyTorch, which the other backends use to divide.
    return 1.0 / divisor if divisor else math.inf


def function(operator: str, direction: str) -> Callable[..., int]:
    """Return the exported function of an operator: direction "forward" or "backward"."""
    exported: Callable[..., int] = getattr(require(), f"statemix_{operator}_{direction}")
    return exported


def selective_scan(parts: int, tensors: Mapping[str, Tensor]) -> None:
    """Run the scan of Mamba, or with ``d_outputs`` its adjoint; threads share the ``parts``."""
    problem = _SelectiveScan()
    problem.batch, problem.length, problem.channels = tensors["inputs"].shape
    problem.columns, problem.parts = tensors["b"].shape[-1], parts
    problem.element = ELEMENTS.index(tensors["inputs"].dtype)
    problem.threads = torch.get_num_threads()
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    check(require().statemix_selective_scan(ctypes.byref(problem)), problem)


def fixed_point(rank: int, most: float, tensors: Mapping[str, Tensor], *, product: bool) -> None:
    """Run the recurrence of FPRNN token by token, or with ``d_states`` its adjoint."""
    problem = _FixedPoint()
    problem.batch, problem.length, problem.size = tensors["inputs"].shape
    problem.rank, problem.product, problem.most = rank, product, most
    problem.element = ELEMENTS.index(tensors["inputs"].dtype)
    problem.threads = torch.get_num_threads()
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    check(require().statemix_fixed_point(ctypes.byref(problem)), problem)


def check(status: int, problem: Any) -> None:
    """Raise an error if an exported function has failed: its results hold what memory held."""
    if not status:
        return
    names = ("length", "blocks", "size", "columns", "family", "element")
    words = " ".join(f"{name}={getattr(problem, name)}" for name in names if hasattr(problem, name))
    if status == 2:  # no memory
        raise MemoryError(f"the scratch space of a scan of {words} could not be allocated")
    raise RuntimeError(f"the CPU kernels refused a scan of {words} with status {status}")
