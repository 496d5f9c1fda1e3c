"""Checks of generation: a text has the same logits however a cache, padding or drafts cut it."""

import copy
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import CompileConfig

from statemix.lm.trials import GREEDY, ConformityError, ModelTrial, NotSupportedError, relative


def causal(trial: ModelTrial) -> float:
    """Later tokens change no logits of earlier tokens."""
    return relative(trial.whole(trial.ids)[:, :4], trial.whole(trial.ids[:, :4]))


def greedy(trial: ModelTrial) -> float:
    """Generation with a cache has the logits of passes over the whole text."""
    return trial.generated(trial.ids)


def adapters(trial: ModelTrial) -> float:
    """Hooks on linear layers, as adapters use them, also act in steps with a cache."""
    changed = ModelTrial(copy.deepcopy(trial.model))
    for module in changed.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _module, _inputs, output: 1.25 * output)
    return changed.generated(trial.ids)


def beam_search(trial: ModelTrial) -> float:
    """Beams have the scores of beams without a cache, which follows their order."""
    options = {**GREEDY, "num_beams": 3, "output_scores": True}
    found, wanted = (
        trial.model.generate(trial.ids, use_cache=use, **options).sequences_scores
        for use in (True, False)
    )
    difference = relative(found, wanted)
    _, cache = trial.cached(trial.ids)
    if hasattr(cache, "reorder_cache"):
        cache.reorder_cache(trial.here([1, 1]))
        token = trial.following[:, :1]
        text = torch.cat([trial.ids[[1, 1]], token], 1)
        logits, _ = trial.cached(token, cache)
        difference = max(difference, relative(logits, trial.whole(text)[:, -1:]))
    return difference


def left_padding(trial: ModelTrial) -> float:
    """Padding before a prompt has no effect, in a batch and in a batch of one."""
    alone = trial.generated(trial.ids[1:], trial.left[1:])
    return max(trial.generated(trial.ids, trial.left), alone)


def right_padding(trial: ModelTrial) -> float:
    """Padding after a prompt has no effect on the tokens that follow."""
    mask = trial.right
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    _, cache = trial.cached(trial.ids, attention_mask=mask, position_ids=positions)
    logits, _ = trial.cached(
        trial.following,
        cache,
        attention_mask=torch.cat([mask, torch.ones_like(trial.following)], 1),
        position_ids=mask.sum(1, keepdim=True) + trial.here([[0, 1]]),
    )
    texts = [
        torch.cat([trial.ids[row, mask[row].bool()], trial.following[row]])[None]
        for row in range(2)
    ]
    return max(relative(logits[row], trial.whole(text)[0, -2:]) for row, text in enumerate(texts))


def mask_dtypes(trial: ModelTrial) -> float:
    """A mask of booleans or floats means the same as a mask of integers."""
    kept = trial.left.bool()
    wanted = trial.whole(trial.ids, attention_mask=trial.left)[kept]
    return max(
        relative(trial.whole(trial.ids, attention_mask=trial.left.to(dtype))[kept], wanted)
        for dtype in (torch.bool, torch.float32)
    )


def prompt_in_pieces(trial: ModelTrial) -> float:
    """A prompt may be read in pieces of any length."""
    return max(trial.pieces(trial.ids, sizes) for sizes in ((4, 3), (1, 6), (2, 1, 4), (1,) * 7))


def padded_prompt_in_pieces(trial: ModelTrial) -> float:
    """`generate` may read a padded prompt in pieces."""
    return trial.generated(trial.ids, trial.left, prefill_chunk_size=3)


def continued_from_cache(trial: ModelTrial) -> float:
    """A returned cache continues with the whole text so far."""
    name = trial.cache_name
    first = trial.model.generate(trial.ids, **GREEDY)
    if first.get(name) is None:
        raise NotSupportedError("generate returns no cache")
    longer = torch.cat([first.sequences, trial.following], 1)
    return trial.generated(longer, **{name: first[name]})


