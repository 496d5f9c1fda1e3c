"""The configuration of the Hugging Face model."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import PreTrainedConfig
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES

from statemix.errors import OptionError
from statemix.layers import LAYERS, LayerSpec
from statemix.ops.checks import check_switches

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
            A list has name and options of the layer of each block, in order.
        layer_types: kind of each layer, in order, among the names that transformers knows. None
            means "full_attention" for attention in a list of ``mixers``, and "linear_attention"
            for all other layers.
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
        eos_token_id: last token of a document, or several tokens that may be the last.

    Attributes:
        block_mixers: name and options of the layer of each block.

    Example:
        >>> config = StatemixConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
        >>> config.mixers["linear_attention"]
        {'name': 'bd_lru', 'num_blocks': 8, 'block_size': 4}
        >>> two = [{"name": "delta_net", "num_heads": 2}, {"name": "lstm"}]
        >>> StatemixConfig(hidden_size=32, num_hidden_layers=2, mixers=two).layer_types
        ['linear_attention', 'linear_attention']
    """

    model_type = "statemix"
    # A list, because Trainer adds a list to it.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]
    # TRL looks here for the class of a model that transformers does not contain.
    auto_map: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        vocab_size: int = 32_000,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        intermediate_size: int | None = None,
        mixers: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
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
        eos_token_id: int | list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        optional = {"intermediate_size": intermediate_size, "training_length": training_length}
        sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, **optional}
        sizes |= {"num_hidden_layers": num_hidden_layers, "conv_size": conv_size}
        for name, size in sizes.items():
            least = 0 if name in ("num_hidden_layers", "conv_size") else 1
            if size is None and name in optional:
                continue
            if type(size) is not int or size < least:
                raise OptionError(f"{name} must be an integer of at least {least}, got {size!r}")
        if not isinstance(norm_eps, int | float) or not 0 <= norm_eps <= 1:
            raise OptionError(f"norm_eps must be in 0..1, got {norm_eps!r}")
        check_switches(output_gate=output_gate)
        if isinstance(pad_token_id, int) and pad_token_id >= vocab_size:
            raise OptionError(f"pad_token_id must be below {vocab_size}, got {pad_token_id}")
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.conv_size = num_hidden_layers, conv_size
        self.intermediate_size = intermediate_size or -(-8 * hidden_size // 3 // 64) * 64
        given = "layer_types"
        if layer_types is None and isinstance(mixers, list | tuple):
            given, names = "mixers", [_name_of(table) for table in mixers]
            layer_types = [ATTENTION if name == "attention" else RECURRENT for name in names]
        if not isinstance(layer_types, list | tuple | None):
            raise OptionError(f"layer_types must be a list, got {layer_types!r}")
        usual = [RECURRENT] * num_hidden_layers
        self.layer_types = usual if layer_types is None else [*layer_types]
        if len(self.layer_types) != num_hidden_layers:
            raise OptionError(
                f"{given} must have num_hidden_layers={num_hidden_layers} entries, "
                f"got {len(self.layer_types)}"
            )
        if unknown := [kind for kind in self.layer_types if kind not in ALLOWED_ATTN_LAYER_TYPES]:
            known = ", ".join(ALLOWED_ATTN_LAYER_TYPES)
            raise OptionError(
                f"layer_types must be among {known}, got {unknown}; a list of mixers, "
                "one for each block, needs no layer types"
            )
        self.mixers = _mixers(mixers or {}, self.layer_types, hidden_size)
        self.output_gate, self.norm_eps = output_gate, norm_eps
        self.initializer_range, self.use_cache = initializer_range, use_cache
        self.training_length = training_length
        # Common checks of transformers ask for it.
        heads = [table["num_heads"] for table in self.block_mixers if table["name"] == "attention"]
        self.num_attention_heads = heads[0] if heads else _num_heads(hidden_size)
        super().__init__(
            tie_word_embeddings=tie_word_embeddings,
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            **kwargs,
        )

    @property
    def block_mixers(self) -> list[dict[str, Any]]:
        if isinstance(self.mixers, list):
            return self.mixers
        return [self.mixers[kind] for kind in self.layer_types]

    def complete(self) -> None:
        """Let ``layer_types`` and ``mixers`` follow attributes that the constructor has not seen.

        ``from_pretrained(folder, num_hidden_layers=2)`` sets the attribute afterwards.
        """
        number, known = self.num_hidden_layers, len(self.layer_types)
        if not isinstance(number, int) or not 0 <= number <= known:
            raise OptionError(f"num_hidden_layers must be an integer in 0..{known}, got {number!r}")
        mixers = _mixers(self.mixers, self.layer_types, self.hidden_size)
        self.layer_types = self.layer_types[:number]
        if isinstance(mixers, list):
            self.mixers = mixers[:number]
        else:
            self.mixers = {kind: mixers[kind] for kind in dict.fromkeys(self.layer_types)}


def _num_heads(hidden_size: int) -> int:
    """Return the largest number of heads that have the same even number of channels, 64 or more."""
    heads = max(1, hidden_size // 64)
    while hidden_size % (2 * heads) and heads > 1:
        heads -= 1
    return heads


def _mixers(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]], kinds: Sequence[str], hidden_size: int
) -> dict[str, dict[str, Any]] | list[dict[str, Any]]:
    if isinstance(given, list | tuple):
        if len(given) != len(kinds):
            raise OptionError(
                f"mixers must have an entry for each of {len(kinds)} blocks, got {len(given)}"
            )
        return [_mixer(table, place) for place, table in enumerate(given)]
    if not isinstance(given, Mapping):
        raise OptionError(f"mixers must map kinds to layers, or list layers, got {given!r}")
    if isinstance(given.get("name"), str):
        given = {RECURRENT: given}
    defaults = {
        RECURRENT: {"name": "bd_lru", "num_blocks": max(1, hidden_size // 4), "block_size": 4},
        ATTENTION: {"name": "attention", "num_heads": _num_heads(hidden_size), "rope": True},
    }
    if unknown := set(given) - {*kinds, *defaults}:
        raise OptionError(f"mixers must be of kinds in layer_types, got {sorted(unknown)}")
    return {
        kind: _mixer(given.get(kind, defaults.get(kind, {})), kind) for kind in dict.fromkeys(kinds)
    }


def _mixer(given: Any, key: str | int) -> dict[str, Any]:
    """Return a copy of the name and options of a layer."""
    name = _name_of(given)
    if not isinstance(name, str) or name not in LAYERS:
        known = ", ".join(LAYERS)
        raise OptionError(f"mixers[{key!r}] must have the name of a layer ({known}), got {name!r}")
    table = copy.deepcopy(dict(given))
    # It checks the names of the options.
    spec_of(table)
    return table


def spec_of(table: Mapping[str, Any]) -> LayerSpec:
    """Return the layer that a table of name and options describes."""
    options = {option: value for option, value in table.items() if option != "name"}
    return LayerSpec(table["name"], **options)


def _name_of(given: Any) -> Any:
    return given.get("name") if isinstance(given, Mapping) else None
