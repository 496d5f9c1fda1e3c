"""Modules with parameters: one file per architecture, all with the call of :class:`Layer`."""

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
from statemix.layers.layer import Flops, Layer, LayerSpec, Recurrence
from statemix.layers.layer_registry import LAYERS, build
from statemix.layers.lstm import LSTM, LSTMState
from statemix.layers.mamba2 import Mamba2, Mamba2State
from statemix.layers.masks import pack, unpack
from statemix.layers.prices import Price, price
from statemix.layers.state import State, map_state, take_rows

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
