"""Run the Triton kernels of the scan of Mamba on tensors."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class _Cut:
    """How programs share the work."""

    STEPS: int
    COLUMNS: int
    CHANNELS: int

    @classmethod
    def of(cls, columns: int) -> "_Cut":
        padded = triton.next_power_of_2(columns)
        channels = max(_ENTRIES_OF_STATE // padded, _FEWEST_CHANNELS)
        steps = min(_ENTRIES_OF_TILE // (padded * channels), _MOST_STEPS)
        return cls(steps, padded, channels)

    def options(self, num_warps: int) -> dict[str, Any]:
        """Constant arguments of a kernel."""
        return {**asdict(self), "num_warps": num_warps, "enable_fp_fusion": True}


def forward(given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor]]:
    """Return what is read, the final state, and the states before tiles of tokens.

    Args:
        given: the arguments of ``selective_scan``, contiguous and not empty.
    """
    outputs = torch.empty_like(given["inputs"])
    (B, T, N), S = outputs.shape, given["b"].shape[-1]
    cut = _Cut.of(S)
    num_tiles = triton.cdiv(T, cut.STEPS)
    entering = outputs.new_empty(B, num_tiles + 1, S, N)
    entering[:, 0] = given["initial_state"]
    arguments = (given[name] for name in ("steps", "rates", "inputs", "b", "c"))
    with torch.cuda.device_of(outputs):  # type: ignore[no-untyped-call]
        selective_forward[B, triton.cdiv(N, cut.CHANNELS)](
            *arguments, entering, outputs, T, N, S, num_tiles, **cut.options(num_warps=4)
        )
    return outputs, entering[:, -1].clone(), (entering,)


def backward(
    given: Mapping[str, Tensor], kept: tuple[Tensor], d_outputs: Tensor, d_final_state: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments, given those of the results, which are contiguous."""
    (entering,) = kept
    (B, T, N), S = d_outputs.shape, given["b"].shape[-1]
    cut = _Cut.of(S)
    programs = triton.cdiv(N, cut.CHANNELS)
    d_steps, d_inputs = (torch.empty_like(d_outputs) for _ in range(2))
    d_rates, d_initial_state = (torch.empty_like(given["initial_state"]) for _ in range(2))
    d_b, d_c = (d_outputs.new_empty(programs, B, T, S) for _ in range(2))
    arguments = (given[name] for name in ("steps", "rates", "inputs", "b", "c"))
    with torch.cuda.device_of(d_outputs):  # type: ignore[no-untyped-call]
        selective_backward[B, programs](
            *(*arguments, entering, d_outputs, d_final_state),
            *(d_steps, d_rates, d_inputs, d_b, d_c, d_initial_state),
            *(T, N, S, entering.shape[1] - 1),
            # With four warps, threads run out of registers.
            **cut.options(num_warps=8),
        )
    return d_steps, d_rates.sum(0), d_inputs, d_b.sum(0), d_c.sum(0), d_initial_state
