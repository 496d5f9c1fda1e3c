"""Time language models of equal size: steps of training, and decoding with a cache."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from statemix.layers.state import tensors
from statemix.lm.hub_config import StatemixConfig
from statemix.lm.hub_model import CACHE, StatemixForCausalLM
from statemix.lm.language_optimizers import optimizer_of
from statemix.lm.language_scores import summed_loss
from statemix.lm.model_costs import count_sizes
from statemix.lm.presets import LanguageSettings
from statemix.lm.state_cache import StateCache
from statemix_lab.bench.harness import Measurement, Provider, timed_row
from statemix_lab.bench.timed_devices import DeviceName

LLAMA = "Llama of transformers"
"""A Transformer that others wrote, of the sizes of our Transformer."""

VOCABULARY = 2048
# Tokens that a call decodes. The context grows by them from call to call.
_DECODED = 4

Models = Mapping[str, Mapping[str, Any]]
"""Name -> arguments of ``StatemixConfig``; the vocabulary has 2,048 tokens if none is given."""


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


def built(model: Mapping[str, Any], device: DeviceName = "cpu") -> StatemixForCausalLM:
    """Return a model with random weights, in evaluation mode."""
    torch.manual_seed(0)
    net = StatemixForCausalLM(_configuration(model))
    net.eval()
    net.to(device)
    return net


def _configuration(model: Mapping[str, Any]) -> StatemixConfig:
    return StatemixConfig(**{"vocab_size": VOCABULARY, **model})


def llama_like(model: Mapping[str, Any], device: DeviceName = "cpu") -> LlamaForCausalLM:
    """Return the Llama of the sizes of a model of attention alone, with tied embeddings."""
    (attention,) = model["mixers"].values()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=model.get("vocab_size", VOCABULARY),
        hidden_size=model["hidden_size"],
        num_hidden_layers=model["num_hidden_layers"],
        intermediate_size=model["intermediate_size"],
        num_attention_heads=attention["num_heads"],
        max_position_embeddings=2**17,
        tie_word_embeddings=model.get("tie_word_embeddings", True),
    )
    net = LlamaForCausalLM(config).eval()
    net.to(device)
    return net


def providers(
    case: LanguageCase,
    models: Models,
    llama: str = "",
    device: DeviceName = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[Provider]:
    """Return a provider for each model."""
    builds: dict[str, Callable[[], Any]] = {
        name: partial(built, model, device) for name, model in models.items()
    }
    if llama and case.task == "decoding":
        builds[LLAMA] = partial(llama_like, models[llama], device)
    start = training_call if case.task == "training" else _decoder

    cast = torch.autocast(device, dtype, enabled=dtype != torch.float32)

    def prepare(build: Callable[[], Any]) -> Callable[[], Tensor]:
        with cast:
            call = start(build(), case)
        casting: Callable[[], Tensor] = cast(call)
        return casting

    return [Provider(name, partial(prepare, build)) for name, build in builds.items()]


def training_call(net: StatemixForCausalLM, case: LanguageCase) -> Callable[[], Tensor]:
    """Return a function that makes an optimiser step on random tokens and returns the loss."""
    net.train()
    # Weights that hardly move.
    settings = LanguageSettings(case.length, case.batch_size, steps=1, learning_rate=1e-12)
    optimizer = optimizer_of(net, settings)
    tokens = _tokens(case.batch_size, case.length + 1).to(net.device)

    def call() -> Tensor:
        optimizer.zero_grad()
        loss = summed_loss(net, tokens) / case.tokens_per_call
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(net.parameters(), settings.clip_norm)
        optimizer.step()
        return loss.detach()

    return call


def _decoder(model: Any, case: LanguageCase) -> Callable[[], Tensor]:
    """Return a function that decodes the likeliest tokens behind the context, call after call."""
    with torch.inference_mode():
        prompt = _tokens(case.batch_size, case.length).to(model.device)
        output = model(prompt, use_cache=True, logits_to_keep=1)
    token: Tensor = output.logits[:, -1:].argmax(-1)
    cache = output[CACHE]

    def call() -> Tensor:
        nonlocal token, cache
        with torch.inference_mode():
            for _ in range(_DECODED):
                output = model(token, use_cache=True, **{CACHE: cache})
                token, cache = output.logits.argmax(-1), output[CACHE]
        return token

    return call


def _tokens(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def row(
    case: LanguageCase, measurement: Measurement, models: Models, dtype: torch.dtype
) -> dict[str, Any]:
    """Return the stored row of a measurement, without its provenance; times are per call."""
    model = models.get(measurement.provider)
    sizes = {} if model is None else count_sizes(_configuration(model))
    time_s = measurement.time_s
    return {
        **timed_row("language", case, measurement, dtype, None, 1),
        **sizes,
        "model": model,
        "tokens_per_call": case.tokens_per_call,
        "tokens_per_s": time_s and case.tokens_per_call / time_s.p50,
    }


def cache_bytes(cache: StateCache) -> int:
    """Return the bytes of the states in a cache."""
    states = (layer.state for layer in cache.layers if layer.state is not None)
    return sum(part.nbytes for state in states for _, part in tensors(state))


def decoding_memory(
    model: Mapping[str, Any], places: Sequence[int]
) -> Iterator[dict[str, int | float]]:
    """Decode token by token; yield the memory of cache and process at ascending numbers."""
    net, cache, token = built(model), None, _tokens(1, 1)
    with torch.inference_mode():
        for seen in range(1, places[-1] + 1):
            output = net(token, use_cache=True, **{CACHE: cache})
            token, cache = output.logits.argmax(-1), output[CACHE]
            if seen in places:
                # What the process holds in RAM; 0 where Linux does not tell.
                status = Path("/proc/self/status")
                text = status.read_text() if status.exists() else ""
                resident = re.search(r"VmRSS:\s*(\d+) kB", text)
                yield {
                    "tokens": seen,
                    "cache_bytes": cache_bytes(cache),
                    "resident_bytes": int(resident[1]) * 1024 if resident else 0,
                }
