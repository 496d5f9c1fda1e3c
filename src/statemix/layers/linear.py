"""Linear maps of a decoding step, without the bookkeeping of modules."""

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as hooks


def is_linear(module: nn.Module | None) -> bool:
    """Return whether calling the module is nothing but ``torch.nn.functional.linear``.

    It is not if the module is an adapter or a quantised map, or has hooks or another ``forward``.
    """
    return type(module) is nn.Linear and not (
        "forward" in module.__dict__
        or type(module._parameters.get("weight")) is not nn.Parameter
        or "bias" not in module._parameters
        or module._compiled_call_impl
        or module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or hooks._global_forward_pre_hooks
        or hooks._global_forward_hooks
        or hooks._global_backward_pre_hooks
        or hooks._global_backward_hooks
    )


def linear(module: nn.Module | None, x: Tensor) -> Tensor:
    """Return ``module(x)`` of a module that :func:`is_linear`, in half the time.

    Calling a module takes longer than a small matrix product.
    """
    assert module is not None
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    assert weight is not None
    return functional.linear(x, weight, bias)
