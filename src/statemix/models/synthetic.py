"""The model of the synthetic benchmarks: embedding, layers, readouts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn

from statemix.layers import Layer, LayerSpec, State
from statemix.layers.layer import check_sizes
from statemix.models.channel_mixers import MixerSpec
from statemix.ops.checks import (
    bind,
    check_bool,
    check_choice,
    check_cu_seqlens,
    check_cu_seqlens_values,
)

Norm = Literal["rms", "layer", "none"]

Logits = dict[str, Tensor]
"""Head -> logits (B, T, classes of the head)."""

_EMBEDDING_STD = 0.02
_NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "rms": lambda hidden_size: nn.RMSNorm(hidden_size, eps=1e-5),
    "layer": lambda hidden_size: nn.LayerNorm(hidden_size, eps=1e-5),
    "none": lambda _: nn.Identity(),
}


class SyntheticModel(nn.Module):
    r"""Embedding, sequence layers with residual and norm, and one linear readout for each head.

    .. math::
        x \leftarrow x + \mathrm{layer}(\mathrm{norm}(x)), \qquad
        x \leftarrow x + \mathrm{mixer}(\mathrm{norm}(x)), \qquad
        \mathrm{logits} = W \, \mathrm{norm}(x) + c

    Source: the decoder-only backbone of MAD (mad-lab). No positions, no dropout. As in MAD,
    embeddings are drawn from N(0, 0.02), and each part draws its other weights. With
    ``zero_biases``, the biases start at zero, so that no gate is preferred.

    Args:
        vocab_size: number of input tokens.
        heads: name of each output -> its number of classes.
        hidden_size: width of the residual stream.
        layers: sequence layers in order.
        bos: prepend a learned token and drop its output. The token can write a first state, which
            lossless transitions would otherwise leave at zero.
        residual: add the input of each part to its output.
        norm: normalisation before every part and the readouts: "rms", "layer" or "none".
        channel_mixer: position-wise network after each sequence layer; None means no network.
        zero_biases: ask layers and mixers to start with zero biases (``Layer.zero_biases``).
        seed: seed of the initial weights. The global generator is not changed.

    Attributes:
        heads: name of each output -> its number of classes.

    Shape:
        tokens (B, T) int32 or int64 -> for each head, logits (B, T, classes).

    Raises:
        ValueError: if a size is below 1, a name is unknown, or there is no layer or no head.
        TypeError: if an argument has the wrong type.

    Example:
        >>> layers = [LayerSpec("bd_lru", num_blocks=2, block_size=3)]
        >>> model = SyntheticModel(6, {"product": 6}, 8, layers)
        >>> model(torch.zeros(2, 5, dtype=torch.int64))["product"].shape
        torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        vocab_size: int,
        heads: Mapping[str, int],
        hidden_size: int,
        layers: Sequence[LayerSpec],
        *,
        bos: bool = False,
        residual: bool = True,
        norm: Norm = "rms",
        channel_mixer: MixerSpec | None = None,
        zero_biases: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, hidden_size=hidden_size)
        check_bool(bos=bos, residual=residual, zero_biases=zero_biases)
        _check_types(heads, layers, channel_mixer, seed)
        check_sizes(**{f"heads[{head!r}]": classes for head, classes in heads.items()})
        check_choice("norm", norm, list(_NORMS))
        for name, parts in (("heads", heads), ("layers", layers)):
            if not parts:
                raise ValueError(f"{name} must not be empty, got {parts!r}")
        self.vocab_size = vocab_size
        self.bos = bos

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            # The learned token, if any, is the row after the vocabulary's.
            self.embedding = nn.Embedding(vocab_size + bos, hidden_size)
            self.blocks = nn.ModuleList(
                _Block(hidden_size, spec, channel_mixer, norm=norm, residual=residual)
                for spec in layers
            )
            self.final_norm = _NORMS[norm](hidden_size)
            self.readouts = nn.ModuleDict(
                {head: nn.Linear(hidden_size, classes) for head, classes in heads.items()}
            )
            nn.init.normal_(self.embedding.weight, std=_EMBEDDING_STD)
        if zero_biases:
            for part in self.modules():
                if isinstance(part, _Block):
                    part.zero_biases()
            for head in heads:
                nn.init.zeros_(self.readouts.get_parameter(f"{head}.bias"))
        self.heads = dict(heads)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.embedding.weight.device

    def forward(self, tokens: Tensor, cu_seqlens: Tensor | None = None) -> Logits:
        """Return the logits of whole sequences; ``cu_seqlens`` (N + 1,) means packed ones (B = 1).

        Raises:
            ValueError: if a shape or a device disagrees, bounds do not rise from 0 to T or, on the
                CPU, a token is not in the vocabulary.
            TypeError: if a dtype does not fit.
        """
        if cu_seqlens is None:
            return self.extend(tokens)[0]
        self._check_tokens(tokens)
        check_cu_seqlens(cu_seqlens, like=tokens)
        if not self.bos:
            return self._run(tokens, None, cu_seqlens)[0]
        # Later checks would report bounds that the learned tokens have shifted.
        _check_values(cu_seqlens, lambda: check_cu_seqlens_values(cu_seqlens, tokens.shape[1]))
        # Every packed sequence begins with its own learned token.
        index = torch.arange(tokens.shape[1], device=tokens.device)
        place = index + 1 + torch.searchsorted(cu_seqlens[1:].contiguous(), index, right=True)
        longer = tokens.new_full((1, tokens.shape[1] + len(cu_seqlens) - 1), self.vocab_size)
        longer[:, place] = tokens
        shifts = torch.arange(len(cu_seqlens), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        logits, _ = self._run(longer, None, cu_seqlens + shifts)
        return {head: these[:, place] for head, these in logits.items()}

    def extend(
        self, tokens: Tensor, state: tuple[State, ...] | None = None
    ) -> tuple[Logits, tuple[State, ...]]:
        """Return the logits of the next tokens of sequences, and the state after them.

        Args:
            tokens: the next tokens, shape (B, T) int32 or int64.
            state: state that the previous call returned. None starts new sequences.

        Returns:
            logits: for each head, shape (B, T, classes).
            state: state of every layer, for the next call. ``layers.take_rows`` selects, repeats or
                reorders its sequences.

        Raises:
            ValueError: if a shape or a device disagrees, there is not one state per layer or, on
                the CPU, a token is not in the vocabulary.
            TypeError: if a dtype or the structure of the state does not fit.
        """
        self._check_tokens(tokens)
        self._check_state(state)
        if state is not None or not self.bos:
            return self._run(tokens, state, None)
        longer = torch.cat([tokens.new_full((len(tokens), 1), self.vocab_size), tokens], dim=1)
        logits, state = self._run(longer, None, None)
        return {head: these[:, 1:] for head, these in logits.items()}, state

    def _check_tokens(self, tokens: Tensor) -> None:
        bind({}, "tokens", tokens, "B T")
        if tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"tokens must be int32 or int64, got {tokens.dtype}")
        if tokens.device != self.device:
            raise ValueError(
                f"tokens must be on the device of the parameters ({self.device}), "
                f"got {tokens.device}"
            )
        _check_values(tokens, lambda: self._check_vocabulary(tokens))

    def _check_vocabulary(self, tokens: Tensor) -> None:
        if tokens.numel() == 0:
            return
        low, high = (int(bound) for bound in tokens.aminmax())
        # The embedding would treat the id after the last one as the learned token.
        if low < 0 or high >= self.vocab_size:
            raise ValueError(
                f"tokens must be in 0..{self.vocab_size - 1} (vocab_size={self.vocab_size}), "
                f"got {low if low < 0 else high}"
            )

    def _check_state(self, state: tuple[State, ...] | None) -> None:
        """Check that there is one state per layer; each layer then checks its own."""
        if state is None:
            return
        if not isinstance(state, tuple | list):
            raise TypeError(f"state must be a tuple or None, got {type(state).__name__}")
        if len(state) != len(self.blocks):
            raise ValueError(
                f"state must hold one state per layer ({len(self.blocks)}), got {len(state)}"
            )
        if any(part is None for part in state):
            # To a layer, None would mean a fresh start.
            raise TypeError("state must hold the state of every layer, got None for one")

    def _run(
        self, tokens: Tensor, state: tuple[State, ...] | None, cu_seqlens: Tensor | None
    ) -> tuple[Logits, tuple[State, ...]]:
        x = self.embedding(tokens)
        last = []
        for block, before in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            x, after = block(x, before, cu_seqlens)
            last.append(after)
        x = self.final_norm(x)
        return {head: readout(x) for head, readout in self.readouts.items()}, tuple(last)


