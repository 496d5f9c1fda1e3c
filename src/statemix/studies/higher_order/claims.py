"""The paper's claims, and what our runs say about each."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import polars as pl

from statemix.studies.higher_order.contenders import (
    CONTENDERS,
    ORDERS,
    Contender,
    bd_lru,
    h_lru,
    layer_price,
)
from statemix.studies.higher_order.paper_tables import SHORT_COMPRESSION, SHORT_COPYING, column
from statemix.studies.higher_order.protocols import GRIDS, Column, cell
from statemix.studies.result_text import accuracy_text
from statemix.studies.store import Row
from statemix.studies.study_entries import SIZES, ProtocolName, SizeName, StudyEntry, begun
from statemix.studies.tidy import NOISE, scores, tidy

LEARNED = 0.95
"""Accuracy from which a task counts as learned."""

ClaimVerdict = Literal["holds", "does not hold", "open"]
Relation = Literal["learns", "fails", "beats", "does not beat", "matches", "is smaller than"]


_HOLDS: dict[Relation, Callable[[float, float], bool]] = {
    "learns": lambda ours, _: ours >= LEARNED,
    "fails": lambda ours, _: ours < LEARNED,
    # Rounded, because 1.0 - 0.95 is more than 0.05 in floating point.
    "beats": lambda ours, other: round(ours - other, 6) > NOISE,
    "does not beat": lambda ours, other: round(ours - other, 6) <= NOISE,
    "matches": lambda ours, other: round(other - ours, 6) <= NOISE,
    "is smaller than": lambda ours, other: ours < other,
}
"""Relation -> whether it holds between two accuracies, or numbers of parameters of layers."""


class Comparison(NamedTuple):
    """An inequality that our runs decide.

    Attributes:
        column: data to be learned; its first data set counts.
        model: the model.
        relation: one of :data:`_HOLDS`. "is smaller than" needs no runs.
        other: the model to compare with, if any.
        control: a model that must reach ``least`` on the same data for the condition to decide
            anything; None asks for none. Where nothing learns, nothing can be compared.
        least: that accuracy.
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


class Finding(NamedTuple):
    """A condition with what decides it.

    Attributes:
        condition: the condition.
        values: accuracies of its models, or their numbers of parameters; None where not measured,
            and 0 where no run of a model has a result, as all diverged.
        control: accuracy of its control; None where not measured, or without one.
    """

    condition: Comparison
    values: tuple[float | None, ...]
    control: float | None = None

    @property
    def true(self) -> bool | None:
        """Whether the condition is met; None while a value is missing or the control has failed."""
        known = [value for value in self.values if value is not None]
        if len(known) < len(self.values):
            return None
        if self.condition.control is not None and (self.control or 0.0) < self.condition.least:
            return None
        return _HOLDS[self.condition.relation](known[0], known[-1])


class Claim(NamedTuple):
    """A claim of the paper, as conditions that must all be met; those first that say most."""

    name: str
    statement: str
    conditions: tuple[Comparison, ...]


class Decision(NamedTuple):
    """What our runs say about a claim under one protocol: a finding for each of its conditions."""

    claim: Claim
    protocol: ProtocolName
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> ClaimVerdict:
        """Whether the claim holds: one condition that is not met decides against it."""
        truths = [finding.true for finding in self.findings]
        if False in truths:
            return "does not hold"
        return "open" if None in truths else "holds"


