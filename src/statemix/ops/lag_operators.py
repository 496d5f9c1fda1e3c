"""Public functions of the lag recurrence: from raw gates, and from given coefficients."""

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops.autograd import solver_of
from statemix.ops.checks import bind, check_choice, same_dtype_and_device
from statemix.ops.dispatch import check_bounds, initial_state_of, prepare
from statemix.ops.gates import check_gate, check_temperature, normalize
from statemix.ops.lag_kernels import partial_sums
from statemix.ops.packing import last_of_each, positions

REALIZATIONS = ("controller", "observer")
"""Meanings of the state of the lag recurrence: the last outputs, or partial sums."""


def h_lru(
    gates: Tensor,
    values: Tensor,
    gate: str = "softmax",
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    temperature: Tensor | float | None = None,
    realization: str = "controller",
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Run the gated higher-order recurrence: raw gates and values in, states out.

    .. math:: h_t = \sum_{i=1}^m a_{i,t} \odot h_{t-i} + a_{0,t} \odot v_t

    Source: Dubinin et al., Eq. 3 (controller form). The paper's listing, once repaired, computes
    the observer form: the coefficient of h_{t-i} is then that of step t - i + 1, and Proposition 1
    does not hold.

    Args:
        gates: raw gates, shape (B, T, H, m+1): ``[..., i-1]`` multiplies h_{t-i}, ``[..., m]`` is
            the input gate. float32, float64, bfloat16 or float16.
        values: v, shape (B, T, H), same dtype and device.
        gate: family that normalises the raw gates, a name in :data:`statemix.ops.GATES` whose
            family is not ``blocks_only``. All families but "none" bound the states of the
            controller form, see :func:`statemix.ops.normalize`.
        initial_state: shape (B, H, m), or (N, H, m) if packed. The controller form expects the m
            states before step 1, newest first; the observer form the partial sums s^1 ... s^m.
            None means zeros.
        cu_seqlens: bounds of packed sequences, as in :func:`bd_lru`.
        temperature: divisor of the raw gates, as in :func:`bd_lru`.
        realization: name in :data:`REALIZATIONS`.
        backend: name in :data:`statemix.ops.BACKENDS`, or None for the preferred one.

    Returns:
        states: h_1 ... h_T, shape (B, T, H), dtype of ``values``.
        final_state: like ``initial_state``, float32 or wider.

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`bd_lru`.

    Example:
        >>> import torch
        >>> gates = torch.zeros(1, 3, 1, 3)  # two lags and the input, one third each
        >>> [round(h, 3) for h in h_lru(gates, torch.ones(1, 3, 1))[0].flatten().tolist()]
        [0.333, 0.444, 0.593]
    """
    check_gate(gate, blocks=False)
    check_choice("realization", realization, REALIZATIONS)
    sizes: dict[str, int] = {}
    bind(sizes, "values", values, "B T H")
    bind(sizes, "gates", gates, "B T H m+1")
    same_dtype_and_device(gates=gates, values=values)
    temperature = check_temperature(temperature, gates)
    if realization == "controller":
        scan = prepare(
            "lag", gates, values, sizes, initial_state, cu_seqlens, backend, gate, temperature
        )
        states, final_state, *_ = solver_of(scan)(*scan)
        return states.to(values.dtype), final_state
    h_0 = initial_state_of(initial_state, values, cu_seqlens, sizes)
    # The observer form indexes with cu_seqlens before the operator can check them.
    check_bounds(cu_seqlens, sizes["T"])
    coefficients, input_gate = normalize(gates.to(h_0.dtype), gate, temperature=temperature)
    inputs = input_gate * values.to(h_0.dtype)
    # It is solved by a lag recurrence with delayed coefficients. The initial partial sum s^{k+1}
    # enters the output k steps after the start.
    length, size = sizes["T"], coefficients.shape[-1]
    owed = h_0[..., 1:].transpose(1, 2)  # (N, m-1, H)
    if cu_seqlens is None:
        position = torch.arange(length, device=inputs.device)
        inflow = inputs + F.pad(owed, (0, 0, 0, length - owed.shape[1]))
    else:
        sequence, position = positions(cu_seqlens, length)
        arrives = F.pad(owed, (0, 0, 0, 1))[sequence, position.clamp(max=size - 1)]
        inflow = inputs + arrives
    delayed = [
        torch.where(
            (position >= delay).view(-1, 1),
            F.pad(coefficients[..., delay], (0, 0, delay, 0))[:, :length],
            torch.zeros((), dtype=inputs.dtype, device=inputs.device),
        )
        for delay in range(size)
    ]
    # Only the first lag may precede the start: there, the other coefficients are zero.
    lags = F.pad(h_0[..., :1], (0, size - 1))
    states, _ = lag_scan(torch.stack(delayed, -1), inflow, lags, cu_seqlens, backend=backend)
    sums = partial_sums(coefficients, states, h_0, cu_seqlens)
    return states.to(values.dtype), last_of_each(sums, h_0, cu_seqlens)


def lag_scan(
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Solve a higher-order linear recurrence, channel by channel.

    .. math:: h_t = \sum_{i=1}^m a_{i,t} \odot h_{t-i} + b_t, \qquad t = 1, \dots, T

    Source: Dubinin et al., Eq. 3, with :math:`b_t = a_{0,t} \odot v_t`. The default backends use a
    buffer of m lags, without companion matrices.

    Args:
        coefficients: a, shape (B, T, H, m); ``[..., i-1]`` multiplies h_{t-i}.
        inputs: b, shape (B, T, H), same floating dtype and device.
        initial_state: the m states before step 1, newest first, shape (B, H, m), or (N, H, m) if
            packed. None means zeros.
        cu_seqlens: bounds of N sequences packed into one row (B = 1), shape (N+1,), or None.
        backend: name in :data:`statemix.ops.BACKENDS`, or None for the preferred one.

    Returns:
        states: h_1 ... h_T, shape (B, T, H), dtype of ``inputs``.
        final_state: the last m states, newest first, like ``initial_state``, float32 or wider.

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`bd_lru`.

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
    scan = prepare("lag", coefficients, inputs, sizes, initial_state, cu_seqlens, backend)
    states, final_state, *_ = solver_of(scan)(*scan)
    return states.to(inputs.dtype), final_state


def h_lru_step(
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str = "softmax",
    *,
    temperature: Tensor | float | None = None,
    realization: str = "controller",
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance :func:`h_lru` by one token, with its options: arguments lack the axis of time.

    ``state`` is what :func:`h_lru` returns, shape (B, H, m).

    Returns:
        h_t: shape (B, H), dtype of ``values``.
        state: shape (B, H, m), float32 or wider.

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`h_lru`.
    """
    sizes: dict[str, int] = {}
    bind(sizes, "values", values, "B H")
    bind(sizes, "gates", gates, "B H m+1")
    bind(sizes, "state", state, "B H m")
    states, state = h_lru(
        gates.unsqueeze(1),
        values.unsqueeze(1),
        gate,
        state,
        temperature=temperature,
        realization=realization,
        backend=backend,
    )
    return states.squeeze(1), state


def lag_step(
    coefficients: Tensor, inputs: Tensor, state: Tensor, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Advance :func:`lag_scan` by one step: a and state (B, H, m), b (B, H).

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`lag_scan`.
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B H")
    bind(sizes, "coefficients", coefficients, "B H m")
    bind(sizes, "state", state, "B H m")
    states, state = lag_scan(coefficients.unsqueeze(1), inputs.unsqueeze(1), state, backend=backend)
    return states.squeeze(1), state
