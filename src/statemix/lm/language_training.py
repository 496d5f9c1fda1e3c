"""Train a language model on prepared tokens: batches, losses, schedules, bits per byte."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from statemix.errors import RequestError
from statemix.layers import Layer
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import CACHE, StatemixForCausalLM
from statemix.lm.shards import TokenFile
from statemix.training.fit import Fitted, fit
from statemix.training.hooks import Hook
from statemix.training.loop import Loop

# TokenFile of a piece of a document in evaluation; the state carries on.
_PIECE = 8192
# Vocabularies from this size on get their loss in chunks.
_LARGE_VOCABULARY = 8192


@dataclass(frozen=True)
class LanguageSettings:
    """How a language model is trained.

    Attributes:
        length: tokens of a sequence.
        batch_size: sequences of an optimiser step.
        accumulate: forward passes of an optimiser step.
        steps: optimiser steps.
        learning_rate: rate after the warm-up.
        min_learning_rate: rate at the end.
        warmup_share: share of the steps in which the rate rises from 0.
        weight_decay: decay of matrices; vectors do not decay.
        clip_norm: largest norm of the gradient.
        evaluate_every: steps between two evaluations.
        seed: seed of weights and of the order of the data.
    """

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


class TokenBatches:
    """Windows of the tokens, whose order is a function of seed, epoch and position alone.

    An epoch cuts the tokens, from an offset of its own, into windows of ``length`` + 1 tokens that
    overlap by one, and visits them in an order of its own.

    Args:
        ids: all token ids.
        settings: sizes and seed.
        device: device of the batches.

    Raises:
        RequestError: if there are too few tokens for one step.
    """

    def __init__(self, ids: Any, settings: LanguageSettings, device: torch.device) -> None:
        self._ids, self._settings, self._device = ids, settings, device
        windows = (len(ids) - settings.length) // settings.length
        self.steps_per_epoch = windows // settings.batch_size
        self.num_steps = settings.steps
        if self.steps_per_epoch < 1:
            raise RequestError(
                f"tokens must fill one step of {settings.batch_size} sequences of "
                f"{settings.length} tokens, got {len(ids)}"
            )
        self._epoch = -1

    def parts(self, step: int) -> Sequence[Tensor]:
        """Return the batches of a step, each (b, length + 1), int64."""
        rows = np.stack([self._window(place) for place in self.places(step)]).astype(np.int64)
        pieces = np.array_split(rows, self._settings.accumulate)
        return [torch.from_numpy(piece).to(self._device) for piece in pieces if len(piece)]

    def places(self, step: int) -> list[int]:
        """Return where the sequences of a step begin."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            stream = np.random.Philox(np.random.SeedSequence([self._settings.seed, epoch]))
            draws = stream.random_raw(self.steps_per_epoch * self._settings.batch_size + 1)
            self._offset = int(draws[-1] % self._settings.length)
            self._order, self._epoch = np.argsort(draws[:-1], kind="stable"), epoch
        size = self._settings.batch_size
        chosen = self._order[place * size : (place + 1) * size]
        return [self._offset + int(window) * self._settings.length for window in chosen]

    def _window(self, begin: int) -> Any:
        return self._ids[begin : begin + self._settings.length + 1]


def summed_loss(model: Any, tokens: Tensor) -> Tensor:
    """Return the summed cross-entropy of all tokens but the first, (B, T + 1) in."""
    hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state.flatten(0, 1)
    targets = tokens[:, 1:].flatten()
    weight = model.lm_head.weight
    chunked = getattr(functional, "linear_cross_entropy", None)
    if weight.shape[0] >= _LARGE_VOCABULARY and chunked is not None:
        loss: Tensor = chunked(hidden, weight, targets, reduction="sum")
        return loss
    return functional.cross_entropy(model.lm_head(hidden).float(), targets, reduction="sum")


@torch.no_grad()
def bits_per_byte(
    model: StatemixForCausalLM, tokens: TokenFile, *, most_bytes: int | None = None
) -> dict[str, float]:
    """Return bits per byte and perplexity of whole documents.

    A document is read from its first token to its last in pieces, and the state carries on: every
    token is predicted from all tokens before it. The first one is predicted from the end of the
    document before, token ``config.eos_token_id``.

    Args:
        model: the model, in evaluation mode.
        tokens: the documents.
        most_bytes: stop after the document that reaches this number of bytes.

    Returns:
        "bits_per_byte" and "perplexity", exp of the mean loss of a token.

    Raises:
        RequestError: if the bytes of the documents are not known.
    """
    total, num_tokens, num_bytes = 0.0, 0, 0
    counts = tokens.info.get("document_bytes")
    if counts is None:
        raise RequestError(f"{tokens.path} must have a .json with the bytes of each document")
    end = model.config.eos_token_id
    for number, count in enumerate(counts):
        ids = torch.from_numpy(tokens.document(number).astype(np.int64)).to(model.device)
        targets = ids if end is not None else ids[1:]
        inputs = torch.cat([ids.new_tensor([end]), ids[:-1]]) if end is not None else ids[:-1]
        cache = None
        for place in range(0, len(targets), _PIECE):
            output = model(inputs[None, place : place + _PIECE], use_cache=True, **{CACHE: cache})
            cache = output[CACHE]
            total += float(
                functional.cross_entropy(
                    output.logits[0].float(), targets[place : place + _PIECE], reduction="sum"
                )
            )
        num_tokens, num_bytes = num_tokens + len(targets), num_bytes + count
        if most_bytes is not None and num_bytes >= most_bytes:
            break
    nats = total / max(num_tokens, 1)
    return {"bits_per_byte": total / math.log(2) / num_bytes, "perplexity": math.exp(nats)}


