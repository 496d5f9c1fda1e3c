"""Time language models of equal size: steps of training, and decoding with a cache."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from statemix.layers.state import map_state
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import CACHE, StatemixForCausalLM
from statemix.lm.language_optimizers import optimizer_of
from statemix.lm.language_scores import summed_loss
from statemix.lm.model_costs import count_sizes
from statemix.lm.presets import LanguageSettings
from statemix.lm.state_cache import StateCache
from statemix.memory import resident_bytes
from statemix_lab.bench.harness import Measurement, Provider, timed_row

LLAMA = "Llama of transformers"
"""A Transformer that others wrote, of the sizes of our Transformer."""

VOCABULARY = 2048
# Tokens that a call decodes. The context grows by them from call to call.
_DECODED = 4

Models = Mapping[str, Mapping[str, Any]]
"""Name -> arguments of ``StatemixConfig`` but the vocabulary."""


@dataclass(frozen=True)
class LanguageCase:
    """A training step of ``batch_size`` sequences, or decoding behind ``length`` tokens."""

    task: Literal["training", "decoding"]
    batch_size: int
    length: int

    @property
    def tokens_per_call(self) -> int:
        """Tokens of a timed call."""
        return self.batch_size * (self.length if self.task == "training" else _DECODED)


def built(model: Mapping[str, Any]) -> StatemixForCausalLM:
    """Return a model with random weights, in evaluation mode."""
    torch.manual_seed(0)
    net = StatemixForCausalLM(StatemixConfig(vocab_size=VOCABULARY, **model))
    net.eval()
    return net


def llama_like(model: Mapping[str, Any]) -> LlamaForCausalLM:
    """Return the Llama of the sizes of a model of attention alone, with tied embeddings."""
    (attention,) = model["mixers"].values()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=model["hidden_size"],
        num_hidden_layers=model["num_hidden_layers"],
        intermediate_size=model["intermediate_size"],
        num_attention_heads=attention["num_heads"],
        max_position_embeddings=2**17,
        tie_word_embeddings=True,
    )
    net = LlamaForCausalLM(config)
    net.eval()
    return net


def providers(case: LanguageCase, models: Models, llama: str = "") -> list[Provider]:
    """Return a provider for each model.

    Args:
        case: what is timed.
        models: models by name.
        llama: name of a model of attention, whose Llama decodes as well; empty for none.
    """
    if case.task == "training":
        sizes = case.batch_size, case.length
        return [
            Provider(name, partial(training_call, model, *sizes)) for name, model in models.items()
        ]

    def decoding(build: Callable[[], nn.Module]) -> Callable[[], Callable[[], Tensor]]:
        return lambda: _decoder(build(), case)

    listed = {name: decoding(partial(built, model)) for name, model in models.items()}
    if llama:
        listed[LLAMA] = decoding(partial(llama_like, models[llama]))
    return [Provider(name, prepare) for name, prepare in listed.items()]


def training_call(model: Mapping[str, Any], batch_size: int, length: int) -> Callable[[], Tensor]:
    """Return a function that makes an optimiser step on random tokens and returns the loss.

    Args:
        model: arguments of ``StatemixConfig`` but the vocabulary.
        batch_size: sequences of a step.
        length: tokens of a sequence.
    """
    net = built(model).train()
    # Weights that hardly move.
    settings = LanguageSettings(length, batch_size, steps=1, learning_rate=1e-12)
    optimizer, tokens = optimizer_of(net, settings), _tokens(batch_size, length + 1)

    def call() -> Tensor:
        optimizer.zero_grad()
        loss = summed_loss(net, tokens) / (batch_size * length)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), settings.clip_norm)
        optimizer.step()
        return loss.detach()

    return call


def _decoder(model: Any, case: LanguageCase) -> Callable[[], Tensor]:
    """Return a function that decodes the likeliest tokens behind the context, call after call."""
    with torch.inference_mode():
        prompt = _tokens(case.batch_size, case.length)
        output = model(prompt, use_cache=True, logits_to_keep=1)
    state: list[Any] = [output.logits[:, -1:].argmax(-1), output[CACHE]]

    def call() -> Tensor:
        token, cache = state
        with torch.inference_mode():
            for _ in range(_DECODED):
                output = model(token, use_cache=True, **{CACHE: cache})
                token, cache = output.logits.argmax(-1), output[CACHE]
        state[:] = token, cache
        result: Tensor = token
        return result

    return call


def _tokens(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def row(case: LanguageCase, measurement: Measurement, models: Models) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance; times are per call."""
    model = models.get(measurement.provider)
    sizes = {} if model is None else count_sizes(StatemixConfig(vocab_size=VOCABULARY, **model))
    time_s = measurement.time_s
    return {
        **timed_row("language", case, measurement, torch.float32, None, 1),
        **sizes,
        "model": model,
        "tokens_per_call": case.tokens_per_call,
        "tokens_per_s": time_s and case.tokens_per_call / time_s.p50,
    }


def cache_bytes(cache: StateCache) -> int:
    """Return the bytes of the states in a cache."""
    sizes: list[int] = []

    def count(part: Tensor) -> Tensor:
        sizes.append(part.nbytes)
        return part

    for layer in cache.layers:
        if layer.state is not None:
            map_state(count, layer.state)
    return sum(sizes)


def decoding_memory(
    model: Mapping[str, Any], places: Sequence[int]
) -> Iterator[dict[str, int | float]]:
    """Decode token by token, and yield the memory at some numbers of tokens.

    Args:
        model: arguments of ``StatemixConfig`` but the vocabulary.
        places: numbers of tokens, in ascending order.

    Yields:
        "tokens", "cache_bytes", and "resident_bytes" of the process.
    """
    net, cache, token = built(model), None, _tokens(1, 1)
    with torch.inference_mode():
        for seen in range(1, places[-1] + 1):
            output = net(token, use_cache=True, **{CACHE: cache})
            token, cache = output.logits.argmax(-1), output[CACHE]
            if seen in places:
                yield {
                    "tokens": seen,
                    "cache_bytes": cache_bytes(cache),
                    "resident_bytes": resident_bytes(),
                }
