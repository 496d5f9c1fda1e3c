"""Values with channels, for kernels that know none: every channel becomes blocks of its own."""

from typing import Any

from torch import Tensor

from statemix.ops.autograd import solver_of
from statemix.ops.backends import Scan
from statemix.ops.layout import BLOCK_AXIS, STATE_BLOCK_AXIS


def solve_unshared(*arguments: Any) -> tuple[Any, ...]:
    """Run a scan of C channels as a scan of C times as many blocks, which have copies of the gates.

    One channel needs no copy. Its results are bit-identical to those without channels. Several run
    in the dtype of the state: gradients of gates are sums over the copies, whose terms may cancel.

    Args:
        *arguments: fields of a :class:`~statemix.ops.backends.Scan` whose inputs are
            (B, T, H, m, C), and whose initial state is (N, H, m, C).

    Returns:
        States (B, T, H, m, C), final state (N, H, m, C), and what the kernel saves.
    """
    scan = Scan(*arguments)
    gates = scan.coefficients
    sizes = scan.inputs.shape[-1], gates.shape[BLOCK_AXIS]
    if sizes[0] > 1:
        gates, values = (one.to(scan.initial_state.dtype) for one in (gates, scan.inputs))
        scan = scan._replace(inputs=values)
    scan = scan._replace(
        coefficients=_joined(gates.unsqueeze(-1).expand(*gates.shape, sizes[0]), BLOCK_AXIS),
        inputs=_joined(scan.inputs, BLOCK_AXIS),
        initial_state=_joined(scan.initial_state, STATE_BLOCK_AXIS),
    )
    states, final_state, *saved = solver_of(scan)(*scan)
    return (
        states.unflatten(BLOCK_AXIS, sizes).movedim(BLOCK_AXIS, -1),
        final_state.unflatten(STATE_BLOCK_AXIS, sizes).movedim(STATE_BLOCK_AXIS, -1),
        *saved,
    )


def _joined(tensor: Tensor, axis: int) -> Tensor:
    """Return (..., H, ..., C) as (..., C * H, ...), with H at ``axis`` and innermost in memory."""
    return tensor.movedim(axis, -1).flatten(-2).movedim(-1, axis)
