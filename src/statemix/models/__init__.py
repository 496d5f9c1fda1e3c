"""Networks: a backbone (embedding, blocks, norm) and the heads on top of it."""

from typing import Literal

from statemix.models.autoencoder import SequenceAutoencoder
from statemix.models.backbone import Backbone, Block
from statemix.models.channel_mixers import CHANNEL_MIXERS, ChannelMixer, MixerSpec
from statemix.models.readouts import LinearInit, ReadoutModel, TokenClassifier, earlier_name

ModelKind = Literal["causal", "autoencoder"]

MODELS: dict[ModelKind, type[ReadoutModel]] = {
    "causal": TokenClassifier,
    "autoencoder": SequenceAutoencoder,
}
"""Kind of a model, as configurations name it -> its class."""

__all__ = [
    "CHANNEL_MIXERS",
    "MODELS",
    "Backbone",
    "Block",
    "ChannelMixer",
    "LinearInit",
    "MixerSpec",
    "ModelKind",
    "ReadoutModel",
    "SequenceAutoencoder",
    "TokenClassifier",
    "earlier_name",
]
