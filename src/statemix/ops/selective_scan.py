"""The scan of Mamba: a state of several columns for each channel, which inputs select."""

from typing import Any

import torch
from torch import Tensor

from statemix.ops.block_operators import block_scan
from statemix.ops.cpu import loader

# Pieces of the channels, so that a single sequence keeps several threads busy. The number of
# threads does not decide how many, because sums over channels depend on the pieces.
_PIECES, _CHANNELS_OF_PIECE = 8, 64


def selective_scan(
    steps: Tensor, rates: Tensor, inputs: Tensor, b: Tensor, c: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return what is read from a state that decays and is written to.

    .. math:: H_t = e^{-A \odot \mathbf{1} \Delta_t^\top} \odot H_{t-1} + b_t x_t^\top, \qquad
        o_t = H_t^\top c_t

    Source: Gu and Dao (2023), "Mamba". On the CPU, kernels compute it and its gradients without
    storing the states.

    Args:
        steps: Delta >= 0, shape (B, T, N), float32 or float64.
        rates: A >= 0, shape (S, N), same dtype.
        inputs: x, shape (B, T, N), same dtype.
        b: shape (B, T, S), same dtype.
        c: shape (B, T, S), same dtype.
        initial_state: H_0, shape (B, S, N), same dtype.

    Returns:
        outputs: o, shape (B, T, N).
        final_state: the last state, shape (B, S, N).
    """
    tensors = (steps, rates, inputs, b, c, initial_state)
    if _has_kernel(*tensors):
        outputs, final_state = _Fused.apply(*tensors)  # type: ignore[no-untyped-call]
        return outputs, final_state
    return _composed(*tensors)


def _composed(
    steps: Tensor, rates: Tensor, inputs: Tensor, b: Tensor, c: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    """Do the same by the scan of blocks, which stores the states."""
    decays = (-steps.unsqueeze(-2) * rates).exp()
    written = b.unsqueeze(-1) * inputs.unsqueeze(-2)
    states, final = block_scan(
        decays.flatten(-2)[..., None, None],
        written.flatten(-2).unsqueeze(-1),
        initial_state.flatten(-2).unsqueeze(-1),
    )
    outputs = (c.unsqueeze(-2) @ states.view_as(decays)).squeeze(-2)
    return outputs, final.view_as(initial_state)


def _has_kernel(*tensors: Tensor) -> bool:
    """Return whether the kernels can run, and no compiler or transform needs to see the scan."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and all(tensor.numel() for tensor in tensors)
        and tensors[0].device.type == "cpu"
        and tensors[0].dtype in (torch.float32, torch.float64)
        and loader.unavailable() is None
    )


_NAMES = ("steps", "rates", "inputs", "b", "c", "initial_state")


class _Fused(torch.autograd.Function):
    """The scan by the kernels."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = _named(tensors)
        outputs = torch.empty_like(given["inputs"])
        final_state = torch.empty_like(given["initial_state"])
        found = {"outputs": outputs, "final_state": final_state}
        loader.selective_scan(_pieces(outputs), given | found)
        ctx.save_for_backward(*tensors)
        return outputs, final_state

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Under create_graph=True, the other form refuses a second derivative.
            return _differentiable_gradients(tensors, incoming)
        given = _named(tensors)
        parts, b, initial_state = _pieces(incoming[0]), given["b"], given["initial_state"]
        gradients = {f"d_{name}": torch.empty_like(tensor) for name, tensor in given.items()}
        gradients |= {
            "d_rates": torch.empty_like(initial_state),
            "d_b": b.new_empty(parts, *b.shape),
            "d_c": b.new_empty(parts, *b.shape),
        }
        d_outputs, d_final_state = (one.contiguous() for one in incoming)
        others = {"d_outputs": d_outputs, "d_final_state": d_final_state}
        loader.selective_scan(parts, given | others | gradients)
        for name in ("d_rates", "d_b", "d_c"):
            gradients[name] = gradients[name].sum(0)
        return tuple(gradients.values())


def _named(tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(_NAMES, (one.contiguous() for one in tensors), strict=True))


def _differentiable_gradients(
    tensors: tuple[Tensor, ...], incoming: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    needed = [one for one in tensors if one.requires_grad]
    found = iter(torch.autograd.grad(_composed(*tensors), needed, incoming, create_graph=True))
    return tuple(next(found) if one.requires_grad else None for one in tensors)


def _pieces(outputs: Tensor) -> int:
    batch, _, channels = outputs.shape
    return max(min(_PIECES // batch, channels // _CHANNELS_OF_PIECE), 1)
