"""Sharpening: gates fall to 0 and 1 towards the end of training, so that they track exactly."""

from torch import nn

from statemix.layers.gated_recurrence import GatedRecurrence

BEGIN, FINISH, SHARP = 0.5, 0.9, 1 / 8


def sharpen(model: nn.Module, progress: float) -> float:
    r"""Set the gate temperature of all layers in a model that have one.

    .. math:: 1 / \tau = 1 + 7\, \mathrm{clamp}\Big(\frac{p - 0.5}{0.9 - 0.5}, 0, 1\Big)

    Gates are divided by tau, so that they are near 0 and 1 in the last tenth of training. Call it
    before every optimiser step. The temperature is part of the state dict.

    Args:
        model: a model or a layer.
        progress: share of the training that is done, p.

    Returns:
        The temperature tau.

    Raises:
        ValueError: if no layer has a gate temperature.

    Example:
        >>> from statemix.layers import BDLRU
        >>> layer = BDLRU.tracker(8, num_blocks=2, block_size=2)
        >>> [sharpen(layer, progress) for progress in (0.0, 0.5, 1.0)], layer.gate_temperature
        ([1.0, 1.0, 0.125], 0.125)
    """
    done = min(max((progress - BEGIN) / (FINISH - BEGIN), 0.0), 1.0)
    temperature = 1 / (1 + (1 / SHARP - 1) * done)
    gated = [module for module in model.modules() if isinstance(module, GatedRecurrence)]
    if not gated:
        raise ValueError("model must contain a layer with a gate temperature, such as BDLRU")
    for layer in gated:
        layer.gate_temperature = temperature
    return temperature
