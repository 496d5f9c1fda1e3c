"""The claims of the paper, made of comparisons between models."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from statemix_lab.studies.higher_order.contenders import (
    CONTENDERS,
    ORDERS,
    Contender,
    bd_lru,
    convolution,
    h_lru,
)
from statemix_lab.studies.higher_order.paper_tables import SHORT_COMPRESSION, SHORT_COPYING, column
from statemix_lab.studies.higher_order.protocols import GRIDS, Column, at_state_size
from statemix_lab.studies.tidy import NOISE

LEARNED = 0.95
"""Accuracy from which a task counts as learned."""

Relation = Literal["learns", "fails", "beats", "matches", "is smaller than"]


HOLDS: dict[Relation, Callable[[float, float], bool]] = {
    "learns": lambda ours, _: ours >= LEARNED,
    "fails": lambda ours, _: ours < LEARNED,
    # Rounded, because 1.0 - 0.95 is more than 0.05 in floating point.
    "beats": lambda ours, other: round(ours - other, 6) > NOISE,
    "matches": lambda ours, other: round(other - ours, 6) <= NOISE,
    "is smaller than": lambda ours, other: ours < other,
}
"""Relation -> whether it holds between two accuracies, or numbers of parameters of layers."""


class Comparison(NamedTuple):
    """An inequality that our runs decide, on the first data set of a column.

    It decides nothing unless its control reaches the accuracy ``least`` on the same data: where
    nothing learns, nothing can be compared.
    """

    column: Column
    model: Contender
    relation: Relation
    other: Contender | None = None
    control: Contender | None = None
    least: float = LEARNED

    @property
    def models(self) -> tuple[Contender, ...]:
        """The models whose accuracy decides, without the control."""
        if self.relation == "is smaller than":
            return ()
        return (self.model,) if self.other is None else (self.model, self.other)

    @property
    def needed(self) -> tuple[Contender, ...]:
        """All models whose accuracy is needed."""
        return (*self.models, *([self.control] if self.control else ()))


class Claim(NamedTuple):
    """A claim of the paper as conditions that must all hold, the most decisive ones first."""

    name: str
    statement: str
    conditions: tuple[Comparison, ...]


# State size of the models whose parameters are compared, that of size "laptop".
_STATE = GRIDS["laptop"].state_sizes[0]


def _at_one_size(name: str) -> Contender:
    layer = CONTENDERS[name].layer(_STATE)
    return Contender(name, lambda _: layer, fixed=True)


# A model that compresses reaches this there.
_COMPRESSED = 0.9
_RIVALS = (
    "LSTM",
    "Mamba2",
    "DeltaNet [-1,1]",
    "DeltaProduct_4 [-1,1]",
    "BD-LRU m=1",
    "BD-LRU m=4",
    "BD-LRU m=16",
)


def _compression(model: Contender, relation: Relation, other: Contender) -> Comparison:
    control = CONTENDERS["BD-LRU m=4"]
    return Comparison(SHORT_COMPRESSION, model, relation, other, control, _COMPRESSED)


def _selective(
    pairs: Mapping[Column, int], controls: Mapping[Column, Contender]
) -> Iterator[Comparison]:
    """Yield that constant gates fall behind gates that see the input, and fail."""
    for data, m in pairs.items():
        constant = bd_lru(m, selective=False)
        yield Comparison(data, CONTENDERS[f"BD-LRU m={m}"], "beats", constant, controls[data])
    for data in pairs:
        for build in (bd_lru, h_lru):
            for m in (1, 16):
                yield Comparison(data, build(m, selective=False), "fails", control=controls[data])


def _claims() -> tuple[Claim, ...]:
    names = ("s3_250", "s3_10k", "s4_3k", "s4_50k", "s5_100k")
    s3_250, s3_10k, s4_3k, s4_50k, s5_100k = (column("table4", name) for name in names)
    recall = column("table3", "in_context_recall").first
    parity = column("table6", "parity")
    lstm = CONTENDERS["LSTM"]
    bd = {m: CONTENDERS[f"BD-LRU m={m}"] for m in ORDERS}
    h = {m: CONTENDERS[f"H-LRU m={m}"] for m in ORDERS}
    # The paper's best on recall and copying.
    strongest = CONTENDERS["DeltaProduct_4 [-1,1]"]
    controls = {recall: strongest, SHORT_COPYING: strongest}
    # With m = 1, both are the same network: that of BD-LRU counts for both.
    models = (bd_lru, h_lru)
    wide = at_state_size(bd[1], 1536)
    other = {name: _at_one_size(name) for name in CONTENDERS}
    return (
        Claim(
            "two states",
            "accuracy rises from m = 1 to m = 2, where eigenvalues may be negative",
            tuple(
                Comparison(data, bd[2], "beats", bd[1], control=controls.get(data))
                for data in (s3_250, s4_3k, s3_10k, parity, recall, SHORT_COPYING)
            ),
        ),
        Claim(
            "as many states as the group permutes",
            "BD-LRU needs m = 3 for S_3 from 250 examples, and m = 4 for S_4 from 3,000",
            (
                Comparison(s3_250, bd[3], "learns"),
                Comparison(s4_3k, bd[4], "learns"),
                *(Comparison(s3_250, bd[m], "fails") for m in (1, 2)),
                *(Comparison(s4_3k, bd[m], "fails") for m in (1, 2, 3)),
            ),
        ),
        Claim(
            "higher order is not enough",
            "H-LRU fails on permutations at every m",
            tuple(
                Comparison(data, h[m], "fails") for data in (s3_250, s4_3k, s3_10k) for m in ORDERS
            ),
        ),
        Claim(
            "compression",
            "H-LRU is the most parameter-efficient model at compression",
            tuple(
                comparison
                for rival in (model for name, model in other.items() if name in _RIVALS)
                for comparison in (
                    Comparison(SHORT_COMPRESSION, other["H-LRU m=16"], "is smaller than", rival),
                    _compression(other["H-LRU m=16"], "matches", rival),
                )
            ),
        ),
        Claim(
            "selectivity",
            "models with constant gates fail outside compression",
            tuple(
                _selective({s3_250: 4, recall: 4, SHORT_COPYING: 2}, {s3_250: bd[3], **controls})
            ),
        ),
        Claim(
            "constant gates",
            "with constant gates, accuracy at compression grows with m",
            tuple(
                _compression(build(16, selective=False), "beats", bd_lru(1, selective=False))
                for build in models
            ),
        ),
        Claim(
            "convolution",
            "at compression, H-LRU with constant gates beats convolutions, the LSTM and Mamba-2",
            tuple(
                _compression(h_lru(16, selective=False), "beats", model)
                for model in (
                    *(convolution(taps, "dense") for taps in (8, 64)),
                    *(convolution(taps, "depthwise") for taps in (8, 64)),
                    lstm,
                    CONTENDERS["Mamba2"],
                )
            ),
        ),
        Claim(
            "normalisation",
            "L1 normalisation of the gates raises accuracy at compression",
            (
                *(_compression(bd[m], "beats", bd_lru(m, gate="none")) for m in (1, 4, 16)),
                *(_compression(h[m], "beats", h_lru(m, gate="none")) for m in (4, 16)),
            ),
        ),
        Claim(
            "growth",
            "with softmax and sigmoid gates, accuracy at compression grows from m = 1 to m = 4",
            tuple(
                comparison
                for build in models
                for comparison in (
                    _compression(build(4), "beats", bd[1]),
                    _compression(build(4, gate="sigmoid"), "beats", bd_lru(1, gate="sigmoid")),
                )
            ),
        ),
        Claim(
            "softmax",
            "softmax gates are no worse at compression than sigmoid gates for m = 4",
            tuple(_compression(build(4), "matches", build(4, gate="sigmoid")) for build in models),
        ),
        Claim(
            "state size",
            "a larger state does not replace a larger m",
            (
                Comparison(SHORT_COPYING, bd[4], "beats", wide, strongest),
                _compression(bd[4], "beats", wide),
                _compression(h[16], "beats", wide),
            ),
        ),
        Claim(
            "large blocks",
            "accuracy at compression falls when m grows from 4 to 16",
            (_compression(bd[4], "beats", bd[16]), _compression(h[4], "beats", h[16])),
        ),
        Claim(
            "low rank",
            "BD-LRU learns permutations from fewer examples than DeltaNet and DeltaProduct",
            tuple(
                Comparison(data, model, "beats", CONTENDERS[name])
                for data, model in ((s3_250, bd[3]), (s4_3k, bd[4]))
                for name in ("DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]")
            ),
        ),
        Claim(
            "all permutations",
            "BD-LRU with m = 5 learns S_3, S_4 and S_5",
            tuple(
                # Without it, three epochs would decide on S_5, which no usual layer learns in them.
                Comparison(data, bd[5], "learns", control=lstm if data is s5_100k else None)
                for data in (s3_250, s3_10k, s4_3k, s4_50k, s5_100k)
            ),
        ),
        Claim(
            "little data",
            "BD-LRU beats an LSTM on little data",
            (Comparison(s3_250, bd[3], "beats", lstm), Comparison(s4_3k, bd[4], "beats", lstm)),
        ),
    )


CLAIMS = _claims()
"""The claims, those with similar data together."""
