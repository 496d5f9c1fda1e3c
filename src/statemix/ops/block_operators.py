"""Public functions of the block recurrence: from raw gates, and from given transitions."""

from torch import Tensor

from statemix.ops.autograd import solver_of
from statemix.ops.checks import bind, same_dtype_and_device
from statemix.ops.dispatch import prepare
from statemix.ops.gates import check_gate, check_temperature


def bd_lru(
    gates: Tensor,
    values: Tensor,
    gate: str = "softmax",
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    temperature: Tensor | float | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Run the gated block-diagonal recurrence: raw gates and values in, states out.

    .. math::
        h_t = A_t h_{t-1} + a_{0,t} \odot v_t, \qquad (A_t, a_{0,t}) = \mathrm{gate}(g_t / \tau)

    Source: Dubinin et al., "Improved state mixing in higher-order and block diagonal linear
    recurrent networks", Eq. 5 and 6, in the column convention.

    With C channels, h_t and v_t have C columns, which follow the equation with the same gates, as
    the channels of a head do in Mamba-2 (Dao and Gu, 2024). Backend "cpu" reads the gates once for
    all channels, but in the family "householder". The other backends copy them for each channel.

    Args:
        gates: raw gates, shape (B, T, H, m, m+1): ``[..., i, :m]`` mixes the previous state into
            entry i, ``[..., i, m]`` is its input gate (``householder`` reads them differently, and
            ``column_softmax`` normalises them over i, see :func:`statemix.ops.normalize`). float32,
            float64, bfloat16 or float16.
        values: v, shape (B, T, H, m), or (B, T, H, m, C) for C channels that share the gates; same
            dtype and device.
        gate: family that normalises the raw gates, a name in :data:`statemix.ops.GATES`. All
            families but "none" bound the states, see :func:`statemix.ops.normalize`.
        initial_state: h_0, shape (B, H, m), or (N, H, m) if packed; with channels, their axis comes
            last, as in ``values``. None means zeros.
        cu_seqlens: int32 or int64, shape (N+1,): the bounds 0 = c_0 <= ... <= c_N = T of N
            sequences packed into one row (B = 1). None means one sequence per row.
        temperature: tau, a positive number or a positive 0-d floating tensor on the device of the
            gates. A tensor is read when the kernel runs, so a compiled graph follows its value; it
            is not differentiated. None means 1.
        backend: name in :data:`statemix.ops.BACKENDS`; None chooses the first automatic backend
            that supports the tensors.

    Returns:
        states: h_1 ... h_T, shape and dtype of ``values``.
        final_state: the last state of every sequence, shape of ``initial_state``, float32 or wider,
            so that chunks can be chained without loss; h_0 for an empty sequence.

    Raises:
        ValueError: if shapes, devices, names, bounds or numbers are wrong.
        TypeError: if dtypes or types are wrong.
        BackendUnavailableError: if ``backend`` cannot run here.

    Example:
        >>> import torch
        >>> gates = torch.zeros(1, 3, 1, 1, 2)  # both gates of the row are 1/2
        >>> bd_lru(gates, torch.ones(1, 3, 1, 1))[0].flatten().tolist()
        [0.5, 0.75, 0.875]
    """
    check_gate(gate, blocks=True)
    sizes: dict[str, int] = {}
    bind(sizes, "values", values, "B T H m" + _channels(values, 5))
    bind(sizes, "gates", gates, "B T H m m+1")
    same_dtype_and_device(gates=gates, values=values)
    temperature = check_temperature(temperature, gates)
    scan = prepare(
        "block", gates, values, sizes, initial_state, cu_seqlens, backend, gate, temperature
    )
    states, final_state, *_ = solver_of(scan)(*scan)
    return states.to(values.dtype), final_state


def block_scan(
    transitions: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Solve a linear recurrence whose transitions are dense blocks.

    .. math:: h_t = A_t h_{t-1} + b_t, \qquad t = 1, \dots, T

    Source: Dubinin et al., Eq. 5, with :math:`b_t = a_{0,t} \odot v_t` and given A_t.

    Args:
        transitions: A, shape (B, T, H, m, m); row i of a block produces entry i of the new state.
        inputs: b, shape (B, T, H, m), or (B, T, H, m, C) for C channels; same floating dtype and
            device.
        initial_state: h_0, shape (B, H, m) or (B, H, m, C), with N for B if packed. None means
            zeros.
        cu_seqlens: bounds of N sequences packed into one row (B = 1), shape (N+1,), or None.
        backend: name in :data:`statemix.ops.BACKENDS`, or None for the preferred one.

    Returns:
        states: h_1 ... h_T, shape and dtype of ``inputs``.
        final_state: the last state of every sequence, float32 or wider; h_0 for an empty one.

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`bd_lru`.

    Example:
        >>> import torch
        >>> A, b = torch.full((1, 3, 1, 1, 1), 0.5), torch.ones(1, 3, 1, 1)
        >>> block_scan(A, b)[0].flatten().tolist()
        [1.0, 1.5, 1.75]
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B T H m" + _channels(inputs, 5))
    bind(sizes, "transitions", transitions, "B T H m m")
    same_dtype_and_device(transitions=transitions, inputs=inputs)
    scan = prepare("block", transitions, inputs, sizes, initial_state, cu_seqlens, backend)
    states, final_state, *_ = solver_of(scan)(*scan)
    return states.to(inputs.dtype), final_state


def bd_lru_step(
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str = "softmax",
    *,
    temperature: Tensor | float | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance :func:`bd_lru` by one token, with its options: arguments lack the axis of time.

    ``state`` is h_{t-1}, shape of ``values``.

    Returns:
        h_t: shape and dtype of ``values``.
        state: h_t, same shape, float32 or wider.

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`bd_lru`.
    """
    check_gate(gate, blocks=True)
    sizes: dict[str, int] = {}
    channels = _channels(values, 4)
    bind(sizes, "values", values, "B H m" + channels)
    bind(sizes, "gates", gates, "B H m m+1")
    bind(sizes, "state", state, "B H m" + channels)
    same_dtype_and_device(gates=gates, values=values)
    scan = prepare(
        "block",
        *(gates.unsqueeze(1), values.unsqueeze(1), sizes, state, None, backend, gate),
        check_temperature(temperature, gates),
    )
    states, state, *_ = solver_of(scan)(*scan)
    return states.squeeze(1).to(values.dtype), state


def block_step(
    transitions: Tensor, inputs: Tensor, state: Tensor, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Advance :func:`block_scan` by one step: A (B, H, m, m), b and h (B, H, m) or (B, H, m, C).

    Raises:
        ValueError, TypeError, BackendUnavailableError: as in :func:`block_scan`.
    """
    sizes: dict[str, int] = {}
    channels = _channels(inputs, 4)
    bind(sizes, "inputs", inputs, "B H m" + channels)
    bind(sizes, "transitions", transitions, "B H m m")
    bind(sizes, "state", state, "B H m" + channels)
    states, state = block_scan(
        transitions.unsqueeze(1), inputs.unsqueeze(1), state, backend=backend
    )
    return states.squeeze(1), state


def _channels(values: Tensor, ndim: int) -> str:
    """Return the name of the last axis if values have the ``ndim`` axes of those with channels."""
    return " C" if isinstance(values, Tensor) and values.ndim == ndim else ""
