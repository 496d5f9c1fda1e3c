"""Models with a linear readout per head: what they share, and the classifier of every token."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from statemix.errors import OptionError
from statemix.layers import LayerSpec
from statemix.models.backbone import Backbone, Norm, States, mask_of
from statemix.models.channel_mixers import MixerSpec
from statemix.ops.checks import (
    bind,
    check_choice,
    check_sizes,
    check_switches,
    same_dtype_and_device,
)

LinearInit = Literal["own", "normal"]

Logits = dict[str, Tensor]
"""Head -> logits (B, T, classes of the head)."""

_STD = 0.02


class ReadoutModel(nn.Module, ABC):
    """Base of the models of the synthetic benchmarks: a backbone with one readout per head.

    As in MAD (mad-lab), embeddings are drawn from N(0, 0.02). With ``zero_biases``, the biases
    start at zero, so that no gate is preferred.

    Args:
        vocab_size: number of input tokens.
        heads: name of each output -> its number of classes. The first is the main head.
        hidden_size: width of the residual stream.
        layers: sequence layers in order.
        bos: as in :class:`Backbone`.
        residual: as in :class:`Backbone`.
        norm: as in :class:`Backbone`.
        channel_mixer: as in :class:`Backbone`.
        readout_sizes: hidden sizes of an MLP with GELUs between the final norm and the readouts.
            It has no residual connection. Empty means that the readouts are linear.
        zero_biases: ask layers and mixers to start with zero biases (``Layer.zero_biases``).
        linear_init: "own" lets each part draw its linear maps. "normal" redraws the weight of every
            ``nn.Linear`` in the model from N(0, 0.02) and sets its bias to zero, whatever
            ``zero_biases`` says. (With ``zero_biases``, input gates then begin at their bias
            again.) All other parameters stay as their part drew them: the cell of an LSTM,
            convolutions, pointwise and constant gates, decays, norms. None means MAD's choice for
            this kind of model (``usual_linear_init``).
        token_features: numbers that describe each token, shape (vocab_size, F), F <= hidden_size,
            of a floating dtype. The embeddings start as these numbers and zeros, scaled to the
            root mean square of random embeddings. None means random embeddings.
        seed: seed of the initial weights. The global generator is not changed.

    Attributes:
        heads: name of each output -> its number of classes.
        readout_mlp: what the readouts read: the MLP on the final norm; empty without one.
        readouts: name of each output -> its linear map.
    """

    usual_linear_init: ClassVar[LinearInit]

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
        readout_sizes: Sequence[int] = (),
        zero_biases: bool = True,
        linear_init: LinearInit | None = None,
        token_features: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(heads, Mapping) or not all(isinstance(head, str) for head in heads):
            raise OptionError(f"heads must be a mapping of names to sizes, got {heads!r}")
        if not heads:
            raise OptionError(f"heads must not be empty, got {heads!r}")
        check_sizes(**{f"heads[{head!r}]": classes for head, classes in heads.items()})
        check_switches(zero_biases=zero_biases)
        if not isinstance(readout_sizes, Sequence):
            raise OptionError(f"readout_sizes must be a sequence of sizes, got {readout_sizes!r}")
        check_sizes(**{f"readout_sizes[{i}]": size for i, size in enumerate(readout_sizes)})
        if linear_init is None:
            linear_init = self.usual_linear_init
        check_choice("linear_init", linear_init, get_args(LinearInit))
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise OptionError(f"seed must be an int in 0..2^63 - 1, got {seed!r}")
        self.heads = dict(heads)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            options: dict[str, Any] = {"bos": bos, "residual": residual, "norm": norm}
            self.backbone = Backbone(
                vocab_size, hidden_size, layers, channel_mixer=channel_mixer, **options
            )
            widths = [hidden_size, *readout_sizes]
            self.readouts = nn.ModuleDict(
                {head: nn.Linear(widths[-1], classes) for head, classes in heads.items()}
            )
            nn.init.normal_(self.backbone.embedding.weight, std=_STD)
            self._add_parts(hidden_size, norm)
            self.readout_mlp = nn.Sequential(
                *(part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.GELU()))
            )
            if linear_init == "normal":
                for part in self.modules():
                    if isinstance(part, nn.Linear):
                        nn.init.normal_(part.weight, std=_STD)
                        if part.bias is not None:
                            nn.init.zeros_(part.bias)
        if zero_biases:
            for block in self.backbone.blocks:
                block.zero_biases()
            for name, parameter in self.named_parameters():
                if name.startswith(("readouts.", "readout_mlp.")) and name.endswith(".bias"):
                    nn.init.zeros_(parameter)
        if token_features is not None:
            _start_as(self.backbone.embedding.weight[:vocab_size], token_features)
        self.register_load_state_dict_pre_hook(_rename_earlier)  # type: ignore[no-untyped-call]

    def _add_parts(self, hidden_size: int, norm: Norm) -> None:
        """Build further parts, whose weights are drawn after those of the readouts."""

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.backbone.device

    @property
    def main_head(self) -> str:
        """The name of the first head, by which models are compared."""
        return next(iter(self.heads))

    @abstractmethod
    def forward(
        self,
        tokens: Tensor,
        cu_seqlens: Tensor | None = None,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Logits:
        """Return the logits of whole sequences.

        Args:
            tokens: shape (B, T) int32 or int64.
            cu_seqlens: bounds of packed sequences (B = 1), shape (N+1,); None means a row each.
            lengths: tokens of each row before its padding, shape (B,) int32 or int64; None means T.
            attention_mask: 1 for tokens and 0 for padding, which may be anywhere; shape (B, T),
                bool or integer.

        Returns:
            Head -> logits (B, T, classes); logits at padding have no meaning.
        """

    @abstractmethod
    def in_pieces(
        self, pieces: Iterable[Tensor], lengths: Tensor | None = None
    ) -> Iterator[Logits]:
        """Yield the logits of whole sequences piece by piece, in the memory of one piece.

        The logits are those of ``forward`` on all pieces (B, t) together; the values of ``lengths``
        are trusted.
        """

    def _read(self, hidden: Tensor) -> Logits:
        features = self.readout_mlp(hidden)
        return {head: readout(features) for head, readout in self.readouts.items()}


@torch.no_grad()
def _start_as(embeddings: Tensor, features: Tensor) -> None:
    num_tokens, width = embeddings.shape
    try:
        bind({"vocab_size": num_tokens}, "token_features", features, "vocab_size F")
        same_dtype_and_device(token_features=features)
    except (TypeError, ValueError) as error:
        raise OptionError(str(error)) from error
    num_features = features.shape[1]
    if num_features > width:
        least = f"at least {num_features}, the features of a token"
        raise OptionError(f"hidden_size must be {least}, got {width}")
    if not features.isfinite().all() or not features.any():
        first = features.tolist()[0]
        raise OptionError(f"token_features must be finite, and not 0 alone, got {first} first")
    embeddings.zero_()
    embeddings[:, :num_features] = features
    embeddings *= _STD / embeddings.square().mean().sqrt()


def _rename_earlier(model: nn.Module, weights: dict[str, Any], prefix: str, *_: object) -> None:
    """Give weights from a run of an earlier version their present names."""
    for name in model.state_dict(keep_vars=True):
        earlier = prefix + earlier_name(name)
        if earlier in weights:
            weights[prefix + name] = weights.pop(earlier)


_BLOCK_PARTS = {"mixer": "layer", "channel_mixer": "mixer", "channel_norm": "mixer_norm"}


def earlier_name(name: str) -> str:
    """Return the name that a parameter, module or attribute had before there was a backbone.

    Whatever reads weights, attributes or patterns of names from a stored run accepts both names.

    Example:
        >>> earlier_name("backbone.blocks.0.mixer.gate_temperature")
        'blocks.0.layer.gate_temperature'
    """
    first, *parts = name.split(".")
    if first != "backbone" or not parts:
        return name
    if parts[0] == "blocks" and len(parts) > 2:
        parts[2] = _BLOCK_PARTS.get(parts[2], parts[2])
    return ".".join(parts)


class TokenClassifier(ReadoutModel):
    r"""Backbone and one linear readout for each head, which classifies every token.

    .. math:: \mathrm{logits} = W \, \mathrm{backbone}(\mathrm{tokens}) + c

    Source: the decoder-only model of MAD (mad-lab). For the arguments, see :class:`ReadoutModel`.

    Shape:
        tokens (B, T) int32 or int64 -> for each head, logits (B, T, classes).

    Example:
        >>> import torch
        >>> from statemix.layers import LayerSpec
        >>> layers = [LayerSpec("bd_lru", num_blocks=2, block_size=3)]
        >>> model = TokenClassifier(6, {"product": 6}, 8, layers)
        >>> model(torch.zeros(2, 5, dtype=torch.int64))["product"].shape
        torch.Size([2, 5, 6])
    """

    usual_linear_init = "own"

    def forward(
        self,
        tokens: Tensor,
        cu_seqlens: Tensor | None = None,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Logits:
        if lengths is not None:
            # No token depends on the padding after it, so that the rows run as they are.
            mask_of(tokens, cu_seqlens, attention_mask, lengths)
        hidden, _ = self.backbone(tokens, None, cu_seqlens, attention_mask=attention_mask)
        return self._read(hidden)

    def extend(
        self,
        tokens: Tensor,
        state: States | None = None,
        *,
        attention_mask: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Logits, States]:
        """Return the logits of the next tokens of sequences, and the state after them.

        The arguments are those of :meth:`Backbone.forward`; padding changes no state.
        """
        hidden, state = self.backbone(tokens, state, attention_mask=attention_mask, lengths=lengths)
        return self._read(hidden), state

    def in_pieces(
        self, pieces: Iterable[Tensor], lengths: Tensor | None = None
    ) -> Iterator[Logits]:
        """Yield as every model does: the logits of a piece before the next piece is drawn."""
        del lengths
        state: States | None = None
        for tokens in pieces:
            logits, state = self.extend(tokens, state)
            yield logits
