"""One sequence over many processes: every rank scans a slice of its time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from statemix.ops.portable import without_autocast

Operator = Callable[..., tuple[Tensor, Tensor]]


def sequence_parallel(
    scan: Operator,
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: "dist.ProcessGroup | None" = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    r"""Run an operator on a sequence whose time axis is split over the ranks of a group.

    The tokens of rank r follow the tokens of rank r - 1. Slices may differ in length, and may be
    empty. The states of a slice are affine in the state before it,

    .. math:: h_{r+1} = P_r h_r + q_r

    so ranks exchange one product P and one state q each, about (m + C) m numbers for each block of
    a sequence with C value channels, and every rank computes the state that its slice begins with.
    The backward pass exchanges one state more, for

    .. math:: g_r = \bar h_r + P_r^\top g_{r+1}

    where :math:`\bar h_r` is what rank r's own outputs add to the gradient of h_r. Running the
    operator on the m unit states gives P: the forward pass runs it m + 1 times more than one
    process would, and the backward pass once more. Source: Martin and Cundy (2018), "Parallelizing
    linear recurrent neural nets over sequence length".

    All ranks must call this together, and all must run its backward pass if one does: every rank's
    loss must depend on its states.

    Args:
        scan: :func:`bd_lru`, :func:`h_lru`, :func:`block_scan` or :func:`lag_scan`, or a function
            alike: linear in its second argument and ``initial_state`` together, the latter of shape
            (B, H, m), or (B, H, m, C) with value channels.
        coefficients: first argument of the operator for this rank's slice.
        inputs: the second, likewise.
        initial_state: the state before the whole sequence, as the operator takes it. That of rank 0
            counts, and gets a gradient there; None means zeros.
        group: the ranks, in the order of their slices; None means all.
        **options: of the operator, the same on all ranks.

    Returns:
        states: states of this rank's slice, as the operator returns them.
        final_state: the state after this rank's slice.

    Raises:
        ValueError: if sequences are packed, or an option wants a gradient, which would lack what
            other ranks add.

    Example:
        >>> from statemix import ops
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> gates, values = torch.randn(1, 4, 2, 3, 4), torch.randn(1, 4, 2, 3)
        >>> states, last = sequence_parallel(ops.bd_lru, gates, values, gate="signed")
        >>> states.shape, last.shape
        (torch.Size([1, 4, 2, 3]), torch.Size([1, 2, 3]))
        >>> dist.destroy_process_group()
    """
    before = state_before(scan, coefficients, inputs, initial_state, group=group, **options)
    return scan(coefficients, inputs, initial_state=before, **options)


def state_before(
    scan: Operator,
    coefficients: Tensor,
    inputs: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: "dist.ProcessGroup | None" = None,
    **options: Any,
) -> Tensor:
    """Return the state before this rank's slice, as :func:`sequence_parallel` finds it."""
    if options.get("cu_seqlens") is not None:
        raise ValueError("cu_seqlens cannot be split over ranks; split every sequence by itself")
    for name, value in options.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(f"{name} must not want a gradient across ranks")

    def run(coefficients: Tensor, inputs: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        return scan(coefficients, inputs, initial_state=before, **options)

    before: Tensor = _StateBefore.apply(run, group, coefficients, inputs, initial_state)  # type: ignore[no-untyped-call]
    return before


class _StateBefore(torch.autograd.Function):
    """The state that a rank's slice begins with."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Operator,
        group: "dist.ProcessGroup | None",
        coefficients: Tensor,
        inputs: Tensor,
        initial_state: Tensor | None,
    ) -> Tensor:
        # Zeros in its place, so that the operator checks the state that was given.
        zeros = None if initial_state is None else torch.zeros_like(initial_state)
        _, moved = run(coefficients, inputs, zeros)
        start = torch.zeros_like(moved) if initial_state is None else initial_state.to(moved.dtype)
        # What a slice makes of states: (B, H, m, m), column j of the unit state j.
        columns = []
        for place in range(moved.shape[2]):
            unit = torch.zeros_like(moved)
            unit[:, :, place] = 1
            # All channels are equal.
            after = run(coefficients, torch.zeros_like(inputs), unit)[1]
            columns.append(_columns(after)[..., 0])
        exchanged = torch.stack(columns, -1), _columns(moved), _columns(start)
        widths = [one.shape[-1] for one in exchanged]
        gathered = _gathered(torch.cat(exchanged, -1), group)
        everyone = [torch.split(one, widths, -1) for one in gathered]
        products = [product for product, _, _ in everyone]
        before = everyone[0][2].reshape(moved.shape)
        rank = dist.get_rank(group)
        for product, after, _ in everyone[:rank]:
            before = _applied(product, before) + after.reshape(moved.shape)
        ctx.run, ctx.group, ctx.rank, ctx.products = run, group, rank, products
        ctx.save_for_backward(coefficients, inputs, before)
        return before

    @staticmethod
    def backward(ctx: Any, d_before: Tensor) -> tuple[Tensor | None, ...]:
        coefficients, inputs, before = ctx.saved_tensors
        gradients = _gathered(d_before, ctx.group)
        after = [torch.zeros_like(d_before)]
        for product, gradient in zip(reversed(ctx.products), reversed(gradients), strict=True):
            after.append(gradient + _applied(product.mT, after[-1]))
        after.reverse()  # after[r]: what the state before slice r gets from all slices since.
        with torch.enable_grad():
            leaves = [coefficients.detach().requires_grad_(), inputs.detach().requires_grad_()]
            _, final = ctx.run(*leaves, before)
            found = torch.autograd.grad(final, leaves, after[ctx.rank + 1], allow_unused=True)
        d_initial = None
        if ctx.needs_input_grad[4]:
            d_initial = after[0] if ctx.rank == 0 else torch.zeros_like(after[0])
        return None, None, *found, d_initial


def _applied(product: Tensor, state: Tensor) -> Tensor:
    with without_autocast(state.device):
        after: Tensor = product @ _columns(state)
    return after.reshape(state.shape)


def _columns(state: Tensor) -> Tensor:
    """Return a state (B, H, m, C), with one channel if it has none."""
    return state if state.ndim == 4 else state.unsqueeze(-1)


def _gathered(tensor: Tensor, group: "dist.ProcessGroup | None") -> Sequence[Tensor]:
    """Return the tensors of all ranks, which have one shape."""
    mine = tensor.contiguous()
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return found