def rollback(trial: ModelTrial) -> float:
    """`cache.crop` removes tokens that were recorded, and refuses what it cannot remove."""
    head, tail = trial.ids[:, :4], trial.ids[:, 4:]
    _, cache = trial.cached(head)
    if not hasattr(cache, "crop"):
        raise NotSupportedError("the cache has no method crop")
    wanted = trial.whole(torch.cat([trial.ids[:, :1], tail], 1))[:, 1:]
    try:
        cache.crop(-3)
    except (ValueError, RuntimeError, NotImplementedError):
        difference = 0.0
    else:
        difference = relative(trial.cached(tail, cache)[0], wanted)
    _, cache = trial.cached(head)
    if getattr(cache, "is_croppable", True):
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        trial.cached(tail, cache)
        cache.crop(-2)
        found, wanted = trial.cached(tail[:, 1:], cache)[0], trial.whole(trial.ids)[:, 5:]
        difference = max(difference, relative(found, wanted))
    return difference


def _refuse_stateful(trial: ModelTrial) -> None:
    if getattr(trial.model, "_is_stateful", False):
        raise NotSupportedError("the model says that its state cannot be rolled back")


def prompt_lookup(trial: ModelTrial) -> float:
    """Tokens drafted from the prompt change no logits, whether they are accepted or rejected."""
    _refuse_stateful(trial)
    # A repeated text has drafts from the first step on.
    text = trial.ids[:1].repeat(1, 3)[:, :17]
    return trial.generated(text, prompt_lookup_num_tokens=3)


def assisted_decoding(trial: ModelTrial) -> float:
    """Tokens drafted by another model change no logits, whether they are right or wrong."""
    _refuse_stateful(trial)
    generator = torch.Generator().manual_seed(2)
    differences = []
    for noise in (0.02, 1.0):
        assistant = copy.deepcopy(trial.model)
        for parameter in assistant.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.add_(drawn.to(parameter), alpha=noise)
        differences.append(trial.generated(trial.ids[:1], assistant_model=assistant))
    return max(differences)


def static_cache(trial: ModelTrial) -> float:
    """`cache_implementation="static"` changes no logits."""
    return trial.generated(trial.ids, cache_implementation="static")


def compiled_only_on_request(trial: ModelTrial) -> float:
    """`generate` on a GPU compiles nothing unless a static cache asks for it."""
    calls: list[Any] = []

    def compiled(function: Any = None, **_: Any) -> Any:
        calls.append(function)
        return function

    options = CompileConfig(backend="eager", mode=None)
    # As on a GPU.
    options._compile_all_devices = True
    with mock.patch.object(torch, "compile", compiled):
        difference = trial.generated(trial.ids, compile_config=options)
    if calls:
        raise ConformityError("generate compiles the model, although nobody asks for it")
    return difference


def state_dtype(trial: ModelTrial) -> float:
    """A model of 16 bits keeps its recurrent state in 32 bits; the size is the state's rounding."""
    halved = ModelTrial(copy.deepcopy(trial.model).bfloat16())
    short, long = (
        dict(_tensors(halved.cached(trial.ids[:, :length])[1], "cache", set())) for length in (5, 7)
    )
    # Keys and values grow with the text, and convolutions keep exact copies of their inputs.
    states = [
        part
        for name, part in long.items()
        if "conv" not in name and name in short and part.shape == short[name].shape
        if part.ndim > 1 and part.is_floating_point()
    ]
    if not states:
        raise NotSupportedError("the cache holds no recurrent state")
    return max(torch.finfo(part.dtype).eps for part in states)


def _tensors(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors within a cache, each with its path."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for key, part in parts.items():
        yield from _tensors(part, f"{name}.{key}", seen)


GENERATION: tuple[Callable[[ModelTrial], float], ...] = (
    causal, greedy, adapters, beam_search, left_padding, right_padding, mask_dtypes,
    prompt_in_pieces, padded_prompt_in_pieces, continued_from_cache, rollback, prompt_lookup,
    assisted_decoding, static_cache, compiled_only_on_request, state_dtype,
)  # fmt: skip
