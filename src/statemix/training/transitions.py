"""The transitions of a model's first layer, token by token."""

from torch import Tensor

from statemix.layers import Layer
from statemix.models import ReadoutModel


def token_transitions(model: ReadoutModel, num_tokens: int) -> Tensor | None:
    """Return the transitions of the first layer under each of the first tokens.

    The layer sees a token's normalised embedding at the beginning of a sequence. What came before
    matters only to layers with a short convolution.

    Args:
        model: the model.
        num_tokens: number of tokens.

    Returns:
        Shape (num_tokens, units, m, m); None if the layer runs no linear recurrence.
    """
    layer = model.backbone.blocks[0].mixer
    if not isinstance(layer, Layer):
        return None
    x = model.backbone.blocks[0].norm(model.backbone.embedding.weight[:num_tokens])
    recurrence = layer.recurrence(x.unsqueeze(1))
    return None if recurrence is None else recurrence.transitions[:, 0]