def _check_types(heads: object, layers: object, channel_mixer: object, seed: object) -> None:
    if not isinstance(heads, Mapping) or not all(isinstance(head, str) for head in heads):
        raise TypeError(f"heads must be a mapping of names to sizes, got {heads!r}")
    if not isinstance(layers, Sequence) or not all(isinstance(one, LayerSpec) for one in layers):
        raise TypeError(f"layers must be a sequence of LayerSpecs, got {layers!r}")
    if channel_mixer is not None and not isinstance(channel_mixer, MixerSpec):
        raise TypeError(f"channel_mixer must be a MixerSpec or None, got {channel_mixer!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"seed must be an int, got {seed!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be in 0..2^63 - 1, got {seed}")


def _check_values(tensor: Tensor, check: Callable[[], None]) -> None:
    """Run a check that reads ``tensor``, unless reading waits for a device or breaks a graph."""
    if tensor.device.type == "cpu" and not torch.compiler.is_compiling():
        # Fake tensors, and those mapped by vmap, have no values to read.
        with suppress(RuntimeError):
            check()


class _Block(nn.Module):
    """A sequence layer and, if there is one, a channel mixer: each normalised and residual."""

    def __init__(
        self,
        hidden_size: int,
        layer: LayerSpec,
        channel_mixer: MixerSpec | None,
        *,
        norm: Norm,
        residual: bool,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm = _NORMS[norm](hidden_size)
        self.layer: Layer = layer.build(hidden_size=hidden_size)
        self.mixer = self.mixer_norm = None
        if channel_mixer is not None:
            self.mixer = channel_mixer.build(hidden_size=hidden_size)
            self.mixer_norm = _NORMS[norm](hidden_size)

    def zero_biases(self) -> None:
        """Ask the parts to start with zero biases."""
        self.layer.zero_biases()
        if self.mixer is not None:
            self.mixer.zero_biases()

    def forward(
        self, x: Tensor, state: State | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, State]:
        y, state = self.layer(self.norm(x), state, cu_seqlens)
        x = x + y if self.residual else y
        if self.mixer is not None and self.mixer_norm is not None:
            y = self.mixer(self.mixer_norm(x))
            x = x + y if self.residual else y
        return x, state
