"""The Hugging Face model: embedding, blocks, the heads of transformers, and a view for proofs."""

import copy
import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
from transformers.models.auto import modeling_auto
from transformers.utils import can_return_tuple

from statemix.layers import Layer, pack, unpack
from statemix.lm.hub_blocks import StatemixBlock
from statemix.lm.hub_config import StatemixConfig, spec_of
from statemix.lm.state_cache import StateCache
from statemix.models import MixerSpec, TokenClassifier

Given = Tensor | None
# transformers 5.24 calls the cache "cache", earlier versions "past_key_values".
_NAMES = {field.name for field in fields(BaseModelOutputWithPast)}
CACHE = "cache" if "cache" in _NAMES else "past_key_values"


class StatemixPreTrainedModel(PreTrainedModel):
    """Base of the models: how weights are drawn, and what transformers asks of its models."""

    config_class = StatemixConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["StatemixBlock"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _is_stateful = False
    _can_compile_fullgraph = True
    # The attention layer calls scaled_dot_product_attention.
    _supports_sdpa = True
    # Trainer and pipelines recognise a model by its name in this table, which `AutoModel.register`
    # does not enter. When Trainer smooths labels, it shifts those of causal models alone.
    _names: ClassVar[dict[str, Any]] = modeling_auto.MODEL_MAPPING_NAMES

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        key = StatemixConfig.model_type
        cls._names[f"{key}.{cls.__name__}" if key in cls._names else key] = cls.__name__

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        if isinstance(module, Layer) and any(map(_is_loaded, self.parameters())):
            # transformers would skip a layer whose parts lack weights, such as its convolution.
            is_custom_code = False
        super()._initialize_weights(module, is_custom_code)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Layer):
            # A layer draws all its weights, but those of a checkpoint must stay.
            kept = {
                tensor: tensor.clone()
                for tensor in (*module.parameters(), *module.buffers())
                if _is_loaded(tensor)
            }
            module.reset_parameters()
            for tensor, value in kept.items():
                tensor.copy_(value)
        elif isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, 0.0, self.config.initializer_range)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)


def _is_loaded(tensor: Tensor) -> bool:
    return bool(getattr(tensor, "_is_hf_initialized", False))


