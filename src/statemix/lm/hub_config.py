"""The configuration of the Hugging Face model."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from statemix.errors import OptionError
from statemix.layers import LAYERS, LayerSpec

RECURRENT, ATTENTION = "linear_attention", "full_attention"
"""The names by which transformers knows layers with a state of fixed size, and with a cache."""


class StatemixConfig(PreTrainedConfig):
    r"""Configuration of a language model whose sequence layers are layers of Statemix.

    Args:
        vocab_size: number of tokens.
        hidden_size: width of the residual stream.
        num_hidden_layers: number of blocks.
        intermediate_size: inner width of the gated MLP. None means 8/3 of ``hidden_size``, rounded
            up to a multiple of 64.
        mixers: name of a kind of layer -> name and options of a layer of Statemix, as in
            ``{"linear_attention": {"name": "bd_lru", "num_blocks": 64, "block_size": 4}}``. Kinds
            that are missing have a default: "linear_attention" is a BD-LRU of blocks of 4 with
            ``hidden_size`` entries, and "full_attention" is attention with rotary positions and
            heads of at least 64 channels. A mapping without kinds describes "linear_attention".
        layer_types: kind of each layer, in order. None means "linear_attention" everywhere.
        conv_size: taps of a depthwise causal convolution before each recurrent layer; 0 means none.
        output_gate: multiply the output of each recurrent layer by a gate, SiLU of a projection of
            its input.
        norm_eps: number that RMSNorm adds to the mean square.
        initializer_range: standard deviation of the first weights of embedding and MLP. Layers of
            Statemix draw their own.
        use_cache: return the states of the layers by default.
        training_length: tokens of the sequences that a model with attention was trained on, which
            training sets. Attention with rotary positions predicts badly beyond it. None means that
            it is not known, or does not matter.
        tie_word_embeddings: whether the output projection is the embedding.
        pad_token_id: token of padding.
        bos_token_id: first token of a document.
        eos_token_id: last token of a document.

    Raises:
        OptionError: if a layer is unknown, an option does not fit it, or the number of
            ``layer_types`` is not ``num_hidden_layers``.

    Example:
        >>> config = StatemixConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
        >>> config.mixers["linear_attention"]
        {'name': 'bd_lru', 'num_blocks': 8, 'block_size': 4}
    """

    model_type = "statemix"
    # A list, because Trainer adds a list to it.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]

    def __init__(
        self,
        vocab_size: int = 32_000,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        intermediate_size: int | None = None,
        mixers: Mapping[str, Any] | None = None,
        layer_types: Sequence[str] | None = None,
        conv_size: int = 0,
        output_gate: bool = False,
        norm_eps: float = 1e-5,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        training_length: int | None = None,
        tie_word_embeddings: bool = True,
        pad_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        if intermediate_size is None:
            intermediate_size = -(-8 * hidden_size // 3 // 64) * 64
        self.intermediate_size = intermediate_size
        self.layer_types = (
            [RECURRENT] * num_hidden_layers if layer_types is None else list(layer_types)
        )
        self.mixers = _mixers(mixers or {}, self.layer_types, hidden_size)
        self.conv_size = conv_size
        self.output_gate = output_gate
        self.norm_eps = norm_eps
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self.training_length = training_length
        if len(self.layer_types) != num_hidden_layers:
            raise OptionError(
                f"layer_types must have num_hidden_layers={num_hidden_layers} entries, "
                f"got {len(self.layer_types)}"
            )
        # Common checks of transformers ask for it.
        attention = self.mixers.get(ATTENTION, {})
        self.num_attention_heads = attention.get("num_heads", _num_heads(hidden_size))
        super().__init__(
            tie_word_embeddings=tie_word_embeddings,
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            **kwargs,
        )

    def complete(self) -> None:
        """Let ``layer_types`` and ``mixers`` follow attributes that the constructor has not seen.

        ``from_pretrained(folder, num_hidden_layers=2)`` sets the attribute afterwards.

        Raises:
            OptionError: if ``num_hidden_layers`` is no integer, or larger than the number of layer
                types; or as in the constructor.
        """
        number, known = self.num_hidden_layers, len(self.layer_types)
        if not isinstance(number, int) or not 0 <= number <= known:
            raise OptionError(f"num_hidden_layers must be an integer in 0..{known}, got {number!r}")
        mixers = _mixers(self.mixers, self.layer_types, self.hidden_size)
        self.layer_types = self.layer_types[:number]
        self.mixers = {kind: mixers[kind] for kind in dict.fromkeys(self.layer_types)}


def _num_heads(hidden_size: int) -> int:
    """Return the largest number of heads that have the same even number of channels, 64 or more."""
    heads = max(1, hidden_size // 64)
    while hidden_size % (2 * heads) and heads > 1:
        heads -= 1
    return heads


def _mixers(
    given: Mapping[str, Any], kinds: Sequence[str], hidden_size: int
) -> dict[str, dict[str, Any]]:
    """Return the layer of each kind, with the defaults."""
    if not isinstance(given, Mapping):
        raise OptionError(f"mixers must map kinds to layers, got {given!r}")
    if isinstance(given.get("name"), str):
        given = {RECURRENT: given}
    defaults = {
        RECURRENT: {"name": "bd_lru", "num_blocks": max(1, hidden_size // 4), "block_size": 4},
        ATTENTION: {"name": "attention", "num_heads": _num_heads(hidden_size), "rope": True},
    }
    if unknown := set(given) - {*kinds, *defaults}:
        raise OptionError(f"mixers must be of kinds in layer_types, got {sorted(unknown)}")
    mixers = {}
    for kind in dict.fromkeys(kinds):
        table = copy.deepcopy(dict(given.get(kind, defaults.get(kind, {}))))
        name = table.get("name")
        if name not in LAYERS:
            known = ", ".join(LAYERS)
            raise OptionError(
                f"mixers[{kind!r}] must have the name of a layer ({known}), got {name!r}"
            )
        # It checks the names of the options.
        LayerSpec(str(name), **{key: value for key, value in table.items() if key != "name"})
        mixers[kind] = table
    return mixers
