"""Linear maps of a decoding step, without the bookkeeping of modules."""

from torch import Tensor, nn
from torch.nn import functional

from statemix.layers.layer import has_hooks

_FORWARD = nn.Linear.forward


def is_linear(module: nn.Module | None) -> bool:
    """Return whether calling the module in inference mode only runs ``functional.linear``.

    It is not so for an adapter or a quantised map, and with hooks, another ``forward``, or
    parameters of another class.
    """
    if type(module) is not nn.Linear or nn.Linear.forward is not _FORWARD:
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias", module)
    return (
        type(weight) is nn.Parameter
        and (bias is None or type(bias) is nn.Parameter)
        and not (module._compiled_call_impl or has_hooks(module))
    )


def linear(module: nn.Module | None, x: Tensor) -> Tensor:
    """Return ``module(x)`` of a module that :func:`is_linear`, in half the time.

    Calling a module takes longer than a small matrix product.
    """
    assert module is not None
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    assert weight is not None
    return functional.linear(x, weight, bias)
