"""The part that all models share: embedding, blocks and final norm."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from statemix.errors import OptionError
from statemix.layers import Layer, LayerSpec, State
from statemix.layers.checking import check_once
from statemix.models.channel_mixers import ChannelMixer, MixerSpec
from statemix.ops.checks import (
    bind,
    check_choice,
    check_cu_seqlens,
    check_cu_seqlens_values,
    check_sizes,
    check_switches,
)
from statemix.ops.packing import check_values, pack, positions, unpack

States = tuple[State, ...]
"""One state per block."""

Norm = Literal["rms", "layer", "none"]

NORMS: dict[Norm, Callable[..., nn.Module]] = {
    "rms": lambda hidden_size, **placement: nn.RMSNorm(hidden_size, eps=1e-5, **placement),
    "layer": lambda hidden_size, **placement: nn.LayerNorm(hidden_size, eps=1e-5, **placement),
    "none": lambda _, **_placement: nn.Identity(),
}
"""Name -> maker of a normalisation of a width, which also takes ``device`` and ``dtype``."""


class Block(nn.Module):
    r"""A sequence layer (the mixer) and, if there is one, a channel mixer.

    .. math::
        x \leftarrow x + \mathrm{mixer}(\mathrm{norm}(x)), \qquad
        x \leftarrow x + \mathrm{channel\_mixer}(\mathrm{norm}(x))

    Args:
        hidden_size: width of the residual stream.
        mixer: sequence layer.
        channel_mixer: position-wise network after the sequence layer; None means no network.
        norm: normalisation before each part: "rms", "layer" or "none".
        residual: add the input of each part to its output.
        dropout: probability with which training zeroes an entry of a part's output.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shape:
        x (B, T, hidden_size), state of the mixer or None -> the same shapes.

    Example:
        >>> block = Block(8, LayerSpec("bd_lru", num_blocks=4, block_size=2), MixerSpec("swiglu"))
        >>> y, state = block(torch.randn(2, 5, 8))
        >>> y.shape, type(block.mixer).__name__, type(block.channel_mixer).__name__
        (torch.Size([2, 5, 8]), 'BDLRU', 'SwiGLU')
    """

    def __init__(
        self,
        hidden_size: int,
        mixer: LayerSpec,
        channel_mixer: MixerSpec | None = None,
        *,
        norm: Norm = "rms",
        residual: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        placement = _placement_of(device, dtype)
        self.residual = residual
        self.dropout = nn.Dropout(dropout)
        self.norm = NORMS[norm](hidden_size, **placement)
        self.mixer: Layer = mixer.build(hidden_size=hidden_size, **placement)
        self.channel_mixer: ChannelMixer | None = None
        self.channel_norm: nn.Module | None = None
        if channel_mixer is not None:
            self.channel_mixer = channel_mixer.build(hidden_size=hidden_size, **placement)
            self.channel_norm = NORMS[norm](hidden_size, **placement)

    def zero_biases(self) -> None:
        """Set the biases of the parts to zero."""
        self.mixer.zero_biases()
        if self.channel_mixer is not None:
            self.channel_mixer.zero_biases()

    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        u = self.norm(x)
        if cu_seqlens is not None:
            check_once(self.mixer, u)
        y, state = self.mixer(u, state, cu_seqlens)
        x = self._added(x, y)
        if self.channel_mixer is not None and self.channel_norm is not None:
            x = self._added(x, self.channel_mixer(self.channel_norm(x)))
        return x, state

    def _added(self, x: Tensor, y: Tensor) -> Tensor:
        y = self.dropout(y)
        return x + y if self.residual else y


def _placement_of(device: torch.device | str | None, dtype: torch.dtype | None) -> dict[str, Any]:
    # A channel mixer of a user may have neither argument.
    given = {"device": device, "dtype": dtype}
    return {name: value for name, value in given.items() if value is not None}


class Backbone(nn.Module):
    """Embedding, blocks and final norm: tokens and states in, hidden states and states out.

    Sequences may be whole rows, padded rows (with ``attention_mask`` or ``lengths``) or packed into
    one row (with ``cu_seqlens``). All of these give a token the same hidden state, and a sequence
    the same state. Padding may be anywhere in a row and is not computed.

    The blocks see no positions. Every part draws its weights from PyTorch's global generator.

    Args:
        vocab_size: number of input tokens.
        hidden_size: width of the residual stream.
        layers: sequence layers in order, one per block.
        channel_mixer: as in :class:`Block`.
        bos: begin every new sequence with a learned token, whose hidden state is dropped. The token
            can write a first state, which lossless transitions would otherwise leave at zero.
        residual: as in :class:`Block`.
        norm: as in :class:`Block`, and at the end.
        dropout: as in :class:`Block`.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Attributes:
        blocks: the blocks; ``backbone.blocks[0].mixer`` is the first sequence layer.

    Example:
        >>> backbone = Backbone(6, 8, [LayerSpec("bd_lru", num_blocks=4, block_size=2)])
        >>> hidden, state = backbone(torch.zeros(2, 5, dtype=torch.int64))
        >>> hidden.shape, len(state)
        (torch.Size([2, 5, 8]), 1)
    """

    blocks: Sequence[Block]

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        layers: Sequence[LayerSpec],
        *,
        channel_mixer: MixerSpec | None = None,
        bos: bool = False,
        residual: bool = True,
        norm: Norm = "rms",
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, hidden_size=hidden_size)
        check_switches(bos=bos, residual=residual)
        check_choice("norm", norm, list(NORMS))
        are_specs = isinstance(layers, Sequence) and all(isinstance(s, LayerSpec) for s in layers)
        if not are_specs or not layers:
            raise OptionError(f"layers must be a sequence of LayerSpecs, not empty, got {layers!r}")
        if not isinstance(channel_mixer, MixerSpec | None):
            raise OptionError(f"channel_mixer must be a MixerSpec or None, got {channel_mixer!r}")
        placement = _placement_of(device, dtype)
        self.vocab_size = vocab_size
        self.bos = bos
        # The learned token, if any, is the row after the vocabulary's.
        self.embedding = nn.Embedding(vocab_size + bos, hidden_size, **placement)
        options: dict[str, Any] = {"norm": norm, "residual": residual, "dropout": dropout}
        options |= placement
        blocks = (Block(hidden_size, layer, channel_mixer, **options) for layer in layers)
        self.blocks = cast("Sequence[Block]", nn.ModuleList(blocks))
        self.final_norm = NORMS[norm](hidden_size, **placement)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.embedding.weight.device

    def forward(
        self,
        tokens: Tensor,
        state: States | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, States]:
        """Return the hidden state of every token, and the state of every sequence at its end.

        Args:
            tokens: shape (B, T) int32 or int64.
            state: states that a previous call returned. None starts new sequences.
            cu_seqlens: bounds of N packed sequences (B = 1), shape (N+1,). States have N rows.
            attention_mask: 1 for tokens and 0 for padding, shape (B, T), bool or integer.
            lengths: number of tokens of each row before its padding, shape (B,), instead of a mask.

        Returns:
            hidden: shape (B, T, hidden_size); at padding it means nothing.
            state: one state per block.

        Raises:
            ValueError: if shapes or devices disagree, or two of ``cu_seqlens``, ``attention_mask``
                and ``lengths`` are given; on the CPU also if a number is out of range.
            TypeError: if a dtype or the structure of ``state`` does not fit.
        """
        mask = mask_of(tokens, cu_seqlens, attention_mask, lengths)
        if mask is not None:
            self._check_tokens(tokens)
            tokens, cu_seqlens = pack(tokens, mask)
        x, state = self.stream(tokens, state, cu_seqlens)
        hidden = self.final_norm(x)
        return hidden if mask is None else unpack(hidden, mask), state

    def stream(
        self, tokens: Tensor, state: States | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, States]:
        """Return what :meth:`forward` returns for rows without padding, before the final norm."""
        self._check_tokens(tokens)
        if state is not None:
            # Each layer then checks its own.
            if not isinstance(state, tuple | list):
                raise TypeError(f"state must be a tuple or None, got {type(state).__name__}")
            if len(state) != (count := len(self.blocks)):
                raise ValueError(f"state must hold one state per layer ({count}), got {len(state)}")
            if any(part is None for part in state):
                # To a layer, None would mean a fresh start.
                raise TypeError("state must hold the state of every layer, got None for one")
        if cu_seqlens is not None:
            check_cu_seqlens(cu_seqlens, like=tokens)
        kept: Tensor | slice = slice(None)
        if self.bos and state is None:
            tokens, cu_seqlens, kept = self._begun(tokens, cu_seqlens)
        x = self.embedding(tokens)
        after = []
        for block, before in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            x, last = block(x, before, cu_seqlens)
            after.append(last)
        return x[:, kept], tuple(after)

    def _begun(
        self, tokens: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | slice]:
        """Put the learned token before every sequence; return where the others then are."""
        if cu_seqlens is None:
            first = tokens.new_full((tokens.shape[0], 1), self.vocab_size)
            return torch.cat([first, tokens], dim=1), None, slice(1, None)
        length = tokens.shape[1]
        # Later checks would report bounds that the learned tokens have shifted.
        check_values(cu_seqlens, lambda: check_cu_seqlens_values(cu_seqlens, length))
        shifts = torch.arange(len(cu_seqlens), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequence, _ = positions(cu_seqlens, length)
        places = torch.arange(length, device=tokens.device) + 1 + sequence
        longer = tokens.new_full((1, length + len(cu_seqlens) - 1), self.vocab_size)
        longer[:, places] = tokens
        return longer, cu_seqlens + shifts, places

    def _check_tokens(self, tokens: Tensor) -> None:
        bind({}, "tokens", tokens, "B T")
        _check_integers("tokens", tokens)
        if tokens.device != self.device:
            parameters = f"the device of the parameters ({self.device})"
            raise ValueError(f"tokens must be on {parameters}, got {tokens.device}")
        # The embedding would treat the id after the last one as the learned token.
        check_range("tokens", tokens, self.vocab_size - 1, f" (vocab_size={self.vocab_size})")


def mask_of(
    tokens: Tensor, cu_seqlens: Tensor | None, attention_mask: Tensor | None, lengths: Tensor | None
) -> Tensor | None:
    """Check how tokens (B, T) are padded or packed, and return their mask, if they are padded."""
    given = {"cu_seqlens": cu_seqlens, "attention_mask": attention_mask, "lengths": lengths}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{names[1]} must be None with {names[0]}")
    if lengths is None:
        return attention_mask
    sizes: dict[str, int] = {}
    bind(sizes, "tokens", tokens, "B T")
    bind(sizes, "lengths", lengths, "B")
    _check_integers("lengths", lengths)
    if lengths.device != tokens.device:
        raise ValueError(f"lengths must be on {tokens.device}, got {lengths.device}")
    longest = tokens.shape[1]
    check_range("lengths", lengths, longest)
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {tensor.dtype}")


def check_range(name: str, numbers: Tensor, most: int, why: str = "") -> None:
    """Check that integers are in 0..most, where :func:`check_values` may read them."""

    def check() -> None:
        if numbers.numel():
            low, high = (int(bound) for bound in numbers.aminmax())
            if low < 0 or high > most:
                got = low if low < 0 else high
                raise ValueError(f"{name} must be in 0..{most}{why}, got {got}")

    check_values(numbers, check)
