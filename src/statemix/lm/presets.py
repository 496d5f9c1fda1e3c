"""One dial for language models: a size decides width, depth, steps and rates."""

from dataclasses import dataclass

from statemix.errors import RequestError, suggestion


@dataclass(frozen=True)
class Preset:
    """Sizes of a model and of its training.

    Attributes:
        hidden_size: width of the residual stream.
        num_layers: number of blocks.
        num_blocks: blocks of each BD-LRU.
        block_size: entries of a block, m.
        length: tokens of a training sequence.
        batch_size: sequences of an optimiser step.
        steps: optimiser steps.
        learning_rate: largest rate, after the warm-up.
        tied: whether the output projection is the embedding.
    """

    hidden_size: int
    num_layers: int
    num_blocks: int
    block_size: int
    length: int
    batch_size: int
    steps: int
    learning_rate: float
    tied: bool = True


PRESETS = {
    "nano": Preset(160, 3, 40, 4, 128, 16, 2_000, 3e-3),
    "10M": Preset(320, 6, 80, 4, 512, 32, 10_000, 3e-3),
    # Figure 4 of Dubinin et al., by plainLM's defaults: 2.5 billion tokens.
    "140M": Preset(768, 12, 24, 4, 2048, 256, 4_800, 3e-3, tied=False),
    "210M": Preset(768, 12, 295, 4, 2048, 256, 4_800, 3e-3, tied=False),
}
"""Name -> sizes."""


def preset_of(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        RequestError: if there is none.
    """
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise RequestError(f"size must be one of {known}, got {name!r}{suggestion(name, PRESETS)}")
    return PRESETS[name]
