"""Load the compiled CPU kernels with ctypes and call them on tensors."""

import ctypes
import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from statemix.errors import RequestError
from statemix.ops.checks import BackendUnavailableError

LIBRARY = Path(__file__).with_name("kernels.so")
# Mirrors interface.h.
INTERFACE_VERSION = 4
FAMILIES = ("softmax", "sigmoid", "relu", "signed", "tanh", "none", "householder")
GIVEN = len(FAMILIES)
# The axis of a block's rows in gates, values and states (B, T, H, ...).
ROW_AXES = {"block": 3, "lag": None}
OPERATORS = tuple(ROW_AXES)
ELEMENTS = (torch.float32, torch.float64, torch.bfloat16)

# The choices of dispatch.cpp, which ignores other values.
INSTRUCTION_SETS = ("baseline", "avx2", "avx512", "avx512_bf16")
# Read when the library is loaded (below). Empty means unset.
_asked = os.environ.get("STATEMIX_CPU_ISA", "")


class _Problem(ctypes.Structure):
    """Mirrors ``struct Problem`` of interface.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "length", "blocks", "size", "sequences")),
        ("cu_seqlens", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("family", "element", "threads")),
        ("inverse_temperature", ctypes.c_double),
        ("gates", ctypes.c_void_p),
        *((f"gates_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row", "gate")),
        ("values", ctypes.c_void_p),
        *((f"values_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row")),
        ("initial_state", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("wide_states", ctypes.c_void_p),
        ("final_state", ctypes.c_void_p),
        ("d_states", ctypes.c_void_p),
        *((f"d_states_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row")),
        ("d_final_state", ctypes.c_void_p),
        ("d_gates", ctypes.c_void_p),
        ("d_values", ctypes.c_void_p),
        ("d_initial_state", ctypes.c_void_p),
    )


def load(path: Path) -> tuple[ctypes.CDLL | None, str | None]:
    """Load the kernels, or return why they cannot run and what to install.

    Returns:
        library: the kernels, or None.
        reason: a sentence, or None if the kernels are loaded.
    """
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


_PAUSE_HARD = 2  # omp_pause_hard of omp.h


def _release_threads_before_forks(library: ctypes.CDLL) -> None:
    """Let forked children use several threads.

    A child inherits the thread pool of GNU OpenMP but none of its threads, and would wait for them
    forever. If the pool is released before the fork, parent and child create new ones when they
    need them. Other OpenMP libraries handle forks themselves.
    """
    if hasattr(library, "omp_pause_resource_all") and not hasattr(library, "__kmpc_fork_call"):
        pause = library.omp_pause_resource_all
        os.register_at_fork(before=lambda: pause(_PAUSE_HARD))


# Load on import (about a millisecond): compiled graphs treat availability as a constant.
_library, _reason = load(LIBRARY)
if _library is not None:
    _release_threads_before_forks(_library)


def unavailable() -> str | None:
    """Return why no kernels can run here, or None."""
    return _reason


def require() -> ctypes.CDLL:
    """Return the kernels.

    Raises:
        BackendUnavailableError: if there are none, with the reason and the cure.
        RequestError: if ``STATEMIX_CPU_ISA`` is not a known instruction set.
    """
    if _library is None:
        raise BackendUnavailableError(_reason)
    if _asked not in ("", *INSTRUCTION_SETS):
        choices = ", ".join(INSTRUCTION_SETS)
        raise RequestError(f"STATEMIX_CPU_ISA must be one of {choices}, got {_asked!r}")
    return _library


def instruction_set() -> str:
    """Return the instruction set that the kernels use on this processor.

    Raises:
        BackendUnavailableError: if there are no kernels.
        RequestError: if ``STATEMIX_CPU_ISA`` is not a known instruction set.
    """
    name: bytes = require().statemix_isa()
    return name.decode()


def call(
    operator: str,
    direction: str,
    gate: str,
    temperature: Tensor | None,
    cu_seqlens: Tensor | None,
    **tensors: Tensor,
) -> None:
    """Run one exported function on tensors with blocks innermost and preallocated outputs.

    Args:
        operator: "block" or "lag".
        direction: "forward" or "backward".
        gate: a name in :data:`FAMILIES`, or "given" for coefficients that need no normalising.
        temperature: 0-d divisor of the gates, or None.
        cu_seqlens: int64 (N+1,) or None.
        tensors: members of ``struct Problem`` by name: ``gates`` (B, T, H, ...), ``values``
            (B, T, H, ...), ``initial_state`` (N, H, m), and others.

    Raises:
        MemoryError: if the kernel's scratch space cannot be allocated.
    """
    row_axis = ROW_AXES[operator]
    gates, values, initial_state = (tensors[n] for n in ("gates", "values", "initial_state"))
    problem = _Problem()
    problem.batch, problem.length, problem.blocks = values.shape[:3]
    problem.size = initial_state.shape[-1]
    problem.sequences = initial_state.shape[0]
    problem.cu_seqlens = None if cu_seqlens is None else cu_seqlens.data_ptr()
    problem.family = GIVEN if gate == "given" else FAMILIES.index(gate)
    problem.element = ELEMENTS.index(values.dtype)
    problem.threads = torch.get_num_threads()
    problem.inverse_temperature = _inverse(temperature)
    problem.gates_batch, problem.gates_time, *_ = strides = gates.stride()
    problem.gates_row = 0 if row_axis is None else strides[row_axis]
    problem.gates_gate = strides[-1]
    for name in ("values", "d_states"):
        if name in tensors:
            strides = tensors[name].stride()
            setattr(problem, f"{name}_batch", strides[0])
            setattr(problem, f"{name}_time", strides[1])
            setattr(problem, f"{name}_row", 0 if row_axis is None else strides[row_axis])
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    _run(_function(operator, direction), problem)


def prepare_step(
    operator: str, gate: str, gates: Tensor, values: Tensor, state: Tensor
) -> Callable[[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor], None]:
    """Return a function (temperature, gates, values, state, h_t, next_state) that runs one step.

    Args:
        operator: "block" or "lag".
        gate: a name in :data:`FAMILIES`.
        gates: gates of :func:`call` without the time axis. The arguments of the returned function
            must agree with these in shape, strides and dtype.
        values: likewise.
        state: likewise.

    Raises:
        MemoryError: by the returned function, if scratch space cannot be allocated.
    """
    row_axis = ROW_AXES[operator]
    strides, value_strides = gates.stride(), values.stride()
    common = _Problem()
    common.batch, common.blocks, common.size = state.shape
    common.sequences, common.length = common.batch, 1
    common.family, common.element = FAMILIES.index(gate), ELEMENTS.index(values.dtype)
    common.threads = torch.get_num_threads()
    common.gates_batch, common.gates_gate = strides[0], strides[-1]
    common.values_batch = value_strides[0]
    if row_axis is not None:
        common.gates_row, common.values_row = strides[row_axis - 1], value_strides[row_axis - 1]

    function = _function(operator, "forward")

    def run(
        temperature: Tensor | None,
        gates: Tensor,
        values: Tensor,
        state: Tensor,
        h_t: Tensor,
        next_state: Tensor,
    ) -> None:
        # A copy, because several threads may run the same step.
        problem = _Problem.from_buffer_copy(common)
        problem.inverse_temperature = _inverse(temperature)
        problem.gates, problem.values = gates.data_ptr(), values.data_ptr()
        problem.initial_state = state.data_ptr()
        problem.states, problem.final_state = h_t.data_ptr(), next_state.data_ptr()
        _run(function, problem)

    return run


def _inverse(temperature: Tensor | None) -> float:
    value = 1.0 if temperature is None else float(temperature)
    # Like PyTorch, which the other backends use to divide.
    return 1.0 / value if value else math.inf


_OUT_OF_MEMORY = 2


def _function(operator: str, direction: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(require(), f"statemix_{operator}_{direction}")
    return function


def _run(function: Callable[..., int], problem: _Problem) -> None:
    status = function(ctypes.byref(problem))
    if status == _OUT_OF_MEMORY:
        raise MemoryError(
            f"the scratch space of {problem.size} x {problem.blocks} states could not be allocated"
        )
    assert status == 0, "the kernels do not support this family or dtype"
