"""The public recurrences: checks, choice of backend, and the rule for dtypes."""

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from statemix.ops import associative, cpu, reference
from statemix.ops.autograd import scan
from statemix.ops.checks import (
    bind,
    check_choice,
    check_cu_seqlens,
    check_cu_seqlens_values,
    check_initial_state,
    same_dtype_and_device,
)
from statemix.ops.checks import (
    check_finite as check_all_finite,
)
from statemix.ops.gates import GATES, normalize
from statemix.ops.packing import scan_each
from statemix.ops.realizations import observer_scan

BACKENDS = ("reference", "associative", "loop", "cpu")
"""Every backend by name; ``None`` chooses by :func:`default_backend`."""

REALIZATIONS = ("controller", "observer")

_Scan = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
_BLOCK_SCANS: dict[str, _Scan] = {
    "reference": reference.block_scan,
    "associative": associative.block_scan,
}
_LAG_SCANS: dict[str, _Scan] = {
    "reference": reference.lag_scan,
    "associative": associative.lag_scan,
}


def bd_lru(
    gates: Tensor,
    values: Tensor,
    gate: str = "softmax",
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
    check_finite: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Run the gated block-diagonal recurrence: raw gates and values in, states out.

    .. math:: h_t = A_t h_{t-1} + a_{0,t} \odot v_t, \qquad (A_t, a_{0,t}) = \mathrm{gate}(g_t)

    Source: Dubinin et al., "Improved state mixing in higher-order and block diagonal linear
    recurrent networks", Eq. 5 and 6, in the column convention.

    Args:
        gates: raw gates, shape (B, T, H, m, m+1): ``[..., i, :m]`` mixes the previous state into
            entry i, ``[..., i, m]`` is its input gate (``householder`` reads them differently, see
            :func:`statemix.ops.normalize`). float32, float64, bfloat16 or float16.
        values: v, shape (B, T, H, m), same dtype and device.
        gate: how raw gates are normalised, a name in :data:`statemix.ops.GATES`.
        initial_state: h_0, shape (B, H, m), or (N, H, m) if packed. None means zeros.
        cu_seqlens: int32 or int64, shape (N+1,): the bounds 0 = c_0 <= ... <= c_N = T of N
            sequences packed into one row (B = 1). None means one sequence per row.
        backend: a name in :data:`BACKENDS`; None takes the fastest for the tensors' device.
        check_finite: whether to look for NaN and infinity in the arguments first.

    Returns:
        states: h_1 ... h_T, shape (B, T, H, m), dtype of ``values``.
        final_state: the last state of every sequence, shape (B, H, m) or (N, H, m), float32 or
            wider, so that chunks can be chained without loss; h_0 where a sequence is empty.

    Raises:
        ValueError: if shapes or devices disagree, ``gate`` or ``backend`` is unknown, the bounds do
            not rise from 0 to T, or ``check_finite`` finds a bad entry.
        TypeError: if dtypes differ or are not floating.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> gates = torch.zeros(1, 3, 1, 1, 2)  # both gates of the row are 1/2
        >>> bd_lru(gates, torch.ones(1, 3, 1, 1))[0].flatten().tolist()
        [0.5, 0.75, 0.875]
    """
    check_choice("gate", gate, list(GATES))
    sizes: dict[str, int] = {}
    bind(sizes, "values", values, "B T H m")
    bind(sizes, "gates", gates, "B T H m m+1")
    same_dtype_and_device(gates=gates, values=values)
    return _gated(gates, values, gate, initial_state, cu_seqlens, backend, check_finite, sizes)


def h_lru(
    gates: Tensor,
    values: Tensor,
    gate: str = "softmax",
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    realization: str = "controller",
    backend: str | None = None,
    check_finite: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Run the gated higher-order recurrence: raw gates and values in, states out.

    .. math:: h_t = \sum_{i=1}^m a_{i,t} \odot h_{t-i} + a_{0,t} \odot v_t

    Source: Dubinin et al., Eq. 3 (controller form). The observer form is what the paper's listing
    computes once repaired: the coefficient of h_{t-i} is then the one of step t - i + 1, and
    Proposition 1 does not hold.

    Args:
        gates: raw gates, shape (B, T, H, m+1): ``[..., i-1]`` multiplies h_{t-i}, ``[..., m]`` is
            the input gate. float32, float64, bfloat16 or float16.
        values: v, shape (B, T, H), same dtype and device.
        gate: how raw gates are normalised, a name in :data:`statemix.ops.GATES` that is not for
            blocks only.
        initial_state: shape (B, H, m), or (N, H, m) if packed: in the controller form the last m
            states before the first, newest first; in the observer form the partial sums s^1 ...
            s^m. None means zeros.
        cu_seqlens: bounds of packed sequences as in :func:`bd_lru`.
        realization: "controller" or "observer".
        backend: as in :func:`bd_lru`.
        check_finite: as in :func:`bd_lru`.

    Returns:
        states: h_1 ... h_T, shape (B, T, H), dtype of ``values``.
        final_state: like ``initial_state``, float32 or wider.

    Raises:
        ValueError: as in :func:`bd_lru`, or if ``realization`` is unknown.
        TypeError: if dtypes differ or are not floating.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> gates = torch.zeros(1, 3, 1, 3)  # two lags and the input, one third each
        >>> [round(h, 3) for h in h_lru(gates, torch.ones(1, 3, 1))[0].flatten().tolist()]
        [0.333, 0.444, 0.593]
    """
    check_choice("gate", gate, [name for name, family in GATES.items() if not family.blocks_only])
    check_choice("realization", realization, REALIZATIONS)
    sizes: dict[str, int] = {}
    bind(sizes, "values", values, "B T H")
    bind(sizes, "gates", gates, "B T H m+1")
    same_dtype_and_device(gates=gates, values=values)
    if realization == "controller":
        return _gated(gates, values, gate, initial_state, cu_seqlens, backend, check_finite, sizes)
    dtype = torch.promote_types(values.dtype, torch.float32)
    coefficients, input_gate = normalize(gates.to(dtype), gate)
    if check_finite:
        check_all_finite(gates=gates, values=values, initial_state=initial_state)
    h_0 = _initial_state(initial_state, values, cu_seqlens, sizes)
    if cu_seqlens is not None and not torch.compiler.is_compiling():
        # Here they become indices before the operator, which checks them too, ever sees them.
        check_cu_seqlens_values(cu_seqlens, sizes["T"])
    states, final_state = observer_scan(
        lambda a, b, lags: lag_scan(a, b, lags, cu_seqlens, backend=backend),
        coefficients,
        input_gate * values.to(dtype),
        h_0,
        cu_seqlens,
    )
    return states.to(values.dtype), final_state


def block_scan(
    transitions: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
    check_finite: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Solve a linear recurrence whose transitions are dense blocks.

    .. math:: h_t = A_t h_{t-1} + b_t, \qquad t = 1, \dots, T

    Source: Dubinin et al., Eq. 5, with :math:`b_t = a_{0,t} \odot v_t` and A_t as given.

    Args:
        transitions: A, shape (B, T, H, m, m); row i of a block produces entry i of the new state.
        inputs: b, shape (B, T, H, m), same floating dtype and device.
        initial_state: as in :func:`bd_lru`.
        cu_seqlens: as in :func:`bd_lru`.
        backend: as in :func:`bd_lru`.
        check_finite: as in :func:`bd_lru`.

    Returns:
        states: h_1 ... h_T, shape (B, T, H, m), dtype of ``inputs``.
        final_state: as in :func:`bd_lru`.

    Raises:
        ValueError: as in :func:`bd_lru`.
        TypeError: if dtypes differ or are not floating.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> A, b = torch.full((1, 3, 1, 1, 1), 0.5), torch.ones(1, 3, 1, 1)
        >>> block_scan(A, b)[0].flatten().tolist()
        [1.0, 1.5, 1.75]
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B T H m")
    bind(sizes, "transitions", transitions, "B T H m m")
    same_dtype_and_device(transitions=transitions, inputs=inputs)
    if check_finite:
        check_all_finite(transitions=transitions, inputs=inputs, initial_state=initial_state)
    return _given(transitions, inputs, initial_state, cu_seqlens, backend, sizes)


def lag_scan(
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
    check_finite: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Solve a higher-order linear recurrence, channel by channel.

    .. math:: h_t = \sum_{i=1}^m a_{i,t} \odot h_{t-i} + b_t, \qquad t = 1, \dots, T

    Source: Dubinin et al., Eq. 3, with :math:`b_t = a_{0,t} \odot v_t`; computed with a buffer of m
    lags, without companion matrices.

    Args:
        coefficients: a, shape (B, T, H, m); ``[..., i-1]`` multiplies h_{t-i}.
        inputs: b, shape (B, T, H), same floating dtype and device.
        initial_state: the last m states before the first, newest first, shape (B, H, m), or
            (N, H, m) if packed. None means zeros.
        cu_seqlens: as in :func:`bd_lru`.
        backend: as in :func:`bd_lru`.
        check_finite: as in :func:`bd_lru`.

    Returns:
        states: h_1 ... h_T, shape (B, T, H), dtype of ``inputs``.
        final_state: the last m states, newest first, like ``initial_state``, float32 or wider.

    Raises:
        ValueError: as in :func:`bd_lru`.
        TypeError: if dtypes differ or are not floating.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> a, b = torch.ones(1, 5, 1, 2), torch.zeros(1, 5, 1)
        >>> lag_scan(a, b, torch.tensor([[[1.0, 0.0]]]))[0].flatten().tolist()
        [1.0, 2.0, 3.0, 5.0, 8.0]
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B T H")
    bind(sizes, "coefficients", coefficients, "B T H m")
    same_dtype_and_device(coefficients=coefficients, inputs=inputs)
    if check_finite:
        check_all_finite(coefficients=coefficients, inputs=inputs, initial_state=initial_state)
    return _given(coefficients, inputs, initial_state, cu_seqlens, backend, sizes)


def default_backend(device: torch.device) -> str:
    """The backend that ``backend=None`` takes for tensors on ``device``.

    The compiled kernels on the CPU, where they were built; elsewhere the loop over time.
    """
    if device.type == "cpu":
        if cpu.available():
            return "cpu"
        if not torch.compiler.is_compiling():
            _warn_of_slow_path()
    return "loop"


@cache
def _warn_of_slow_path() -> None:
    warnings.warn(
        "statemix was installed without its compiled CPU kernels and uses the slower backend "
        "'loop'; install a C++ compiler (g++ or clang++) and reinstall statemix",
        RuntimeWarning,
        stacklevel=6,
    )


def _resolved(backend: str | None, device: torch.device) -> str:
    if backend is None:
        return default_backend(device)
    check_choice("backend", backend, (*BACKENDS, None))
    if backend == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs tensors on the CPU, got {device}")
    if backend == "cpu":
        cpu.require()
    return backend


def _initial_state(
    initial_state: Tensor | None,
    values: Tensor,
    cu_seqlens: Tensor | None,
    sizes: dict[str, int],
) -> Tensor:
    """h_0 in the dtype that states are carried in: given and checked, or zeros."""
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, values)
    sizes["N"] = sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = torch.promote_types(values.dtype, torch.float32)
    if initial_state is None:
        return values.new_zeros(sizes["N"], sizes["H"], sizes["m"], dtype=dtype)
    check_initial_state(initial_state, values, sizes, "N H m")
    return initial_state.to(dtype)


def _gated(
    gates: Tensor,
    values: Tensor,
    gate: str,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    backend: str | None,
    check_finite: bool,  # noqa: FBT001
    sizes: dict[str, int],
) -> tuple[Tensor, Tensor]:
    """Fuse the normalisation into the kernel where it can be, else do it in PyTorch."""
    if check_finite:
        check_all_finite(gates=gates, values=values, initial_state=initial_state)
    dtype = torch.promote_types(values.dtype, torch.float32)
    if _resolved(backend, values.device) == "cpu" and GATES[gate].fused:
        h_0 = _initial_state(initial_state, values, cu_seqlens, sizes)
        states, final_state = _fused(gates, values, h_0, cu_seqlens, gate)
    else:
        coefficients, input_gate = normalize(gates.to(dtype), gate)
        states, final_state = _given(
            coefficients,
            input_gate * values.to(dtype),
            initial_state,
            cu_seqlens,
            backend,
            sizes,
        )
    return states.to(values.dtype), final_state


def _given(
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    backend: str | None,
    sizes: dict[str, int],
) -> tuple[Tensor, Tensor]:
    """Run an un-normalised recurrence on the chosen backend."""
    h_0 = _initial_state(initial_state, inputs, cu_seqlens, sizes)
    name = _resolved(backend, inputs.device)
    if name == "cpu":
        states, final_state = _fused(coefficients, inputs, h_0, cu_seqlens, "given")
        return states.to(inputs.dtype), final_state
    a, b = coefficients.to(h_0.dtype), inputs.to(h_0.dtype)
    definition = (_BLOCK_SCANS if inputs.ndim == 4 else _LAG_SCANS).get(name)
    if definition is None:
        states, final_state = scan(a, b, h_0, cu_seqlens, "given", name)
    elif cu_seqlens is None:
        states, final_state = definition(a, b, h_0)
    else:
        states, final_state = scan_each(definition, a, b, h_0, cu_seqlens)
    return states.to(inputs.dtype), final_state


def _fused(
    gates: Tensor, values: Tensor, h_0: Tensor, cu_seqlens: Tensor | None, gate: str
) -> tuple[Tensor, Tensor]:
    if values.dtype not in cpu.ELEMENTS:
        gates, values = gates.to(h_0.dtype), values.to(h_0.dtype)
    return scan(gates, values, h_0, cu_seqlens, gate, "cpu")
