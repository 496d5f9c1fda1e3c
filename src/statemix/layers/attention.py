"""Attention: causal softmax attention whose state is a cache of keys and values."""

import threading
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.dlpack import from_dlpack
from torch.utils.weak import WeakTensorKeyDictionary

from statemix.errors import OptionError
from statemix.layers.layer import Flops
from statemix.layers.padded import PaddedLayer, reset_linear, valid_tokens
from statemix.layers.state import State, check_structure, loadable, map_state, tensors
from statemix.ops import flops
from statemix.ops.checks import bind, check_floating, check_placement, check_sizes, check_switches
from statemix.ops.decoding import are_plain, unobserved
from statemix.ops.layout import at_least_float32

ROPE_BASE = 10_000.0
"""Ratio of the longest to the shortest wavelength of rotary positions, about."""


@loadable
class AttentionState(NamedTuple):
    """Cache of all tokens so far, float32 or wider; the number S of its entries grows.

    No part may be the ``out=`` of an operation with a larger result: PyTorch fails with an internal
    error, as the memory is copied when it is first written.

    Attributes:
        keys: shape (B, S, num_heads, head_dim).
        values: shape (B, S, num_heads, head_dim).
        used: 1 for the entries that are tokens and 0 for the padding between packed sequences of
            unequal lengths, shape (B, S).
    """

    keys: Tensor
    values: Tensor
    used: Tensor

    def __reduce__(self) -> tuple[type, tuple[Tensor, ...]]:
        # What is stored or copied has no spare room.
        parts = (
            part.clone(memory_format=torch.contiguous_format)
            if part.untyped_storage().nbytes() > part.nbytes
            else part
            for part in self
        )
        return AttentionState, tuple(parts)


