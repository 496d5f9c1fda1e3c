"""Backends in PyTorch, which run on every device; the operators add their kernels.

"reference" is the sequential definition, which every other backend must match.

"loop" is a loop over time on whole batches, with hand-written adjoints. Blocks are innermost in
memory, so that each step is a few elementwise passes over long rows.

"associative" is the published parallel scan over pairs of states and transition products, the
baseline of comparisons (Dubinin et al., Appendix I); its steps cost m^3.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from statemix.ops.backends import Backend

REFERENCE = Backend("reference")
LOOP = Backend("loop", automatic=True, slow=True)
ASSOCIATIVE = Backend("associative", stepwise=False)


def associative_scan(
    coefficients: Tensor, inputs: Tensor, resets: Tensor | None, *, reverse: bool = False
) -> Tensor:
    """Solve x_t = c_t x_{t-1} + u_t from zero; ``resets`` (T,) are where a sequence begins."""
    # Private to PyTorch, and its import takes long.
    from torch._higher_order_ops.associative_scan import associative_scan as published

    def compose(acc: dict[str, Tensor], curr: dict[str, Tensor]) -> dict[str, Tensor]:
        # The newer segment is the left factor: blocks do not commute.
        c = torch.einsum("bhij,bhjk->bhik", curr["c"], acc["c"])
        x = curr["x"] + torch.einsum("bhij,bhj->bhi", curr["c"], acc["x"])
        if "reset" not in curr:
            return {"x": x, "c": c}
        # Select instead of multiplying by zero, which would carry a NaN into the next sequence.
        reset = curr["reset"]
        return {
            "x": torch.where(reset, curr["x"], x),
            "c": torch.where(reset.unsqueeze(-1), curr["c"], c),
            "reset": reset | acc["reset"],
        }

    pairs: dict[str, Tensor] = {"x": inputs, "c": coefficients}
    if resets is not None:
        pairs["reset"] = resets.view(1, -1, 1, 1)
    scanned: Any = published(compose, pairs, dim=1, reverse=reverse, combine_mode="generic")
    return scanned["x"]  # type: ignore[no-any-return]


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast, under which products and sums of float32 would be bfloat16."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
