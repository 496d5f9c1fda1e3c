"""The loss of a language model in training, and its bits per byte on held-out text."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from statemix.errors import RequestError
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import CACHE
from statemix.lm.shards import TokenFile, check_ids
from statemix.ops.layout import at_least_float32

# Tokens of a piece of a document in evaluation; the state carries on.
_PIECE = 8192
# Target of a token that does not count.
_NOT_COUNTED = -100
# Vocabularies from this size on get their loss in chunks.
_LARGE_VOCABULARY = 8192


def summed_loss(model: Any, tokens: Tensor, sequence_group: Any = None) -> Tensor:
    """Return the summed cross-entropy of all tokens, (B, T + 1), but the first."""
    shared = {} if sequence_group is None else {"sequence_group": sequence_group}
    hidden = model.model(tokens[:, :-1], use_cache=False, **shared).last_hidden_state.flatten(0, 1)
    targets = tokens[:, 1:].flatten()
    weight = model.lm_head.weight
    chunked = getattr(functional, "linear_cross_entropy", None)
    if weight.shape[0] >= _LARGE_VOCABULARY and chunked is not None:
        loss: Tensor = chunked(hidden, weight, targets, reduction="sum")
        return loss
    return functional.cross_entropy(_widened(model.lm_head(hidden)), targets, reduction="sum")


@torch.no_grad()
def bits_per_byte(
    model: PreTrainedModel, tokens: TokenFile, *, most_bytes: int | None = None
) -> dict[str, float]:
    """Return bits per byte, and perplexity of a token, up to the document with ``most_bytes``.

    A token is predicted from all tokens of its document before it, and the first one from the end
    of a document (``config.eos_token_id``) or the beginning of one (``config.bos_token_id``, which
    models of transformers may have). Without such a token, the first one counts as one of
    ``config.vocab_size`` equally likely tokens.

    A model with ``config.training_length`` reads windows of that length, and a model of
    transformers windows of its positions, at most 8,192. Each begins half a window after the last,
    and a token is predicted in the first window that has it.
    """
    total, num_tokens, num_bytes = 0.0, 0, 0
    counts = document_bytes(tokens)
    end, window = _reading_of(model.config)
    if not isinstance(model.config, StatemixConfig) and window != 1:
        # A model may read the token that it predicts, such as BERT.
        rows = torch.arange(min(window or 16, 16), device=model.device).repeat(2, 1)
        rows %= model.config.vocab_size
        rows[1, -1] = 0
        before, after = model(rows, use_cache=False).logits[:, :-1].float()
        if not (before - after).abs().max() <= 1e-4 * before.abs().max():
            raise RequestError(
                "model must predict a token from earlier tokens alone, got one whose predictions "
                "change with a later token"
            )
    for number, count in enumerate(counts):
        ids = torch.from_numpy(tokens.document(number).astype(np.int64)).to(model.device)
        targets = ids if end is not None else ids[1:]
        inputs = torch.cat([ids.new_tensor([end]), ids])[:-1] if end is not None else ids[:-1]
        check_ids(f"document {number} of {tokens.path}", ids, model.config.vocab_size)
        if window is None:
            cache = None
            for place in range(0, len(targets), _PIECE):
                piece = slice(place, place + _PIECE)
                output = model(inputs[None, piece], use_cache=True, **{CACHE: cache})
                cache = output[CACHE]
                total += _summed(output.logits[0], targets[piece])
        else:
            for rows, wanted in _windows(inputs, targets, window):
                total += _summed(model(rows, use_cache=False).logits, wanted)
        total += (len(ids) - len(targets)) * math.log(model.config.vocab_size)
        num_tokens, num_bytes = num_tokens + len(ids), num_bytes + count
        if most_bytes is not None and num_bytes >= most_bytes:
            break
    nats = total / max(num_tokens, 1)
    perplexity = float(torch.tensor(nats, dtype=torch.float64).exp())
    return {"bits_per_byte": total / math.log(2) / num_bytes, "perplexity": perplexity}


def _reading_of(config: Any) -> tuple[int | None, int | None]:
    """Return the token before a document, and the length of windows; None means none."""
    if isinstance(config, StatemixConfig):
        end, window = config.eos_token_id, config.training_length
    else:
        config = config.get_text_config()
        end = config.eos_token_id if config.bos_token_id is None else config.bos_token_id
        window = min(getattr(config, "max_position_embeddings", None) or _PIECE, _PIECE)
    first = end[0] if isinstance(end, list) and end else end
    if first is not None and not (type(first) is int and 0 <= first < config.vocab_size):
        raise RequestError(
            "the token before a text, eos_token_id or bos_token_id of the model, must be in "
            f"0..{config.vocab_size - 1}, got {first!r}"
        )
    return first, window


def document_bytes(tokens: TokenFile) -> list[int]:
    """Return the bytes of each document, which must be known."""
    counts: list[int] | None = tokens.info.get("document_bytes")
    if counts is None or not sum(counts):
        raise RequestError(f"{tokens.path} must have a .json with the bytes of each document")
    return counts


def _windows(inputs: Tensor, targets: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of windows of a document, and their targets, each of which counts once."""
    stride = max(1, length // 2)
    if len(inputs) <= length:
        yield inputs[None], targets[None]
        return
    number = 1 - -(len(inputs) - length) // stride
    # What follows a token does not change its prediction.
    missing = (number - 1) * stride + length - len(inputs)
    rows = functional.pad(inputs, (0, missing)).unfold(0, length, stride)
    wanted = functional.pad(targets, (0, missing), value=_NOT_COUNTED).unfold(0, length, stride)
    wanted = wanted.clone()
    wanted[1:, : length - stride] = _NOT_COUNTED
    size = max(1, _PIECE // length)
    for row in range(0, number, size):
        yield rows[row : row + size], wanted[row : row + size]


def _widened(logits: Tensor) -> Tensor:
    return logits.to(at_least_float32(logits.dtype))


def _summed(logits: Tensor, targets: Tensor) -> float:
    rows, wanted = _widened(logits.flatten(0, -2)), targets.flatten()
    loss = functional.cross_entropy(rows, wanted, ignore_index=_NOT_COUNTED, reduction="sum")
    return float(loss)
