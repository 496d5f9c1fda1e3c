"""The layers by name, and what each can be told."""

import inspect
from collections.abc import Iterable
from typing import Any, get_type_hints

import torch

from statemix.layers.bd_lru import BDLRU
from statemix.layers.h_lru import HLRU
from statemix.layers.layer import Layer
from statemix.layers.lstm import LSTM

LAYERS: dict[str, type[Layer]] = {
    "bd_lru": BDLRU,
    "h_lru": HLRU,
    "lstm": LSTM,
}

# What every layer takes and ``build`` names itself.
_COMMON = ("hidden_size", "device", "dtype")


def names() -> list[str]:
    """The names that :func:`build` knows."""
    return list(LAYERS)


def options(name: str) -> dict[str, tuple[Any, Any]]:
    """What the layer ``name`` takes beyond ``hidden_size``, ``device`` and ``dtype``.

    Returns:
        option name -> (type, default); the default is ``inspect.Parameter.empty`` where the option
        must be given.

    Raises:
        ValueError: if there is no layer of that name.

    Example:
        >>> options("h_lru")["gate"]
        (<class 'str'>, 'softmax')
    """
    constructor = _layer(name).__init__
    hints = get_type_hints(constructor)
    return {
        parameter.name: (hints[parameter.name], parameter.default)
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.name in hints and parameter.name not in _COMMON
    }


def check_options(name: str, given: Iterable[str]) -> None:
    """Check the names of options against those that the layer ``name`` takes.

    Raises:
        ValueError: if there is no layer of that name, or it has no such option, or one that it
            needs is missing.
    """
    known, given = options(name), list(given)
    unknown = [option for option in given if option not in known]
    if unknown:
        raise ValueError(f"options of layer {name!r} must be among {list(known)}, got {unknown}")
    missing = [
        option
        for option, (_, default) in known.items()
        if default is inspect.Parameter.empty and option not in given
    ]
    if missing:
        raise ValueError(f"options of layer {name!r} must include {missing}, got {given}")


def build(
    name: str,
    *,
    hidden_size: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **layer_options: Any,
) -> Layer:
    """Construct a layer by name.

    Args:
        name: one of :func:`names`.
        hidden_size: width of input and output.
        device: of the parameters.
        dtype: of the parameters.
        layer_options: what :func:`options` lists for ``name``.

    Raises:
        ValueError: if there is no layer of that name, or it has no such option, or one that it
            needs is missing.

    Example:
        >>> build("bd_lru", hidden_size=8, num_blocks=4, block_size=2).state_size
        8
    """
    layer = _layer(name)
    check_options(name, layer_options)
    return layer(hidden_size=hidden_size, device=device, dtype=dtype, **layer_options)


def _layer(name: str) -> type[Layer]:
    if name not in LAYERS:
        raise ValueError(f"layer must be one of {names()}, got {name!r}")
    return LAYERS[name]
