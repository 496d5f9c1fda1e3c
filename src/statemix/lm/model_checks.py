"""Checks of a model as a whole: packed documents, training, files, vocabulary, compilation."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from statemix.lm.trials import ConformityError, ModelTrial, NotSupportedError, relative


def _bounds(trial: ModelTrial, *places: int) -> Tensor:
    return trial.here(places, torch.int32)


def _packed(trial: ModelTrial, **given: Any) -> float:
    """Compare documents of 4 and 5 tokens in one row with each document alone."""
    first, second = trial.ids[:1, :4], trial.ids[1:, :5]
    packed = torch.cat([first, second], 1)
    found = trial.whole(packed, **given)
    difference = relative(found, torch.cat([trial.whole(first), trial.whole(second)], 1))
    if torch.equal(found, trial.whole(packed)):
        raise ConformityError(f"the model ignores {', '.join(given)}", difference)
    return difference


def packed_position_ids(trial: ModelTrial) -> float:
    """Positions that begin again separate packed documents."""
    return _packed(trial, position_ids=trial.here([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))


def packed_cu_seqlens(trial: ModelTrial) -> float:
    """`cu_seqlens`, the bounds of the documents, separates packed documents."""
    return _packed(trial, cu_seqlens=_bounds(trial, 0, 4, 9))


def packed_seq_idx(trial: ModelTrial) -> float:
    """`seq_idx`, the number of the document of each token, separates packed documents."""
    return _packed(trial, seq_idx=trial.here([[0] * 4 + [1] * 5], torch.int32))


def packed_all_bounds(trial: ModelTrial) -> float:
    """All that DataCollatorWithFlattening of transformers returns separates packed documents."""
    bounds = _bounds(trial, 0, 4, 9)
    return _packed(
        trial,
        position_ids=trial.here([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
        seq_idx=trial.here([[0] * 4 + [1] * 5], torch.int32),
        cu_seq_lens_q=bounds,
        cu_seq_lens_k=bounds,
        max_length_q=5,
        max_length_k=5,
    )


def packed_contradiction(trial: ModelTrial) -> float:
    """Bounds of packed documents that disagree are refused."""
    ids, bounds = trial.ids[:1], _bounds(trial, 0, 3, 7)
    try:
        alike = trial.whole(ids, cu_seqlens=bounds, cu_seq_lens_q=bounds)
    except (ValueError, RuntimeError) as error:
        raise NotSupportedError("the model refuses all bounds") from error
    if torch.equal(alike, trial.whole(ids)):
        raise NotSupportedError("the model reads no bounds")
    try:
        trial.whole(ids, cu_seqlens=bounds, cu_seq_lens_q=_bounds(trial, 0, 4, 7))
    except (ValueError, RuntimeError):
        return 0.0
    raise ConformityError("the model accepts bounds that disagree")


def gradient_checkpointing(trial: ModelTrial) -> float:
    """Blocks that are computed again in the backward pass have the same gradients."""
    if not trial.model.supports_gradient_checkpointing:
        raise NotSupportedError("the model does not support it")
    model = copy.deepcopy(trial.model).train()
    calls: list[nn.Module] = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: calls.append(module))
    results = []
    for is_checkpointed in (False, True):
        if is_checkpointed:
            # transformers 5.24 has another name for it.
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)()
        calls.clear()
        model.zero_grad()
        torch.manual_seed(0)
        with torch.enable_grad():
            model(trial.ids, labels=trial.ids).loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        results.append((torch.cat(gradients), len(calls)))
    (wanted, once), (found, again) = results
    if again <= once:
        raise ConformityError("gradient checkpointing computes no block again")
    return relative(found, wanted)


def save_and_load(trial: ModelTrial) -> float:
    """A stored model has the same weights and logits, and its file holds tied weights once."""
    with tempfile.TemporaryDirectory() as folder:
        trial.model.save_pretrained(folder)
        stored = 0
        for file in Path(folder).glob("*.safetensors"):
            with safe_open(file, "pt") as weights:
                names = list(weights.keys())
                stored += sum(weights.get_tensor(name).numel() for name in names)
        loaded = type(trial.model).from_pretrained(folder)
    state, found = trial.model.state_dict(), loaded.state_dict()
    for name, wanted in state.items():
        if not torch.equal(found[name].to(wanted.device), wanted):
            raise ConformityError(f"{name} changes when it is stored and loaded")
    for model in (trial.model, loaded):
        is_tied = _is_tied(model)
        if is_tied is not None and is_tied != bool(model.config.tie_word_embeddings):
            raise ConformityError(
                "config.tie_word_embeddings does not say whether weights are tied"
            )
    distinct = {(part.data_ptr(), part.shape): part.numel() for part in state.values()}
    if stored > sum(distinct.values()):
        raise ConformityError("the file holds tied weights twice")
    logits = loaded.to(trial.model.device).eval()(trial.ids, use_cache=False).logits
    return relative(logits, trial.whole(trial.ids))


def _is_tied(model: Any) -> bool | None:
    """Return whether the output projection is the embedding; None if the model has not both."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    return None if inputs is None or outputs is None else outputs.weight is inputs.weight


