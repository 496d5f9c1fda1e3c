"""Structured linear recurrent networks: layers and their recurrences."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statemix import layers, ops
    from statemix.layers import (
        BDLRU,
        FPRNN,
        HLRU,
        LSTM,
        Attention,
        CausalConv,
        DeltaNet,
        DeltaProduct,
        FPMamba1,
        FPMamba2,
        Mamba2,
        sharpen,
    )
    from statemix.ops import scan, scan_step

__all__ = [
    "BDLRU",
    "FPRNN",
    "HLRU",
    "LSTM",
    "Attention",
    "CausalConv",
    "DeltaNet",
    "DeltaProduct",
    "FPMamba1",
    "FPMamba2",
    "Mamba2",
    "layers",
    "ops",
    "scan",
    "scan_step",
    "sharpen",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Import PyTorch only with the first name that needs it, so that the command line answers
    # --help and Ctrl-C at once.
    if name in ("layers", "ops"):
        return importlib.import_module(f"statemix.{name}")
    if name in ("scan", "scan_step"):
        return getattr(importlib.import_module("statemix.ops"), name)
    if name in __all__:
        return getattr(importlib.import_module("statemix.layers"), name)
    raise AttributeError(f"module 'statemix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
