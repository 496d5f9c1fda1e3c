"""Run the Triton kernels of the scan of Mamba on tensors."""

from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from statemix.ops.triton.kernels.selective import selective_backward, selective_forward

# Entries of a tile: tokens, columns and channels. A program holds about ten such tiles.
_ENTRIES_OF_TILE = 4096
_MOST_STEPS = 16
# Entries of the states that a program follows, of at least 8 channels.
_ENTRIES_OF_STATE = 256
_FEWEST_CHANNELS = 8


def _options(columns: int, num_warps: int) -> dict[str, Any]:
    """Return the constant arguments of a kernel, which say how programs share the work."""
    padded = triton.next_power_of_2(columns)
    channels = max(_ENTRIES_OF_STATE // padded, _FEWEST_CHANNELS)
    steps = min(_ENTRIES_OF_TILE // (padded * channels), _MOST_STEPS)
    options = {"STEPS": steps, "COLUMNS": padded, "CHANNELS": channels}
    return {**options, "num_warps": num_warps, "enable_fp_fusion": True}


def forward(given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor]]:
    """Return what is read, the final state, and the states before tiles of tokens."""
    outputs = torch.empty_like(given["inputs"])
    (B, T, N), S = outputs.shape, given["b"].shape[-1]
    options = _options(S, num_warps=4)
    num_tiles = triton.cdiv(T, options["STEPS"])
    entering = outputs.new_empty(B, num_tiles + 1, S, N)
    entering[:, 0] = given["initial_state"]
    arguments = (given[name] for name in ("steps", "rates", "inputs", "b", "c"))
    with torch.cuda.device_of(outputs):  # type: ignore[no-untyped-call]
        selective_forward[B, triton.cdiv(N, options["CHANNELS"])](
            *arguments, entering, outputs, T, N, S, num_tiles, **options
        )
    return outputs, entering[:, -1].clone(), (entering,)


def backward(
    given: Mapping[str, Tensor], kept: tuple[Tensor], d_outputs: Tensor, d_final_state: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments, given those of the results, which are contiguous."""
    (entering,) = kept
    (B, T, N), S = d_outputs.shape, given["b"].shape[-1]
    # With four warps, threads run out of registers.
    options = _options(S, num_warps=8)
    programs = triton.cdiv(N, options["CHANNELS"])
    d_steps, d_inputs = (torch.empty_like(d_outputs) for _ in range(2))
    d_rates, d_initial_state = (torch.empty_like(given["initial_state"]) for _ in range(2))
    d_b, d_c = (d_outputs.new_empty(programs, B, T, S) for _ in range(2))
    arguments = (given[name] for name in ("steps", "rates", "inputs", "b", "c"))
    with torch.cuda.device_of(d_outputs):  # type: ignore[no-untyped-call]
        selective_backward[B, programs](
            *(*arguments, entering, d_outputs, d_final_state),
            *(d_steps, d_rates, d_inputs, d_b, d_c, d_initial_state),
            *(T, N, S, entering.shape[1] - 1),
            **options,
        )
    return d_steps, d_rates.sum(0), d_inputs, d_b.sum(0), d_c.sum(0), d_initial_state
