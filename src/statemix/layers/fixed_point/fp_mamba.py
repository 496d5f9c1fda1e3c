"""What FP-Mamba1 and FP-Mamba2 share: outputs that feed back into a selective scan."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from statemix.layers.fixed_point.fixed_point_layer import FixedPointLayer, Tensors, shifted
from statemix.layers.fixed_point.normed import NormedLinear
from statemix.layers.option_checks import (
    check_sizes,
    check_taps,
)
from statemix.layers.padded import (
    last_inputs,
    reset_linear,
    unit_length,
    valid_tokens,
    without_autocast,
)
from statemix.layers.short_conv import ShortConvolution
from statemix.layers.state import loadable
from statemix.ops import flops


@loadable
class FPMambaState(NamedTuple):
    """State of FP-Mamba, float32 or wider.

    Attributes:
        ssm: state of the scan; its shape is in the class of the layer.
        output: y of the last token, shape (B, expand * hidden_size).
        conv: the last inputs of the short convolution, (B, max(d_conv - 1, 0), channels).
    """

    ssm: Tensor
    output: Tensor
    conv: Tensor


@dataclass(frozen=True)
class Projected:
    """What a layer computes from its input, before it iterates.

    Attributes:
        values: x of the equations, shape (B, T, N).
        z: input of the output gate, shape (B, T, N).
        B: input maps without what y adds, shape (B, T, d_state).
        C: readout maps likewise.
        steps: Delta, shape (B, T, N).
        decays: Delta A, shape (B, T, H), or None if the scan takes A itself.
        rates: -A, shape (S, N), or None if it takes ``decays``.
        conv: the last inputs of the short convolution.
    """

    values: Tensor
    z: Tensor
    B: Tensor
    C: Tensor
    steps: Tensor
    decays: Tensor | None
    rates: Tensor | None
    conv: Tensor

    def during(self, span: slice) -> "Projected":
        """Return the same for some of the tokens."""
        decays = None if self.decays is None else self.decays[:, span]
        names = ("values", "z", "B", "C", "steps")
        return replace(
            self, decays=decays, **{name: getattr(self, name)[:, span] for name in names}
        )


class FPMamba(FixedPointLayer):
    """A selective state space model whose outputs are the fixed point of its scan.

    A subclass names the scan; options and state are common to both.
    """

    D: nn.Parameter

    entry = "in_proj"
    state_class = FPMambaState

    def __init__(
        self, *, d_state: int, d_conv: int, device: Any, dtype: Any, **options: Any
    ) -> None:
        super().__init__(device=device, dtype=dtype, **options)
        check_sizes(d_state=d_state)
        check_taps("d_conv", d_conv)
        self.d_state = d_state
        self.d_conv = d_conv
        inner = self.inner_size
        placed: dict[str, Any] = {"device": device, "dtype": dtype}
        if self.mixer_inputs != "token":
            self.map_proj = NormedLinear(inner, 2 * d_state, "token", **placed)
        self.conv = ShortConvolution(self._conv_channels, d_conv, bias=True, **placed)
        self.norm_weight = nn.Parameter(torch.empty(inner, **placed))
        self.out_proj = nn.Linear(inner, self.hidden_size, bias=False, **placed)

    @property
    @abstractmethod
    def _conv_channels(self) -> int:
        """Channels of the short convolution."""

    @property
    @abstractmethod
    def _ssm_shape(self) -> tuple[int, ...]:
        """Shape of the state of one sequence's scan."""

    @abstractmethod
    def _project(self, x: Tensor, state: FPMambaState, lengths: Tensor | None) -> Projected:
        """Return what the input determines; padding has step 0 and decay 1."""

    @abstractmethod
    def _scan(
        self, projected: Projected, values: Tensor, B: Tensor, C: Tensor, ssm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return readouts (B, T, N), D included, and the last state of the scan."""

    def _arranged(self, ssm: Tensor) -> Tensor:
        """Return the state of the scan in the memory order that every iteration reads."""
        return ssm

    def _gain(self, projected: Projected) -> Tensor:
        """Return the most by which a token's readout grows with its value: shape (B, T, 1)."""
        # b and c have length 1, so that their product is at most 1.
        gain = projected.steps + self.D.abs().to(projected.steps.dtype)
        return gain.amax(-1, keepdim=True)

    @abstractmethod
    def _normalised(self, projected: Projected, o: Tensor) -> Tensor:
        """Return y of readouts o: what the iteration feeds back, if there is no contraction."""

    @abstractmethod
    def _gated(self, z: Tensor, y: Tensor, before: Tensor | None) -> Tensor:
        """Return the gated y, shape (B, T, N), given z, y and y one token earlier, if it counts."""

    @property
    def _feeds_back(self) -> bool:
        """Whether tokens depend on the output before them."""
        return self.mixer_inputs != "token" and self.max_iterations != 1

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw the parameters that both layers have."""
        self.state_mixer.reset_parameters(generator)
        if self.mixer_inputs != "token":
            self.map_proj.reset_parameters(generator)
        self.conv.reset_parameters(generator)
        nn.init.ones_(self.norm_weight)
        reset_linear(self.out_proj, generator)

    @property
    def _state_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (
            self._ssm_shape,
            (self.inner_size,),
            (self.conv.num_kept, self.conv.channels),
        )

    def _run(
        self, x: Tensor, state: FPMambaState, lengths: Tensor | None
    ) -> tuple[Tensor, FPMambaState]:
        p = self._project(x, state, lengths)
        dtype = p.values.dtype
        valid = None if lengths is None else valid_tokens(x, lengths)
        prepared = [one.to(dtype) for one in self.state_mixer.prepare(p.values.to(x.dtype))]
        with without_autocast(x.device):
            feeds_back = self._feeds_back
            maps = self.map_proj(None).to(dtype) if feeds_back else None
            share = self._share(p)
            first = state.output.to(dtype)

            def piece(y: Tensor, carried: Tensors, span: slice) -> tuple[Tensor, Tensors]:
                part = p.during(span)
                ssm, last = carried
                before = shifted(y, last) if feeds_back else torch.zeros_like(y)
                raw = [one.during(span)(before) for one in prepared]
                difference = part.values - y
                change = self.state_mixer.deviation(self.state_mixer.coefficients(raw), difference)
                if share is not None:
                    change = share[:, span] * change
                both = torch.cat([part.B, part.C], -1)
                if maps is not None:
                    both = both + maps(before)
                B, C = (unit_length(one) for one in both.chunk(2, -1))
                o, ssm = self._scan(part, part.values - change, B, C, ssm)
                if self.contraction is None:
                    o = self._normalised(part, o)
                return o, (ssm, y[:, -1] if y.shape[1] else last)

            carried = (self._arranged(state.ssm.to(dtype)), first)
            start = torch.zeros_like(p.values)
            y = self._solved(piece, carried, start, valid).value
            # The state that belongs to y, through which gradients flow as through y.
            argument = start if self.max_iterations == 1 else y
            _, (ssm, _) = piece(argument, carried, slice(y.shape[1]))
            final = last_inputs(torch.cat([first.unsqueeze(1), y], 1), 1, lengths)[:, 0]
            read = y if self.contraction is None else self._normalised(p, y)
        before = shifted(y, first).to(x.dtype) if feeds_back else None
        gated = self._gated(p.z, read.to(x.dtype), before)
        out: Tensor = self.out_proj(gated)
        return out, FPMambaState(
            ssm.to(state.ssm.dtype).contiguous(), final.to(state.output.dtype), p.conv
        )

    @property
    def _mixer_projections(self) -> int:
        """FLOPs of what the mixer's maps make of a token."""
        outputs = sum(linear.weight.shape[0] for linear in self.state_mixer.linears)
        return 2 * self.inner_size * outputs

    @property
    def _mixing_flops(self) -> int:
        """FLOPs of one iteration for a token, but for the scan and the norm."""
        seen = 0 if self.mixer_inputs == "token" else self._mixer_projections
        # What y adds to both maps, and their lengths; the sums around the mixer.
        maps = 2 * self.d_state * (2 * self.inner_size + 1) if self._feeds_back else 0
        lengths = 2 * flops.l2_norm(self.d_state)
        share = 0 if self.contraction is None else self.inner_size
        return seen + self.state_mixer.flops + maps + lengths + 2 * self.inner_size + share

    def _share(self, projected: Projected) -> Tensor | None:
        """Return with how much of the mixer's deviation from I the iteration is a contraction.

        Shape (B, T, 1); None means all of it.
        """
        if self.contraction is None:
            return None
        bounds = self._gain(projected) * self.state_mixer.bound
        return (self.contraction / bounds).clamp(max=1)
