"""One decoding step of the block recurrence: a sequence of length 1 without its time axis."""

from torch import Tensor

from statemix.ops.block.functions import block_scan
from statemix.ops.checks import bind, same_dtype_and_device
from statemix.ops.dispatch import Gating, prepare
from statemix.ops.gates import check_gate
from statemix.ops.temperature import check_temperature


def bd_lru_step(
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str = "softmax",
    *,
    temperature: Tensor | float | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance :func:`statemix.ops.bd_lru` by one token.

    Args:
        gates: raw gates of one step, shape (B, H, m, m+1).
        values: v_t, shape (B, H, m).
        state: h_{t-1}, shape (B, H, m).
        gate: as in :func:`statemix.ops.bd_lru`.
        temperature: as in :func:`statemix.ops.bd_lru`.
        backend: as in :func:`statemix.ops.bd_lru`.

    Returns:
        h_t: shape (B, H, m), dtype of ``values``.
        state: h_t, shape (B, H, m), float32 or wider.

    Raises:
        ValueError: as in :func:`statemix.ops.bd_lru`.
        TypeError: as in :func:`statemix.ops.bd_lru`.
        BackendUnavailableError: as in :func:`statemix.ops.bd_lru`.
    """
    check_gate(gate, blocks=True)
    sizes: dict[str, int] = {}
    bind(sizes, "values", values, "B H m")
    bind(sizes, "gates", gates, "B H m m+1")
    bind(sizes, "state", state, "B H m")
    same_dtype_and_device(gates=gates, values=values)
    solve, scan = prepare(
        "block",
        gates.unsqueeze(1),
        values.unsqueeze(1),
        Gating(gate, check_temperature(temperature, gates)),
        sizes,
        initial_state=state,
        cu_seqlens=None,
        backend=backend,
    )
    states, state, *_ = solve(*scan)
    return states.squeeze(1).to(values.dtype), state


def block_step(
    transitions: Tensor, inputs: Tensor, state: Tensor, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Advance :func:`statemix.ops.block_scan` by one step: A (B, H, m, m), b and h (B, H, m).

    Raises:
        ValueError: as in :func:`statemix.ops.block_scan`.
        TypeError: as in :func:`statemix.ops.block_scan`.
        BackendUnavailableError: as in :func:`statemix.ops.block_scan`.
    """
    sizes: dict[str, int] = {}
    bind(sizes, "inputs", inputs, "B H m")
    bind(sizes, "transitions", transitions, "B H m m")
    bind(sizes, "state", state, "B H m")
    states, state = block_scan(
        transitions.unsqueeze(1), inputs.unsqueeze(1), state, backend=backend
    )
    return states.squeeze(1), state