def decision_rows(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """Return decisions as plain data."""
    return [
        {
            "claim": decision.claim.name,
            "statement": decision.claim.statement,
            "protocol": decision.protocol,
            "verdict": decision.verdict,
            "findings": [
                {
                    "column": finding.condition.column.name,
                    "model": finding.condition.model.name,
                    "relation": finding.condition.relation,
                    "other": finding.condition.other.name if finding.condition.other else None,
                    "values": list(finding.values),
                    "true": finding.true,
                }
                for finding in decision.findings
            ],
        }
        for decision in decisions
    ]


def claim_entries(protocol: ProtocolName, size: SizeName) -> list[StudyEntry]:
    """Return the entries that decide the claims, each once."""
    found = {
        (condition.column.name, model): (model, condition.column)
        for claim in CLAIMS
        for condition in claim.conditions
        for model in (*condition.models, *([condition.control] if condition.control else []))
    }
    return [
        entry
        for model, column in found.values()
        for entry in cell(model, column, protocol, size, fixed=str(model.fixed))
    ]


def decide(rows: Mapping[str, Row], protocol: ProtocolName) -> list[Decision]:
    """Decide every claim from the rows of results stores, by key.

    Of several sizes the largest counts at which a model has enough seeds.
    """
    entries = [one for size in SIZES for one in begun(claim_entries(protocol, size), rows)]
    accuracy = _accuracies(entries, rows) if entries else {}

    def value(one: Comparison, model: Contender) -> float | None:
        return accuracy.get((one.column.name, model.name, str(model.fixed)))

    def finding(one: Comparison) -> Finding:
        values: tuple[float | None, ...] = tuple(value(one, model) for model in one.models)
        if one.other is not None and one.relation == "is smaller than":
            models = (one.model, one.other)
            values = tuple(layer_price(model.layer(_STATE)).num_parameters for model in models)
        return Finding(one, values, None if one.control is None else value(one, one.control))

    return [Decision(claim, protocol, tuple(map(finding, claim.conditions))) for claim in CLAIMS]


def _accuracies(
    entries: Iterable[StudyEntry], rows: Mapping[str, Row]
) -> dict[tuple[str, str, str], float]:
    """Return (column, model, whether its size is fixed) -> accuracy at the largest size."""
    places = pl.DataFrame({"size": SIZES, "place": range(len(SIZES))})
    known = (
        scores(tidy(entries, rows))
        .join(places, on="size")
        .with_columns(
            accuracy=pl.when("measured")
            .then("ours")
            # All runs diverged.
            .when(pl.col("complete") & (pl.col("done").list.len() == 0))
            .then(0.0)
        )
        .drop_nulls("accuracy")
        .sort("place")
        .group_by("column", "model", "fixed")
        .agg(pl.col("accuracy").last())
    )
    return {
        (one["column"], one["model"], one["fixed"]): one["accuracy"] for one in known.to_dicts()
    }


def decision_text(decision: Decision) -> tuple[str, list[str]]:
    """Write a claim with its verdict, and what is known of its conditions."""
    details = [_finding_text(one) for one in decision.findings if one.true is not None]
    missing = sum(one.true is None for one in decision.findings)
    if missing:
        details.append(
            f"undecided: {missing} of {len(decision.findings)} comparisons "
            "(not yet measured, or no model has learned the task)"
        )
    head = f"{decision.verdict}: {decision.claim.statement} (protocol {decision.protocol})"
    return head, details


def _finding_text(finding: Finding) -> str:
    """Write a decided condition, such as "yes: BD-LRU m=3 (.999) learns on S3-250"."""
    condition = finding.condition
    answer = "yes" if finding.true else "no"
    known = [value for value in finding.values if value is not None]
    smaller = condition.relation == "is smaller than"
    values = [f"{one:,.0f} parameters" if smaller else accuracy_text(one) for one in known]
    words = f"{answer}: {condition.model.name} ({values[0]}) {condition.relation}"
    if condition.other is not None:
        words += f" {condition.other.name} ({values[1]})"
    return words if smaller else f"{words} on {condition.column.data[0].name}"


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


def _efficient(model: Contender, *others: Contender) -> Iterator[Comparison]:
    """Yield that a model has fewer parameters than others, and is no worse at compression."""
    control = CONTENDERS["BD-LRU m=4"]
    for other in others:
        yield Comparison(SHORT_COMPRESSION, model, "is smaller than", other)
        yield Comparison(SHORT_COMPRESSION, model, "matches", other, control, _COMPRESSED)


def _unnormalised(usual: Contender, build: Callable[..., Contender]) -> list[Comparison]:
    """Return that a model without normalisation does not grow with m, and falls behind.

    Growth begins at m = 1, where there is room above: with m = 4 some rebuild nearly everything.
    """
    few, many = (build(m, gate="none") for m in (1, 16))
    control = CONTENDERS["BD-LRU m=4"]
    return [
        Comparison(SHORT_COMPRESSION, many, "does not beat", few, control, _COMPRESSED),
        Comparison(SHORT_COMPRESSION, usual, "beats", many, control, _COMPRESSED),
    ]


def _constant(
    pairs: Mapping[Column, int], controls: Mapping[Column, Contender]
) -> Iterator[Comparison]:
    """Yield that constant gates fall behind gates that see the input, and fail.

    Args:
        pairs: data -> m of a BD-LRU whose usual gates get somewhere.
        controls: data -> a model that learns it.
    """
    for data, m in pairs.items():
        constant = bd_lru(m, selective=False)
        yield Comparison(data, CONTENDERS[f"BD-LRU m={m}"], "beats", constant, controls[data])
    for data in pairs:
        for build in (bd_lru, h_lru):
            for m in (1, 16):
                yield Comparison(data, build(m, selective=False), "fails", control=controls[data])


def _claims() -> tuple[Claim, ...]:
    s3_250, s3_10k, s4_3k = (column("table4", name) for name in ("s3_250", "s3_10k", "s4_3k"))
    recall = column("table3", "in_context_recall").first
    parity = column("table6", "parity")
    lstm = CONTENDERS["LSTM"]
    bd = {m: CONTENDERS[f"BD-LRU m={m}"] for m in ORDERS}
    h = {m: CONTENDERS[f"H-LRU m={m}"] for m in ORDERS}
    # The paper's best on recall and copying.
    strongest = CONTENDERS["DeltaProduct_4 [-1,1]"]
    controls = {recall: strongest, SHORT_COPYING: strongest}
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
                _efficient(
                    other["H-LRU m=16"],
                    *(model for name, model in other.items() if name in _RIVALS),
                )
            ),
        ),
        Claim(
            "selectivity",
            "models with constant gates fail outside compression",
            tuple(_constant({s3_250: 4, recall: 4, SHORT_COPYING: 2}, {s3_250: bd[3], **controls})),
        ),
        Claim(
            "normalisation",
            "without L1 normalisation of the gates, accuracy at compression does not grow with m",
            tuple(_unnormalised(bd[16], bd_lru) + _unnormalised(h[16], h_lru)),
        ),
        Claim(
            "little data",
            "BD-LRU beats an LSTM on little data",
            (
                Comparison(s3_250, bd[3], "beats", lstm),
                Comparison(s4_3k, bd[4], "beats", lstm),
            ),
        ),
    )


CLAIMS = _claims()
"""The claims, in the order of the paper."""
