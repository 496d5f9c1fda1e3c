"""The costs of a language model: parameters, state, FLOPs of a token, and this device's speed."""

import functools
import time

import torch
from torch import nn

from statemix.layers import Layer
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import StatemixForCausalLM
from statemix.training.config import Precision
from statemix.training.devices import threads

# Sides of the matrices whose product is timed: large enough for full speed.
_SIDE = {"cpu": 1024, "cuda": 8192}
_PRODUCTS = 4
MATMUL_DTYPES: dict[Precision, torch.dtype] = {
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "64-true": torch.float64,
}
"""Precision -> dtype of matrix products."""


def _on_meta(config: StatemixConfig) -> tuple[StatemixForCausalLM, list[Layer]]:
    with torch.device("meta"):
        model = StatemixForCausalLM(config)
    return model, [module for module in model.modules() if isinstance(module, Layer)]


def count_sizes(config: StatemixConfig) -> dict[str, int]:
    """Return the parameters of a model, and the bytes of the state of one sequence in float32."""
    model, layers = _on_meta(config)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_bytes": 4 * sum(layer.state_size for layer in layers),
    }


def training_flops(config: StatemixConfig, length: int) -> tuple[int, int]:
    """Return the FLOPs of a token in training: of products with weight matrices, and the rest.

    The backward pass counts as two forward passes, and what gradient checkpointing computes again
    does not count. The length matters to attention, which sees half of it on average. A layer that
    does not count its FLOPs counts its matrices alone.
    """
    model, layers = _on_meta(config)
    inside = {part for layer in layers for part in layer.modules()}
    outside = (m for m in model.modules() if isinstance(m, nn.Linear) and m not in inside)
    projections = sum(2 * linear.weight.numel() for linear in outside)
    recurrences = 0
    for layer in layers:
        flops = layer.flops_per_token((length + 1) // 2)
        if flops is None:
            projections += sum(2 * p.numel() for p in layer.parameters() if p.ndim > 1)
        else:
            projections += flops.projections
            recurrences += flops.transition + flops.other
    return 3 * projections, 3 * recurrences


@functools.cache
def matmul_speed(device: str, dtype: torch.dtype, num_threads: int | None = None) -> float:
    """Return the FLOP/s of the best of a few products of large matrices on "cpu" or "cuda"."""
    side = _SIDE[device]
    left, right = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    with threads(num_threads):
        for _ in range(1 + _PRODUCTS):
            begun = time.perf_counter()
            # Waits for the device.
            float((left @ right)[0, 0])
            best = max(best, 2 * side**3 / (time.perf_counter() - begun))
    return best
