"""Changes of a configuration that more than one suite makes."""

from typing import Any

from statemix.layers import LayerSpec
from statemix.training import OptimizerConfig, RunConfig


def with_layer(config: RunConfig, **options: Any) -> RunConfig:
    """Change options of the only layer."""
    (layer,) = config.model.layers
    changed = LayerSpec(layer.name, **{**layer.options, **options})
    return config.replace(model=config.model.replace(layers=(changed,)))


def at_rate(config: RunConfig, rate: float) -> RunConfig:
    """Change the learning rate, and allow slower attempts more steps, also between tests."""
    slower = max(config.optimizer.learning_rate / rate, 1.0)
    search = config.search.replace(
        max_steps=round(slower * config.search.max_steps),
        every=round(slower * config.search.every),
    )
    return config.replace(optimizer=OptimizerConfig(learning_rate=rate), search=search)


def opened(config: RunConfig) -> RunConfig:
    """Return the control: a start token writes the first state, as input gates begin open."""
    layer = with_layer(
        config, num_blocks=20, initial_state="zero", initial_std=0.0, input_gate_bias=0.0
    )
    return at_rate(layer.replace(model=layer.model.replace(bos=True)), 1e-3)
