"""The paper's claims: their conditions, what decides them, and the runs that they need."""

import pytest

from statemix_lab.studies.higher_order import claims
from statemix_lab.studies.higher_order.claims import Decision, Finding
from statemix_lab.studies.higher_order.contenders import CONTENDERS
from statemix_lab.studies.higher_order.paper_claims import CLAIMS, Claim, Comparison
from statemix_lab.studies.higher_order.paper_tables import TABLES, column
from statemix_lab.studies.store import key
from statemix_lab.studies.study_entries import plan

S3 = column("table4", "s3_250")
LSTM, TWO, THREE = (CONTENDERS[name] for name in ("LSTM", "BD-LRU m=2", "BD-LRU m=3"))


def row(config, accuracy):
    scores = {"product": {"token_accuracy": accuracy, "mad_accuracy": accuracy}}
    other = {"product": {"token_accuracy": accuracy - 0.5, "mad_accuracy": 0.0}}
    return {
        "key": key(config),
        "status": "done",
        "best_test": scores,
        "test_at_best_validation": other,
        "best_validation": other,
    }


def rows_of(accuracies, protocol="paper", size="laptop", seeds=3, settings=1):
    """Rows of runs on S_3 with 250 examples: model -> accuracy."""
    found = {}
    for entry in TABLES["table4"].entries(protocol, size):
        if entry.column == "s3_250" and entry.model in accuracies:
            for trial in list(entry.trials)[:settings]:
                for config in trial.runs[:seeds]:
                    found[key(config)] = row(config, accuracies[entry.model])
    return found


@pytest.mark.parametrize(
    ("relation", "values", "true"),
    [
        ("learns", (0.95,), True),
        ("learns", (None,), None),
        ("fails", (0.949,), True),
        ("fails", (0.95,), False),
        ("beats", (1.0, 0.94), True),
        # .05 is no more than noise, and 1 - .95 is above .05 in floating point.
        ("beats", (1.0, 0.95), False),
        ("beats", (1.0, None), None),
        ("matches", (0.95, 1.0), True),
        ("matches", (0.94, 1.0), False),
        ("is smaller than", (11, 11), False),
    ],
)
def test_a_condition_is_met_or_not_or_unknown(relation, values, true):
    assert Finding(Comparison(S3, TWO, relation, LSTM), values).true is true


@pytest.mark.parametrize(("control", "true"), [(0.94, None), (None, None), (0.95, True)])
def test_where_the_control_learns_nothing_nothing_is_decided(control, true):
    condition = Comparison(S3, TWO, "fails", control=THREE)
    assert Finding(condition, (0.5,), control).true is true
    lower = Comparison(S3, TWO, "fails", control=THREE, least=0.5)
    assert Finding(lower, (0.4,), 0.6).true is True


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.99, 0.99), "holds"),
        ((0.99, 0.5), "does not hold"),
        ((0.99, None), "open"),
        # One condition that is not met decides, whatever the others turn out to be.
        ((None, 0.5), "does not hold"),
    ],
)
def test_a_claim_holds_if_every_condition_is_met(values, verdict):
    conditions = (Comparison(S3, TWO, "learns"), Comparison(S3, THREE, "learns"))
    found = tuple(Finding(c, (v,)) for c, v in zip(conditions, values, strict=True))
    assert Decision(Claim("name", "statement", conditions), "paper", found).verdict == verdict


@pytest.mark.parametrize(
    ("findings", "published"),
    [
        (((0.99, True), (0.99, True)), True),
        (((0.99, True), (0.99, False)), False),
        (((0.5, True), (0.99, False)), True),  # the one that decides against it was
        (((0.5, False), (0.99, True)), False),
        (((0.99, True), (None, False)), True),
        (((None, True), (None, True)), False),
    ],
)
def test_a_claim_is_tested_as_published_if_all_that_decide_it_are(findings, published):
    conditions = (Comparison(S3, TWO, "learns"), Comparison(S3, THREE, "learns"))
    found = tuple(
        Finding(condition, (value,), as_published=as_published)
        for condition, (value, as_published) in zip(conditions, findings, strict=True)
    )
    decision = Decision(Claim("name", "statement", conditions), "paper", found)
    assert decision.as_published is published


def test_a_comparison_is_as_published_if_both_models_had_the_training():
    accuracies = {
        "s4_3k": {"BD-LRU m=1": 0.2, "BD-LRU m=2": 0.4, "BD-LRU m=4": 0.9},
        "s3_10k": {"BD-LRU m=1": 0.2, "BD-LRU m=2": 0.9},
    }
    rows = {}
    for entry in TABLES["table4"].entries("paper", "laptop"):
        if entry.model in accuracies.get(entry.column, {}):
            for config in next(iter(entry.trials)).runs:
                rows[key(config)] = row(config, accuracies[entry.column][entry.model])
    found = {
        (one.condition.column.name, one.condition.model.name, one.condition.relation): one
        for decision in claims.decide(rows, "paper")
        for one in decision.findings
    }
    # 60 of 200 epochs are enough, 15 are not.
    assert found["s4_3k", "BD-LRU m=2", "beats"].as_published
    assert not found["s3_10k", "BD-LRU m=2", "beats"].as_published
    # The other model has no runs.
    assert not found["s4_3k", "BD-LRU m=4", "beats"].as_published


