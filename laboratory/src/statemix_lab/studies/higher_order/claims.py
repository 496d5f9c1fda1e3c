"""What our runs say about each claim of the paper."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import polars as pl

from statemix_lab.studies.higher_order.contenders import Contender, layer_price
from statemix_lab.studies.higher_order.paper_claims import CLAIMS, HOLDS, Claim, Comparison
from statemix_lab.studies.higher_order.protocols import cell
from statemix_lab.studies.result_text import accuracy_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study_entries import SIZES, ProtocolName, SizeName, StudyEntry, begun
from statemix_lab.studies.tidy import FULL, scores, tidy

ClaimVerdict = Literal["holds", "does not hold", "open"]


class Finding(NamedTuple):
    """A condition with the accuracies, or numbers of parameters, that decide it.

    A value is None where it is not measured, and 0 where all runs of a model diverged.
    """

    condition: Comparison
    values: tuple[float | None, ...]
    control: float | None = None
    as_published: bool = False

    @property
    def true(self) -> bool | None:
        """Whether the condition is met; None while a value is missing or the control has failed."""
        known = [value for value in self.values if value is not None]
        if len(known) < len(self.values):
            return None
        if self.condition.control is not None and (self.control or 0.0) < self.condition.least:
            return None
        return HOLDS[self.condition.relation](known[0], known[-1])


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

    @property
    def as_published(self) -> bool:
        """Whether all comparisons that decide the verdict were made as in the paper."""
        decided = [finding for finding in self.findings if finding.true is not None]
        if self.verdict == "does not hold":
            decided = [finding for finding in decided if not finding.true]
        return bool(decided) and all(finding.as_published for finding in decided)


def decision_rows(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """Return decisions as plain data."""
    return [
        {
            "claim": decision.claim.name,
            "statement": decision.claim.statement,
            **{name: getattr(decision, name) for name in ("protocol", "verdict", "as_published")},
            "findings": [
                {
                    "column": condition.column.name,
                    "model": condition.model.name,
                    "relation": condition.relation,
                    "other": condition.other.name if condition.other else None,
                    "values": list(finding.values),
                    "true": finding.true,
                }
                for finding in decision.findings
                for condition in [finding.condition]
            ],
        }
        for decision in decisions
    ]


def claim_entries(protocol: ProtocolName, size: SizeName) -> list[StudyEntry]:
    """Return the entries that decide the claims, each once."""
    needed = {
        (condition.column.name, model.name, model.fixed): (model, condition.column)
        for claim in CLAIMS
        for condition in claim.conditions
        for model in condition.needed
    }
    return [
        entry
        for model, column in needed.values()
        for entry in cell(model, column, protocol, size, fixed=str(model.fixed))
    ]


def decide(rows: Mapping[str, StoredRow], protocol: ProtocolName) -> list[Decision]:
    """Decide every claim from the rows of results stores, by key."""
    entries = [entry for size in SIZES for entry in begun(claim_entries(protocol, size), rows)]
    known = _accuracies(entries, rows) if entries else {}

    def at(size: SizeName, one: Comparison) -> Finding:
        def accuracy_and_share(model: Contender) -> tuple[float | None, float]:
            place = (size, one.column.name, model.name, str(model.fixed))
            return known.get(place, (None, 0.0))

        is_papers = one.column.is_papers
        if one.other is not None and one.relation == "is smaller than":
            # Such models have one layer at every state size.
            layers = [model.layer(0) for model in (one.model, one.other)]
            sizes = tuple(layer_price(layer).num_parameters for layer in layers)
            return Finding(one, sizes, as_published=is_papers)
        control = None if one.control is None else accuracy_and_share(one.control)[0]
        values, shares = zip(*map(accuracy_and_share, one.models), strict=True)
        return Finding(one, values, control, as_published=is_papers and min(shares) >= FULL)

    def finding(one: Comparison) -> Finding:
        *larger, smallest = (at(size, one) for size in reversed(SIZES))
        return next((this for this in larger if this.true is not None), smallest)

    return [Decision(claim, protocol, tuple(map(finding, claim.conditions))) for claim in CLAIMS]


def _accuracies(
    entries: Iterable[StudyEntry], rows: Mapping[str, StoredRow]
) -> dict[tuple[str, str, str, str], tuple[float, float]]:
    """Return (size, column, model, whether its state size is fixed) -> accuracy, and the share."""
    known = (
        scores(tidy(entries, rows))
        .with_columns(
            accuracy=pl.when("measured")
            .then("ours")
            # All runs diverged.
            .when(pl.col("complete") & (pl.col("done").list.len() == 0))
            .then(0.0)
        )
        .drop_nulls("accuracy")
    )
    places = known.select("size", "column", "model", "fixed").iter_rows()
    numbers = known.select("accuracy", pl.col("share").fill_null(0.0)).iter_rows()
    return dict(zip(places, numbers, strict=True))


def decision_text(decision: Decision) -> tuple[str, list[str]]:
    """Write a claim with its verdict, and what is known of its conditions."""
    details = [_finding_text(one) for one in decision.findings if one.true is not None]
    missing = sum(one.true is None for one in decision.findings)
    if missing:
        details.append(
            f"undecided: {missing} of {len(decision.findings)} comparisons "
            "(not yet measured, or no model has learned the task)"
        )
    setting = "" if decision.as_published else ", not tested at the paper's setting"
    verdict, statement = f"{decision.verdict}{setting}", decision.claim.statement
    return f"{verdict}: {statement} (protocol {decision.protocol})", details


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
