"""Whether language models generate the same text however it is computed, as rows of results.

    python benchmarks/generation_checks.py laboratory/results/generation.jsonl

The script gives the same checks to small models with random weights: recurrent models of
transformers, and models of Statemix. A check compares logits with the logits of a forward pass over
the whole text; beam search compares scores with the scores without a cache. A row has the largest
relative difference, or the error that the model raises.
"""

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from statemix.lm import StatemixConfig
from statemix.lm.hub_model import CACHE
from statemix_lab.bench import harness as rows

VOCABULARY = 50
OPTIONS = {
    "max_new_tokens": 12,
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_logits": True,
}
_SHARED = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
NATIVE = {
    "Mamba-2": (
        "mamba2",
        {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8, "state_size": 16},
    ),
    "Mamba": ("mamba", {"state_size": 8}),
    "Qwen3-Next": (
        "qwen3_next",
        {
            **_HEADS,
            "head_dim": 16,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 0,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "LFM2": ("lfm2", {**_HEADS, "layer_types": ["conv", "full_attention"]}),
}
OURS = {
    "BD-LRU": {},
    "H-LRU, convolution": {
        "mixers": {"name": "h_lru", "num_channels": 32, "order": 3},
        "conv_size": 4,
    },
    "Gated DeltaNet": {"mixers": {"name": "delta_net", "num_heads": 2, "use_forget_gate": True}},
    "BD-LRU, attention": {"layer_types": ["linear_attention", "full_attention"]},
}


def main() -> None:
    """Check every model, and write a row for each model and check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    process = rows.describe_process()
    configs = {
        name: AutoConfig.for_model(kind, **_SHARED, **options)
        for name, (kind, options) in NATIVE.items()
    }
    configs |= {name: StatemixConfig(**_SHARED, **options) for name, options in OURS.items()}
    for name, config in configs.items():
        model = _build(config)
        for check, measure in CHECKS.items():
            row = {"model": name, "check": check, **_result(measure, model)}
            row["transformers"] = transformers.__version__
            rows.append_rows(output, [row], process)
            print(*row.values(), sep=" | ")


def _build(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # With the first weights, all tokens look alike.
            if parameter.ndim > 1 and parameter.std() < 0.05:
                parameter.mul_(8)
    model.config.use_cache = True
    return model


@torch.no_grad()
def _result(measure: Callable[[Any], float], model: Any) -> dict[str, Any]:
    try:
        return {"difference": measure(model), "error": None}
    except Exception as error:  # noqa: BLE001 - whatever a model refuses with
        return {"difference": None, "error": f"{type(error).__name__}: {str(error)[:200]}"}


IDS = torch.randint(1, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))
LEFT = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
RIGHT = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])


def _whole(model: Any, ids: Tensor) -> Tensor:
    """Return the logits of every token from a pass over the whole text."""
    return model(ids, use_cache=False).logits


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def _generated(model: Any, ids: Tensor, mask: Tensor | None = None, **options: Any) -> float:
    """Generate, and compare the logits of the new tokens with a pass over each whole text."""
    mask = torch.ones_like(ids) if mask is None else mask
    output = model.generate(ids, attention_mask=mask, **OPTIONS, **options)
    found = torch.stack(output.logits, 1)
    new = mask.new_ones(len(mask), output.sequences.shape[1] - mask.shape[1])
    is_token = torch.cat([mask, new], 1).bool()
    return max(
        _relative(found[row], _whole(model, text[None, is_token[row]])[0, -13:-1])
        for row, text in enumerate(output.sequences)
    )


def _beams(model: Any) -> float:
    options = {**OPTIONS, "num_beams": 3, "output_scores": True}
    found, wanted = (model.generate(IDS, use_cache=use, **options) for use in (True, False))
    return _relative(found.sequences_scores, wanted.sequences_scores)


def _right_padding(model: Any) -> float:
    """Continue a right-padded prompt by two tokens."""
    positions = (RIGHT.cumsum(1) - 1).clamp(min=0)
    cache = model(IDS, attention_mask=RIGHT, position_ids=positions, use_cache=True)[_cache(model)]
    following = torch.tensor([[3, 4], [5, 6]])
    output = model(
        following,
        attention_mask=torch.cat([RIGHT, torch.ones_like(following)], 1),
        position_ids=RIGHT.sum(1, keepdim=True) + torch.arange(2),
        use_cache=True,
        **{_cache(model): cache},
    )
    texts = [torch.cat([IDS[row, RIGHT[row].bool()], following[row]])[None] for row in range(2)]
    return max(
        _relative(output.logits[row], _whole(model, text)[0, -2:]) for row, text in enumerate(texts)
    )


def _cache(model: Any) -> str:
    """Return the name under which outputs have the cache."""
    output = model(IDS, use_cache=True)
    return next(name for name in (CACHE, "cache_params") if output.get(name) is not None)


def _continued(model: Any) -> float:
    """Generate, and generate again from the returned cache with the whole text so far."""
    first = model.generate(IDS, **OPTIONS)
    name = next(one for one in (CACHE, "cache_params") if first.get(one) is not None)
    longer = torch.cat([first.sequences, torch.tensor([[3, 4], [5, 6]])], 1)
    return _generated(model, longer, **{name: first[name]})


def _packed(**given: Any) -> Callable[[Any], float]:
    def measure(model: Any) -> float:
        first, second = IDS[:1, :4], IDS[1:, :5]
        found = model(torch.cat([first, second], 1), use_cache=False, **given).logits
        wanted = torch.cat([_whole(model, first), _whole(model, second)], 1)
        return _relative(found, wanted)

    return measure


_BOUNDS = torch.tensor([0, 4, 9], dtype=torch.int32)
_POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
CHECKS: dict[str, Callable[[Any], float]] = {
    "greedy": partial(_generated, ids=IDS),
    "beam search": _beams,
    "left padding": partial(_generated, ids=IDS, mask=LEFT),
    "right padding": _right_padding,
    "padded prompt in pieces": partial(_generated, ids=IDS, mask=LEFT, prefill_chunk_size=3),
    "prompt lookup": partial(_generated, ids=IDS[:1], prompt_lookup_num_tokens=3),
    "continued from a cache": _continued,
    "packed, position_ids": _packed(position_ids=_POSITIONS),
    "packed, all bounds": _packed(
        position_ids=_POSITIONS,
        seq_idx=torch.tensor([[0] * 4 + [1] * 5], dtype=torch.int32),
        cu_seq_lens_q=_BOUNDS,
        cu_seq_lens_k=_BOUNDS,
        max_length_q=5,
        max_length_k=5,
    ),
}


if __name__ == "__main__":
    main()
