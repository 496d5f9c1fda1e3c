"""The states of FPRNN without iterations: each token's fixed point is the solution of a system."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from statemix.layers.fixed_point.mixers import Reflecting
from statemix.layers.fixed_point.state_mixer import Prepared, SolvableMixer
from statemix.ops.autograd import gradients_by_autograd
from statemix.ops.cpu import loader
from statemix.ops.selective_scan import may_use_pointers

# The kernels read weights in panels of as many columns.
_PANEL = 32
# The arguments of the kernels before the weights.
_GIVEN = ("decays", "inputs", "initial_state", "vectors", "strengths")


def closed_form(
    mixer: SolvableMixer, prepared: list[Prepared], decays: Tensor, inputs: Tensor, initial: Tensor
) -> Tensor:
    r"""Return the states (B, T, N) of the fixed point, token by token.

    .. math::
        h_t = u_t - y_t, \qquad
        (I - (1 - \lambda_t) D_t) y_t = \lambda_t \odot (u_t - h_{t-1}), \qquad D = I - Q

    ``decays`` and ``inputs``, lambda and u, are (B, T, N); ``initial`` is (B, N). Mixers of the
    token alone make this a linear recurrence. PyTorch runs it in parallel over the tokens. The
    others, and the kernel for CPUs, take one pass over time; gradients go through time.
    """
    constants = [linear.constant for linear in prepared]
    weights = [linear.weight for linear in prepared if linear.weight is not None]
    tensors = (decays, inputs, initial, *constants, *weights)
    fused = (
        isinstance(mixer, Reflecting)
        and may_use_pointers(*tensors)
        and inputs.is_cpu
        and inputs.dtype in (torch.float32, torch.float64)
        and bool(inputs.numel())
        and loader.unavailable() is None
    )
    if not fused:
        return _portable(mixer, *tensors)
    states: Tensor = _Fused.apply(mixer, *tensors)  # type: ignore[no-untyped-call]
    return states


def _portable(
    mixer: SolvableMixer, decays: Tensor, inputs: Tensor, initial: Tensor, *parts: Tensor
) -> Tensor:
    count = len(mixer.linears)
    constants, weights = parts[:count], parts[count:]
    if not weights:
        return mixer.scan(mixer.coefficients([*constants]), decays, inputs, initial)
    h, states = initial, []
    for t in range(inputs.shape[1]):
        raw = [
            constant[:, t] + functional.linear(h, weight)
            for constant, weight in zip(constants, weights, strict=True)
        ]
        left = decays[:, t] * (inputs[:, t] - h)
        h = inputs[:, t] - mixer.resolvent(mixer.coefficients(raw), 1 - decays[:, t], left)
        states.append(h)
    return torch.stack(states, 1)


class _Fused(torch.autograd.Function):
    """The pass over time by a CPU kernel, for mixers of reflections.

    Second derivatives are those of the pass in PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, mixer: Reflecting, *tensors: Tensor) -> Tensor:
        given, weights = _given(*tensors), tensors[len(_GIVEN) :]
        vectors, strengths = given["vectors"], given["strengths"]
        raw = vectors.new_empty(*strengths.shape[:2], vectors.shape[2] + strengths.shape[2])
        states = torch.empty_like(given["inputs"])
        others = {"raw": raw, "states": states}
        if weights:
            others["weight"] = _panels(torch.cat(weights).mT)
        _run(mixer, given | others)
        ctx.mixer = mixer
        ctx.save_for_backward(*tensors, raw, states)
        return states

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, raw, states = ctx.saved_tensors
        if torch.is_grad_enabled() or not may_use_pointers(*incoming):
            again = partial(_portable, ctx.mixer)
            return None, *gradients_by_autograd(again, tensors, incoming)
        given, weights = _given(*tensors), tensors[len(_GIVEN) :]
        gradients = {f"d_{name}": torch.empty_like(tensor) for name, tensor in given.items()}
        others = {"raw": raw, "states": states, "d_states": incoming[0].contiguous()}
        if weights:
            others["weight"] = _panels(torch.cat(weights))
        _run(ctx.mixer, given | others | gradients)
        before = torch.cat([tensors[2].unsqueeze(1), states[:, :-1]], 1).flatten(0, 1)
        seen = (gradients["d_vectors"], gradients["d_strengths"])
        d_weights = [one.flatten(0, 1).mT @ before for one in seen[: len(weights)]]
        return None, *gradients.values(), *d_weights


def _given(*tensors: Tensor) -> dict[str, Tensor]:
    """Return the arguments of the kernels but the weights, of which these need two forms."""
    return {name: tensor.contiguous() for name, tensor in zip(_GIVEN, tensors, strict=False)}


def _run(mixer: Reflecting, tensors: dict[str, Tensor]) -> None:
    loader.fixed_point(mixer.rank, mixer.strongest, tensors, product=mixer.is_product)


def _panels(matrix: Tensor) -> Tensor:
    """Return a matrix as panels of 32 columns, padded with zeros."""
    padded = functional.pad(matrix, (0, -matrix.shape[1] % _PANEL))
    return padded.view(len(matrix), -1, _PANEL).movedim(1, 0).contiguous()
