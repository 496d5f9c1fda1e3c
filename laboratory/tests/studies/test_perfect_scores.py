"""Networks without a wrong answer in the tests, and the words that refute them."""

import pytest

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig
from statemix_lab.studies.exactness import perfect_scores
from statemix_lab.studies.exactness.exact_studies import STUDIES
from statemix_lab.studies.exactness.exact_suites import RECIPE
from statemix_lab.studies.exactness.perfect_scores import LONGEST, searched
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study_entries import ON_ONE_CORE, StudyEntry, Trials, plan

(SCORES,) = (study for study in STUDIES if study.name == "perfect-scores")
ENTRIES = SCORES.entries("paper", "laptop")


def lstm(pattern, num_steps):
    return RunConfig(
        task=TaskSpec("regex", pattern=pattern, alphabet="ab", length=8),
        model=ModelConfig(layers=(LayerSpec("lstm"),), hidden_size=16),
        schedules=ScheduleConfig(num_steps=num_steps),
        evaluation=EvaluationConfig(test_size=20, validation_size=20, lengths=(LONGEST,)),
        runtime=ON_ONE_CORE,
    )


# The last letter decides, which an LSTM learns at once.
LEARNED, BEGUN = lstm("(a|b)*b", 150), lstm("(a|b)*bab", 1)
SMALL = [
    StudyEntry("learned", "LSTM", Trials.seeded(LEARNED, range(1))),
    StudyEntry("begun", "LSTM", Trials.seeded(BEGUN, range(2))),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The rows of two small networks, and the folder of their runs."""
    folder = tmp_path_factory.mktemp("scores")
    store = Store(folder / "runs.jsonl")
    planned = [one for one in plan(SMALL, folder) if one.job.config.seed == 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perfect_scores, "SECONDS", 2.0)
        SCORES.fill(planned, store, num_workers=1)
    return store.rows(), folder


def test_a_perfect_score_is_searched_for_wrong_words(trained):
    rows, _ = trained
    learned, begun = rows[key(LEARNED)], rows[key(BEGUN)]
    assert learned["refutation"]["verdict"] == "not refuted"
    assert learned["refutation"]["letters"] > 100_000
    assert learned["refutation"].keys() == {"verdict", "letters", "seconds"}
    assert "refutation" not in begun
    assert "certificate" not in begun


def test_a_wrong_word_is_kept_in_letters(trained):
    _, folder = trained
    found = searched(folder / key(BEGUN))
    assert found["verdict"] == "refuted"
    parts = found["word"]
    word = [*parts["before"], *(parts["times"] * parts["loop"]), *parts["after"]]
    assert len(word) == found["length"]
    task = BEGUN.build_task()
    right = task.automaton().answers([task.language.letters.index(letter) for letter in word])
    assert found["expected"] == task.label(right[-1]) != found["answer"]


def test_the_table_counts_what_has_become_of_networks(trained):
    rows, _ = trained
    lost = {**rows[key(BEGUN)], "status": "diverged"}
    wrong = {**rows[key(LEARNED)], "refutation": {"verdict": "refuted"}}

    def lines(rows):
        return [line.cells for line in SCORES.table(SCORES.runs(SMALL, rows), SMALL).lines]

    assert lines(rows) == [
        ("learned", "LSTM", "", "", "1", "", "", ""),
        ("begun", "LSTM", "1", "", "", "", "1", ""),
    ]
    assert lines({key(BEGUN): lost, key(LEARNED): wrong}) == [
        ("learned", "LSTM", "", "1", "", "", "", ""),
        ("begun", "LSTM", "", "", "", "1", "1", ""),
    ]


def test_all_networks_read_the_same_words():
    by_language = {}
    for entry in ENTRIES:
        for _, config, _ in entry.trials.runs:
            by_language.setdefault(entry.column, []).append(config)
    assert len(by_language) == 7
    for configs in by_language.values():
        assert len({config.task for config in configs}) == 1
        assert {config.evaluation.lengths for config in configs} == {(LONGEST,)}
        assert {config.evaluation.test_size for config in configs} == {256}
        (ours,) = {config.replace(seed=0) for config in configs if config.search.attempts}
        # The recipe proves automata.
        assert ours.search.confirm == "proof"
    assert {entry.model for entry in ENTRIES} >= {RECIPE, "LSTM", "Mamba-2"}