def optimizer_of(model: nn.Module, settings: LanguageSettings) -> torch.optim.AdamW:
    """Return AdamW, which decays matrices but no vectors."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


class CosineRate(Hook):
    """Sets the learning rate: a linear warm-up, then a cosine down to the least rate."""

    def __init__(self, settings: LanguageSettings) -> None:
        self._settings = settings

    def before_step(self, loop: Loop) -> None:
        for group in loop.optimizer.param_groups:
            group["lr"] = self.rate(loop.step)

    def rate(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        settings = self._settings
        warmup = settings.warmup_share * settings.steps
        if step < warmup:
            return settings.learning_rate * (step + 1) / math.ceil(warmup)
        done = (step - warmup) / max(settings.steps - warmup, 1)
        low = settings.min_learning_rate
        return low + (settings.learning_rate - low) * (1 + math.cos(math.pi * done)) / 2

    def row(self, loop: Loop) -> dict[str, Any]:
        return {"learning_rate": self.rate(max(loop.step - 1, 0))}


class Speed(Hook):
    """Adds tokens per second to the rows of the metrics.

    Args:
        tokens_per_step: tokens of an optimiser step.
    """

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens, self._since = tokens_per_step, (0, 0.0)

    def on_start(self, loop: Loop) -> None:
        self._since = loop.step, time.monotonic()

    def row(self, loop: Loop) -> dict[str, Any]:
        (step, begun), now = self._since, time.monotonic()
        self._since = loop.step, now
        return {"tokens_per_s": (loop.step - step) * self._tokens / max(now - begun, 1e-9)}


def train_language_model(
    config: StatemixConfig,
    tokens: TokenFile,
    held_out: TokenFile,
    folder: Path,
    settings: LanguageSettings,
    *,
    most_bytes: int | None = None,
    hooks: Sequence[Hook] = (),
    **options: Any,
) -> tuple[StatemixForCausalLM, Fitted]:
    """Train a language model, or resume its training, and store it for transformers.

    The folder receives what a run has, and ``model/`` for ``AutoModelForCausalLM``.

    Args:
        config: the model.
        tokens: tokens of the training split.
        held_out: tokens of the held-out split.
        folder: folder of the run.
        settings: how to train.
        most_bytes: held-out bytes that evaluations during training read; None means all.
        hooks: further hooks of the loop.
        **options: options of :func:`statemix.training.fit`, such as ``precision``.

    Raises:
        RequestError: as in :func:`statemix.training.fit`, or if the tokens do not fit the model.
    """
    for given in (tokens, held_out):
        size = given.info.get("vocab_size")
        if size is not None and size > config.vocab_size:
            raise RequestError(
                f"{given.path} must have at most {config.vocab_size} tokens, got {size}"
            )
    torch.manual_seed(settings.seed)
    model = StatemixForCausalLM(config)
    batches = TokenBatches(tokens.ids, settings, torch.device("cpu"))
    per_step = settings.batch_size * settings.length
    identity = {
        "model": json.loads(config.to_json_string(use_diff=False)),
        "training": asdict(settings),
        "tokens": tokens.info.get("sha256", str(tokens.path)),
    }
    identity["model"].pop("transformers_version", None)
    # A run may be extended.
    del identity["training"]["steps"], identity["training"]["evaluate_every"]

    def loss(net: nn.Module, batch: Tensor) -> Tensor:
        return summed_loss(net, batch.to(model.device)) / per_step

    def evaluate(net: nn.Module) -> Mapping[str, float]:
        del net
        return bits_per_byte(model, held_out, most_bytes=most_bytes)

    fitted = fit(
        model,
        batches,
        loss,
        folder,
        num_steps=settings.steps,
        optimizer=optimizer_of(model, settings),
        evaluate=evaluate,
        evaluate_every=settings.evaluate_every,
        settings=identity,
        hooks=[CosineRate(settings), Speed(per_step), *hooks],
        clip_norm=settings.clip_norm,
        seed=settings.seed,
        **options,
    )
    model.eval().save_pretrained(folder / "model")
    return model, fitted


def count_sizes(config: StatemixConfig) -> dict[str, int]:
    """Return the parameters of a model, and the bytes of the state of one sequence in float32."""
    with torch.device("meta"):
        model = StatemixForCausalLM(config)
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_bytes": 4 * sum(layer.state_size for layer in layers),
    }
