"""The published parallel scan with its printed errors repaired: the baseline of every comparison.

Forward and backward follow Appendix I of Dubinin et al., "Improved state mixing in higher-order
and block diagonal linear recurrent networks": an associative scan over pairs (x, c) of states and
transition products, and a closed-form adjoint that is the same scan run backwards in time. The
printed gradient of the transitions contracts the wrong axis; here it is the outer product
dA_t = dh_t h_{t-1}^T. An initial and a final state are added. A scan step multiplies whole
transition matrices, so it costs m^3 and moves far more bytes than the recurrence needs.
"""

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional as F


def block_scan(transitions: Tensor, inputs: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve a linear recurrence over dense blocks by a parallel scan.

    .. math:: h_t = A_t h_{t-1} + b_t, \qquad t = 1, \dots, T

    Source: Eq. 5 and Appendix I (``hopscan``).

    Args:
        transitions: A, shape (B, T, H, m, m), float32 or wider.
        inputs: b, shape (B, T, H, m), same dtype.
        initial_state: h_0, shape (B, H, m), same dtype.

    Returns:
        states: h_1 ... h_T, shape (B, T, H, m).
        final_state: h_T, shape (B, H, m); h_0 when T is 0.
    """
    if inputs.numel() == 0:
        # The scan has no empty case. The sum keeps the result in the graph of both arguments.
        return inputs + transitions.sum(-1), initial_state.clone()
    states, final_state = _BlockScan.apply(transitions, inputs, initial_state)  # type: ignore[no-untyped-call]
    return states, final_state


def lag_scan(coefficients: Tensor, inputs: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    r"""Solve a recurrence of order m as the paper does: as a block scan of companion matrices.

    .. math:: h_t = \sum_{i=1}^m a_{i,t} h_{t-i} + b_t

    Source: Eq. 3, with the first row of each companion matrix holding the coefficients (the printed
    snippet puts them into the first column, which is a different recurrence when they vary).
    Memory and work grow as m^2 and m^3 where the recurrence itself needs m.

    Args:
        coefficients: a, shape (B, T, H, m), float32 or wider; entry i - 1 multiplies h_{t-i}.
        inputs: b, shape (B, T, H), same dtype.
        initial_state: h_0, h_{-1}, ... h_{1-m}, shape (B, H, m), same dtype.

    Returns:
        states: h_1 ... h_T, shape (B, T, H).
        final_state: the last m states, newest first, shape (B, H, m).
    """
    order = coefficients.shape[-1]
    shift_rows = torch.ones(order - 1, dtype=inputs.dtype, device=inputs.device).diag(-1)
    transitions = shift_rows + F.pad(coefficients.unsqueeze(-2), (0, 0, 0, order - 1))
    windows, final_state = block_scan(
        transitions, F.pad(inputs.unsqueeze(-1), (0, order - 1)), initial_state
    )
    return windows[..., 0], final_state


class _BlockScan(torch.autograd.Function):
    """``block_scan`` for T >= 1 with its closed-form adjoint."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        transitions: Tensor, inputs: Tensor, initial_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        with _full_precision(inputs):
            # h_0 enters through the first input, so that every prefix starts from zero.
            first = torch.einsum("bhij,bhj->bhi", transitions[:, 0], initial_state) + inputs[:, 0]
            states = _scan(transitions, torch.cat([first.unsqueeze(1), inputs[:, 1:]], dim=1))
        return states, states[:, -1].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        transitions, _, initial_state = inputs
        ctx.save_for_backward(transitions, initial_state, output[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        transitions, initial_state, states = ctx.saved_tensors
        d_states, d_final = grad_outputs
        with _full_precision(states):
            # h_T is returned twice, so its gradient has two parts.
            last = d_states[:, -1:] + d_final.unsqueeze(1)
            d_states = torch.cat([d_states[:, :-1], last], dim=1)
            # The adjoint is dh_t = dy_t + A_{t+1}^T dh_{t+1}: the forward scan in reversed time,
            # with every transition moved one step towards the past.
            following = torch.cat([transitions[:, 1:], torch.zeros_like(transitions[:, :1])], dim=1)
            d_inputs = _scan(following.transpose(-1, -2), d_states, reverse=True)
            previous = torch.cat([initial_state.unsqueeze(1), states[:, :-1]], dim=1)
            d_transitions = torch.einsum("bthi,bthj->bthij", d_inputs, previous)
            d_initial = torch.einsum("bhij,bhi->bhj", transitions[:, 0], d_inputs[:, 0])
        return d_transitions, d_inputs, d_initial


def _full_precision(tensor: Tensor) -> torch.autocast:
    """No automatic casts: under autocast, products of float32 blocks would be bfloat16."""
    return torch.autocast(tensor.device.type, enabled=False)


def _scan(coefficients: Tensor, inputs: Tensor, *, reverse: bool = False) -> Tensor:
    """The states of x_t = c_t x_{t-1} + u_t from x_0 = 0 (from the end of time if ``reverse``)."""

    def compose(acc: dict[str, Tensor], curr: dict[str, Tensor]) -> dict[str, Tensor]:
        # The newer segment is the left factor: blocks do not commute.
        c = torch.einsum("bhij,bhjk->bhik", curr["c"], acc["c"])
        x = curr["x"] + torch.einsum("bhij,bhj->bhi", curr["c"], acc["x"])
        return {"x": x, "c": c}

    pairs: Any = associative_scan(
        compose, {"x": inputs, "c": coefficients}, dim=1, reverse=reverse, combine_mode="generic"
    )
    states: Tensor = pairs["x"]
    return states
