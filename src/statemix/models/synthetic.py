"""The model of the synthetic benchmarks: embedding, layers, readouts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from statemix.errors import OptionError
from statemix.layers import LayerSpec, State
from statemix.layers.layer import check_sizes, check_switches
from statemix.models.autoencoder import (
    Decoder,
    check_lengths,
    check_lengths_values,
    vectors_at,
)
from statemix.models.block import NORMS, Block, Norm
from statemix.models.channel_mixers import MixerSpec
from statemix.ops.checks import (
    bind,
    check_choice,
    check_cu_seqlens,
    check_cu_seqlens_values,
)

Backbone = Literal["causal", "autoencoder"]
LinearInit = Literal["own", "normal"]

Logits = dict[str, Tensor]
"""Head -> logits (B, T, classes of the head)."""

LINEAR_INITS: dict[Backbone, LinearInit] = {"causal": "own", "autoencoder": "normal"}
"""Backbone -> how MAD initialises the linear maps of a model with it."""

_STD = 0.02


class SyntheticModel(nn.Module):
    r"""Embedding, sequence layers with residual and norm, and one linear readout for each head.

    .. math::
        x \leftarrow x + \mathrm{layer}(\mathrm{norm}(x)), \qquad
        x \leftarrow x + \mathrm{mixer}(\mathrm{norm}(x)), \qquad
        \mathrm{logits} = W \, \mathrm{norm}(x) + c

    A causal backbone reads the logits of a position from x there. An autoencoder, which MAD uses
    for compression, keeps only x at the last token of a sequence. A :class:`Decoder` rebuilds x at
    every position from it, and the readouts follow. So its logits need whole sequences.

    Source: the decoder-only and the auto-encoder backbone of MAD (mad-lab). The layers see no
    positions, and there is no dropout. As in MAD, embeddings are drawn from N(0, 0.02). With
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
        backbone: "causal" or "autoencoder".
        linear_init: "own" lets each part draw its linear maps. "normal" redraws the weight of every
            ``nn.Linear`` in the model from N(0, 0.02) and sets its bias to zero, whatever
            ``zero_biases`` says: projections and dense gates of the layers, channel mixers, decoder
            and readouts. (With ``zero_biases``, input gates then begin at their bias again.) All
            other parameters stay as their part drew them: the cell of an LSTM,
            convolutions, pointwise and constant gates, decays, norms. None means MAD's choice for
            the backbone: "own" if it is causal, "normal" for the autoencoder.
        seed: seed of the initial weights. The global generator is not changed.

    Attributes:
        heads: name of each output -> its number of classes.

    Shape:
        tokens (B, T) int32 or int64 -> for each head, logits (B, T, classes).

    Raises:
        ValueError: if a size is below 1, a name is unknown, or there is no layer or no head; or if
            ``hidden_size`` is 1 with an autoencoder.
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
        backbone: Backbone = "causal",
        linear_init: LinearInit | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, hidden_size=hidden_size)
        check_switches(bos=bos, residual=residual, zero_biases=zero_biases)
        _check_types(heads, layers, channel_mixer, seed)
        check_sizes(**{f"heads[{head!r}]": classes for head, classes in heads.items()})
        check_choice("norm", norm, list(NORMS))
        check_choice("backbone", backbone, list(LINEAR_INITS))
        if linear_init is None:
            linear_init = LINEAR_INITS[backbone]
        check_choice("linear_init", linear_init, get_args(LinearInit))
        for name, parts in (("heads", heads), ("layers", layers)):
            if not parts:
                raise OptionError(f"{name} must not be empty, got {parts!r}")
        self.vocab_size = vocab_size
        self.bos = bos

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            # The learned token, if any, is the row after the vocabulary's.
            self.embedding = nn.Embedding(vocab_size + bos, hidden_size)
            self.blocks = nn.ModuleList(
                Block(hidden_size, spec, channel_mixer, norm=norm, residual=residual)
                for spec in layers
            )
            self.final_norm = NORMS[norm](hidden_size)
            self.readouts = nn.ModuleDict(
                {head: nn.Linear(hidden_size, classes) for head, classes in heads.items()}
            )
            nn.init.normal_(self.embedding.weight, std=_STD)
            self.decoder = Decoder(hidden_size, NORMS[norm]) if backbone != "causal" else None
            if linear_init == "normal":
                _redraw_linear_maps(self)
        if zero_biases:
            for part in self.modules():
                if isinstance(part, Block):
                    part.zero_biases()
            for head in heads:
                nn.init.zeros_(self.readouts.get_parameter(f"{head}.bias"))
        self.heads = dict(heads)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.embedding.weight.device

    def forward(
        self, tokens: Tensor, cu_seqlens: Tensor | None = None, lengths: Tensor | None = None
    ) -> Logits:
        """Return the logits of whole sequences.

        Args:
            tokens: shape (B, T) int32 or int64.
            cu_seqlens: bounds of packed sequences (B = 1), shape (N+1,); None means a row each.
            lengths: tokens of each row before its padding, shape (B,) int32 or int64; None means T.
                Only an autoencoder depends on it. The logits of padding mean nothing.

        Raises:
            ValueError: if a shape or a device disagrees, both bounds and lengths are given, bounds
                do not rise from 0 to T or, on the CPU, a token is not in the vocabulary or a length
                not in 0..T.
            TypeError: if a dtype does not fit.
        """
        if lengths is not None:
            self._check_tokens(tokens)
            check_lengths(lengths, tokens)
            if cu_seqlens is not None:
                raise ValueError(
                    f"lengths must be None with cu_seqlens, got {tuple(lengths.shape)}"
                )
            _check_values(lengths, lambda: check_lengths_values(lengths, tokens.shape[1]))
        if cu_seqlens is not None:
            return self._of_packed(tokens, cu_seqlens)
        (logits,) = self.in_pieces([tokens], lengths)
        return logits

    def _of_packed(self, tokens: Tensor, cu_seqlens: Tensor) -> Logits:
        self._check_tokens(tokens)
        check_cu_seqlens(cu_seqlens, like=tokens)
        if not self.bos and self.decoder is None:
            return self._read(self._run(tokens, None, cu_seqlens)[0])
        # Later checks would report bounds that the learned tokens have shifted.
        _check_values(cu_seqlens, lambda: check_cu_seqlens_values(cu_seqlens, tokens.shape[1]))
        place = index = torch.arange(tokens.shape[1], device=tokens.device)
        sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), index, right=True)
        longer, bounds = tokens, cu_seqlens
        if self.bos:
            # Every packed sequence begins with its own learned token.
            place = index + 1 + sequence
            longer = tokens.new_full((1, tokens.shape[1] + len(cu_seqlens) - 1), self.vocab_size)
            longer[:, place] = tokens
            shifts = torch.arange(len(cu_seqlens), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
            bounds = cu_seqlens + shifts
        x, _ = self._run(longer, None, bounds)
        if self.decoder is None:
            return {head: these[:, place] for head, these in self._read(x).items()}
        last = place[cu_seqlens[sequence + 1] - 1]
        return self._read(self.decoder(x[:, last], index - cu_seqlens[sequence]))

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
                the CPU, a token is not in the vocabulary; or if the model is an autoencoder, whose
                logits depend on tokens to come.
            TypeError: if a dtype or the structure of the state does not fit.
        """
        if self.decoder is not None:
            raise ValueError(
                "backbone must be 'causal' to extend sequences, got 'autoencoder'; use in_pieces"
            )
        self._check_tokens(tokens)
        self._check_state(state)
        longer = self._begun(tokens, state)
        x, after = self._run(longer, state, None)
        logits = self._read(x)
        if longer is not tokens:
            logits = {head: these[:, 1:] for head, these in logits.items()}
        return logits, after

    def in_pieces(
        self, pieces: Iterable[Tensor], lengths: Tensor | None = None
    ) -> Iterator[Logits]:
        """Yield the logits of whole sequences piece by piece, in the memory of one piece.

        The logits are those of ``forward`` on all pieces together. A causal model yields those of a
        piece before it takes the next one. An autoencoder takes all pieces first.

        Args:
            pieces: successive tokens of the same sequences, each of shape (B, t).
            lengths: as in ``forward``; its values are trusted.

        Raises:
            ValueError: as in ``forward``.
            TypeError: as in ``forward``.
        """
        state: tuple[State, ...] | None = None
        if self.decoder is None:
            for tokens in pieces:
                logits, state = self.extend(tokens, state)
                yield logits
            return
        vectors, ends = None, [0]
        for tokens in pieces:
            self._check_tokens(tokens)
            x, state = self._run(self._begun(tokens, state), state, None)
            x = x[:, x.shape[1] - tokens.shape[1] :]
            last = None if lengths is None else lengths - 1 - ends[-1]
            vectors = vectors_at(x, last, vectors)
            ends.append(ends[-1] + tokens.shape[1])
        for start, stop in pairwise(ends):
            positions = torch.arange(start, stop, device=self.device)
            yield self._read(self.decoder(vectors, positions))

    def _begun(self, tokens: Tensor, state: object) -> Tensor:
        """Prepend the learned token, if there is one, to sequences that begin here."""
        if state is not None or not self.bos:
            return tokens
        return torch.cat([tokens.new_full((tokens.shape[0], 1), self.vocab_size), tokens], dim=1)

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
    ) -> tuple[Tensor, tuple[State, ...]]:
        """Return the residual stream after the last layer, and the state."""
        x = self.embedding(tokens)
        last = []
        for block, before in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            x, after = block(x, before, cu_seqlens)
            last.append(after)
        return x, tuple(last)

    def _read(self, x: Tensor) -> Logits:
        x = self.final_norm(x)
        return {head: readout(x) for head, readout in self.readouts.items()}


def _redraw_linear_maps(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=_STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def _check_types(heads: object, layers: object, channel_mixer: object, seed: object) -> None:
    if not isinstance(heads, Mapping) or not all(isinstance(head, str) for head in heads):
        raise OptionError(f"heads must be a mapping of names to sizes, got {heads!r}")
    if not isinstance(layers, Sequence) or not all(isinstance(one, LayerSpec) for one in layers):
        raise OptionError(f"layers must be a sequence of LayerSpecs, got {layers!r}")
    if channel_mixer is not None and not isinstance(channel_mixer, MixerSpec):
        raise OptionError(f"channel_mixer must be a MixerSpec or None, got {channel_mixer!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"seed must be an int, got {seed!r}")
    if not 0 <= seed < 2**63:
        raise OptionError(f"seed must be in 0..2^63 - 1, got {seed}")


def _check_values(tensor: Tensor, check: Callable[[], None]) -> None:
    """Run a check that reads ``tensor``, unless reading waits for a device or breaks a graph."""
    if tensor.device.type == "cpu" and not torch.compiler.is_compiling():
        # Fake tensors, and those mapped by vmap, have no values to read.
        with suppress(RuntimeError):
            check()