def test_a_model_whose_runs_all_diverged_counts_as_zero():
    rows = rows_of({"BD-LRU m=1": 0.3, "BD-LRU m=2": 0.5})
    for one in rows_of({"BD-LRU m=1": 0.3}).values():
        rows[one["key"]] = {"key": one["key"], "status": "diverged"}
    assert of_s3(claims.decide(rows, "paper"))["BD-LRU m=2", "beats"].values == (0.5, 0.0)


def test_compression_is_compared_where_a_model_compresses():
    conditions = {
        one.least
        for claim in CLAIMS
        for one in claim.conditions
        if one.column.name == "compression of 16" and one.control
    }
    assert conditions == {0.9}


def of_s3(decisions):
    """The conditions on S_3 with 250 examples that are decided: (model, relation) -> finding."""
    return {
        (finding.condition.model.name, finding.condition.relation): finding
        for decision in decisions
        for finding in decision.findings
        if finding.condition.column.name == "s3_250" and finding.true is not None
    }


def test_decisions_are_made_from_measured_cells_alone():
    accuracies = {"BD-LRU m=1": 0.3, "BD-LRU m=2": 0.5, "BD-LRU m=3": 1.0, "LSTM": 0.97}
    decided = of_s3(claims.decide(rows_of(accuracies), "paper"))
    assert {place: (finding.values, finding.true) for place, finding in decided.items()} == {
        ("BD-LRU m=2", "beats"): ((0.5, 0.3), True),
        ("BD-LRU m=3", "learns"): ((1.0,), True),
        ("BD-LRU m=1", "fails"): ((0.3,), True),
        ("BD-LRU m=2", "fails"): ((0.5,), True),
        ("BD-LRU m=3", "beats"): ((1.0, 0.97), False),
    }
    assert of_s3(claims.decide(rows_of(accuracies, seeds=2), "paper")) == {}
    # Protocol "tuned" reads other runs, and the accuracy at their best validation accuracy.
    assert of_s3(claims.decide(rows_of(accuracies), "tuned")) == {}
    # A search under way, with one setting of seven, decides nothing.
    assert of_s3(claims.decide(rows_of(accuracies, protocol="tuned"), "tuned")) == {}
    whole = rows_of(accuracies, protocol="tuned", settings=7)
    tuned = of_s3(claims.decide(whole, "tuned"))
    assert tuned["BD-LRU m=2", "beats"].values == pytest.approx((0.0, -0.2))


def test_two_models_are_compared_at_one_size():
    small = rows_of({"BD-LRU m=1": 0.3, "BD-LRU m=2": 0.5})
    large = rows_of({"BD-LRU m=2": 0.99}, size="paper")
    place = ("BD-LRU m=2", "beats")
    assert of_s3(claims.decide(small | large, "paper"))[place].values == (0.5, 0.3)
    # The largest size at which both are measured decides.
    both = rows_of({"BD-LRU m=1": 0.6, "BD-LRU m=2": 0.99}, size="paper")
    assert of_s3(claims.decide(small | both, "paper"))[place].values == (0.99, 0.6)
    fewer = rows_of({"BD-LRU m=1": 0.6, "BD-LRU m=2": 0.99}, size="paper", seeds=2)
    assert of_s3(claims.decide(small | fewer, "paper"))[place].values == (0.5, 0.3)


def test_parameters_are_compared_without_runs():
    (claim,) = (one for one in claims.decide({}, "paper") if one.claim.name == "compression")
    sizes = [f for f in claim.findings if f.condition.relation == "is smaller than"]
    assert sizes
    for finding in sizes:
        counts = [
            sum(p.numel() for p in model.layer(192).build(hidden_size=128).parameters())
            for model in (finding.condition.model, finding.condition.other)
        ]
        assert list(finding.values) == counts
    assert claim.verdict in ("open", "does not hold")


@pytest.mark.parametrize("protocol", ["mad", "paper"])
def test_the_plan_has_the_runs_of_every_model_once(protocol, tmp_path):
    entries = claims.claim_entries(protocol, "laptop")
    wanted = {
        (condition.column.name, model.name)
        for claim in CLAIMS
        for condition in claim.conditions
        for model in (*condition.models, *filter(None, [condition.control]))
    }
    assert {(entry.column, entry.model) for entry in entries} == wanted
    # Models of one state size are entries beside those whose size is searched.
    assert {one.labels["fixed"] for one in entries if one.model == "H-LRU m=16"} == {
        "True",
        "False",
    }
    planned = plan(entries, tmp_path)
    assert len({one.key for one in planned}) == len(planned)
    # A model with constant or unnormalised gates is trained as such.
    for one in planned:
        options = one.job.config.model.layers[0].options
        is_constant = "constant gates" in one.job.name
        assert options.get("selective") == (False if is_constant else None)
        assert (options.get("gate") == "none") == ("not normalised" in one.job.name)
    assert len({one.job.name for one in planned}) == len(planned)


def test_decisions_are_plain_data_too():
    decisions = claims.decide(rows_of({"BD-LRU m=3": 1.0}), "paper")
    (decision,) = (one for one in decisions if one.claim.name == "little data")
    (plain,) = claims.decision_rows([decision])
    assert plain["verdict"] == "open"
    assert plain["protocol"] == "paper"
    assert plain["findings"][0] == {
        "column": "s3_250",
        "model": "BD-LRU m=3",
        "relation": "beats",
        "other": "LSTM",
        "values": [1.0, None],
        "true": None,
    }
