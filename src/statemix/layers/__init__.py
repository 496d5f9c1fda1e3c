"""Modules with parameters: one file per architecture, all with the call of :class:`Layer`."""

from statemix.layers.bd_lru import BDLRU
from statemix.layers.h_lru import HLRU
from statemix.layers.layer import Layer
from statemix.layers.lstm import LSTM
from statemix.layers.registry import build, check_options, names, options

__all__ = ["BDLRU", "HLRU", "LSTM", "Layer", "build", "check_options", "names", "options"]
