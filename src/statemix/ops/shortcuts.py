"""When a shortcut around PyTorch's operators is safe, because nothing could notice it."""

from functools import cache

import torch
from torch import Tensor


def allowed() -> bool:
    """Return whether no autograd and nothing of :func:`unobserved` sees operators."""
    # A compiler refuses the other question.
    return unobserved() and torch.is_inference_mode_enabled()


def unobserved() -> bool:
    """Return whether no compiler, transform, tracer, profiler, function or dispatch mode is active.

    The tensors of a call may still ask for operators: see :func:`is_plain`.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and not torch._C._autograd._profiler_enabled()
        and torch._C._get_tracing_state() is None
    )


def is_plain(tensor: object) -> bool:
    """Return whether this is a dense ``torch.Tensor`` whose memory holds its values.

    Subclasses, batched tensors, and those that are zero, negated or conjugated by a flag are not. A
    compiler cannot ask.
    """
    return (
        not torch.compiler.is_compiling()
        and type(tensor) is Tensor
        and _keys(tensor) in _plain_keys(tensor.device.type)
    )


def _keys(tensor: Tensor) -> int:
    """Return the dispatch keys, which name everything that an operator would have to handle."""
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return keys


@cache
def _plain_keys(device_type: str) -> frozenset[int]:
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            found.add(_keys(torch.empty(0, device=device_type)))
    return frozenset(found)


# Now, as a later call might come under a mode that changes what it creates.
_plain_keys("cpu")
