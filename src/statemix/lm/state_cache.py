"""The states of a model's layers as a cache of transformers, which can be rolled back."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from statemix.layers import State
from statemix.layers.state import map_state


class StateLayer(CacheLayerMixin):
    """The ``state`` of one block after the tokens so far; None before the first token.

    While the past is recorded, the layer also keeps the state before the recorded tokens, and the
    inputs of the block. Rolling back leaves the earlier state, and in ``pending`` the inputs that
    are kept, which the mixer of the block reads before the next tokens.
    """

    is_sliding = False
    is_croppable = True
    is_compileable = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.record_past = False
        self.reset()

    def reset(self) -> None:
        self.state: State | None = None
        self.pending: Tensor | None = None
        # State before the recorded tokens, their inputs, and which columns had tokens.
        self._before: State | None = None
        self._inputs: Tensor | None = None
        self._columns: Tensor | None = None

    def activate_past_recording(self) -> None:
        """Record tokens from here on, so that :meth:`crop` can remove them."""
        self.record_past = True

    def store(
        self, before: State | None, state: State, inputs: Tensor | None, mask: Tensor | None
    ) -> None:
        """Take the states before and after the tokens of a call.

        ``inputs`` are those of the block without padding, (B, T, hidden_size); None if rows have
        unequal lengths, and cannot be rolled back. ``mask`` (1, columns) says which are tokens.
        """
        if not self.record_past or inputs is None:
            self._before = self._inputs = self._columns = None
        else:
            columns = inputs.new_ones(1, inputs.shape[1]).bool() if mask is None else mask
            if self._inputs is None or self._columns is None:
                self._before, self._inputs, self._columns = before, inputs, columns
            else:
                self._inputs = torch.cat([self._inputs, inputs], 1)
                self._columns = torch.cat([self._columns, columns], 1)
        self.state, self.pending = state, None
        self.is_initialized = True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, whose number comes with a minus, and forget all records."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove must be at most 0, got {tokens_to_remove}")
        before, inputs, columns = self._before, self._inputs, self._columns
        if columns is None:
            # After another removal, what it has kept can still be removed.
            before, inputs = self.state, self.pending
            columns = torch.ones(1, 0 if inputs is None else inputs.shape[1])
        recorded = columns.shape[1]
        if recorded + tokens_to_remove < 0:
            raise ValueError(
                f"tokens_to_remove must be at least -{recorded}, the number of recorded tokens, "
                f"got {tokens_to_remove}"
            )
        if tokens_to_remove and inputs is not None:
            kept = int(columns[0, :tokens_to_remove].sum())
            self.state, self.pending = before, inputs[:, :kept] if kept else None
        self._before = self._inputs = self._columns = None

    def _rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the batch axis of all tensors."""
        for name in ("state", "_before", "pending", "_inputs"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else map_state(change, value))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._rows(lambda part: part[indices.to(part.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._rows(lambda part: part.repeat_interleave(repeats, 0))

    def lazy_initialization(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError("a StateLayer holds no keys and values")

    update = lazy_initialization

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class StateCache(Cache):
    """The states of all blocks of a :class:`~statemix.lm.StatemixModel`.

    Pass the cache of one call to the next, under either of its names. The methods of transformers
    select, repeat and reorder its sequences. Its memory does not grow with the number of tokens,
    unless a layer is attention.

    Args:
        num_layers: number of blocks.
        is_compileable: whether ``generate`` compiles the model, which it does on a GPU and with a
            ``compile_config`` alone.

    Attributes:
        seen: number of tokens so far, with padding.
    """

    layers: list[StateLayer]

    def __init__(self, num_layers: int, *, is_compileable: bool = False) -> None:
        super().__init__(layers=[StateLayer() for _ in range(num_layers)])
        self.seen = 0
        self._is_compileable = is_compileable

    @property
    def is_initialized(self) -> bool:
        return self.seen > 0

    @property
    def is_linear(self) -> list[bool]:
        # Otherwise `generate` would not cut what the cache has seen off the prompt.
        return [False] * len(self.layers)

    @property
    def is_compileable(self) -> bool:
        return self._is_compileable

    @property
    def is_croppable(self) -> bool:
        return True

    # transformers may name a layer, but all have seen the same tokens.
    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self, *_: Any, **__: Any) -> int:
        return -1

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return self.seen > 0

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        self.seen += tokens_to_remove

    def reset(self) -> None:
        super().reset()
        self.seen = 0