class Attention(PaddedLayer):
    r"""Causal multi-head softmax attention.

    .. math::
        o_t = \sum_{s \le t} \mathrm{softmax}_s\big(q_t^\top k_s / \sqrt{d}\big)\, v_s,
        \qquad y_t = W_o\, o_t

    in each head of d = ``hidden_size / num_heads`` channels; q, k and v are linear in x_t. Without
    ``rope`` the layer knows no positions beyond the causal order.

    Source: Vaswani et al. (2017); rotary positions: Su et al. (2021), base 10 000.

    Scores are products of two projections: in float32 they are finite for inputs up to about 1e18.
    Gradients by queries and keys are small differences of large terms, whose rounding errors grow
    with the third power of the input; they are finite for inputs up to about 1e9.

    The state grows by one entry per token; after packed sequences, by the length of the longest.
    Decoding copies it once per quarter of its length, not at every token.

    Args:
        num_heads: number of heads; must divide ``hidden_size``.
        rope: whether queries and keys are rotated by their positions, which requires an even
            number of channels per head.

    Shape:
        x (B, T, hidden_size) -> y (B, T, hidden_size), state :class:`AttentionState`.

    Example:
        >>> layer = Attention(hidden_size=8, num_heads=2)
        >>> y, state = layer(torch.randn(3, 5, 8))
        >>> y.shape, state.keys.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 5, 2, 4]))
    """

    name = "attention"
    entry = "qkv_proj"
    state_class = AttentionState

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int,
        rope: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, num_heads=num_heads)
        check_switches(rope=rope)
        check_placement(device, dtype)
        if hidden_size % num_heads:
            raise OptionError(
                f"num_heads must divide hidden_size, got {num_heads} and {hidden_size}"
            )
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.rope = rope
        if rope and self.head_dim % 2:
            raise OptionError(
                f"hidden_size / num_heads must be even with rope=True, got {self.head_dim}"
            )
        self.qkv_proj = nn.Linear(
            hidden_size, 3 * hidden_size, bias=False, device=device, dtype=dtype
        )
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters as ``torch.nn.Linear`` does."""
        reset_linear(self.qkv_proj, generator)
        reset_linear(self.out_proj, generator)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((0, self.num_heads, self.head_dim),) * 2 + ((0,),)

    def state_after(self, length: int) -> AttentionState:
        empty = self.init_state(1, device="meta")
        grown: AttentionState = map_state(
            lambda part: part.new_empty(1, length, *part.shape[2:]), empty
        )
        return grown

    def flops_per_token(self, length: int) -> Flops:
        """Count as every layer does: token number ``length`` attends to as many tokens."""
        width = self.hidden_size
        # A rotation of two channels has four products and two sums; angles depend on no input.
        rotations = 2 * (width // 2) * 6 if self.rope else 0
        return Flops(
            projections=2 * width * 4 * width,
            # Scores and the mean of values; W_q holds the scale of the scores.
            transition=2 * 2 * width * length + self.num_heads * flops.softmax(length),
            other=rotations,
        )

    def check_state(self, state: State, num_sequences: int, axis: str = "B") -> None:
        """Check as every layer does; the parts share a number S of entries, which may be any."""
        check_structure("state", state, self.init_state(1, device="meta"))
        sizes = {axis: num_sequences, "num_heads": self.num_heads, "head_dim": self.head_dim}
        for name, part in tensors(state):
            bind(sizes, name, part, f"{axis} S" + " num_heads head_dim" * (name != "state.used"))
            check_floating(name, part)

    def _run(
        self, x: Tensor, state: AttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, AttentionState]:
        batch, length = x.shape[:2]
        past = state.keys.shape[1]
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = qkv.unbind(2)
        if self.rope:
            places = torch.arange(length, device=x.device) + state.used.sum(1, keepdim=True)
            q, k = _rotated(q, places), _rotated(k, places)
        fresh = state.used.new_ones(batch, length)
        if lengths is not None:
            fresh = fresh * valid_tokens(x, lengths)
        pairs = zip((k, v, fresh), state, strict=True)
        grown, (keys, values, _) = append(
            tuple(state), tuple(part.to(old.dtype) for part, old in pairs)
        )
        mask = None
        if past:
            # Padding within x comes after the tokens of its row, which therefore never see it.
            earlier = state.used.bool()[:, None, None].expand(batch, 1, length, past)
            causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            mask = torch.cat([earlier, causal.expand(batch, 1, length, length)], -1)
        # For one token, converting it is cheaper than converting the cache.
        dtype = q.dtype if length > 1 else keys.dtype
        q, k, v = (part.to(dtype).transpose(1, 2) for part in (q, keys, values))
        o = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        y = self.out_proj(o.transpose(1, 2).flatten(2).to(x.dtype))
        return y, AttentionState(*grown)


def _rotated(x: Tensor, places: Tensor) -> Tensor:
    """Rotate the halves of each head of x (B, T, H, D) by angles proportional to its place."""
    dtype = at_least_float32(x.dtype)
    half = x.shape[-1] // 2
    speeds = ROPE_BASE ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angles = (places.to(dtype).unsqueeze(-1) * speeds).unsqueeze(2)
    first, second = x.to(dtype).chunk(2, -1)
    sin, cos = angles.sin(), angles.cos()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


# Entries that a buffer has room for at least, and the share of its entries that is room.
_LEAST_ROOM, _ROOM = 16, 4


class _Buffers:
    """Memory that tensors of several lengths share, until someone writes into one of them.

    The tensors are copy-on-write clones of the buffers, (B, capacity, ...); ``parts`` are the same
    memory under a second storage, not copied on write. The first ``filled`` entries never change.
    """

    def __init__(self, parts: tuple[Tensor, ...], length: int) -> None:
        capacity = length + max(length // _ROOM, _LEAST_ROOM)
        memory = [part.new_empty(part.shape[0], capacity, *part.shape[2:]) for part in parts]
        self.parts = tuple(map(from_dlpack, memory))
        self._shared = tuple(map(torch._lazy_clone, memory))
        self.filled = part_length = parts[0].shape[1]
        for buffer, part in zip(self.parts, parts, strict=True):
            buffer[:, :part_length] = part

    def first(self, length: int) -> tuple[Tensor, ...]:
        """Return the first entries of each buffer as tensors that their owner may change."""
        return tuple(torch._lazy_clone(shared)[:, :length] for shared in self._shared)

    def can_hold(self, parts: tuple[Tensor, ...], length: int) -> bool:
        """Return whether ``parts`` are all that is in use here, and may become that long."""
        return (
            self.filled == parts[0].shape[1]
            and length <= self.parts[0].shape[1]
            and self.parts[0].is_inference() <= torch.is_inference_mode_enabled()
            and all(
                # Asking a tensor for its data_ptr would copy it.
                torch._C._is_cow_tensor(part)  # type: ignore[attr-defined]
                and torch._C._data_address(part) == buffer.data_ptr()  # type: ignore[attr-defined]
                and part.stride() == buffer.stride()
                and part.dtype == buffer.dtype
                and len(part) == len(buffer)
                for part, buffer in zip(parts, self.parts, strict=True)
            )
        )


# First of the tensors that `append` returned together -> their buffers.
_BUFFERS = WeakTensorKeyDictionary()
_LOCK = threading.Lock()
# PyTorch tests copy-on-write on these devices; MPS writes without a copy.
_COPIED_ON_WRITE = frozenset({"cpu", "cuda"})


def append(
    parts: tuple[Tensor, ...], fresh: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Append fresh entries (B, T, ...) to parts (B, S, ...); return parts to keep, and to read now.

    Both results have the same values. The first may share buffers with spare room, in which the
    next call with them writes; ``parts`` keep their values, and may be continued several times. The
    second avoid copies by kernels. Where a gradient is needed, this is ``torch.cat``.
    """
    length = parts[0].shape[1]
    given = parts + fresh
    may_share = (
        given[0].device.type in _COPIED_ON_WRITE
        and unobserved()
        and are_plain(*given)
        and not (torch.is_grad_enabled() and any(one.requires_grad for one in given))
    )
    if length == 0 or not may_share:
        grown = tuple(torch.cat(both, 1) for both in zip(parts, fresh, strict=True))
        return grown, grown
    longer = length + fresh[0].shape[1]
    with _LOCK:
        buffers = _BUFFERS.get(parts[0])  # type: ignore[no-untyped-call]
        if buffers is None or not buffers.can_hold(parts, longer):
            buffers = _Buffers(parts, longer)
        buffers.filled = longer
    for buffer, part in zip(buffers.parts, fresh, strict=True):
        buffer[:, length:longer] = part
    grown = buffers.first(longer)
    _BUFFERS[grown[0]] = buffers
    return grown, tuple(buffer[:, :longer] for buffer in buffers.parts)
