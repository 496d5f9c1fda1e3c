"""The suites of fixed points: their runs, what they add up to, and the paper's numbers."""

import dataclasses
import json

import pytest

from statemix.layers import FPRNN, LAYERS, LayerSpec
from statemix.models import TokenClassifier
from statemix.sweeps.runner import Ended, run_all
from statemix.tasks import TaskSpec
from statemix.training import BatchConfig, EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig
from statemix.training.settings import Assignments
from statemix_lab.studies.fixed_points import fixed_point_studies
from statemix_lab.studies.fixed_points.fixed_point_studies import (
    STUDIES,
    FixedPointStudy,
    _iterations,
    iterated_row,
    overview,
)
from statemix_lab.studies.length_table import length_panels, length_table
from statemix_lab.studies.store import key
from statemix_lab.studies.study_entries import SIZES, Number, StudyEntry, Trial, Trials, plan
from statemix_lab.studies.tidy import by_length, tidy

SUITES = {study.name: study for study in STUDIES}
EVERY = [(study, size) for study in STUDIES for size in SIZES]


def runs_of(entry):
    return [config for _, config, _ in entry.trials.runs]


def tiny(layer, seed=0, **evaluation):
    return RunConfig(
        task=TaskSpec("permutation", group="S_3", length=6, min_length=2),
        model=ModelConfig(layers=(layer,), hidden_size=8, bos=True),
        batches=BatchConfig(size=8),
        schedules=ScheduleConfig(num_steps=2),
        evaluation=EvaluationConfig(test_size=8, validation_size=8, lengths=(9,), **evaluation),
        seed=seed,
    )


FIXED_POINT = LayerSpec("fp_rnn", max_iterations=2)


def measured(*configs, **fields):
    return StudyEntry("S_3", "FP-RNN", Trials(lambda: [Trial("", configs)]), **fields)


def at(entry, rows):
    """Length -> its scores."""
    return {one["length"]: one for one in by_length(tidy([entry], rows), [entry]).to_dicts()}


def table(entry, rows):
    return length_table(tidy([entry], rows), [entry])


def row(config, value, iterations=None, status="done"):
    heads = {
        str(length): {"product": {"token_accuracy": value, "sequence_accuracy": value / 2}}
        for length in (6, 9)
    }
    found = {"key": key(config), "seed": config.seed, "status": status, "test": heads}
    iterated = {"iterations": iterations, "residual": 0.01}
    numbers = {} if iterations is None else {"6": iterated, "9": iterated}
    return {**found, "time_s": 60.0, "iterated": numbers, "environment": {}}


