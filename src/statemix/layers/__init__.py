"""Modules with parameters: one file per architecture, all with the call of :class:`Layer`.

To add one, write a file beside this one and a line in ``LAYERS``.
"""

from typing import Any

import torch

from statemix.layers.attention import Attention, AttentionState
from statemix.layers.bd_lru import BDLRU, sharpen
from statemix.layers.bidirectional import Bidirectional
from statemix.layers.causal_conv import CausalConv
from statemix.layers.checking import check_layer
from statemix.layers.delta_product import DeltaNet, DeltaProduct, DeltaState
from statemix.layers.exporting import DecodeStep, WholeSequence
from statemix.layers.fixed_point.fp_mamba import FPMamba1, FPMamba2, FPMambaState
from statemix.layers.fixed_point.fp_rnn import FPRNN
from statemix.layers.h_lru import HLRU
from statemix.layers.layer import Flops, Layer, LayerSpec, Price, Recurrence, price
from statemix.layers.lstm import LSTM, LSTMState
from statemix.layers.mamba2 import Mamba2, Mamba2State
from statemix.layers.state import State, map_state, take_rows
from statemix.ops.packing import pack, unpack
from statemix.registry import Registry

__all__ = [
    "BDLRU",
    "FPRNN",
    "HLRU",
    "LAYERS",
    "LSTM",
    "Attention",
    "AttentionState",
    "Bidirectional",
    "CausalConv",
    "DecodeStep",
    "DeltaNet",
    "DeltaProduct",
    "DeltaState",
    "FPMamba1",
    "FPMamba2",
    "FPMambaState",
    "Flops",
    "LSTMState",
    "Layer",
    "LayerSpec",
    "Mamba2",
    "Mamba2State",
    "Price",
    "Recurrence",
    "State",
    "WholeSequence",
    "build",
    "check_layer",
    "map_state",
    "pack",
    "price",
    "sharpen",
    "take_rows",
    "unpack",
]

LAYERS: Registry[type[Layer]] = Registry(
    "layer",
    [
        BDLRU,
        HLRU,
        LSTM,
        DeltaNet,
        DeltaProduct,
        Mamba2,
        CausalConv,
        Attention,
        FPRNN,
        FPMamba1,
        FPMamba2,
    ],
    common=("hidden_size", "device", "dtype"),
)


def build(
    name: str,
    *,
    hidden_size: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Layer:
    """Construct a layer by its name in ``LAYERS``; its options are ``LAYERS.options(name)``.

    Raises:
        SettingError: if there is no layer of that name, or the options do not fit it.

    Example:
        >>> build("bd_lru", hidden_size=8, num_blocks=4, block_size=2).state_size
        8
    """
    layer: Layer = LAYERS.build(
        name, hidden_size=hidden_size, device=device, dtype=dtype, **options
    )
    return layer
