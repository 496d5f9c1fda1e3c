"""An autoencoder: a whole sequence, rebuilt from one vector."""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from statemix.errors import OptionError
from statemix.models.backbone import NORMS, Norm, States, mask_of
from statemix.models.readouts import Logits, ReadoutModel
from statemix.ops.checks import check_cu_seqlens_values
from statemix.ops.packing import check_values, pack, positions, unpack


class SequenceAutoencoder(ReadoutModel):
    """Backbone, decoder and one linear readout for each head: rebuilds every position.

    The model keeps only the residual stream at the last token of a sequence. A :class:`Decoder`
    rebuilds the stream at every position from it; final norm and readouts follow. So its logits
    need whole sequences.

    Source: the auto-encoder of MAD (mad-lab), used for compression. For the arguments, see
    :class:`ReadoutModel`.

    Shape:
        tokens (B, T) int32 or int64 -> for each head, logits (B, T, classes).
    """

    usual_linear_init = "normal"

    def _add_parts(self, hidden_size: int, norm: Norm) -> None:
        self.decoder = Decoder(hidden_size, NORMS[norm])

    def forward(
        self,
        tokens: Tensor,
        cu_seqlens: Tensor | None = None,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Logits:
        mask_of(tokens, cu_seqlens, attention_mask, lengths)
        if attention_mask is not None:
            packed = self(*pack(tokens, attention_mask))
            return {head: unpack(logits, attention_mask) for head, logits in packed.items()}
        if cu_seqlens is None:
            (logits,) = self.in_pieces([tokens], lengths)
            return logits
        x, _ = self.backbone.stream(tokens, None, cu_seqlens)
        check_values(cu_seqlens, lambda: check_cu_seqlens_values(cu_seqlens, x.shape[1]))
        sequence, position = positions(cu_seqlens, x.shape[1])
        return self._rebuilt(x[:, cu_seqlens[sequence + 1] - 1], position)

    def in_pieces(
        self, pieces: Iterable[Tensor], lengths: Tensor | None = None
    ) -> Iterator[Logits]:
        """Yield as every model does, after all pieces have been drawn."""
        state: States | None = None
        vectors, ends = None, [0]
        for tokens in pieces:
            x, state = self.backbone.stream(tokens, state)
            last = None if lengths is None else lengths - 1 - ends[-1]
            vectors = vectors_at(x, last, vectors)
            ends.append(ends[-1] + tokens.shape[1])
        for start, stop in pairwise(ends):
            yield self._rebuilt(vectors, torch.arange(start, stop, device=self.device))

    def _rebuilt(self, vectors: Tensor | None, positions: Tensor) -> Logits:
        return self._read(self.backbone.final_norm(self.decoder(vectors, positions)))


class Decoder(nn.Module):
    r"""Position-wise network that rebuilds every position of a sequence from one vector.

    .. math::
        z_n = s + p_n, \qquad
        y_n = \mathrm{gelu}(W_2 \, \mathrm{norm}(\mathrm{gelu}(W_1 \, \mathrm{norm}(z_n) + c_1))
        + c_2)

    with the vector s of the sequence and a fixed vector of each position,

    .. math::
        p_n = (\sin \omega_0 n, \dots, \sin \omega_{h-1} n, \cos \omega_0 n, \dots,
        \cos \omega_{h-1} n), \qquad \omega_i = 10000^{-i / (h - 1)}, \qquad h = \lfloor d/2 \rfloor

    and a last entry of 0 if d is odd. There is no residual.

    Source: the decoder of MAD's auto-encoder (mad-lab), with positions in place of a table.
    """

    def __init__(self, hidden_size: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        if hidden_size < 2:
            raise OptionError(f"hidden_size must be at least 2 to autoencode, got {hidden_size}")
        self.network = nn.Sequential(
            norm(hidden_size),
            nn.Linear(hidden_size, hidden_size),
            nn.GELU(),
            norm(hidden_size),
            nn.Linear(hidden_size, hidden_size),
            nn.GELU(),
        )

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        size = vectors.shape[-1]
        half = size // 2
        # The angles of distant positions would not be exact in half precision.
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        index = torch.arange(half, dtype=dtype, device=vectors.device)
        frequencies = 10_000 ** (-index / max(half - 1, 1))
        angles = positions.to(dtype).unsqueeze(-1) * frequencies
        parts = [angles.sin(), angles.cos(), angles.new_zeros((*positions.shape, size % 2))]
        out: Tensor = self.network(vectors + torch.cat(parts, dim=-1).to(vectors.dtype))
        return out


def vectors_at(x: Tensor, places: Tensor | None, otherwise: Tensor | None = None) -> Tensor:
    """Return the vector of each row at its place in the piece x, its last one without places.

    Rows whose place is outside the piece get the vectors ``otherwise`` (B, 1, d), or zeros.
    """
    batch, length, size = x.shape
    if otherwise is None:
        otherwise = x.new_zeros(batch, 1, size)
    if length == 0:
        return otherwise
    if places is None:
        return x[:, -1:]
    rows = torch.arange(batch, device=x.device)
    found = x[rows, places.clamp(0, length - 1)].unsqueeze(1)
    inside = (places >= 0) & (places < length)
    return torch.where(inside[:, None, None], found, otherwise)
