"""Decoding without derivatives: direct calls of projections and step kernels.

PyTorch's bookkeeping of an operator costs several times as much as a step's arithmetic. A direct
call is safe where no compiler, transform, tracer, profiler or hook could notice it.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from statemix.ops.backends import BACKENDS, Scan, Step, resolve
from statemix.ops.layout import at_least_float32

# Prepared steps by everything that they depend on; None: the operator must run instead.
_steps: dict[tuple[object, ...], Step | None] = {}


def projected_step(
    operator: str,
    num_rows: int | None,
    gates: Tensor,
    values: Tensor,
    state: Tensor,
    gate: str,
    temperature: Tensor | None,
    backend: str | None,
) -> tuple[Tensor, Tensor] | None:
    """Run one step on checked projections, or return None if the operator must run instead.

    Gates (B, rows * (m+1) * H) and values have units innermost; ``num_rows`` None means lags. The
    caller makes sure that nothing observes operators (:func:`allowed`).
    """
    key = (
        *(operator, num_rows, gate, backend, BACKENDS.revision, torch.get_num_threads()),
        *(gates.shape, gates.stride(), gates.dtype, gates.device),
        *(values.shape, values.stride(), values.dtype, values.device),
        *(state.shape, state.stride(), state.dtype, state.device),
    )
    try:
        step = _steps[key]
    except KeyError:
        if len(_steps) >= 256:
            _steps.clear()
        record = resolve(backend, operator, values.device, values.dtype)
        kernel = record.kernels[operator]
        B, H, m, *channels = state.shape
        step = None
        if (
            kernel.prepare_step is not None
            and (not channels or gate in kernel.channels)
            and gate in record.families
            and values.dtype in record.dtypes
            and gates.dtype == values.dtype
            and state.dtype == at_least_float32(values.dtype)
            and gates.is_contiguous()
            and values.is_contiguous()
        ):
            rows = () if num_rows is None else (num_rows,)
            a = gates.view(B, 1, *rows, m + 1, H).movedim(-1, 2)
            b = values.view(B, 1, *rows, *channels, H).movedim(-1, 2)
            scan = Scan(a, b, state, None, None, operator, record.name, gate, keep=False)
            step = kernel.prepare_step(scan)
        _steps[key] = step
    return None if step is None else step(gates, values, state, temperature)


def allowed() -> bool:
    """Return whether operators may be bypassed: in inference mode, and if nothing observes them."""
    # Ask this last: `is_inference_mode_enabled` breaks a compiled graph.
    return unobserved() and torch.is_inference_mode_enabled()


def intercepted() -> bool:
    """Return whether a compiler, transform or dispatch mode handles operators."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def unobserved() -> bool:
    """Return whether no compiler, transform, tracer, profiler or mode is active."""
    return (
        not intercepted()
        and torch._C._len_torch_function_stack() == 0
        and not torch._C._autograd._profiler_enabled()
        and torch._C._get_tracing_state() is None
    )


def are_plain(*tensors: object) -> bool:
    """Return whether these are dense ``torch.Tensor`` whose memory holds their values."""
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if type(tensor) is not Tensor:
            return False
        # They name everything that an operator would have to handle.
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        plain = _plainness.get(keys)
        if plain is None:
            plain = _plainness[keys] = keys in _plain_keys(tensor.device.type)
        if not plain:
            return False
    return True


# Whether tensors with these dispatch keys are plain. The keys name the device, too; asking for its
# type takes as long as the look-up.
_plainness: dict[int, bool] = {}


@cache
def _plain_keys(device_type: str) -> frozenset[int]:
    found = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            tensor = torch.empty(0, device=device_type)
            found.add(torch._C._dispatch_keys(tensor).raw_repr())
    return frozenset(found)


# Now, as a later call might come under a mode that changes what it creates.
_plain_keys("cpu")


def has_hooks(module: nn.Module) -> bool:
    """Return whether calling a module does more than the ``forward`` of its class."""
    return bool(
        "forward" in module.__dict__
        or module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_backward_pre_hooks
        or torch_module._global_backward_hooks
    )


_FORWARD = nn.Linear.forward


def is_linear(module: nn.Module | None) -> bool:
    """Return whether calling the module only runs ``functional.linear``: no hook or adapter."""
    if type(module) is not nn.Linear or nn.Linear.forward is not _FORWARD:
        return False
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias", module)
    return (
        type(weight) is nn.Parameter
        and (bias is None or type(bias) is nn.Parameter)
        and not (module._compiled_call_impl or has_hooks(module))
    )


def linear(module: nn.Module | None, x: Tensor) -> Tensor:
    """Return ``module(x)`` of a module that :func:`is_linear`, in half the time."""
    assert module is not None
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    assert weight is not None
    return functional.linear(x, weight, bias)
