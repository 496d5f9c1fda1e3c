"""One decoding step of the lag recurrence: a sequence of length 1 without its time axis."""

from torch import Tensor

from statemix.ops.checks import bind
from statemix.ops.lag.functions import h_lru, lag_scan


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
    """Advance :func:`statemix.ops.h_lru` by one token.

    Args:
        gates: raw gates of one step, shape (B, H, m+1).
        values: v_t, shape (B, H).
        state: shape (B, H, m), as :func:`statemix.ops.h_lru` returns it.
        gate: as in :func:`statemix.ops.h_lru`.
        temperature: as in :func:`statemix.ops.bd_lru`.
        realization: as in :func:`statemix.ops.h_lru`.
        backend: as in :func:`statemix.ops.h_lru`.

    Returns:
        h_t: shape (B, H), dtype of ``values``.
        state: shape (B, H, m), float32 or wider.

    Raises:
        ValueError: as in :func:`statemix.ops.h_lru`.
        TypeError: as in :func:`statemix.ops.h_lru`.
        BackendUnavailableError: as in :func:`statemix.ops.h_lru`.
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
    """Advance :func:`statemix.ops.lag_scan` by one step: a and state (B, H, m), b (B, H).

    Raises:
        ValueError: as in :func:`statemix.ops.lag_scan`.
        TypeError: as in :func:`statemix.ops.lag_scan`.
        BackendUnavailableError: as in :func:`statemix.ops.lag_scan`.
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B H")
    bind(sizes, "coefficients", coefficients, "B H m")
    bind(sizes, "state", state, "B H m")
    states, state = lag_scan(coefficients.unsqueeze(1), inputs.unsqueeze(1), state, backend=backend)
    return states.squeeze(1), state
