"""The models that the paper compares, by their names in its tables, and what they cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from statemix.layers import LayerSpec, Price, price
from statemix.training import RunConfig
from statemix_lab.studies.result_text import counts_text


@dataclass(frozen=True, eq=False)
class Contender:
    """A model of the paper's tables by its name there; ``layer`` maps a state size to a layer.

    ``growing`` are those of protocol "mad" if ``layer`` ignores the size.
    """

    name: str
    layer: Callable[[int], LayerSpec]
    variants: tuple[LayerSpec, ...] = ()
    growing: tuple[LayerSpec, ...] = ()
    fixed: bool = False

    def choices(self, state_sizes: Sequence[int], *, all_variants: bool) -> list[LayerSpec]:
        """Return the distinct layers to try, smallest state first."""
        layers = [self.layer(size) for size in state_sizes]
        return list(dict.fromkeys([*layers, *(self.variants if all_variants else ())]))

    def grown(self, state_sizes: Sequence[int]) -> list[LayerSpec]:
        """Return a layer of protocol "mad" for each state size, smallest state first."""
        grown = list(self.growing[: len(state_sizes)])
        return grown or self.choices(state_sizes, all_variants=False)


def bd_lru(block_size: int, **options: object) -> Contender:
    """BD-LRU with as many blocks as fit into the state size, and further options."""

    def layer(size: int) -> LayerSpec:
        blocks = max(1, round(size / block_size))
        return LayerSpec("bd_lru", num_blocks=blocks, block_size=block_size, **options)

    return Contender(f"BD-LRU m={block_size}{_gates(options)}", layer)


def h_lru(order: int, **options: object) -> Contender:
    """H-LRU whose channels times order fit into the state size, with further options."""

    def layer(size: int) -> LayerSpec:
        channels = max(1, round(size / order))
        return LayerSpec("h_lru", num_channels=channels, order=order, **options)

    return Contender(f"H-LRU m={order}{_gates(options)}", layer)


def single(name: str, layer: LayerSpec) -> Contender:
    """Return a model that has the same layer at every state size."""
    return Contender(name, lambda _: layer)


def convolution(taps: int, kind: Literal["dense", "depthwise"]) -> Contender:
    """Return a causal convolution, which has no state."""
    layer = LayerSpec("conv", kernel_size=taps, depthwise=kind == "depthwise")
    return single(f"{kind} convolution of {taps}", layer)


def _gates(options: Mapping[str, object]) -> str:
    """Return in words how gates differ from the usual ones, such as ", constant gates"."""
    selective, gate = options.get("selective", True), options.get("gate", "softmax")
    words = {True: "", False: ", constant gates", "pointwise": ", pointwise gates"}[selective]
    if gate == "none":
        return f"{words}, not normalised"
    return words if gate == "softmax" else f"{words}, {gate}"


def _heads(name: str, *, fixed: Mapping[str, object]) -> tuple[LayerSpec, ...]:
    """Return a delta rule with states of 128, 256, 512 and so on entries."""
    shapes = ((2, 8), (4, 8), (2, 16), (4, 16), (8, 16), (4, 32), (8, 32), (4, 64))
    return tuple(LayerSpec(name, num_heads=h, head_dim=d, **fixed) for h, d in shapes)


STATE_SIZES = (48, 96, 192, 384, 768, 1536, 3072, 6144)
"""State sizes of Figure 5; only size "paper" goes beyond 1536."""

ORDERS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Values of m in the paper's tables."""

# Paper: "state space expansion factor" 2, 4, 8, kernels of 2 or 4; 2, 4 or 8 heads. Of these, the
# smaller sizes of this library take the largest expansion, the larger kernel and 4 heads.
CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(
            "LSTM",
            lambda _: LayerSpec("lstm"),
            growing=tuple(LayerSpec("lstm", memory_size=size) for size in STATE_SIZES),
        ),
        Contender(
            "Mamba2",
            lambda _: LayerSpec("mamba2", d_state=8, d_conv=4),
            tuple(LayerSpec("mamba2", d_state=n, d_conv=k) for n in (2, 4, 8) for k in (2, 4)),
            tuple(
                LayerSpec("mamba2", d_state=n, d_conv=4, expand=e)
                for e, n in ((1, 2), (2, 2), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32))
            ),
        ),
        Contender(
            "DeltaNet [-1,1]",
            lambda _: LayerSpec("delta_net", num_heads=4),
            tuple(LayerSpec("delta_net", num_heads=heads) for heads in (2, 8)),
            _heads("delta_net", fixed={}),
        ),
        Contender(
            "DeltaProduct_4 [-1,1]",
            lambda _: LayerSpec("delta_product", num_heads=4, num_householder=4),
            tuple(LayerSpec("delta_product", num_heads=n, num_householder=4) for n in (2, 8)),
            _heads("delta_product", fixed={"num_householder": 4}),
        ),
        *(bd_lru(m) for m in ORDERS),
        *(h_lru(m) for m in ORDERS),
    )
}
"""Name -> model, in the order of the paper's tables."""


WIDTH = RunConfig().model.hidden_size
"""Width of the models that are compared."""

PRICES = ("parameters", "FLOPs/token")
"""Heads of the columns that :func:`price_texts` fills."""


@cache
def layer_price(layer: LayerSpec) -> Price:
    """Return the price of a layer at the width of the paper."""
    return price(layer, hidden_size=WIDTH, length=1)


def prices(layers: Sequence[LayerSpec]) -> tuple[list[int], list[int]]:
    """Return parameters and forward FLOPs per token of the layers that are tried."""
    paid = [layer_price(layer) for layer in layers]
    flops = [one.flops.total for one in paid if one.flops is not None]
    return [one.num_parameters for one in paid], flops


def price_texts(layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    """Write what :func:`prices` returns."""
    return tuple(map(counts_text, prices(layers)))
