"""The compiled CPU kernels: found, loaded with ctypes, and called on tensors."""

import ctypes
import os
from pathlib import Path

import torch
from torch import Tensor

from statemix.ops.checks import BackendUnavailableError

LIBRARY = Path(__file__).with_name("kernels.so")
# Mirrors interface.h.
INTERFACE_VERSION = 1
FAMILIES = ("softmax", "sigmoid", "relu", "signed", "tanh", "none", "given")
ELEMENTS = (torch.float32, torch.float64, torch.bfloat16)

# The choices of dispatch.cpp, which takes no notice of other values.
INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
# As it is when the library is loaded, below; empty is as good as unset.
_asked = os.environ.get("STATEMIX_CPU_ISA", "")


class _Problem(ctypes.Structure):
    """Mirrors ``struct Problem`` of interface.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "length", "blocks", "size", "sequences")),
        ("cu_seqlens", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("family", "element", "threads")),
        ("gates", ctypes.c_void_p),
        *((f"gates_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row", "gate")),
        ("values", ctypes.c_void_p),
        *((f"values_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row")),
        ("initial_state", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("final_state", ctypes.c_void_p),
        ("d_states", ctypes.c_void_p),
        *((f"d_states_{axis}", ctypes.c_int64) for axis in ("batch", "time", "row")),
        ("d_final_state", ctypes.c_void_p),
        ("d_gates", ctypes.c_void_p),
        ("d_values", ctypes.c_void_p),
        ("d_initial_state", ctypes.c_void_p),
    )


def load(path: Path) -> tuple[ctypes.CDLL | None, str | None]:
    """Load the kernels, or say why they cannot be used and what to do about it.

    Returns:
        library: the kernels, or None.
        reason: a sentence, or None.
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


# Loaded at once, a matter of a millisecond: whether there are kernels is a constant to a compiler.
_library, _reason = load(LIBRARY)


def available() -> bool:
    """Whether there are kernels that run here."""
    return _library is not None


def require() -> ctypes.CDLL:
    """The kernels.

    Raises:
        BackendUnavailableError: if there are none, with the reason and the cure.
        ValueError: if the environment asks for an instruction set that there is not.
    """
    if _library is None:
        raise BackendUnavailableError(_reason)
    if _asked not in ("", *INSTRUCTION_SETS):
        choices = ", ".join(INSTRUCTION_SETS)
        raise ValueError(f"STATEMIX_CPU_ISA must be one of {choices}, got {_asked!r}")
    return _library


def instruction_set() -> str:
    """The instruction set that the kernels use on this processor.

    Raises:
        BackendUnavailableError: if there are no kernels.
        ValueError: if the environment asks for an instruction set that there is not.
    """
    name: bytes = require().statemix_isa()
    return name.decode()


def innermost(tensor: Tensor, axis: int) -> Tensor:
    """``tensor`` with blocks (``axis``) innermost in memory: itself where they are, else a copy."""
    if tensor.stride(axis) == 1 or tensor.shape[axis] == 1:
        return tensor
    return tensor.movedim(axis, -1).contiguous().movedim(-1, axis)


def empty_innermost(shape: torch.Size | tuple[int, ...], axis: int, like: Tensor) -> Tensor:
    """An uninitialised tensor of this logical shape with blocks (``axis``) innermost in memory."""
    order = [*shape[:axis], *shape[axis + 1 :], shape[axis]]
    return torch.empty(order, dtype=like.dtype, device=like.device).movedim(-1, axis)


def empty_state(like: Tensor) -> Tensor:
    """An uninitialised (N, H, m) tensor with memory [N, m, H], as the kernels write states."""
    return torch.empty_like(like.transpose(1, 2).contiguous()).transpose(1, 2)


def call(
    function: str,
    gate: str,
    gates: Tensor,
    values: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor | None,
    **tensors: Tensor,
) -> None:
    """Run one exported function; every tensor has blocks innermost, and outputs are preallocated.

    Args:
        function: "block_forward", "block_backward", "lag_forward" or "lag_backward".
        gate: a name of :data:`FAMILIES`; "given" means transitions and inputs as they are.
        gates: (B, T, H, m, m+1) for blocks, (B, T, H, m+1) for lags; one less for "given".
        values: (B, T, H, m) or (B, T, H).
        initial_state: (N, H, m).
        cu_seqlens: int64 (N+1,) or None.
        tensors: the remaining members of ``struct Problem`` by name.
    """
    blocked = values.ndim == 4
    problem = _Problem()
    problem.batch, problem.length, problem.blocks = values.shape[:3]
    problem.size = initial_state.shape[-1]
    problem.sequences = initial_state.shape[0]
    problem.cu_seqlens = None if cu_seqlens is None else cu_seqlens.data_ptr()
    problem.family = FAMILIES.index(gate)
    problem.element = ELEMENTS.index(values.dtype)
    problem.threads = torch.get_num_threads()
    strides = gates.stride()
    problem.gates_batch, problem.gates_time = strides[:2]
    problem.gates_row = strides[3] if blocked else 0
    problem.gates_gate = strides[-1]
    _set_strides(problem, "values", values)
    if "d_states" in tensors:
        _set_strides(problem, "d_states", tensors["d_states"])
    tensors |= {"gates": gates, "values": values, "initial_state": initial_state}
    for name, tensor in tensors.items():
        setattr(problem, name, tensor.data_ptr())
    status: int = getattr(require(), f"statemix_{function}")(ctypes.byref(problem))
    assert status == 0, f"the kernels know no family {gate!r} for {values.dtype}"


def _set_strides(problem: _Problem, name: str, tensor: Tensor) -> None:
    strides = tensor.stride()
    setattr(problem, f"{name}_batch", strides[0])
    setattr(problem, f"{name}_time", strides[1])
    setattr(problem, f"{name}_row", strides[3] if tensor.ndim == 4 else 0)
