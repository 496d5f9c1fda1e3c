"""The wrapper of the synthetic benchmarks: embedding, layers, readout."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from statemix import layers
from statemix.layers.layer import check_sizes
from statemix.models.channel_mixers import CHANNEL_MIXERS, ChannelMixer
from statemix.ops.checks import bind, check_cu_seqlens, check_cu_seqlens_values

Norm = Literal["rms", "layer", "none"]

_EMBEDDING_STD = 0.02
_NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "rms": lambda hidden_size: nn.RMSNorm(hidden_size, eps=1e-5),
    "layer": lambda hidden_size: nn.LayerNorm(hidden_size, eps=1e-5),
    "none": lambda _: nn.Identity(),
}


class SyntheticModel(nn.Module):
    r"""Embedding, ``num_layers`` sequence layers with residual and norm, and a linear readout.

    .. math::
        x \leftarrow x + \mathrm{layer}(\mathrm{norm}(x)), \qquad
        x \leftarrow x + \mathrm{mixer}(\mathrm{norm}(x)), \qquad
        \mathrm{logits} = W \, \mathrm{norm}(x) + c

    Source: the decoder-only backbone of MAD (mad-lab). No positions, no dropout. As there,
    embeddings start as N(0, 0.02), linear weights as PyTorch draws them, and the biases of linear
    maps at zero. Those of BDLRU's and HLRU's gates are among them, dense or pointwise, so that no
    gate is preferred at the start. Gates that are learned constants (``selective=False``) are no
    biases and start as the layer draws them, as does all of an LSTM, its biases included.

    Args:
        vocab_size: number of input tokens.
        num_classes: number of output classes.
        hidden_size: width of the residual stream.
        layer: name of the sequence layer, see ``layers.names()``.
        layer_options: its options, see ``layers.options(layer)``.
        num_layers: number of sequence layers.
        bos: prepend a learned token and drop its output, so that a task never sees it. It can write
            a first state, which lossless transitions would otherwise leave at zero.
        residual: add the input of each part to its output.
        norm: "rms", "layer" or "none", before every part and the readout.
        channel_mixer: "none", "swiglu" or "mlp", after each sequence layer.
        seed: of the initial weights. The global generator is left as it was.

    Shape:
        tokens (B, T) int32 or int64 -> logits (B, T, num_classes).

    Raises:
        ValueError: if a size is below 1, a name is unknown or ``layer_options`` do not fit.

    Example:
        >>> model = SyntheticModel(6, 6, 8, "bd_lru", {"num_blocks": 2, "block_size": 3})
        >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
        torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        hidden_size: int,
        layer: str = "bd_lru",
        layer_options: Mapping[str, Any] | None = None,
        *,
        num_layers: int = 1,
        bos: bool = False,
        residual: bool = True,
        norm: Norm = "rms",
        channel_mixer: ChannelMixer = "none",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(
            vocab_size=vocab_size,
            num_classes=num_classes,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )
        if norm not in _NORMS:
            raise ValueError(f"norm must be one of {list(_NORMS)}, got {norm!r}")
        if channel_mixer not in CHANNEL_MIXERS:
            choices = list(CHANNEL_MIXERS)
            raise ValueError(f"channel_mixer must be one of {choices}, got {channel_mixer!r}")
        # The layer's constructor takes more, which is the wrapper's business.
        layers.check_options(layer, layer_options or {})
        self.vocab_size = vocab_size
        self.bos = bos

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            # The learned token, if any, is the row after the vocabulary's.
            self.embedding = nn.Embedding(vocab_size + bos, hidden_size)
            blocks = []
            for _ in range(num_layers):
                built = layers.build(layer, hidden_size=hidden_size, **(layer_options or {}))
                block = _Block(hidden_size, built, channel_mixer, norm=norm, residual=residual)
                blocks.append(block)
            self.blocks = nn.ModuleList(blocks)
            self.final_norm = _NORMS[norm](hidden_size)
            self.readout = nn.Linear(hidden_size, num_classes)
            nn.init.normal_(self.embedding.weight, std=_EMBEDDING_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "selective", None) == "pointwise":
                nn.init.zeros_(module.get_parameter("gate_bias"))

    def forward(self, tokens: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        """Logits of whole sequences, or of packed ones (B = 1) with ``cu_seqlens`` (N + 1,).

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
        # Once moved for the learned tokens they would not be those that the caller gave.
        _check_values(cu_seqlens, lambda: check_cu_seqlens_values(cu_seqlens, tokens.shape[1]))
        # Every packed sequence gets a learned token of its own in front.
        index = torch.arange(tokens.shape[1], device=tokens.device)
        place = index + 1 + torch.searchsorted(cu_seqlens[1:].contiguous(), index, right=True)
        longer = tokens.new_full((1, tokens.shape[1] + len(cu_seqlens) - 1), self.vocab_size)
        longer[:, place] = tokens
        shifts = torch.arange(len(cu_seqlens), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        return self._run(longer, None, cu_seqlens + shifts)[0][:, place]

    def extend(self, tokens: Tensor, states: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """Logits of the next tokens of sequences, in memory that does not grow with the past.

        Args:
            tokens: the next tokens, shape (B, T) int32 or int64.
            states: what the call before returned. None starts the sequences.

        Returns:
            logits: shape (B, T, num_classes).
            states: one per layer, to be handed to the next call.

        Raises:
            ValueError: if a shape or a device disagrees, there is not one state per layer or, on
                the CPU, a token is not in the vocabulary.
            TypeError: if a dtype does not fit or ``states`` is not a list of tensors.
        """
        self._check_tokens(tokens)
        self._check_states(states)
        if states is not None or not self.bos:
            return self._run(tokens, states, None)
        longer = torch.cat([tokens.new_full((len(tokens), 1), self.vocab_size), tokens], dim=1)
        logits, states = self._run(longer, None, None)
        return logits[:, 1:], states

    def set_gate_temperature(self, temperature: float) -> None:
        """Set the gate temperature of every layer that has one; others are left alone."""
        for module in self.modules():
            if hasattr(module, "gate_temperature"):
                # nn.Module would claim an assignment for its parameters in the eyes of mypy.
                setattr(module, "gate_temperature", temperature)  # noqa: B010

    def _check_tokens(self, tokens: Tensor) -> None:
        bind({}, "tokens", tokens, "B T")
        if tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"tokens must be int32 or int64, got {tokens.dtype}")
        device = self.embedding.weight.device
        if tokens.device != device:
            raise ValueError(
                f"tokens must be on the device of the parameters ({device}), got {tokens.device}"
            )
        _check_values(tokens, lambda: self._check_vocabulary(tokens))

    def _check_vocabulary(self, tokens: Tensor) -> None:
        if tokens.numel() == 0:
            return
        low, high = (int(bound) for bound in tokens.aminmax())
        # The embedding would take the id after the last for the learned token.
        if low < 0 or high >= self.vocab_size:
            raise ValueError(
                f"tokens must be in 0..{self.vocab_size - 1} (vocab_size={self.vocab_size}), "
                f"got {low if low < 0 else high}"
            )

    def _check_states(self, states: list[Any] | None) -> None:
        if states is None:
            return
        if not isinstance(states, list | tuple):
            raise TypeError(f"states must be a list or None, got {type(states).__name__}")
        if len(states) != len(self.blocks):
            raise ValueError(
                f"states must hold one state per layer ({len(self.blocks)}), got {len(states)}"
            )
        for n, state in enumerate(states):
            # The layer itself would take None for a fresh start.
            if not isinstance(state, Tensor):
                raise TypeError(f"states[{n}] must be a tensor, got {type(state).__name__}")

    def _run(
        self, tokens: Tensor, states: list[Any] | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, list[Any]]:
        x = self.embedding(tokens)
        last = []
        for block, state in zip(self.blocks, states or [None] * len(self.blocks), strict=True):
            x, final = block(x, state, cu_seqlens)
            last.append(final)
        return self.readout(self.final_norm(x)), last


def _check_values(tensor: Tensor, check: Callable[[], None]) -> None:
    """Run a check that reads ``tensor``, where that waits for no device and breaks no graph."""
    if tensor.device.type == "cpu" and not torch.compiler.is_compiling():
        # Tensors that are fake or mapped by vmap have no values to read.
        with suppress(RuntimeError):
            check()


class _Block(nn.Module):
    """A sequence layer and, if there is one, a channel mixer: each normalised and residual."""

    def __init__(
        self,
        hidden_size: int,
        layer: nn.Module,
        channel_mixer: ChannelMixer,
        *,
        norm: Norm,
        residual: bool,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm = _NORMS[norm](hidden_size)
        self.layer = layer
        make_mixer = CHANNEL_MIXERS[channel_mixer]
        self.mixer = None if make_mixer is None else make_mixer(hidden_size)
        self.mixer_norm = None if make_mixer is None else _NORMS[norm](hidden_size)

    def forward(self, x: Tensor, state: Any, cu_seqlens: Tensor | None) -> tuple[Tensor, Any]:
        y, state = self.layer(self.norm(x), state, cu_seqlens)
        x = x + y if self.residual else y
        if self.mixer is not None and self.mixer_norm is not None:
            y = self.mixer(self.mixer_norm(x))
            x = x + y if self.residual else y
        return x, state
