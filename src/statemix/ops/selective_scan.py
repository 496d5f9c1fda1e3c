"""The scan of Mamba: a state of several columns for each channel, which inputs select."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from statemix.ops.autograd import gradients_by_autograd
from statemix.ops.block_operators import block_scan
from statemix.ops.checks import bind, same_dtype_and_device
from statemix.ops.cpu import loader
from statemix.ops.decoding import intercepted
from statemix.ops.triton import TRITON, later
from statemix.ops.triton.selfcheck import CheckVerdict, compare

# Pieces of the channels, so that a single sequence keeps several threads busy. The number of
# threads does not decide how many, because sums over channels depend on the pieces.
_PIECES, _CHANNELS_OF_PIECE = 8, 64
# On a GPU, a program holds all columns of its channels.
_MOST_COLUMNS = 128


def selective_scan(
    steps: Tensor, rates: Tensor, inputs: Tensor, b: Tensor, c: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the readouts and the final state of Mamba's scan (Gu and Dao, 2023).

    .. math:: H_t = e^{-A \odot \mathbf{1} \Delta_t^\top} \odot H_{t-1} + b_t x_t^\top, \qquad
        o_t = H_t^\top c_t

    ``steps`` are the step sizes Delta (B, T, N) and ``rates`` A (S, N), both at least 0. ``inputs``
    x have shape (B, T, N), b and c (B, T, S), and ``initial_state`` H_0 (B, S, N), all float32 or
    float64. Kernels compute the scan and its gradients without storing every state.
    """
    sizes: dict[str, int] = {}
    tensors = (steps, rates, inputs, b, c, initial_state)
    for name, tensor, axes in zip(_NAMES, tensors, _AXES, strict=True):
        bind(sizes, name, tensor, axes)
    same_dtype_and_device(**dict(zip(_NAMES, tensors, strict=True)))
    kernels = _kernels(*tensors)
    if kernels is None:
        return _composed(*tensors)
    outputs, final_state = _Fused.apply(kernels, *tensors)  # type: ignore[no-untyped-call]
    return outputs, final_state


_NAMES = ("steps", "rates", "inputs", "b", "c", "initial_state")
_AXES = ("B T N", "S N", "B T N", "B T S", "B T S", "B S N")