class StatemixModel(StatemixPreTrainedModel):
    """Embedding, blocks and final norm.

    Padded rows, packed rows and single sequences give a token the same hidden state.

    Example:
        >>> config = StatemixConfig(vocab_size=10, hidden_size=8, num_hidden_layers=2)
        >>> model = StatemixModel(config)
        >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: StatemixConfig) -> None:
        config.complete()
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers: Any = nn.ModuleList(
            StatemixBlock(config, place) for place in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: StateCache | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        seq_idx: Tensor | None = None,
        sequence_group: Any = None,
        **kwargs: Any,  # noqa: ARG002 - arguments for other models
    ) -> BaseModelOutputWithPast:
        """Return the hidden state of every token.

        Args:
            input_ids: tokens, shape (B, T).
            attention_mask: 1 for tokens and 0 for padding, which may be anywhere, of any dtype,
                shape (B, T). With a cache, it may have the columns of earlier tokens before these.
                In a compiled call of one token, the token is never padding.
            position_ids: positions, shape (B, T) or (1, T). Without a mask and a cache, a sequence
                begins where they do not increase by 1.
            past_key_values: ``cache`` in transformers before 5.24.
            inputs_embeds: embeddings, shape (B, T, hidden_size), instead of ``input_ids``.
            use_cache: return a cache; None means ``config.use_cache``, and False in training.
            cache: states that a previous call returned; changed in place.
            output_hidden_states: return the embeddings, and the output of each block.
            cu_seqlens: bounds of sequences packed into one row (B = 1), shape (N+1,).
            cu_seq_lens_q: the same, as TRL names it.
            seq_idx: number of the sequence of each token, shape (1, T), instead of bounds.
            sequence_group: ``torch.distributed`` group whose processes share the sequences. Each
                process gives a slice of time, in the order of ranks, and all call this together.
            **kwargs: arguments for other models, which are ignored.

        Raises:
            ValueError, TypeError: if arguments exclude each other or do not fit the tokens.
        """
        cache = past_key_values if cache is None else cache
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds must be given")
        blocks = self.used_blocks()
        is_own = isinstance(cache, StateCache)
        if cache is not None and not (is_own and len(cache.layers) == len(blocks)):
            depth = f" of {len(cache.layers)}" if is_own else ""
            raise ValueError(
                f"the cache must be a StateCache of {len(blocks)} layers, got a "
                f"{type(cache).__name__}{depth}; layers have no keys and values to prefix, so use "
                "prompt tuning instead of prefix tuning"
            )
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        bounds = _bounds(x, attention_mask, position_ids, cache, cu_seqlens, cu_seq_lens_q, seq_idx)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and bounds is None
        if self.gradient_checkpointing and self.training:
            use_cache = False
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if cache is None and use_cache:
            cache = StateCache(len(blocks))

        if bounds is not None and cache is not None:
            raise ValueError("packed sequences must come without a cache, got both")
        shape, mask = x.shape, None
        if bounds is None and attention_mask is not None:
            mask = _padding(attention_mask, x, cache)

        def tokens(rows: Tensor) -> Tensor:
            """Return the tokens alone, in one row if they are packed or padded."""
            if mask is None:
                return rows if bounds is None else rows.reshape(1, -1, shape[-1])
            return rows[mask].unsqueeze(0)

        def rows(tokens: Tensor) -> Tensor:
            return tokens.view(shape) if mask is None else unpack(tokens, mask)

        passed = []
        x, bounds = (tokens(x), bounds) if mask is None else pack(x, mask)
        if sequence_group is not None and (bounds is not None or cache is not None):
            raise ValueError("sequence_group must come without a cache, padding and bounds")
        for place, block in enumerate(blocks):
            if output_hidden_states:
                # What is returned lies on the path of the gradient.
                passed.append(rows(x))
                x = tokens(passed[-1])
            layer = None if cache is None else cache.layers[place]
            inputs, state = x, None if layer is None else layer.state
            if layer is not None and layer.pending is not None:
                state = block.mixer(block.mixer_norm(layer.pending), state)[1]
            x, after = block(x, state, bounds, sequence_group)
            if layer is not None:
                unequal = bounds is not None and shape[0] > 1
                layer.store(state, after, None if unequal else inputs, mask)
        if cache is not None:
            cache.seen += shape[1]
        x = rows(self.norm(x))
        found: dict[str, Any] = {"last_hidden_state": x, CACHE: cache if use_cache else None}
        if output_hidden_states:
            found["hidden_states"] = (*passed, x)
        return BaseModelOutputWithPast(**found)

    def used_blocks(self) -> list[Any]:
        """Return the blocks that a call runs: the first ``config.num_hidden_layers``.

        Early exit of ``generate``, which drafts tokens for the whole model, lowers this number.
        """
        return list(self.layers)[: self.config.num_hidden_layers]

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value


def _padding(attention_mask: Tensor, x: Tensor, cache: StateCache | None) -> Tensor | None:
    """Return which tokens are no padding, (B, T); None if all are tokens."""
    batch_size, length = x.shape[:2]
    seen = 0 if cache is None else cache.seen
    rows, width = attention_mask.shape if attention_mask.ndim == 2 else (0, 0)
    if rows != batch_size or not length <= width <= seen + length:
        before = f" after up to {seen} tokens of the cache" if seen else ""
        raise ValueError(
            f"attention_mask must have shape (B={batch_size}, T={length}){before}, got "
            f"{tuple(attention_mask.shape)}"
        )
    given = attention_mask[:, width - length :]
    mask = given.bool()
    if torch.compiler.is_compiling():
        # The shapes of a compiled step must not depend on the mask. In steps of `generate`, every
        # new token counts.
        return None if length <= 1 else mask
    # Other numbers are what other models add to scores, or the numbers of packed documents.
    is_full, is_mask = torch.stack([mask.all(), (given == mask).all()]).tolist()
    if not is_mask:
        raise ValueError("attention_mask must be 1 for tokens and 0 for padding, got other numbers")
    return None if is_full else mask


def _bounds(
    x: Tensor, attention_mask: Given, position_ids: Given, cache: StateCache | None, *packed: Given
) -> Given:
    """Return the bounds of packed sequences from any of the ways to state them, or None."""
    batch_size, length = x.shape[:2]
    cu_seqlens, cu_seq_lens_q, seq_idx = packed

    def jumps(name: str, numbers: Tensor, step: int) -> Tensor:
        if numbers.shape[-1:] != (length,):
            shape = tuple(numbers.shape)
            raise ValueError(f"{name} must have shape (B={batch_size}, T={length}), got {shape}")
        return numbers.expand(batch_size, -1).diff() != step

    explicit = [given for given in (cu_seqlens, cu_seq_lens_q) if given is not None]
    if any(not isinstance(given, Tensor) for given in explicit):
        raise TypeError("cu_seqlens and cu_seq_lens_q must be tensors")
    if seq_idx is not None:
        explicit.append(_bounds_of(jumps("seq_idx", seq_idx, 0)))
    if explicit:
        differ = (
            len(other) != len(explicit[0]) or (other != explicit[0]).any() for other in explicit
        )
        if any(differ):
            raise ValueError("cu_seqlens, cu_seq_lens_q and seq_idx must have the same bounds")
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError("attention_mask must have no padding with packed sequences")
        if batch_size != 1:
            raise ValueError(f"packed sequences must be one row, got {batch_size}")
        return explicit[0]
    if position_ids is None or attention_mask is not None or cache is not None or length < 2:
        return None
    begins = jumps("position_ids", position_ids, 1)
    return _bounds_of(begins) if bool(begins.any()) else None


def _bounds_of(jumps: Tensor) -> Tensor:
    """Return the bounds of sequences that begin with a row, or after a jump, (B, T - 1)."""
    begins = nn.functional.pad(jumps, (1, 0), value=True).flatten()
    places = begins.nonzero().flatten()
    return torch.cat([places, places.new_tensor([begins.numel()])])


class StatemixForCausalLM(StatemixPreTrainedModel, GenerationMixin):
    """A language model: :class:`StatemixModel` and a projection to the vocabulary.

    Example:
        >>> config = StatemixConfig(vocab_size=10, hidden_size=8, num_hidden_layers=2)
        >>> model = StatemixForCausalLM(config)
        >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4).shape
        torch.Size([1, 7])
    """

    _names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: StatemixConfig) -> None:
        super().__init__(config)
        # Transformers would read it off the name of the class, which a subclass changes.
        self.loss_type = "ForCausalLM"
        self.model = StatemixModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: StateCache | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits of the next tokens and, with labels, the loss.

        ``labels`` are tokens, shape (B, T); -100 is not scored. They are shifted here.
        ``logits_to_keep`` is the number of last positions, or indices of positions, that get
        logits; 0 means all. The other arguments are those of :meth:`StatemixModel.forward`, and
        arguments of the loss such as ``num_items_in_batch``.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            **kwargs,
        )
        kept: Any = logits_to_keep
        if isinstance(logits_to_keep, int):
            kept = slice(-logits_to_keep, None)
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            given = {"logits": logits, "labels": labels, "vocab_size": self.vocab_size}
            loss = self.loss_function(**given, **kwargs)
        states = {"hidden_states": outputs.hidden_states, CACHE: outputs.get(CACHE)}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **states)

    # `generate` reads the names of the arguments.
    @functools.wraps(GenerationMixin.prepare_inputs_for_generation, assigned=())
    def prepare_inputs_for_generation(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        # Without a cache under "past_key_values", PEFT repeats its soft prompt in every call.
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(*arguments, **options)
        return inputs | {"past_key_values": inputs.get(CACHE)}

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *arguments: Any, **options: Any
    ) -> None:
        if model_kwargs.get(CACHE) is not None:
            # It marks the cache of a user, from which `generate` removes what is not returned.
            super()._prepare_cache_for_generation(
                generation_config, model_kwargs, *arguments, **options
            )
            return
        if generation_config.use_cache is False:
            return
        # Chunked prefill and assisted decoding need a cache before the first call.
        # `generate` compiles the model if the cache can be, so the user has to ask for it.
        is_static = generation_config.cache_implementation == "static"
        blocks = self.model.used_blocks()
        model_kwargs[CACHE] = StateCache(len(blocks), is_compileable=is_static)
        if getattr(generation_config, "is_assistant", False):
            model_kwargs[CACHE].activate_past_recording()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        del kwargs
        return attention_mask


class _Classifier(StatemixPreTrainedModel):
    """Base of the classifiers: :class:`StatemixModel` and a linear map to the labels."""

    _logits: Callable[[Tensor, Given, Given, Given], Any]

    def __init__(self, config: StatemixConfig, *, loss_type: str, bias: bool) -> None:
        super().__init__(config)
        self.loss_type = loss_type
        self.num_labels = config.num_labels
        self.model = StatemixModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cache: StateCache | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast | TokenClassifierOutput:
        """Return the logits of the labels and, with labels, the loss.

        ``labels`` are classes, numbers or sets of classes of the sequences, as
        ``config.problem_type`` says; or classes of the tokens, where -100 is not scored.
        ``num_items_in_batch`` is the number of labels over all batches of an accumulated step,
        which divides the summed loss. None means the labels of this batch. The other arguments are
        those of :meth:`StatemixModel.forward`.
        """
        states = past_key_values if cache is None else cache
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=states,
            return_dict=True,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        packed = (kwargs.get(name) for name in ("cu_seqlens", "cu_seq_lens_q", "seq_idx"))
        bounds = _bounds(hidden, attention_mask, position_ids, states, *packed)
        logits = self._logits(hidden, input_ids, attention_mask, bounds)
        loss = None
        if labels is not None:
            number = num_items_in_batch
            given = {"logits": logits.float(), "labels": labels, "config": self.config}
            loss = self.loss_function(
                **given, pooled_logits=given["logits"], num_items_in_batch=number
            )
            is_mean = self.config.problem_type in ("regression", "multi_label_classification")
            if number is not None and is_mean and self.loss_type == "ForSequenceClassification":
                # Regression and several labels at once give a mean over this batch.
                loss = loss * labels.numel() / number
        found = {"loss": loss, "logits": logits, "hidden_states": outputs.hidden_states}
        if self.loss_type == "ForTokenClassification":
            return TokenClassifierOutput(**found)
        return SequenceClassifierOutputWithPast(**found, **{CACHE: outputs.get(CACHE)})


class StatemixForSequenceClassification(_Classifier):
    """:class:`StatemixModel` and a classifier of its last token.

    The last token is the last one that ``attention_mask`` has. Without a mask, it is the last one
    that is not ``config.pad_token_id``. Packed sequences have a row of logits each.
    """

    _names = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

    def __init__(self, config: StatemixConfig) -> None:
        super().__init__(config, loss_type="ForSequenceClassification", bias=False)

    def _logits(self, hidden: Tensor, input_ids: Given, mask: Given, bounds: Given) -> Any:
        if bounds is not None:
            if not bool(bounds.diff().all()):
                raise ValueError("cu_seqlens must have a token in every sequence to classify")
            return self.score(hidden.flatten(0, 1)[bounds[1:] - 1])
        length = hidden.shape[1]
        kept = torch.ones_like(hidden[..., 0], dtype=torch.bool)
        if mask is not None:
            kept = mask[:, -length:].bool()
        elif input_ids is not None and self.config.pad_token_id is not None:
            kept = input_ids != self.config.pad_token_id
        last = (kept * torch.arange(length, device=kept.device)).argmax(-1)
        return self.score(hidden[torch.arange(len(last), device=hidden.device), last])


class StatemixForTokenClassification(_Classifier):
    """:class:`StatemixModel` and a classifier of every token.

    In training, dropout hides the share ``config.classifier_dropout`` of its inputs, .1 by default.
    """

    _names = modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

    def __init__(self, config: StatemixConfig) -> None:
        super().__init__(config, loss_type="ForTokenClassification", bias=True)
        dropout = getattr(config, "classifier_dropout", None)
        self.dropout = nn.Dropout(0.1 if dropout is None else dropout)

    def _logits(self, hidden: Tensor, *_: Tensor | None) -> Any:
        return self.score(self.dropout(hidden))


@torch.no_grad()
def as_classifier(model: StatemixForCausalLM | StatemixForTokenClassification) -> TokenClassifier:
    """Return a copy of a model as a classifier of tokens, for proofs and inspection.

    Its head, "answer", has the logits of the model: of the next token, or of the labels.

    Example:
        >>> from statemix.lm import StatemixConfig, StatemixForCausalLM
        >>> config = StatemixConfig(vocab_size=6, hidden_size=8, num_hidden_layers=1)
        >>> model = StatemixForCausalLM(config).eval()
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> torch.equal(as_classifier(model)(tokens)["answer"], model(tokens).logits)
        True
    """
    copied: Any = copy.deepcopy(model)
    config, is_causal = model.config, isinstance(model, StatemixForCausalLM)
    head = copied.lm_head if is_causal else copied.score
    found = TokenClassifier(
        config.vocab_size,
        {"answer": head.out_features},
        config.hidden_size,
        [spec_of(table) for table in config.block_mixers],
        channel_mixer=MixerSpec("swiglu", intermediate_size=config.intermediate_size),
    ).to(head.weight)
    readout: Any = found.readouts["answer"]
    readout.weight.copy_(head.weight)
    if head.bias is not None:
        readout.bias.copy_(head.bias)
    found.backbone.embedding = copied.model.embed_tokens
    found.backbone.final_norm = copied.model.norm
    for block, own in zip(found.backbone.blocks, copied.model.layers, strict=True):
        is_plain = own.mixer.conv is None and own.mixer.output_gate is None
        block.norm, block.mixer = own.mixer_norm, own.mixer.layer if is_plain else own.mixer
        block.channel_norm, block.channel_mixer = own.mlp_norm, own.mlp
    return found.eval()
