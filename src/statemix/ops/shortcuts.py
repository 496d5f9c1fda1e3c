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

    The tensors of a call may still ask for operators: see :func:`are_plain`.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and not torch._C._autograd._profiler_enabled()
        and torch._C._get_tracing_state() is None
    )


def are_plain(*tensors: object) -> bool:
    """Return whether these are dense ``torch.Tensor`` whose memory holds their values.

    Subclasses, batched tensors, and those that are zero, negated or conjugated by a flag are not. A
    compiler cannot ask.
    """
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if type(tensor) is not Tensor:
            return False
        keys = _keys(tensor)
        plain = _plainness.get(keys)
        if plain is None:
            plain = _plainness[keys] = keys in _plain_keys(tensor.device.type)
        if not plain:
            return False
    return True


# Whether tensors with these dispatch keys are plain. The keys name the device, too; asking for its
# type takes as long as the look-up.
_plainness: dict[int, bool] = {}


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
