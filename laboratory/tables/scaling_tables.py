"""The table of predicted memory and time of large presets, by formulas that the page states."""

from measurement_tables import records

from statemix.lm.hub_config import StatemixConfig
from statemix.lm.model_costs import count_sizes, training_flops
from statemix.lm.presets import PRESETS, Preset

_SIZES = ("140M", "210M")
_GPUS = (1, 8)
# Tokens of GPT-2's tokenizer.
_VOCABULARY = 50_257
# Sequences of a forward pass on each GPU; the rest of a step is accumulated.
_SEQUENCES = 8
# Dense bfloat16 products of an H100 SXM by its data sheet, and the assumed share of them.
_PEAK_FLOPS = 989e12
_UTILISATION = 0.3
_GB = 1e9


def tables() -> dict[str, str]:
    """Return the Markdown of the table by the name of its file."""
    lines = []
    for size in _SIZES:
        preset = PRESETS[size]
        config = _config(preset)
        parameters = count_sizes(config)["parameters"]
        flops = sum(training_flops(config, preset.length))
        num_tokens = preset.steps * preset.batch_size * preset.length
        activations = activation_bytes(config, preset) * preset.length * _SEQUENCES
        for gpus in _GPUS:
            whole = parameters * (16 if gpus == 1 else 20)
            sharded = parameters * 16 / gpus
            hours = flops * num_tokens / (gpus * _PEAK_FLOPS * _UTILISATION) / 3600
            line = {
                "preset": size,
                "GPUs": str(gpus),
                "`--accumulate`": str(preset.batch_size // (gpus * _SEQUENCES)),
                "weights and optimiser, ddp (GB)": f"{whole / _GB:.1f}",
                "weights and optimiser, fsdp (GB)": f"{sharded / _GB:.1f}" if gpus > 1 else "",
                "activations (GB)": f"{activations / _GB:.1f}",
                "GFLOPs per token": f"{flops / 1e9:.2f}",
                "hours": f"{hours:.1f}",
            }
            lines.append(line)
    return {"scaling": records(lines)}


def activation_bytes(config: StatemixConfig, preset: Preset) -> float:
    """Return the bytes of a token that the backward pass needs, in bfloat16, logits in float32."""
    states = preset.num_blocks * preset.block_size
    # Gates before and after their normalisation, and m values and states of each block.
    recurrence = 2 * states * (preset.block_size + 1) + 2 * states
    block = 6 * config.hidden_size + recurrence + 4 * config.intermediate_size
    return 2 * config.num_hidden_layers * block + 2 * 4 * config.vocab_size


def _config(preset: Preset) -> StatemixConfig:
    layer = {"name": "bd_lru", "num_blocks": preset.num_blocks, "block_size": preset.block_size}
    return StatemixConfig(
        vocab_size=_VOCABULARY,
        hidden_size=preset.hidden_size,
        num_hidden_layers=preset.num_layers,
        mixers={"linear_attention": layer},
        tie_word_embeddings=preset.tied,
    )
