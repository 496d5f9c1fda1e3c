"""Conformity of causal language models: a text has the same logits however it is computed."""

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    GenerationConfig,
)

from statemix.errors import RequestError, suggestion
from statemix.lm.generation_checks import GENERATION
from statemix.lm.model_checks import WHOLE
from statemix.lm.prepared import errors_of_strangers, load_weights, without_progress_bars
from statemix.lm.trials import ConformityError, ModelTrial, NotSupportedError
from statemix.memory import is_shortage

CHECKS = {check.__name__: check for check in (*GENERATION, *WHOLE)}
"""The checks by name; the docstring of each says what must hold."""

TOLERANCE = 1e-5
"""Largest difference that rounding in float32 makes in a small model."""

# Wider or deeper configurations become models of these sizes. Mamba-2 needs expand * hidden_size =
# num_heads * head_dim.
_WIDEST, _DEEPEST = 256, 8
_SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "num_heads": 4, "n_groups": 1, "state_size": 8, "chunk_size": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "time_step_rank": 2, "mamba_n_heads": 4,
    "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 8,
    "q_lora_rank": 8, "attention_hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64,
    "num_experts_per_token": 2, "mamba_d_ssm": 64,
}  # fmt: skip


@dataclass(frozen=True)
class ConformityResult:
    """The result of one check of a model.

    Attributes:
        check: name of the check.
        outcome: "equal"; "wrong"; "error" if the model raises one; "skipped" if the model says that
            it does not support what the check tries.
        difference: largest difference, divided by the largest logit; None where the check has none.
        reason: rule that is broken, error that is raised, or reason of the skip.
    """

    check: str
    outcome: Literal["equal", "wrong", "error", "skipped"]
    difference: float | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome in ("wrong", "error")


def chosen_checks(only: Iterable[str] = (), skip: Iterable[str] = ()) -> list[str]:
    """Return the names of the checks in ``only``, or else of all, without those in ``skip``."""
    only, skip = list(only), list(skip)
    for option, names in (("only", only), ("skip", skip)):
        for name in names:
            if name not in CHECKS:
                advice = suggestion(name, CHECKS)
                raise RequestError(
                    f"{option} must be among {', '.join(CHECKS)}, got {name!r}{advice}"
                )
    chosen = [name for name in CHECKS if (not only or name in only) and name not in skip]
    if not chosen:
        raise RequestError(f"skip must leave a check, got {', '.join(skip)}")
    return chosen


def conform(
    model: Any,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    tolerance: float = TOLERANCE,
) -> list[ConformityResult]:
    """Check that a causal language model computes the same however it is called.

    The checks run on a copy in float32; the model stays as it is.

    Args:
        model: a causal language model of transformers with ``generate``.
        only: names of the checks to run; all of :data:`CHECKS` if empty.
        skip: names of checks to leave out.
        tolerance: largest difference that counts as rounding.

    Returns:
        A result for each check, in the order of :data:`CHECKS`.

    Raises:
        RequestError: if a name is unknown.

    Example:
        >>> from statemix.lm import StatemixConfig, StatemixForCausalLM
        >>> config = StatemixConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
        >>> (result,) = conform(StatemixForCausalLM(config), only=["beam_search"])
        >>> result.outcome
        'equal'
    """
    names = chosen_checks(only, skip)
    with warnings.catch_warnings(), without_progress_bars():
        warnings.simplefilter("ignore")
        checked = copy.deepcopy(model).float().eval()
        checked.config.use_cache = True
        # Settings of a stored model, such as penalties, would choose other tokens.
        checked.generation_config = GenerationConfig()
        return [_result(name, ModelTrial(checked), tolerance) for name in names]


@torch.no_grad()
def _result(name: str, trial: ModelTrial, tolerance: float) -> ConformityResult:
    try:
        difference = CHECKS[name](trial)
    except NotSupportedError as error:
        return ConformityResult(name, "skipped", reason=str(error))
    except ConformityError as error:
        return ConformityResult(name, "wrong", error.difference, str(error))
    except Exception as error:
        if is_shortage(error):
            raise
        return ConformityResult(name, "error", reason=f"{type(error).__name__}: {str(error)[:200]}")
    # A comparison with NaN is false.
    return ConformityResult(name, "equal" if difference <= tolerance else "wrong", difference)


def open_subject(source: str) -> Any:
    """Return the model to check: with its weights, or small and with random weights.

    Args:
        source: a folder of a model, or of a run; a config.json; or a model type of transformers.

    Raises:
        RequestError: if there is no such model, or it is no causal language model.
    """
    path = Path(source)
    if path.is_dir():
        path = next((p for p in (path / "model", path) if (p / "config.json").is_file()), path)
        if any((*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin"))):
            _refuse(source, _read_config(path))
            return load_weights(path)
        path = path / "config.json"
    if path.is_file():
        config = _read_config(path)
    elif source in CONFIG_MAPPING:
        config = CONFIG_MAPPING[source]()
    else:
        advice = suggestion(source, CONFIG_MAPPING) if path.name == source else ""
        raise RequestError(
            "model must be a folder with a config.json, a config.json or a model type of "
            f"transformers, got {source!r}{advice}"
        )
    _refuse(source, config)
    with without_progress_bars():
        if config.hidden_size <= _WIDEST and config.num_hidden_layers <= _DEEPEST:
            with errors_of_strangers(path):
                return _drawn(config)
        try:
            return _drawn(_small(config))
        except Exception as error:
            raise RequestError(
                f"model {source!r} could not be made small ({type(error).__name__}: {error}); give "
                f"a config.json of at most {_WIDEST} channels and {_DEEPEST} layers"
            ) from error


def _read_config(path: Path) -> Any:
    with errors_of_strangers(path):
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


def _refuse(source: str, config: Any) -> None:
    """Refuse everything but causal language models."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise RequestError(
            f"model must be a causal language model, got the encoder-decoder {kind!r} in {source}"
        )
    # Encoders such as BERT are decoders on request.
    is_encoder = type(config) in AutoModelForMaskedLM._model_mapping and not config.is_decoder
    if type(config) not in AutoModelForCausalLM._model_mapping or is_encoder:
        raise RequestError(f"model must be a causal language model, got {kind!r} in {source}")


def _small(config: Any) -> Any:
    """Return a configuration of few parameters, whose first layers are of all kinds."""
    plain, depth = config.to_dict(), config.num_hidden_layers
    kinds = list(getattr(config, "layer_types", None) or [])
    number = max([2, *(kinds.index(kind) + 1 for kind in kinds)])
    cut = {n: v[:number] for n, v in plain.items() if isinstance(v, list) and len(v) == depth}
    names = {*plain, *config.attribute_map}
    sizes = {name: size for name, size in _SIZES.items() if name in names}
    sizes = {name: size for name, size in sizes.items() if getattr(config, name) is not None}
    heads = getattr(config, "num_attention_heads", None)
    if heads is not None and heads == getattr(config, "num_key_value_heads", None):
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return type(config).from_dict(plain | cut | sizes | {"num_hidden_layers": number})


@torch.no_grad()
def _drawn(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        # With the first weights, all tokens look alike.
        if parameter.ndim > 1 and parameter.std() < 0.05:
            parameter.mul_(8)
    # Sizes that do not fit each other may show only now.
    model(torch.tensor([[1, 2]]), use_cache=False)
    return model
