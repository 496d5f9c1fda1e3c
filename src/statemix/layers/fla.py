"""Kernels of flash-linear-attention, for the recurrences and numbers that they serve."""

import functools
import importlib

import torch
from torch import Tensor

# Its kernels hold a column of the state in one block.
_MOST_KEYS = 256


@functools.cache
def installed() -> bool:
    """Return whether flash-linear-attention can be imported."""
    return missing() is None


def missing() -> str | None:
    """Return why flash-linear-attention cannot be imported, or None."""
    try:
        importlib.import_module("fla.ops")
    except ModuleNotFoundError as error:
        if error.name in ("fla", "fla.ops"):
            return "is not installed: pip install 'statemix[peers]'"
        return f"cannot be imported: {error}"
    except Exception as error:  # noqa: BLE001 - its errors are its own, and are told
        return f"cannot be imported: {error}"
    return None


def serves(x: Tensor, dtype: torch.dtype, num_keys: int) -> bool:
    """Return whether its kernels compute a recurrence over axis 1 of x: 16 bits, on a GPU."""
    return (
        x.is_cuda
        and dtype in (torch.bfloat16, torch.float16)
        and num_keys <= _MOST_KEYS
        # One token is a step of a recurrence, with nothing to share among tokens.
        and x.shape[1] > 1
        and not torch._C._are_functorch_transforms_active()
        and installed()
    )


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    memory: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Compute ``chunks.delta_rule`` with factors and readouts of 16 bits, sums of float32."""
    n = k.shape[2]
    arguments = [part.to(dtype).contiguous() for part in (q, k.flatten(1, 2), v.flatten(1, 2))]
    beta = beta.flatten(1, 2).float()
    decay = None if g is None else g.float()
    options = {"scale": 1.0, "initial_state": memory.float(), "output_final_state": True}
    if n > 1:
        from fla.ops.gated_delta_product import chunk_gated_delta_product

        o, memory = chunk_gated_delta_product(*arguments, decay, beta, n, **options)
    elif decay is None:
        from fla.ops.delta_rule import chunk_delta_rule

        o, memory = chunk_delta_rule(*arguments, beta, **options)
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        o, memory = chunk_gated_delta_rule(*arguments, decay, beta, **options)
    return o, memory


def ssd(
    x: Tensor, g: Tensor, B: Tensor, C: Tensor, state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute ``chunks.ssd`` with factors and readouts of 16 bits, sums of float32."""
    from fla.ops.simple_gla import chunk_simple_gla

    heads = x.shape[2]
    queries, keys = (
        part.to(dtype).unsqueeze(2).expand(-1, -1, heads, -1).contiguous() for part in (C, B)
    )
    o, state = chunk_simple_gla(
        *(queries, keys, x.to(dtype).contiguous(), g.float()),
        scale=1.0,
        initial_state=state.float().mT.contiguous(),
        output_final_state=True,
    )
    return o, state.mT
