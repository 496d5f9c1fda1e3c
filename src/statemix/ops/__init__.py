"""The recurrences as pure functions of tensors.

An operator with backends has two files: its public functions (``block_operators.py``,
``lag_operators.py``), and its definition and PyTorch forms (``block_kernels.py``,
``lag_kernels.py``). Backends have a folder (``cpu/``, ``triton/``), or share ``portable.py``. The
scan of Mamba, ``selective_scan.py``, chooses its kernels itself.
"""

# They add themselves to backends.
from statemix.ops import block_kernels, lag_kernels, low_rank_kernels  # noqa: F401
from statemix.ops.backends import BACKENDS, Backend, Kernel, Scan, check_backend, default_backend
from statemix.ops.block_operators import bd_lru, bd_lru_step, block_scan, block_step
from statemix.ops.checks import BackendUnavailableError
from statemix.ops.cpu import CPU
from statemix.ops.gates import GATES, GateFamily, normalize
from statemix.ops.lag_operators import REALIZATIONS, h_lru, h_lru_step, lag_scan, lag_step
from statemix.ops.low_rank_operators import low_rank_scan, low_rank_step
from statemix.ops.portable import ASSOCIATIVE, LOOP, REFERENCE
from statemix.ops.scan_forms import scan, scan_step
from statemix.ops.sequence_parallel import sequence_parallel
from statemix.ops.triton import TRITON, in_chunks

__all__ = [
    "BACKENDS",
    "GATES",
    "REALIZATIONS",
    "Backend",
    "BackendUnavailableError",
    "GateFamily",
    "Kernel",
    "Scan",
    "bd_lru",
    "bd_lru_step",
    "block_scan",
    "block_step",
    "check_backend",
    "default_backend",
    "h_lru",
    "h_lru_step",
    "in_chunks",
    "lag_scan",
    "lag_step",
    "low_rank_scan",
    "low_rank_step",
    "normalize",
    "scan",
    "scan_step",
    "sequence_parallel",
]

# In order of preference.
for _backend in (CPU, TRITON, LOOP, ASSOCIATIVE, REFERENCE):
    BACKENDS.register(_backend)
