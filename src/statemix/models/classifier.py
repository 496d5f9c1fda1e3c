"""A causal model that classifies every token."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from statemix.models.backbone import States, mask_of
from statemix.models.readouts import Logits, ReadoutModel


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

        Args:
            tokens: the next tokens, shape (B, T) int32 or int64.
            state: state that the previous call returned. None starts new sequences.
            attention_mask: as in ``forward``: padding changes no state.
            lengths: as in ``forward``: padding changes no state.

        Returns:
            logits: for each head, shape (B, T, classes).
            state: one state per layer.

        Raises:
            ValueError: as in :meth:`Backbone.forward`.
            TypeError: as in :meth:`Backbone.forward`.
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
