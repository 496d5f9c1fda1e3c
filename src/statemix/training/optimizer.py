"""AdamW, and the two things that move during training: learning rate and gate temperature."""

import math

import torch
from torch import nn

from statemix.training.config import RunConfig


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW with one parameter group: as in MAD, biases, norms and embeddings decay too.

    The fused step is used on every device: it is one pass over the parameters instead of a dozen,
    which matters for models that take a millisecond per step.
    """
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(config: RunConfig, step: int, num_steps: int, steps_per_epoch: int) -> float:
    r"""Learning rate of one optimiser step.

    .. math:: \eta = \eta_{min} + (\eta_0 - \eta_{min}) (1 + \cos(\pi p)) / 2

    where p is the fraction of training done *when the epoch began*: the rate is constant within an
    epoch, as PyTorch's ``CosineAnnealingLR`` stepped once per epoch would have it (MAD means to do
    this and never applies it). The warm-up multiplies the schedule by (step + 1) / warmup_steps.

    Args:
        config: the run's configuration.
        step: steps made before this one.
        num_steps: steps of the whole run.
        steps_per_epoch: 1 on fresh examples, where every step is an epoch of its own.
    """
    rate = config.learning_rate
    if config.schedule == "cosine":
        progress = (step // steps_per_epoch) * steps_per_epoch / num_steps
        low = config.min_learning_rate
        rate = low + (rate - low) * (1 + math.cos(math.pi * progress)) / 2
    if step < config.warmup_steps:
        rate *= (step + 1) / config.warmup_steps
    return rate


def inverse_temperature(config: RunConfig, step: int, num_steps: int) -> float:
    """Sharpness of the gates at one optimiser step, relative to the layer's own temperature.

    It is 1 until the fraction ``sharpen_start`` of the steps is made, ``sharpen_to`` once
    ``sharpen_end`` is, and linear between.

    Args:
        config: the run's configuration.
        step: steps made before this one.
        num_steps: steps of the whole run.
    """
    start, end = config.sharpen_start * num_steps, config.sharpen_end * num_steps
    if step >= end:
        return config.sharpen_to
    done = max(0.0, step - start) / (end - start) if end > start else 0.0
    return 1.0 + (config.sharpen_to - 1.0) * done
