"""Networks: stacks of layers with an embedding and readouts."""

from statemix.models.channel_mixers import CHANNEL_MIXERS, ChannelMixer, MixerSpec
from statemix.models.synthetic import SyntheticModel

__all__ = ["CHANNEL_MIXERS", "ChannelMixer", "MixerSpec", "SyntheticModel"]
