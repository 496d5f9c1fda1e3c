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


def closed_form(
    mixer: SolvableMixer, prepared: list[Prepared], decays: Tensor, inputs: Tensor, initial: Tensor
) -> Tensor:
    r"""Return the states (B, T, N) of the fixed point, token by token.

    .. math::
        h_t = u_t - y_t, \qquad
        (I - (1 - \lambda_t) D_t) y_t = \lambda_t \odot (u_t - h_{t-1}), \qquad D = I - Q

    ``decays`` and ``inputs``, lambda and u, are (B, T, N); ``initial`` is (B, N). Mixers of the
    token alone make this a linear recurrence, parallel over the tokens. With the others it is one
    pass over time, and gradients go through time.
    """
    parts = [part for linear in prepared for part in linear if part is not None]
    if len(parts) == len(prepared):
        return mixer.scan(mixer.coefficients(parts), decays, inputs, initial)
    tensors = (decays, inputs, initial, *parts)
    fused = (
        isinstance(mixer, Reflecting)
        and inputs.is_cpu
        and inputs.dtype in (torch.float32, torch.float64)
        and bool(inputs.numel())
        and loader.unavailable() is None
        and may_use_pointers(*tensors)
    )
    if not fused:
        return _step_by_step(mixer, *tensors)
    states: Tensor = _Fused.apply(mixer, *tensors)  # type: ignore[no-untyped-call]
    return states


def _step_by_step(
    mixer: SolvableMixer, decays: Tensor, inputs: Tensor, initial: Tensor, *parts: Tensor
) -> Tensor:
    h, states = initial, []
    for t in range(inputs.shape[1]):
        raw = [parts[i][:, t] + functional.linear(h, parts[i + 1]) for i in range(0, len(parts), 2)]
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
        given = _given(*tensors)
        vectors, strengths = given["vectors"], given["strengths"]
        raw = vectors.new_empty(*strengths.shape[:2], vectors.shape[2] + strengths.shape[2])
        states = torch.empty_like(given["inputs"])
        weight = torch.cat([tensors[4], tensors[6]])
        _run(mixer, given | {"weight": _panels(weight.mT), "raw": raw, "states": states})
        ctx.mixer = mixer
        ctx.save_for_backward(*tensors, raw, states)
        return states

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, raw, states = ctx.saved_tensors
        if torch.is_grad_enabled() or not may_use_pointers(*incoming):
            again = partial(_step_by_step, ctx.mixer)
            return None, *gradients_by_autograd(again, tensors, incoming)
        given, weight = _given(*tensors), torch.cat([tensors[4], tensors[6]])
        gradients = {f"d_{name}": torch.empty_like(tensor) for name, tensor in given.items()}
        others = {"weight": _panels(weight), "raw": raw, "states": states}
        _run(ctx.mixer, given | others | gradients | {"d_states": incoming[0].contiguous()})
        d_decays, d_inputs, d_initial, d_vectors, d_strengths = gradients.values()
        before = torch.cat([tensors[2].unsqueeze(1), states[:, :-1]], 1).flatten(0, 1)
        to_vectors, to_strengths = (
            one.flatten(0, 1).mT @ before for one in (d_vectors, d_strengths)
        )
        mixed = (d_vectors, to_vectors, d_strengths, to_strengths)
        return None, d_decays, d_inputs, d_initial, *mixed


def _given(
    decays: Tensor,
    inputs: Tensor,
    initial: Tensor,
    vectors: Tensor,
    _: Tensor,
    strengths: Tensor,
    __: Tensor,
) -> dict[str, Tensor]:
    """Return the arguments of the kernels but the weights, of which these need two forms."""
    given = {"decays": decays, "inputs": inputs, "initial_state": initial}
    given |= {"vectors": vectors, "strengths": strengths}
    return {name: tensor.contiguous() for name, tensor in given.items()}


def _run(mixer: Reflecting, tensors: dict[str, Tensor]) -> None:
    loader.fixed_point(mixer.rank, mixer.strongest, tensors, product=mixer.is_product)


def _panels(matrix: Tensor) -> Tensor:
    """Return a matrix as panels of 32 columns, padded with zeros."""
    padded = functional.pad(matrix, (0, -matrix.shape[1] % _PANEL))
    return padded.view(len(matrix), -1, _PANEL).movedim(1, 0).contiguous()
