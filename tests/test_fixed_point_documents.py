"""What the documents say of single seeds, times and pilots of fixed points is in the results."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from statemix.studies.fixed_points.fp_scores import score
from statemix.studies.fixed_points.fp_suites import SUITES
from statemix.studies.number_text import accuracy_text
from statemix.studies.store import merged

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def choosing():
    return said("choosing.md")


@pytest.fixture(scope="module")
def reproduction():
    return said("reproduction.md")


def said(name):
    """A document without its line breaks."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def lines(name):
    text = (ROOT / "results" / "fixed_point" / name).read_text()
    return [json.loads(line) for line in text.splitlines()]


def found(suite):
    stores = merged(sorted((ROOT / "results" / "reproduce").glob("fp-*.jsonl")))
    scores = (score(one, stores) for one in SUITES[suite].conditions("laptop"))
    return {(one.condition.column[:3], one.condition.model): one for one in scores if one.rows}


def test_seeds_at_four_times_the_training_length(choosing):
    scores = found("fp-a5")
    blocks, products = (
        {group: scores[group, model].at(64).values for group in ("A_5", "S_5")}
        for model in ("BD-LRU m=5 householder", "DeltaProduct_4")
    )
    least = accuracy_text(min(*blocks["A_5"], *products["A_5"]))
    assert f"on A_5 all seeds of both have {least} or more" in choosing
    low, high = (accuracy_text(end(blocks["S_5"])) for end in (min, max))
    seeds = " and ".join(", ".join(map(accuracy_text, products["S_5"])).rsplit(", ", 1))
    assert f"on S_5 the first has {low} to {high}, the second {seeds};" in choosing
    for group in ("A_5", "S_5"):
        at_eight = scores[group, "DeltaProduct_4"].at(128).mean
        assert at_eight > scores[group, "BD-LRU m=5 householder"].at(128).mean


def test_times_of_training_that_were_to_be_equal(choosing):
    steps = {
        one.condition.model: one.condition.runs[0].schedules.num_steps
        for one in found("fp-a5").values()
    }
    before = {row["model"]: row["cpu_ms_per_step"] for row in lines("step-times.jsonl")}
    later = {
        row["model"]: row["time_s"]["p50"] for row in lines("costs.jsonl") if row["work"] == "train"
    }

    def shares(times):
        usual = steps["FP-Mamba1 Householder_1"] * times["FP-Mamba1 Householder_1"]
        others = steps.keys() - {"FP-Mamba1 Householder_1"}
        return sorted(steps[model] * times[model] / usual for model in others)

    off = max(abs(share - 1) for share in shares(before))
    assert f"within {100 * off:.0f}% by the times of steps" in choosing
    least, *_, most = shares(later)
    took = f"took {100 * (1 - most):.0f} to {100 * (1 - least):.0f}% less time than it"
    assert took in choosing


def test_answering_speeds_that_are_those_of_the_most_iterations(choosing):
    scores = found("fp-a5")
    ended = {
        (model, length)
        for (group, model), one in scores.items()
        if group == "A_5" and one.at(16).iterations
        for length in (16, 128)
        if one.at(length).iterations[0] == 256
    }
    assert ended == {
        ("FP-Mamba1 Householder_4", 16),
        ("FP-Mamba1 Householder_4", 128),
        ("FP-Mamba1 Kronecker", 128),
    }
    assert "of Householder_4 at both lengths, and of Kronecker at 128, are those of 256" in choosing


def test_seeds_of_budgets(reproduction):
    at_16 = defaultdict(list)
    longer = []
    for one in found("fp-budget").values():
        budget = one.condition.runs[0].model.layers[0].options["max_iterations"]
        for row in one.rows:
            accuracy = next(iter(row["test"]["16"].values()))["token_accuracy"]
            at_16[budget].append(accuracy)
            taken = [row["iterated"][str(tokens)]["iterations"] for tokens in (15, 60)]
            longer.append((taken[1] - taken[0]) / 45)
    grown = sum(more > 0 for more in longer)
    assert f"in {grown} of {len(longer)} runs, but by at most {max(longer):.1f}" in reproduction
    means = [sum(at_16[budget]) / 3 for budget in (2, 6, 8, 10)]
    assert means == sorted(means)
    (low, high), (lower, higher) = (
        (accuracy_text(min(at_16[budget])), accuracy_text(max(at_16[budget])))
        for budget in (12, 16)
    )
    assert f"{low} to {high} of the answers at 16 with at most 12" in reproduction
    assert f"{lower} to {higher} with at most 16" in reproduction


def test_iterations_of_copies(reproduction):
    one = next(one for (_, model), one in found("fp-copy").items() if "householder" in model)
    for tokens, text in ((8, "iterations for 8 tokens"), (14, "for 14: ")):
        taken = sorted(round(number) for number in one.at(tokens).iterations)
        assert f"{taken[0]}, {taken[1]} and {taken[2]} {text}" in reproduction


def test_pilots_of_words_of_all_elements(reproduction):
    words = "permutation group=A_5 length=16 min_length=2"
    last = {row["label"]: row for row in lines("pilots.jsonl") if row["task"] == words}
    scores = [
        (row["step"], row["token_accuracy"])
        for row in last.values()
        if row["layer"]["name"] != "bd_lru"
    ]
    # Who knows n answers of 16 guesses the rest among 60 elements.
    known = {n: n / 16 + (16 - n) / 16 / 60 for n in (1, 2)}
    one, two = (
        [step for step, accuracy in scores if accuracy == pytest.approx(known[n], abs=0.006)]
        for n in (1, 2)
    )
    assert (len(scores), len(one), len(two)) == (4, 2, 2)
    assert max(one) < min(two)
    text = "of four pilots, two got as far as the first two answers of a word, and two"
    assert text in reproduction


def test_how_much_less_a_laptop_trains_on_stories(reproduction):
    runs = {size: SUITES["catbabi"].conditions(size)[1].runs[0] for size in ("laptop", "paper")}

    def numbers(run):
        (layer,) = run.model.layers
        steps, most = run.schedules.num_steps, layer.options["max_iterations"]
        return run.model.hidden_size, f"{steps:,}", run.batches.size, most

    few, many = numbers(runs["laptop"]), numbers(runs["paper"])
    assert (
        f"width {few[0]} instead of {many[0]} and train for {few[1]} steps of {few[2]} sequences "
        f"instead of {many[1]} of {many[2]}, with at most {few[3]} iterations instead of {many[3]};"
    ) in reproduction
    assert f"tests have {runs['laptop'].evaluation.test_size} sequences" in reproduction
