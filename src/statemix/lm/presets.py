"""How language models are trained, and one dial that decides width, depth, steps and rates."""

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["adamw", "muon"]
PresetName = Literal["nano", "10M", "140M", "210M"]


@dataclass(frozen=True)
class LanguageSettings:
    """How a language model is trained; the options of ``statemix lm train`` explain each number."""

    length: int
    batch_size: int
    steps: int
    learning_rate: float
    accumulate: int = 1
    min_learning_rate: float = 1e-5
    warmup_share: float = 0.1
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    evaluate_every: int = 200
    seed: int = 0
    optimizer: OptimizerName = "adamw"


@dataclass(frozen=True)
class Preset:
    """Sizes of a model of BD-LRU and of its training; ``tied``: one matrix embeds and projects."""

    hidden_size: int
    num_layers: int
    num_blocks: int
    block_size: int
    length: int
    batch_size: int
    steps: int
    learning_rate: float
    tied: bool = True


PRESETS: dict[PresetName, Preset] = {
    "nano": Preset(160, 3, 40, 4, 128, 16, 2_000, 3e-3),
    "10M": Preset(320, 6, 80, 4, 512, 32, 10_000, 3e-3),
    # Figure 4 of Dubinin et al., by plainLM's defaults: 2.5 billion tokens.
    "140M": Preset(768, 12, 24, 4, 2048, 256, 4_800, 3e-3, tied=False),
    "210M": Preset(768, 12, 295, 4, 2048, 256, 4_800, 3e-3, tied=False),
}
"""Name -> sizes."""