def load_in_16_bits(trial: ModelTrial) -> float:
    """All parameters of a model that is loaded in bfloat16 are bfloat16, as FSDP requires."""
    with tempfile.TemporaryDirectory() as folder:
        trial.model.save_pretrained(folder)
        loaded = type(trial.model).from_pretrained(folder, dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.bfloat16:
            raise ConformityError(f"{name} is {str(parameter.dtype).removeprefix('torch.')}")
    return 0.0


def load_without_some_weights(trial: ModelTrial) -> float:
    """Where a checkpoint lacks weights, these alone are drawn, and the others stay."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    with tempfile.TemporaryDirectory() as folder:
        trial.model.save_pretrained(folder, max_shard_size="1TB")
        (file,) = Path(folder).glob("*.safetensors")
        weights = load_file(file)
        for half in (0, 1):
            kept = {name: weights[name] for name in sorted(weights)[half::2]}
            save_file(kept, file, {"format": "pt"})
            try:
                # New memory is NaN, so that weights that nobody draws show.
                torch.use_deterministic_algorithms(mode=True, warn_only=True)
                loaded = type(trial.model).from_pretrained(folder).state_dict()
            finally:
                torch.use_deterministic_algorithms(mode=was_deterministic)
            for name, found in loaded.items():
                if name in kept and not torch.equal(found, kept[name]):
                    raise ConformityError(f"{name} is drawn again, although the checkpoint has it")
                if not found.isfinite().all():
                    raise ConformityError(f"{name} is not drawn, although the checkpoint lacks it")
    return 0.0


def resize_embeddings(trial: ModelTrial) -> float:
    """After `resize_token_embeddings`, old tokens have the same logits, and new ones a loss."""
    model, size = copy.deepcopy(trial.model), trial.vocab_size
    model.resize_token_embeddings(size + 7, mean_resizing=False)
    logits = model(trial.ids, use_cache=False).logits
    if logits.shape[-1] != size + 7 or model.config.get_text_config().vocab_size != size + 7:
        raise ConformityError("the logits or the configuration keep the old size")
    ids = trial.ids.clone()
    ids[:, 3] = size + 5
    output = model(ids, labels=ids, use_cache=False)
    loss = nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return max(relative(logits[..., :size], trial.whole(trial.ids)), relative(output.loss, loss))


def compile_at_a_second_length(trial: ModelTrial) -> float:
    """A compiled model has the same logits at the first length and at another one."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(copy.deepcopy(trial.model), backend="eager")
    longer = torch.cat([trial.ids, trial.following], 1)
    try:
        return max(
            relative(compiled(ids, use_cache=False).logits, trial.whole(ids))
            for ids in (trial.ids, longer)
        )
    finally:
        torch._dynamo.reset()


WHOLE: tuple[Callable[[ModelTrial], float], ...] = (
    packed_position_ids, packed_cu_seqlens, packed_seq_idx, packed_all_bounds, packed_contradiction,
    gradient_checkpointing, save_and_load, load_in_16_bits, load_without_some_weights,
    resize_embeddings, compile_at_a_second_length,
)  # fmt: skip
