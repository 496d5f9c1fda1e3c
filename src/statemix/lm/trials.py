"""A causal language model under check: its tokens, and the logits that every check compares."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Names under which models of transformers return and take a cache.
_CACHES = ("cache", "past_key_values", "cache_params", "state")
NEW_TOKENS = 12
GREEDY = {
    "max_new_tokens": NEW_TOKENS,
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_logits": True,
}


class NotSupportedError(Exception):
    """The model does not claim what a check tries; the message gives the reason."""


class ConformityError(Exception):
    """The model breaks a rule; the message names it, and ``difference`` is the size, if any."""

    def __init__(self, rule: str, difference: float | None = None) -> None:
        super().__init__(rule)
        self.difference = difference


def relative(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference, divided by the largest wanted value."""
    if not wanted.numel():
        return 0.0
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


class ModelTrial:
    """A model in evaluation mode, and two rows of seven tokens, ``ids`` (2, 7).

    ``following`` (2, 2) continues them. In the masks ``left`` and ``right``, the second row has
    padding.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        drawn = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
        # Small vocabularies have fewer tokens.
        tokens = self.here(drawn.tolist()) % self.vocab_size
        self.ids, self.following = torch.split(tokens, [7, 2], 1)
        self.left = self.here([[1] * 7, [0] * 3 + [1] * 4])
        self.right = self.left.flip(1)

    def here(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor on the device of the model."""
        return torch.tensor(values, device=self.model.device, dtype=dtype)

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def whole(self, ids: Tensor, **given: Any) -> Tensor:
        """Return the logits of every token from one pass over the whole text."""
        logits: Tensor = self.model(ids, use_cache=False, **given).logits
        return logits

    @property
    def cache_name(self) -> str:
        output = self.model(self.ids, use_cache=True)
        for name in _CACHES:
            if output.get(name) is not None:
                return name
        raise NotSupportedError("the model returns no cache")

    def cached(self, ids: Tensor, cache: Any = None, **given: Any) -> tuple[Tensor, Any]:
        """Return the logits of tokens after those of ``cache``, and the new cache."""
        name = self.cache_name
        before = {} if cache is None else {name: cache}
        output = self.model(ids, use_cache=True, **before, **given)
        return output.logits, output[name]

    def generated(self, ids: Tensor, mask: Tensor | None = None, **options: Any) -> float:
        """Generate, and compare the logits of new tokens with a pass over each whole text."""
        mask = torch.ones_like(ids) if mask is None else mask
        output = self.model.generate(ids, attention_mask=mask, **GREEDY, **options)
        logits = torch.stack(output.logits, 1)
        new = mask.new_ones(len(mask), output.sequences.shape[1] - mask.shape[1])
        is_token = torch.cat([mask, new], 1).bool()
        return max(
            relative(logits[row], self.whole(text[None, is_token[row]])[0, -NEW_TOKENS - 1 : -1])
            for row, text in enumerate(output.sequences)
        )

    def pieces(self, ids: Tensor, sizes: Sequence[int]) -> float:
        """Read tokens in pieces with a cache, and compare with a pass over the whole text."""
        cache, found = None, []
        for piece in torch.split(ids, list(sizes), 1):
            logits, cache = self.cached(piece, cache)
            found.append(logits)
        return relative(torch.cat(found, 1), self.whole(ids))
