"""The interface of all layers, the checks of their arguments, and the price of a layer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from statemix.layers.state import State, check_like, tensors
from statemix.ops.checks import bind, check_cu_seqlens, check_floating, check_sizes
from statemix.registry import Spec


class LayerSpec(Spec):
    """A sequence layer by name, with its options.

    A layer whose constructor has a parameter of this type contains another layer, which the
    configuration chooses.

    Example:
        >>> LayerSpec("bd_lru", num_blocks=4, block_size=2).build(hidden_size=8).state_size
        8
    """

    kind = "layer"


class Flops(NamedTuple):
    """FLOPs of one token in the forward pass, counted from the layer's equation.

    :mod:`statemix.ops.flops` states how operations are counted; a multiply-add is 2 FLOPs. A
    recurrence counts as its equation, step by step: chunks and parallel scans compute more.

    Attributes:
        projections: products of weight matrices (or kernels of convolutions) with inputs, which all
            tokens of a sequence can compute together.
        transition: update of the state and, if its readout is no weight matrix, the readout; for
            attention, the comparison with every cached token. This corrects the "FLOPs per
            recurrent step" of Dubinin et al., Table 5: each of the m entries of a block has an
            input of its own, and states of DeltaNet and Mamba-2 are matrices that are also read.
        other: everything else: gates and their normalisation, short convolutions, norms.
    """

    projections: int
    transition: int
    other: int

    @property
    def total(self) -> int:
        """Sum of the three parts."""
        return sum(self)


class Recurrence(NamedTuple):
    r"""A linear recurrence in independent units, with all its matrices.

    .. math:: h_t = A_t h_{t-1} + B_t v_t, \qquad t = 1, \dots, T

    A unit is a block, a channel or a head. Its state is a vector of m entries, or a matrix of m
    rows whose P columns share the transitions. Layers compute the same states without forming
    these matrices (Dubinin et al., Eq. 4 and 23, for one unit).

    Attributes:
        transitions: A, shape (B, T, H, m, m), float32 or wider, like all others.
        input_maps: B, shape (B, T, H, m, R).
        values: v, shape (B, T, H, R, P).
        initial_state: h_0, shape (B, H, m, P). With T = 1, h_1 is what ``Layer.step`` returns as
            the first tensor of its state, in the same order of entries.
        gates: rows of gates, state gates before the input gate, shape (B, T, H, rows, m+1); None
            if the layer has none. Except with ``householder``, a row shares one normalisation.
            Gates of columns have m+1 rows: what leaves each entry, ending with the share that the
            input replaces, and the input gates, ending with the share that stays.
        unit: what a unit is called.
    """

    transitions: Tensor
    input_maps: Tensor
    values: Tensor
    initial_state: Tensor
    gates: Tensor | None = None
    unit: str = "unit"


class Layer(nn.Module, ABC):
    """A sequence layer that maps (B, T, hidden_size) to (B, T, hidden_size) and carries a state.

    The state is opaque: a tensor or a NamedTuple of tensors, batch first. Pass it from one call,
    or from ``init_state``, to the next. Your own module uses a layer in three lines::

        self.mixer = BDLRU(hidden_size=256, num_blocks=64, block_size=4)  # in __init__
        y, state = self.mixer(x)                      # in forward: a whole sequence
        y_t, state = self.mixer.step(x_t, state)      # while decoding: one token

    One line in ``layers/__init__.py`` makes a layer available to every model, task and
    command. The constructor of every layer has the parameter ``hidden_size``, the width of input
    and output, and the keywords ``device`` and ``dtype`` of the parameters; its other parameters
    are the layer's options. An option is refused by an :class:`~statemix.errors.OptionError`; any
    other exception counts as a defect of the layer. States are float32 or wider.

    Attributes:
        name: name of the layer as users write it.
        schedulable: attributes that a schedule may set during training and that may have a
            different value in evaluation. An assigned value takes effect at the next call.
        entry: name of a submodule that is called with the input. If it is an ordinary module of
            PyTorch, an input of another dtype or device is refused by name.
        iterative: whether outputs are found by iteration, up to a tolerance. Those of whole
            sequences and of single steps then agree up to that, and benchmarks that compare the two
            refuse the layer.
        sliceable: whether ``forward`` has the keyword ``group``: processes that share a sequence,
            each with a slice of its time, in the order of the slices. ``x`` is then the slice of
            this process, and all processes call ``forward`` and its backward pass together.
            ``state`` is the state before the whole sequence, and the returned state is that after
            the slice.
    """

    name: ClassVar[str]
    schedulable: ClassVar[tuple[str, ...]] = ()
    entry: ClassVar[str] = ""
    iterative: bool = False
    sliceable: ClassVar[bool] = False

    hidden_size: int

    @property
    def state_size(self) -> int:
        """Number of floating-point entries in the initial state of one sequence."""
        state = self.init_state(1, device="meta")
        return sum(part.numel() for _, part in tensors(state) if part.dtype.is_floating_point)

    @abstractmethod
    def forward(
        self, x: Tensor, state: State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over whole sequences, continuing from ``state`` if it is given.

        Args:
            x: shape (B, T, hidden_size), in the dtype of the parameters or under autocast.
            state: state of B sequences. None means ``init_state(B)``.
            cu_seqlens: int32 or int64, shape (N+1,), boundaries 0 = c_0 <= ... <= c_N = T of N
                sequences packed into one row (B = 1). ``state`` then has N rows.

        Returns:
            y: shape of ``x``.
            state: state at the end of each sequence; that of an empty sequence is unchanged.

        Raises:
            ValueError: if a shape or a device disagrees.
            TypeError: if a dtype or the structure of ``state`` does not fit.
        """

    @abstractmethod
    def step(self, x_t: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Advance every sequence by one token: x_t, y_t (B, hidden_size).

        ``state`` is that of B sequences. None means ``init_state(B)``, so a loop may begin with it.
        It raises what :meth:`forward` raises.
        """

    @abstractmethod
    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """Return the state that ``forward`` starts from when none is given.

        Args:
            batch_size: number of sequences B.
            device: device of the state; None means that of the parameters.
            dtype: dtype of the floating parts, widened to float32 if narrower; None means the dtype
                of the parameters.
        """

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw all parameters, from ``generator`` or from torch's global one.

        The constructor draws them as well.
        """

    def state_after(self, length: int) -> State:
        """Return the state of one sequence after ``length`` tokens, on "meta": shapes and dtypes.

        A layer whose state grows overrides this method.
        """
        del length
        return self.init_state(1, device="meta")

    def flops_per_token(self, length: int) -> Flops | None:
        """Count the FLOPs of the forward pass for token number ``length`` of a sequence.

        The number matters only to layers whose state grows. None means that the layer does not
        count its FLOPs; tables then show none.
        """
        del length
        return None

    def zero_biases(self) -> None:
        """Set the biases of projections to zero, as the synthetic benchmarks do.

        By default this does nothing, for layers whose initialisation is part of their definition.
        """

    def reports(self) -> Mapping[str, Tensor]:
        """Return numbers about the last call of ``forward`` that training should record.

        Each is a scalar tensor without a gradient, on any device, such as the iterations that a
        solver needed. Training averages it over the forward passes between evaluations.
        """
        return {}

    def recurrence(self, x: Tensor) -> Recurrence | None:
        """Return the linear recurrence on whole sequences x, from the initial state.

        By default it is None: the state does not follow a linear recurrence whose matrices depend
        on x alone, and ``statemix inspect`` has nothing to show.
        """
        del x
        return None

    def extra_repr(self) -> str:
        """Return the options of the constructor that are attributes of the same name."""
        hidden = ("device", "dtype", "return")
        names = [name for name in type(self).__init__.__annotations__ if name not in hidden]
        shown = {name: getattr(self, name) for name in names if hasattr(self, name)}
        # A number that was stored in float32 appears without its rounding.
        return ", ".join(
            f"{name}={float(f'{value:.6g}') if isinstance(value, float) else value!r}"
            for name, value in shown.items()
        )

    def check_state(self, state: State, num_sequences: int, axis: str = "B") -> None:
        """Check that a state fits this layer and the number of sequences, called B or N.

        A layer whose state changes shape, such as a growing cache, overrides this method.
        """
        template = self.init_state(1, device="meta", dtype=torch.float32)
        check_like(state, template, num_sequences, axis)

    def _check_sequence(self, x: Tensor, state: State | None, cu_seqlens: Tensor | None) -> int:
        """Check the arguments of ``forward`` and return the number of sequences."""
        sizes = {"hidden_size": self.hidden_size}
        bind(sizes, "x", x, "B T hidden_size")
        self._check_fit("x", x)
        axis, num_sequences = "B", sizes["B"]
        if cu_seqlens is not None:
            check_cu_seqlens(cu_seqlens, like=x)
            axis, num_sequences = "N", len(cu_seqlens) - 1
        if state is not None:
            self._check_carried(state, num_sequences, axis, x)
        return num_sequences

    def _check_step(self, x_t: Tensor, state: State | None) -> None:
        """Check the arguments of ``step``."""
        sizes = {"hidden_size": self.hidden_size}
        bind(sizes, "x_t", x_t, "B hidden_size")
        self._check_fit("x_t", x_t)
        if state is not None:
            self._check_carried(state, sizes["B"], "B", x_t)

    def _check_carried(self, state: State, num_sequences: int, axis: str, x: Tensor) -> None:
        """Check a state, which must be on the device of the input."""
        self.check_state(state, num_sequences, axis)
        for name, part in tensors(state):
            if part.device != x.device:
                raise ValueError(f"{name} must be on {x.device}, got {part.device}")

    def _check_fit(self, name: str, x: Tensor) -> None:
        """Check device and, outside autocast, dtype of ``x``, if the parameters decide them."""
        weight = used_weight(self._modules.get(self.entry))
        if weight is None:
            check_floating(name, x)
            return
        if x.device != weight.device:
            raise ValueError(
                f"{name} must be on the device of the parameters ({weight.device}), got {x.device}"
            )
        kind = x.device.type
        # is_autocast_enabled raises for a device without autocast, such as "meta".
        autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        # Autocast converts neither float64 nor integers.
        convertible = {torch.float32, torch.bfloat16, torch.float16} >= {x.dtype, weight.dtype}
        if x.dtype != weight.dtype and not (convertible and autocasts):
            advice = ", or run under torch.autocast" if convertible else ""
            raise TypeError(
                f"{name} must have the dtype of the parameters ({weight.dtype}), "
                f"got {x.dtype}; convert it{advice}"
            )


def used_weight(module: nn.Module | None) -> Tensor | None:
    """Return the weight that a module applies to its input; None if that cannot be foreseen."""
    if (
        module is None
        or type(module) not in (nn.Linear, nn.Conv1d, nn.LSTM)
        or "forward" in module.__dict__
        or module._forward_pre_hooks
        or torch_module._global_forward_pre_hooks
    ):
        return None
    weight = module.weight_ih_l0 if type(module) is nn.LSTM else module.weight
    return cast(Tensor, weight)


@dataclass(frozen=True)
class Price:
    """What token number ``length`` of one sequence costs.

    Attributes:
        num_parameters: entries of all parameters.
        state_size: entries of the state after this token, those of short convolutions and caches
            included.
        state_bytes: bytes of that state, which is float32 or wider.
        flops: FLOPs of the forward pass for this token; None if the layer does not count them.
        decode_bytes: bytes that decoding this token moves if no other sequence shares the weights:
            every parameter and the state before are read, and the state after is written. Of a
            state that grows, only the new part is written.
    """

    num_parameters: int
    state_size: int
    state_bytes: int
    flops: Flops | None
    decode_bytes: int


def price(
    spec: LayerSpec, *, hidden_size: int, length: int, dtype: torch.dtype | None = None
) -> Price:
    """Return the price of a layer. Nothing is allocated or computed.

    Args:
        spec: the layer.
        hidden_size: width of input and output.
        length: number of the priced token in its sequence, from 1. It matters to layers whose state
            grows.
        dtype: dtype of the parameters; None means torch's default.

    Example:
        >>> paid = price(LayerSpec("lstm"), hidden_size=256, length=1)
        >>> paid.state_size, paid.flops.transition == 8 * 256**2 + 25 * 256
        (512, True)
    """
    check_sizes(length=length)
    layer: Layer = spec.build(hidden_size=hidden_size, device="meta", dtype=dtype)
    _, before = _size(layer, length - 1)
    entries, after = _size(layer, length)
    parameters = list(layer.parameters())
    read = sum(parameter.nbytes for parameter in parameters) + before
    return Price(
        num_parameters=sum(parameter.numel() for parameter in parameters),
        state_size=entries,
        state_bytes=after,
        flops=layer.flops_per_token(length),
        decode_bytes=read + (after - before if after > before else after),
    )


def _size(layer: Layer, length: int) -> tuple[int, int]:
    """Return the entries and the bytes of the state after so many tokens."""
    parts = [part for _, part in tensors(layer.state_after(length))]
    return sum(part.numel() for part in parts), sum(part.nbytes for part in parts)