def _composed(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same by the scan of blocks, which stores the states."""
    steps, rates, inputs, b, c, initial_state = tensors
    decays = (-steps.unsqueeze(-2) * rates).exp()
    written = b.unsqueeze(-1) * inputs.unsqueeze(-2)
    states, final = block_scan(
        decays.flatten(-2)[..., None, None],
        written.flatten(-2).unsqueeze(-1),
        initial_state.flatten(-2).unsqueeze(-1),
    )
    outputs = (c.unsqueeze(-2) @ states.view_as(decays)).squeeze(-2)
    return outputs, final.view_as(initial_state)


class _Kernels(NamedTuple):
    """The kernels of a device."""

    # From the arguments by name to the outputs, the final state, and what the backward needs.
    forward: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor, tuple[Tensor, ...]]]
    # From the arguments, what the forward kept, and the gradients of both results.
    backward: Callable[..., tuple[Tensor, ...]]


def _kernels(*tensors: Tensor) -> _Kernels | None:
    """Return the kernels that can run on these tensors, if any."""
    one = tensors[0]
    if (
        not may_use_pointers(*tensors)
        or not all(tensor.numel() for tensor in tensors)
        or one.dtype not in (torch.float32, torch.float64)
    ):
        return None
    if one.is_cpu and loader.unavailable() is None:
        return _CPU
    if one.device.type not in (TRITON.devices or ()) or tensors[3].shape[-1] > _MOST_COLUMNS:
        return None
    wrong = TRITON.unavailable() or (TRITON.automatic and _fault(_TRITON, str(one.device)))
    return None if wrong else _TRITON


@cache
def _fault(kernels: _Kernels, device: str) -> str:
    """Return what is wrong with kernels on a device, or an empty string; warn of it."""
    verdict = _check(kernels, device)
    if verdict.outcome == "agrees":
        return ""
    warnings.warn(
        f"the kernels of the selective scan have failed their check on {device} "
        f"({verdict.detail}); slower operations of PyTorch run instead. Please report this with "
        "the output of `statemix doctor --check`",
        stacklevel=2,
    )
    return verdict.detail


def check_selective_scan(device: str, backend: str) -> CheckVerdict:
    """Compare the kernels of "cpu" or "triton" on a device with the composed scan in float64."""
    return _check({"cpu": _CPU, "triton": _TRITON}[backend], device)


def _check(kernels: _Kernels, device: str) -> CheckVerdict:
    generator = torch.Generator().manual_seed(0)
    sizes = {"B": 2, "T": 40, "N": 5, "S": 3}
    shapes = [[sizes[axis] for axis in axes.split()] for axes in _AXES]
    exact = [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    names = ("outputs", "final_state", *(f"d_{name}" for name in _NAMES))

    def found() -> dict[str, Tensor]:
        given = _named(tuple(one.to(device, torch.float32) for one in exact))
        outputs, final_state, kept = kernels.forward(given)
        ones = (torch.ones_like(outputs), torch.ones_like(final_state))
        gradients = kernels.backward(given, kept, *ones)
        return dict(zip(names, (outputs, final_state, *gradients), strict=True))

    @torch.enable_grad()
    def expected() -> dict[str, Tensor]:
        leaves = [one.requires_grad_() for one in exact]
        results = _composed(*leaves)
        gradients = torch.autograd.grad([one.sum() for one in results], leaves)
        return dict(zip(names, (*(one.detach() for one in results), *gradients), strict=True))

    return compare("selective scan", found, expected, tolerance=1e-4)


def may_use_pointers(*tensors: Tensor) -> bool:
    """Return whether tensors have data, and no compiler, transform or dispatch mode watches."""
    # Batched gradients (is_grads_batched) have no storage, and their transform does not show.
    return not (intercepted() or forward_ad._current_level >= 0) and all(
        type(one) in (Tensor, nn.Parameter) and torch._C._has_storage(one) for one in tensors
    )


class _Fused(torch.autograd.Function):
    """The scan by kernels."""

    @staticmethod
    def forward(ctx: Any, kernels: _Kernels, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        outputs, final_state, kept = kernels.forward(_named(tensors))
        ctx.kernels, ctx.count = kernels, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        return outputs, final_state

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        # Unpack once, as checkpoints demand.
        saved = ctx.saved_tensors
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled() or not may_use_pointers(*incoming):
            # Under create_graph=True, _composed refuses a second derivative.
            return None, *gradients_by_autograd(_composed, tensors, incoming)
        given, gradients = _named(tensors), map(_in_order, incoming)
        return None, *ctx.kernels.backward(given, kept, *gradients)


def _cpu_forward(given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    outputs, final_state = (torch.empty_like(given[name]) for name in ("inputs", "initial_state"))
    results = {"outputs": outputs, "final_state": final_state}
    loader.selective_scan(_pieces(outputs), {**given, **results})
    return outputs, final_state, ()


def _cpu_backward(
    given: Mapping[str, Tensor], _: tuple[()], d_outputs: Tensor, d_final_state: Tensor
) -> tuple[Tensor, ...]:
    parts, b, initial_state = _pieces(d_outputs), given["b"], given["initial_state"]
    gradients = {f"d_{name}": torch.empty_like(tensor) for name, tensor in given.items()}
    gradients |= {
        "d_rates": torch.empty_like(initial_state),
        "d_b": b.new_empty(parts, *b.shape),
        "d_c": b.new_empty(parts, *b.shape),
    }
    others = {"d_outputs": d_outputs, "d_final_state": d_final_state}
    loader.selective_scan(parts, {**given, **others, **gradients})
    for name in ("d_rates", "d_b", "d_c"):
        gradients[name] = gradients[name].sum(0)
    return tuple(gradients.values())


_CPU = _Kernels(_cpu_forward, _cpu_backward)


_TRITON = _Kernels(*(later("launch", f"selective_{way}") for way in ("forward", "backward")))


def _named(tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(_NAMES, map(_in_order, tensors), strict=True))


def _in_order(tensor: Tensor) -> Tensor:
    return tensor.resolve_neg().contiguous()


def _pieces(outputs: Tensor) -> int:
    batch, _, channels = outputs.shape
    return max(min(_PIECES // batch, channels // _CHANNELS_OF_PIECE), 1)
