"""Check that a layer keeps the contract of :class:`~statemix.layers.Layer`."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from statemix.errors import RequestError
from statemix.layers.layer import Layer
from statemix.layers.state import State, evaluated, tensors
from statemix.ops.decoding import has_hooks, intercepted
from statemix.ops.packing import pack

_OWN = "statemix."
_CHECKED: "WeakSet[nn.Module]" = WeakSet()


def check_layer(layer: Layer, *, tolerance: float | None = None) -> None:
    """Check that a layer gives the same outputs by every kind of call.

    The calls are whole sequences, a batch, steps, pieces of time and packed sequences, each from a
    given state and from None. Each must give what the layer gives for every sequence alone, and
    leave a state from which the sequence continues alike. No call may change its arguments, and
    writing into a state may change no other tensor. The layer runs on a few short random sequences,
    in evaluation mode and without gradients.

    Args:
        layer: the layer, with its device and dtype.
        tolerance: largest difference, relative to the largest output; None means the square root of
            the resolution of the dtype, 3e-4 in float32. A layer that iterates may need more.

    Raises:
        TypeError: if ``layer`` is no :class:`Layer`.
        RequestError: a ValueError that names the first call that differs.

    Example:
        >>> from statemix.layers import BDLRU
        >>> check_layer(BDLRU(hidden_size=8, num_blocks=4, block_size=2))
    """
    if not isinstance(layer, Layer):
        raise TypeError(f"layer must be a Layer, got {type(layer).__name__}")
    weight = next((one for one in layer.parameters() if one.is_floating_point()), torch.empty(0))
    x = _random(3, 9, layer.hidden_size, like=weight)
    if tolerance is None:
        tolerance = torch.finfo(x.dtype).eps ** 0.5
    refuse_mixing(layer, x)

    def compare(call: str, y: Tensor, expected: Tensor) -> None:
        if y.shape != expected.shape:
            shapes = f"{tuple(expected.shape)}, got {tuple(y.shape)}"
            raise _refusal(layer, f"outputs of {call} must have shape {shapes}")
        difference = _difference(y, expected)
        if not difference <= tolerance:
            reason = f"{call} and each whole sequence alone differ by {difference:.2g}"
            raise _refusal(layer, reason)

    def run(
        call: str, function: Callable[..., Any], x: Tensor, state: State = None, *bounds: Tensor
    ) -> tuple[Tensor, State]:
        given = {"x": x, **dict(tensors(() if state is None else state, "the given state"))}
        before = {name: part.clone() for name, part in given.items()}
        y, state = function(x, state, *bounds)
        if changed := _changed(given, before):
            raise _refusal(layer, f"{call} must not change {changed} in place")
        _check_finite(layer, call, y)
        _check_owned(layer, f"after {call}", state, {**given, "the outputs": y})
        return y, state

    with evaluated(layer), torch.no_grad():
        start = layer.init_state(3)
        others = tensors(layer.init_state(3), "state from another init_state")
        kept = (*layer.named_parameters(), *layer.named_buffers(), *others)
        _check_owned(layer, "from init_state", start, dict(kept))
        alone = "each whole sequence alone"
        whole = torch.cat([run(alone, layer, x[n : n + 1])[0] for n in range(3)])
        if (whole.shape, whole.dtype) != (x.shape, x.dtype):
            got = f"got {tuple(whole.shape)} and {whole.dtype}"
            raise _refusal(layer, f"outputs must have the shape and dtype of the input, {got}")
        for call, state in (("a batch", None), ("a batch from init_state", start)):
            compare(call, run(call, layer, x, state)[0], whole)
        for state in (None, start):
            outputs = []
            for x_t in x.unbind(1):
                y_t, state = run("steps", layer.step, x_t, state)
                outputs.append(y_t)
            compare("steps", torch.stack(outputs, 1), whole)
        first, state = run("pieces", layer, x[:, :4])
        second, state = run("pieces", layer, x[:, 4:8], state)
        third, _ = run("pieces", layer.step, x[:, 8], state)
        compare("pieces", torch.cat([first, second, third.unsqueeze(1)], 1), whole)
        state = None
        begun = torch.zeros(3, dtype=torch.int64)
        # One sequence is empty before it has begun, and another one afterwards.
        for lengths in ([4, 0, 2], [0, 3, 2]):
            ends = begun + torch.tensor(lengths)
            places = torch.arange(9)
            spans = (begun.unsqueeze(1) <= places) & (places < ends.unsqueeze(1))
            packed, bounds = pack(x, spans.to(x.device))
            call = "packed sequences" if state is None else "packed sequences from a state"
            y, state = run(call, layer, packed, state, bounds)
            _check_rows(layer, state, 3)
            compare(call, y[0], whole[spans])
            following, after = (torch.arange(3), ends), f"the state after {call}"
            compare(after, run(after, layer.step, x[following], state)[0], whole[following])
            begun = ends


def check_once(layer: nn.Module, x: Tensor) -> None:
    """Refuse a layer of somebody else that mixes packed sequences, when it is first used with x."""
    # Hooks may communicate with other processes; compilers and transforms would see the check.
    if intercepted() or layer in _CHECKED or has_hooks(layer) or type(x) is not Tensor or x.is_meta:
        return
    parts = (part for part in layer.modules() if isinstance(part, Layer))
    if not all(type(part).__module__.startswith(_OWN) for part in parts):
        refuse_mixing(layer, x)
    _CHECKED.add(layer)


def refuse_mixing(layer: nn.Module, like: Tensor) -> None:
    """Check that no packed sequence changes another one, on inputs like the given one."""
    x = _random(1, 9, like.shape[-1], like=like)
    other = x.clone()
    other[:, 3:6] += 3
    bounds = torch.tensor([0, 3, 6, 9], device=x.device)
    with evaluated(layer), torch.no_grad():
        y, state = layer(x, None, bounds)
        changed, _ = layer(other, None, bounds)
    _check_finite(layer, "packed sequences", torch.cat([y, changed]))
    kept = torch.tensor([0, 1, 2, 6, 7, 8], device=x.device)
    difference = _difference(changed[:, kept], y[:, kept])
    if not difference <= 8 * torch.finfo(y.dtype).eps:
        mixed = (
            f"a change of one packed sequence changes the outputs of another by {difference:.2g}"
        )
        advice = "each sequence of cu_seqlens must start from a state of its own"
        raise _refusal(layer, f"{mixed}; {advice}")
    _check_rows(layer, state, 3)


def _check_finite(layer: nn.Module, call: str, y: Tensor) -> None:
    wrong = y[~y.isfinite()]
    if len(wrong):
        raise _refusal(layer, f"outputs of {call} must be finite, got {wrong[0].item()}")


def _check_owned(layer: nn.Module, source: str, state: State, others: Mapping[str, Tensor]) -> None:
    """Check that writing into a state changes no other tensor; some memory is copied on write."""
    parts = dict(tensors(state))
    for name, part in parts.items():
        condition = f"{name} {source} must own its memory, but"
        if any(size > 1 and not step for size, step in zip(part.shape, part.stride(), strict=True)):
            raise _refusal(layer, f"{condition} several entries share it")
        rest = {**others, **{key: other for key, other in parts.items() if key != name}}
        before = {key: other.clone() for key, other in rest.items()}
        kept = part.clone()
        part.copy_(part == 0)
        changed = _changed(rest, before)
        part.copy_(kept)
        if changed:
            raise _refusal(layer, f"{condition} shares it with {changed}")


def _changed(now: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that differs."""
    return next((name for name in now if not torch.equal(now[name], before[name])), None)


def _check_rows(layer: nn.Module, state: object, num_sequences: int) -> None:
    for name, part in tensors(state):
        if part.shape[:1] != (num_sequences,):
            row_for_each = f"{num_sequences} packed sequences must have a row for each"
            raise _refusal(layer, f"{name} after {row_for_each}, got shape {tuple(part.shape)}")


def _refusal(layer: nn.Module, reason: str) -> RequestError:
    name = getattr(layer, "name", type(layer).__name__)
    return RequestError(f"layer {name!r} breaks the contract of layers: {reason}")


def _difference(found: Tensor, expected: Tensor) -> float:
    scale = expected.abs().amax().clamp(min=torch.finfo(expected.dtype).tiny)
    return float((found - expected).abs().amax() / scale)


def _random(*shape: int, like: Tensor) -> Tensor:
    # A generator of its own leaves the random numbers of training as they are.
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(like.device, like.dtype)
