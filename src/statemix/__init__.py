"""Structured linear recurrent networks: layers, and the recurrences behind them."""

from statemix import layers, ops
from statemix.layers import BDLRU, HLRU, LSTM

__all__ = ["BDLRU", "HLRU", "LSTM", "layers", "ops"]
__version__ = "0.1.0"
