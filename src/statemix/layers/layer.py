"""The call that every layer answers to, and the checks of its arguments."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from statemix.ops.checks import bind, check_cu_seqlens


class Layer(nn.Module, ABC):
    """A sequence layer that maps (B, T, hidden_size) to (B, T, hidden_size) and carries a state.

    The state is opaque and of constant size: take it from one call, or from ``init_state``, and
    hand it to the next. Dropping a layer into a module of one's own takes three lines::

        self.mixer = BDLRU(hidden_size=256, num_blocks=64, block_size=4)  # in __init__
        y, state = self.mixer(x)                      # in forward: a whole sequence
        y_t, state = self.mixer.step(x_t, state)      # while decoding: one token
    """

    hidden_size: int

    @property
    @abstractmethod
    def state_axes(self) -> Mapping[str, int]:
        """Name and size of each axis of the state of one sequence, in order."""

    @property
    def state_size(self) -> int:
        """Numbers that the layer remembers of one sequence."""
        return math.prod(self.state_axes.values())

    @abstractmethod
    def forward(
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run over whole sequences, continuing from ``state`` if it is given.

        Args:
            x: shape (B, T, hidden_size), in the dtype of the parameters or under autocast.
            state: shape (B, *state_axes). None means ``init_state(B)``.
            cu_seqlens: int32 or int64, shape (N+1,), boundaries 0 = c_0 <= ... <= c_N = T of N
                sequences packed into one row (B = 1). ``state`` then has N rows.

        Returns:
            y: shape of ``x``.
            state: what remains of each sequence; for an empty one, the state it began with.

        Raises:
            ValueError: if a shape or a device disagrees.
            TypeError: if a dtype does not fit.
        """

    @abstractmethod
    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance every sequence by one token: x_t, y_t (B, hidden_size)."""

    @abstractmethod
    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The state in which ``forward`` begins when it is given none.

        Args:
            batch_size: number of sequences B.
            device: None means that of the parameters.
            dtype: widened to float32 where it is narrower; None means that of the parameters.

        Returns:
            shape (B, *state_axes), float32 or wider.
        """

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters anew, from ``generator`` or from torch's global one."""

    def _check_sequence(self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> int:
        """Check the arguments of ``forward`` and return the number of sequences."""
        sizes = {"hidden_size": self.hidden_size}
        bind(sizes, "x", x, "B T hidden_size")
        self._check_fit("x", x)
        batch_axis, num_sequences = "B", sizes["B"]
        if cu_seqlens is not None:
            check_cu_seqlens(cu_seqlens, like=x)
            batch_axis, num_sequences = "N", len(cu_seqlens) - 1
        if state is not None:
            self._check_state(state, batch_axis, num_sequences, like=x)
        return num_sequences

    def _check_step(self, x_t: Tensor, state: Tensor) -> None:
        """Check the arguments of ``step``."""
        sizes = {"hidden_size": self.hidden_size}
        bind(sizes, "x_t", x_t, "B hidden_size")
        self._check_fit("x_t", x_t)
        self._check_state(state, "B", sizes["B"], like=x_t)

    def _check_state(
        self, state: Tensor, batch_axis: str, num_sequences: int, like: Tensor
    ) -> None:
        sizes = {batch_axis: num_sequences, **self.state_axes}
        bind(sizes, "state", state, " ".join(sizes))
        if not state.dtype.is_floating_point:
            raise TypeError(f"state must have a floating dtype, got {state.dtype}")
        if state.device != like.device:
            raise ValueError(f"state must be on {like.device}, got {state.device}")

    def _check_fit(self, name: str, x: Tensor) -> None:
        """Check that ``x`` is on the device of the parameters and has a dtype they can meet."""
        parameter = next(self.parameters())
        if x.device != parameter.device:
            raise ValueError(
                f"{name} must be on the device of the parameters ({parameter.device}), "
                f"got {x.device}"
            )
        if x.dtype != parameter.dtype and not _autocasts(x.device.type):
            raise TypeError(
                f"{name} must have the dtype of the parameters ({parameter.dtype}), "
                f"got {x.dtype}; convert it, or run under torch.autocast"
            )


def _autocasts(device_type: str) -> bool:
    # Asked about a device that has no autocast, such as "meta", is_autocast_enabled raises.
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def check_sizes(**sizes: int) -> None:
    """Check that sizes given to a constructor are whole numbers of at least 1.

    Raises:
        TypeError: if one is not an int.
        ValueError: if one is smaller than 1.
    """
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{name} must be an int, got {size!r}")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a layer of parameters in ``dtype`` keeps its state."""
    return torch.promote_types(dtype, torch.float32)
