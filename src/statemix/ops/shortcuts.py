"""When a shortcut around PyTorch's operators is safe, because nothing could notice it."""

import torch
from torch import Tensor


def allowed() -> bool:
    """Return whether no autograd, compiler, transform, tracer or dispatch mode sees operators."""
    return (
        not torch.compiler.is_compiling()
        and torch.is_inference_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


def is_plain(tensor: object) -> bool:
    """Return whether this is a dense ``torch.Tensor``, not a subclass."""
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested
