"""The blocks of the Hugging Face model: a layer of Statemix and a gated MLP."""

from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from statemix.layers import Layer, State
from statemix.layers.causal_conv import CausalConv
from statemix.layers.checking import check_once
from statemix.layers.state import loadable
from statemix.lm.hub_config import ATTENTION, StatemixConfig, spec_of
from statemix.models.channel_mixers import SwiGLU


@loadable
class MixerState(NamedTuple):
    """State of a mixer with a convolution before it."""

    conv: State
    recurrence: State


class GatedMixer(nn.Module):
    """The layer y = layer(silu(conv(x))) * silu(W x); attention has neither convolution nor W."""

    def __init__(self, config: StatemixConfig, place: int) -> None:
        super().__init__()
        is_attention, width = config.layer_types[place] == ATTENTION, config.hidden_size
        self.layer: Layer = spec_of(config.block_mixers[place]).build(hidden_size=width)
        self.conv: CausalConv | None = None
        self.output_gate: nn.Linear | None = None
        if not is_attention and config.conv_size:
            self.conv = CausalConv(width, kernel_size=config.conv_size, depthwise=True)
        if not is_attention and config.output_gate:
            self.output_gate = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        cu_seqlens: Tensor | None = None,
        sequence_group: Any = None,
    ) -> tuple[Tensor, State]:
        if cu_seqlens is not None:
            check_once(self.layer, x)
        # Some layers cannot share a sequence and have no such argument.
        shared = {} if sequence_group is None else {"group": sequence_group}
        if self.conv is None:
            y, after = self.layer(x, state, cu_seqlens, **shared)
        else:
            before = (None, None) if state is None else state
            u, conv = self.conv(x, before[0], cu_seqlens, **shared)
            y, recurrence = self.layer(nn.functional.silu(u), before[1], cu_seqlens, **shared)
            after = MixerState(conv, recurrence)
        if self.output_gate is not None:
            y = y * nn.functional.silu(self.output_gate(x))
        return y, after


class StatemixBlock(GradientCheckpointingLayer):
    """A mixer and a gated MLP, each with RMSNorm before it and added to its input.

    It takes and returns its state, so that recomputation in the backward pass changes no cache.
    """

    def __init__(self, config: StatemixConfig, place: int) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mixer = GatedMixer(config, place)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = SwiGLU(config.hidden_size, intermediate_size=config.intermediate_size)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        cu_seqlens: Tensor | None = None,
        sequence_group: Any = None,
    ) -> tuple[Tensor, State]:
        y, state = self.mixer(self.mixer_norm(x), state, cu_seqlens, sequence_group)
        x = x + y
        return x + self.mlp(self.mlp_norm(x)), state