@pytest.mark.parametrize(("suite", "size"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_every_condition_can_be_run_and_is_tested_where_the_paper_has_numbers(suite, size):
    conditions = suite.entries("paper", size)
    keys = [key(run) for condition in conditions for run in runs_of(condition)]
    assert len(set(keys)) == len(keys)
    assert len({(one.column, one.model) for one in conditions}) == len(conditions)
    for condition in conditions:
        assert condition.size == size
        assert len(runs_of(condition)) >= 3
        for run in runs_of(condition):
            tested = {run.task.options["length"], *run.evaluation.lengths}
            assert condition.published_for or set(condition.published) <= tested
            if suite.name != "catbabi":  # whose archive is not here
                for length in tested:
                    run.build_task().examples("test", 511, 512, length)
            (layer,) = run.model.layers
            # Mamba has a single iteration, also in tests.
            attributes, most = run.evaluation.attributes, layer.options.get("max_iterations", 1)
            assert dict(attributes).get("max_iterations", 1) >= (1 if most == 1 else 256)
            assert (most == 1) == (not attributes)
            for layer in run.model.layers:
                narrow = {"head_dim": 4} if layer.name == "fp_mamba2" else {}
                LAYERS[layer.name](hidden_size=8, **{**layer.options, **narrow})


NO_CONV = {"d_state": 16, "d_conv": 0}
# Suite -> width, layers, batch, steps of warm-up, rate, weight decay, start token, seeds, and
# options of the first layer: as the released code of the paper has them.
PAPER = {
    "fp-a5": (512, 1, 512, 0, 1e-4, 0.01, True, 3, {**NO_CONV, "mixer": "kronecker"}),
    "fp-budget": (512, 1, 512, 0, 1e-4, 0.01, True, 4, NO_CONV),
    "fp-copy": (1024, 12, 8, 300, 1e-4, 0.1, False, 3, {"d_state": 32, "mixer_inputs": "sum"}),
    "catbabi": (512, 1, 256, 0, 1e-3, 0.0, False, 3, {"d_state": 16}),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_size_paper_trains_as_the_papers_code(name):
    first = SUITES[name].entries("paper", "paper")[0]
    run = runs_of(first)[0]
    (*numbers, options) = PAPER[name]
    assert numbers == [
        *(run.model.hidden_size, len(run.model.stack()), run.batches.size),
        *(run.schedules.warmup_steps, run.optimizer.learning_rate, run.optimizer.weight_decay),
        *(run.model.bos, len(runs_of(first))),
    ]
    found = {**run.model.layers[0].options}
    del found["max_iterations"]
    # The paper's code trains to a residual of .1 in three quarters of a batch.
    assert found == {**options, "tolerance": 0.1, "quantile": 0.75}


def test_a_laptop_reads_words_of_generators_and_is_not_compared():
    found = {size: SUITES["fp-budget"].entries("paper", size)[0] for size in SIZES}
    for size, condition in found.items():
        small = size == "laptop"
        assert bool(runs_of(condition)[0].task.options.get("generators")) == small
        assert condition.column == ("A_5, two generators" if small else "A_5")
        assert condition.published_for == ("words of all elements" if small else "")
    for size in SIZES:
        for condition in SUITES["fp-copy"].entries("paper", size):
            shorter = runs_of(condition)[0].task.options["length"] < 2 * 20 + 2
            assert bool(condition.published_for) == shorter == (size == "laptop")
    configs = [tiny(FIXED_POINT, seed) for seed in range(3)]
    rows = {key(one): row(one, 0.5, 10) for one in configs}
    other = measured(*configs, published={6: Number(0.5, 7)}, published_for="other words")
    assert at(other, rows)[6]["verdict"] == "measured"
    assert at(other, rows)[6]["comparable"] is None
    lines = table(other, rows).lines
    assert lines[1].cells[:4] == ("  paper", "other words", "", ".50 @7")


def test_rows_say_how_networks_iterate(tmp_path):
    layers = [LayerSpec("fp_rnn", max_iterations=most, tolerance=1e-9) for most in (2, 3)]
    model = TokenClassifier(6, {"product": 6}, 8, layers)
    means = _iterations(model, tiny(FIXED_POINT).build_task().examples("test", 0, 8, 6))
    residuals = [float(m.reports()["residual"]) for m in model.modules() if isinstance(m, FPRNN)]
    assert means == {"iterations": 2.5, "residual": max(residuals)}
    iterating = tiny(FIXED_POINT, attributes=Assignments(max_iterations=50))
    plain = tiny(LayerSpec("lstm"))
    planned = plan([measured(iterating, plain)], tmp_path)
    ended = run_all([one.job for one in planned], num_workers=1)
    rows = {found["key"]: found for found in map(iterated_row, ended)}
    found = rows[key(iterating)]["iterated"]
    assert list(found) == ["6", "9"]
    for numbers in found.values():
        # More than training allows, with the settings of evaluation.
        assert 2 < numbers["iterations"] < 50
        assert 0 <= numbers["residual"] < 1e-3
    assert rows[key(plain)]["iterated"] == {}
    assert json.loads(json.dumps(rows)) == rows
    failed = iterated_row(Ended(planned[0].job, "diverged", "loss must be finite"))
    assert failed["status"] == "diverged"
    assert "iterated" not in failed


def test_scores_are_means_over_seeds_beside_the_papers():
    configs = [tiny(FIXED_POINT, seed) for seed in range(4)]
    published = {6: Number(0.5, 7), 9: Number(0.2)}
    condition = measured(*configs, published=published)
    rows = {key(one): row(one, 0.5 + 0.04 * one.seed, 10 + one.seed) for one in configs[:2]}
    found = at(condition, rows)
    assert list(found) == [6, 9]
    assert found[6]["values"] == [0.5, 0.54]
    assert found[6]["verdict"] == "partial"
    rows[key(configs[2])] = row(configs[2], 0.58, 12)
    rows[key(configs[3])] = row(configs[3], 0.0, status="diverged")
    found = at(condition, rows)
    assert found[6]["mean"] == pytest.approx(0.54)
    assert found[6]["iterations_by_seed"] == [10, 11, 12]
    assert [found[length]["verdict"] for length in (6, 9)] == ["agrees", "above"]
    assert table(condition, rows).lines[0].cells[2] == "3 of 4, 1 without result"
    whole = dataclasses.replace(condition, metric="sequence_accuracy")
    assert [at(whole, rows)[length]["verdict"] for length in (6, 9)] == ["below", "above"]
    assert at(measured(*configs), rows)[6]["verdict"] == "measured"


def test_the_table_has_the_papers_line_below_ours():
    configs = [tiny(FIXED_POINT, seed) for seed in range(3)]
    condition = measured(*configs, published={6: Number(0.5, 7)})
    rows = {key(one): row(one, 0.52, 10 + one.seed) for one in configs}
    ours, paper = table(condition, rows).lines
    assert ours.cells == ("S_3", "FP-RNN", "3 of 3", ".520 @11 =", ".520 @11", "1 min 0 s")
    assert paper.cells == ("  paper", "", "", ".50 @7", "", "")
    plain = measured(*configs)
    rows = {key(one): row(one, 0.5 + 0.01 * one.seed) for one in configs}
    (line,) = table(plain, rows).lines
    assert line.cells[3] == ".510 (.500–.520)"
    (panel,) = length_panels(tidy([plain], rows))
    assert set(panel.curves["x"]) == {6, 9}
    assert panel.curves["run"].n_unique() == 3


def test_every_figure_of_the_paper_counts_once(monkeypatch):
    def conditions(protocol, size):
        offset = {"laptop": 0, "workstation": 10, "paper": 20}[size]
        configs = [tiny(FIXED_POINT, offset + seed) for seed in range(3)]
        return (measured(*configs, size=size, published={6: Number(0.5)}),)

    study = FixedPointStudy("fp-budget", "tiny", conditions, sizes=SIZES)
    monkeypatch.setattr(fixed_point_studies, "STUDIES", (study,))
    monkeypatch.setattr(fixed_point_studies, "LANGUAGE", {})

    def verdicts(found):
        return [(one["size"], one["length"], one["verdict"]) for one in found["cells"]]

    assert verdicts(overview({})) == [("paper", 6, "empty")]
    rows = {}
    for size, value in (("laptop", 0.5), ("paper", 0.9)):
        for config in runs_of(conditions("paper", size)[0]):
            rows[key(config)] = row(config, value)
    found = overview(rows)
    assert (found["measured"], found["agree"]) == (1, 0)
    assert verdicts(found) == [
        ("laptop", 6, "agrees"),
        ("laptop", 9, "measured"),
        ("paper", 6, "above"),
        ("paper", 9, "measured"),
    ]
    few = {name: one for name, one in rows.items() if one["seed"] in (0, 1)}
    assert overview(few)["measured"] == 0
    # What has begun is not empty.
    assert verdicts(overview(few))[0] == ("laptop", 6, "partial")
    assert "empty" not in {verdict for *_, verdict in verdicts(overview(few))}
