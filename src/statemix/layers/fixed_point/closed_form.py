"""The states of FPRNN without iterations: each token's fixed point is the solution of a system."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from statemix.layers.fixed_point.mixers import Reflecting
from statemix.layers.fixed_point.state_mixer import Prepared, SolvableMixer
from statemix.ops.cpu import loader
from statemix.ops.selective_scan import are_plain

# The kernels have room for as many vectors, and read weights in panels of as many columns.
_MOST_RANK, _PANEL = 8, 32


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
    if all(linear.weight is None for linear in prepared):
        coefficients = mixer.coefficients([linear.constant for linear in prepared])
        return mixer.scan(coefficients, decays, inputs, initial)
    tensors = (decays, inputs, initial, *(part for linear in prepared for part in linear))
    fused = (
        isinstance(mixer, Reflecting)
        and mixer.rank <= _MOST_RANK
        and inputs.is_cpu
        and inputs.dtype in (torch.float32, torch.float64)
        and bool(inputs.numel())
        and loader.unavailable() is None
        and are_plain(*tensors)
    )
    if fused:
        states: Tensor = _Fused.apply(mixer, *tensors)  # type: ignore[no-untyped-call]
        return states
    return _step_by_step(mixer, *tensors)


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
        decays, inputs, initial, vectors, to_vectors, strengths, to_strengths = tensors
        raw = torch.cat([vectors, strengths], -1)
        states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        given = {
            "decays": decays.contiguous(),
            "inputs": inputs.contiguous(),
            "initial_state": initial.contiguous(),
            "raw": raw,
            "states": states,
        }
        weight = torch.cat([to_vectors, to_strengths])
        _run(mixer, given | {"weight": _panels(weight.mT)})
        ctx.mixer = mixer
        ctx.save_for_backward(*tensors, raw, states)
        return states

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, raw, states = ctx.saved_tensors
        if torch.is_grad_enabled() or not are_plain(*incoming):
            with torch.enable_grad():
                # Views, so that paths from one argument to another do not count twice.
                views = [one.view_as(one) for one in tensors]
                again = _step_by_step(ctx.mixer, *views)
            needed = [one for one in views if one.requires_grad]
            create_graph = torch.is_grad_enabled()
            found = iter(torch.autograd.grad(again, needed, incoming, create_graph=create_graph))
            return None, *(next(found) if one.requires_grad else None for one in views)
        decays, inputs, initial, vectors, to_vectors, _, to_strengths = tensors
        weight = torch.cat([to_vectors, to_strengths])
        d_raw = torch.empty_like(raw)
        gradients = [torch.empty_like(states) for _ in range(2)]
        d_initial = torch.empty_like(states[:, 0])
        given = {
            "decays": decays.contiguous(),
            "inputs": inputs.contiguous(),
            "initial_state": initial.contiguous(),
            "raw": raw,
            "states": states,
            "d_states": incoming[0].contiguous(),
            "d_raw": d_raw,
            "d_decays": gradients[0],
            "d_inputs": gradients[1],
            "d_initial_state": d_initial,
        }
        _run(ctx.mixer, given | {"weight": _panels(weight)})
        before = torch.cat([initial.unsqueeze(1), states[:, :-1]], 1)
        d_weight = d_raw.flatten(0, 1).mT @ before.flatten(0, 1)
        outputs = vectors.shape[-1]
        d_vectors, d_strengths = d_raw[..., :outputs], d_raw[..., outputs:]
        d_to_vectors, d_to_strengths = d_weight[:outputs], d_weight[outputs:]
        mixed = (d_vectors, d_to_vectors, d_strengths, d_to_strengths)
        return None, *gradients, d_initial, *mixed


def _run(mixer: Reflecting, tensors: dict[str, Tensor]) -> None:
    loader.fixed_point(mixer.rank, mixer.strongest, tensors, product=mixer.is_product)


def _panels(matrix: Tensor) -> Tensor:
    """Return a matrix as panels of 32 columns, padded with zeros."""
    padded = functional.pad(matrix, (0, -matrix.shape[1] % _PANEL))
    return padded.unflatten(1, (-1, _PANEL)).movedim(1, 0).contiguous()
