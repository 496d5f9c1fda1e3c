"""The paper's tables as plans of runs, and what their runs add up to."""

import collections
import dataclasses
import itertools
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from filelock import FileLock

from statemix.layers import FPRNN, LayerSpec
from statemix.models import MixerSpec
from statemix.sweeps import runner
from statemix.tasks import TaskSpec
from statemix.training import ScheduleConfig, SearchConfig
from statemix.training.settings import Assignments
from statemix_lab.studies import forecast, study_entries
from statemix_lab.studies.forecast import Forecast
from statemix_lab.studies.higher_order import cell_table as text
from statemix_lab.studies.higher_order import claims
from statemix_lab.studies.higher_order.cell_table import overview
from statemix_lab.studies.higher_order.contenders import CONTENDERS, ORDERS, layer_price
from statemix_lab.studies.higher_order.higher_order_studies import STUDIES
from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import TABLES, PaperTable
from statemix_lab.studies.higher_order.protocols import GRIDS, Column, Data, trials
from statemix_lab.studies.higher_order.protocols import cell as entries_of
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import PROTOCOLS, SIZES, due
from statemix_lab.studies.tidy import scores, seed_means, tidy

S3 = Data("S_3", TaskSpec("permutation", group="S_3", length=6, train_size=10), {"laptop": 2})
S4 = Data("S_4", TaskSpec("permutation", group="S_4", length=6, train_size=10), {"laptop": 2})


class Cell(list):
    """The entries of one number."""

    @property
    def parts(self):
        return {entry.data: tuple(entry.trials) for entry in self}


def cell(*data, protocol="paper", size="laptop", published=0.5, model="BD-LRU m=3"):
    column = Column("column", data or (S3,))
    return Cell(entries_of(CONTENDERS[model], column, protocol, size, published))


def score(one, rows):
    (found,) = scores(tidy(one, rows)).to_dicts()
    found["by_seed"] = tuple(seed_means(found["parts"]))
    parts = {
        part["data"]: SimpleNamespace(
            **part | {"values": tuple(part["values"] or ()), "lost": tuple(part["lost"])}
        )
        for part in found["parts"]
    }
    return SimpleNamespace(**found | {"parts": parts})


def plan(cells, folder):
    return study_entries.plan(itertools.chain(*cells), folder)


def cell_of(table, protocol, size):
    listed = list(table.entries(protocol, size))
    return Cell(entry for entry in listed if entry.cell == listed[0].cell)


def points_of(name, protocol, size):
    """The points of a figure, each with its labels and its entries."""
    listed = itertools.groupby(FIGURES[name].entries(protocol, size), lambda one: one.cell)
    for _, group in listed:
        found = Cell(group)
        yield SimpleNamespace(**found[0].labels, entries=found, model=found[0].model)


def columns_of(name, size):
    return {entry.column for entry in FIGURES[name].entries("paper", size)}


fill = Study("table", "some numbers", lambda *_: []).fill


def rows_of(cells, accuracy, validation=None):
    """A finished row of every run; ``accuracy`` is a function of a configuration."""
    found = {}
    for config in (run for c in cells for part in c.parts.values() for t in part for run in t.runs):
        value = accuracy(config)
        scores = {"product": {"token_accuracy": value, "mad_accuracy": 1 - value}}
        other = (validation or accuracy)(config)
        found[key(config)] = {
            "key": key(config),
            "status": "done",
            "best_test": scores,
            "test_at_best_validation": {"product": {"token_accuracy": value - 0.125}},
            "best_validation": {"product": {"token_accuracy": other}},
        }
    return found


def test_the_tables_have_the_papers_196_cells():
    counts = {
        name: len({entry.cell for entry in t.entries("paper", "laptop")})
        for name, t in TABLES.items()
    }
    assert counts == {"table3": 60, "table4": 100, "table6": 36}
    assert TABLES["table4"].published["BD-LRU m=4"]["s5_100k"] == 0.88
    assert TABLES["table3"].published["DeltaProduct_4 [-1,1]"]["compression"] == 0.717


@pytest.mark.parametrize("name", TABLES)
def test_every_column_and_model_of_a_table_is_one_of_the_papers(name):
    table = TABLES[name]
    assert set(table.first) <= set(table.published) <= set(CONTENDERS)
    for numbers in table.published.values():
        assert set(numbers) == {column.name for column in table.columns}
    for column in table.columns:
        assert all(set(data.durations) == set(SIZES) for data in column.data)
        assert len(column.data) == (4 if name == "table3" else 1)


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_state_is_as_large_as_asked(name):
    for size in GRIDS["paper"].state_sizes:
        options = CONTENDERS[name].layer(size).options
        units = options.get("num_blocks") or options.get("num_channels")
        if units is not None:
            entries = units * (options.get("block_size") or options.get("order"))
            assert abs(entries - size) <= max(ORDERS) / 2
    assert len(CONTENDERS[name].choices((192, 768), all_variants=True)) >= 1
    assert len(CONTENDERS[name].choices((192, 192), all_variants=False)) == 1


@pytest.mark.parametrize(("protocol", "size"), list(itertools.product(PROTOCOLS, SIZES)))
def test_the_settings_of_a_model_have_distinct_words(protocol, size):
    data = dataclasses.replace(S3, durations=dict.fromkeys(SIZES, 2))
    for contender in CONTENDERS.values():
        words = [trial.setting for trial in trials(protocol, size, contender, data)]
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("protocol", [one for one in PROTOCOLS if one != "mad"])
@pytest.mark.parametrize("size", SIZES)
def test_every_setting_has_every_seed(protocol, size):
    data = dataclasses.replace(S3, durations=dict.fromkeys(SIZES, 2))
    scale = GRIDS[size]
    found = list(trials(protocol, size, CONTENDERS["BD-LRU m=2"], data))
    settings = scale.num_settings if protocol == "tuned" else len(scale.learning_rates)
    assert len(found) == settings * len(scale.state_sizes)
    assert len({key(run) for trial in found for run in trial.runs}) == len(found) * len(scale.seeds)
    for trial in found:
        assert [run.seed for run in trial.runs] == list(scale.seeds)


def test_the_paper_protocol_is_what_the_paper_says():
    found = list(trials("paper", "paper", CONTENDERS["LSTM"], TABLES["table4"].columns[0].data[0]))
    assert [t.runs[0].optimizer.learning_rate for t in found] == [1e-3, 5e-4, 1e-4]
    for config in (trial.runs[0].resolved() for trial in found):
        assert config.optimizer.weight_decay == 0
        assert (config.schedules.learning_rate, config.schedules.min_learning_rate) == (
            "cosine",
            1e-5,
        )
        assert (config.schedules.epochs, config.batches.size, config.evaluation.every) == (
            200,
            128,
            1,
        )
        assert (config.model.bos, config.model.channel_mixer) == (False, None)
        assert config.task.options["train_size"] == 250


def test_the_tuned_protocol_tries_the_same_settings_for_every_model():
    def settings(model):
        found = []
        for trial in trials("tuned", "laptop", CONTENDERS[model], S3):
            plain = trial.runs[0].replace(model=trial.runs[0].model).to_plain()
            del plain["model"]["layers"]
            found.append(plain)
        return found

    assert settings("LSTM") == settings("H-LRU m=5")
    assert len({str(one) for one in settings("LSTM")}) == GRIDS["laptop"].num_settings
    # One is that of protocol "paper".
    (*_, last), (first,) = (
        list(trials(protocol, "laptop", CONTENDERS["LSTM"], S3)) for protocol in ("tuned", "paper")
    )
    assert last.runs == first.runs
    tried = [(s["model"]["bos"], s["optimizer"]["weight_decay"]) for s in settings("LSTM")]
    assert {bos for bos, _ in tried} == {False, True}
    assert len({decay for _, decay in tried}) > 1


def test_a_plan_names_every_run_once_and_begins_with_the_first_data_of_every_cell(tmp_path):
    cells = [cell(S3, S4), cell(S3, S4, model="LSTM"), cell(S3, model="LSTM")]
    planned = plan(cells, tmp_path)
    assert [one.job.name for one in planned][::3] == [
        "BD-LRU m=3, S_3, learning rate 0.001, seed 0",
        "LSTM, S_3, learning rate 0.001, seed 0",
        "BD-LRU m=3, S_4, learning rate 0.001, seed 0",
        "LSTM, S_4, learning rate 0.001, seed 0",
    ]
    assert len(planned) == 12
    for one in planned:
        assert one.key == key(one.job.config)
        assert one.job.folder == tmp_path / one.key


def test_runs_in_the_store_are_not_due_and_failed_ones_only_to_be_retried(tmp_path):
    planned = plan([cell()], tmp_path)
    rows = {
        planned[0].key: {"status": "done"},
        planned[1].key: {"status": "diverged"},
    }
    assert due(planned, rows, retry=False) == planned[2:]
    assert due(planned, rows, retry=True) == planned[1:]


def test_a_cell_of_the_paper_protocol_is_the_best_run_and_the_mean_of_the_best_setting():
    one = cell(
        dataclasses.replace(S3, durations={"workstation": 2}), size="workstation", published=0.9
    )
    # Two rates, two state sizes: the best run is not of the setting with the best mean.
    best = [t.setting for t in one.parts["S_3"]][2]

    def accuracy(config):
        setting = next(t.setting for t in one.parts["S_3"] if config in t.runs)
        if setting == best:
            return 0.8 + 0.03125 * config.seed
        return 1.0 if config.seed == 2 else 0.5

    found = score(one, rows_of([one], accuracy))
    assert found.parts["S_3"].setting == best
    assert found.parts["S_3"].values == (0.8, 0.83125, 0.8625)
    assert (found.best, found.ours) == (1.0, 1.0)
    assert found.mean == pytest.approx(0.83125)
    assert found.deviation == pytest.approx(0.03125)
    assert (found.seeds, found.measured, found.complete) == (3, True, True)
    assert found.verdict == "above"


@pytest.mark.parametrize("protocol", ["paper", "mlp"])
def test_protocols_without_a_search_report_the_best_test_accuracy(protocol, monkeypatch):
    data = dataclasses.replace(S3, durations=dict.fromkeys(SIZES, 2))
    table = PaperTable("tiny", (Column("s3", (data,)),), {"LSTM": {"s3": 0.5}})
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"tiny": table})
    one = cell_of(table, protocol, "laptop")
    rows = rows_of([one], lambda config: 0.25 * config.seed)
    (found,) = overview(rows)["cells"]
    assert (found["protocol"], found["ours"], found["mean"]) == (protocol, 0.5, 0.25)
    assert found["data"]["S_3"]["ours"] == 0.5
    runs = tidy(one, rows)
    assert text.cell_text(scores(runs).to_dicts()[0]) == ".500 (.250±.250) ="
    (study,) = (one for one in STUDIES if one.name == "table4")
    assert [line[4] for line in study.run_lines(runs)] == [".000", ".250", ".500"]


def test_a_cell_of_the_tuned_protocol_is_chosen_by_validation():
    one = cell(protocol="tuned", published=0.4)
    fourth = one.parts["S_3"][3]

    def accuracy(config):
        return 0.5 if config in fourth.runs else 0.9

    def validation(config):
        return 0.6 if config in fourth.runs else 0.3

    found = score(one, rows_of([one], accuracy, validation))
    assert found.parts["S_3"].setting == fourth.setting
    # The score is that at the best validation accuracy, not the best on the test set.
    assert found.ours == found.mean == pytest.approx(0.375)
    assert found.verdict == "agrees"


def test_a_cell_of_the_tuned_protocol_counts_every_layer_that_was_tried():
    data = dataclasses.replace(S3, durations={"workstation": 2})
    one = cell(data, size="workstation", protocol="tuned")

    def blocks(config):
        return config.model.layers[0].options["num_blocks"]

    found = score(one, rows_of([one], lambda config: 1.0 if blocks(config) == 64 else 0.5))
    assert (found.complete, len(found.parts["S_3"].done)) == (True, 13 * 2 * 3)
    # Both layers share the words of a setting but for their options; the better one is chosen.
    assert found.parts["S_3"].setting.endswith("num_blocks=64 block_size=3")
    assert found.ours == pytest.approx(0.875)


@pytest.mark.parametrize(
    ("number", "verdict"), [(0.95, "agrees"), (0.949, "above"), (1.05, "agrees"), (1.051, "below")]
)
def test_a_verdict_allows_a_difference_of_a_twentieth(number, verdict):
    one = cell(published=number)
    assert score(one, rows_of([one], lambda _: 1.0)).verdict == verdict


def test_a_cell_with_several_data_sets_is_their_mean_and_partial_until_all_are_in():
    one = cell(S3, S4, published=0.5)

    def accuracy(config):
        return 0.25 if config.task.options["group"] == "S_3" else 0.75

    rows = rows_of([one], accuracy)
    found = score(one, rows)
    assert (found.best, found.mean, found.verdict) == (0.5, 0.5, "agrees")
    lost = one.parts["S_4"][0].runs[1]
    rows[key(lost)] = {"key": key(lost), "status": "diverged"}
    found = score(one, rows)
    assert (found.seeds, found.measured, found.complete) == (2, False, True)
    assert found.parts["S_4"].lost == ("diverged",)
    assert found.verdict == "partial"
    for config in one.parts["S_4"][0].runs:
        rows.pop(key(config), None)
    found = score(one, rows)
    assert (found.best, found.mean, found.deviation, found.verdict) == (None, None, None, "partial")
    assert score(one, {}).verdict == "empty"


def test_the_deviation_over_data_sets_is_the_root_of_their_mean_variance():
    accuracies = {"S_3": (0.0, 0.25, 0.5), "S_4": (0.25, 0.25, 1.0)}
    one = cell(S3, S4)
    rows = rows_of([one], lambda config: accuracies[config.task.options["group"]][config.seed])
    # The variances are 1/16 and 3/16.
    assert score(one, rows).deviation == pytest.approx(0.125**0.5)
    alone = score(cell(S4), rows)
    assert alone.deviation == pytest.approx(0.1875**0.5)
    (last,) = (run for trial in one.parts["S_4"] for run in trial.runs if run.seed == 2)
    del rows[key(last)]
    # Two seeds in one of them, 0 apart.
    assert score(one, rows).deviation == pytest.approx((0.0625 / 2) ** 0.5)


def test_the_metric_is_that_of_the_data():
    one = cell(dataclasses.replace(S3, metric="mad_accuracy"))
    assert score(one, rows_of([one], lambda _: 0.75)).best == 0.25


def test_an_overview_counts_every_cell_once(monkeypatch):
    data = dataclasses.replace(S3, durations=dict.fromkeys(SIZES, 2))
    column = Column("s3", (data,))
    table = PaperTable("tiny", (column,), {"LSTM": {"s3": 0.5}, "BD-LRU m=1": {"s3": 0.9}})
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"tiny": table})
    first = cell_of(table, "paper", "laptop")
    rows = rows_of([first], lambda _: 0.5)
    found = overview(rows)
    assert (found["measured"], found["agree"], found["of"]) == (1, 1, 2)
    # The size "workstation" has these runs too, but adds none.
    assert [(c["model"], c["protocol"], c["size"], c["verdict"]) for c in found["cells"]] == [
        ("LSTM", "paper", "laptop", "agrees"),
        ("BD-LRU m=1", "mad", "laptop", "empty"),
    ]
    assert (found["cells"][0]["runs"], found["cells"][0]["planned"]) == (3, 3)
    assert found["cells"][0]["parameters"] == [132_096, 132_096]
    assert found["cells"][0]["flops"] == [layer_price(LayerSpec("lstm")).flops.total] * 2
    assert found["cells"][0]["data"] == {
        "S_3": {
            "seeds": 3,
            "ours": 0.5,
            "mean": 0.5,
            "setting": "learning rate 0.001",
            "share": 0.01,
            "longer": {},
        }
    }
    tuned = cell_of(table, "tuned", "laptop")
    found = overview(rows_of([tuned], lambda _: 0.1) | rows)
    # Under protocol "tuned" it does not agree; protocol "paper" decides.
    assert (found["measured"], found["agree"]) == (1, 1)
    assert [c["verdict"] for c in found["cells"]] == ["below", "agrees", "empty"]


def test_a_partial_cell_says_what_there_is_of_each_data_set(monkeypatch):
    data = [dataclasses.replace(one, durations=dict.fromkeys(SIZES, 2)) for one in (S3, S4)]
    table = PaperTable("tiny", (Column("mean", tuple(data)),), {"LSTM": {"mean": 0.5}})
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"tiny": table})
    cells = [cell_of(table, "paper", "laptop")]
    rows = rows_of(cells, lambda config: 0.25 * config.seed)
    for config in cells[0].parts["S_4"][0].runs:
        del rows[key(config)]
    (found,) = overview(rows)["cells"]
    assert (found["verdict"], found["ours"]) == ("partial", None)
    parts = [
        (name, part["seeds"], part["ours"], part["mean"]) for name, part in found["data"].items()
    ]
    assert parts == [("S_3", 3, 0.5, 0.25), ("S_4", 0, None, None)]


def test_a_cell_says_how_much_of_the_published_training_it_had(monkeypatch):
    data = dataclasses.replace(S3, durations=dict.fromkeys(SIZES, 2))
    table = PaperTable("tiny", (Column("s3", (data,)),), {"LSTM": {"s3": 0.5}})
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"tiny": table})

    def found(epochs, accuracy):
        one = entries_of(
            CONTENDERS["LSTM"],
            Column("s3", (dataclasses.replace(S3, durations=dict.fromkeys(SIZES, epochs)),)),
            "paper",
            "laptop",
            0.5,
        )
        monkeypatch.setattr(PaperTable, "entries", lambda *_: one)
        counts = overview(rows_of([Cell(one)], lambda _: accuracy))
        return counts["cells"][0]["share"], counts["in_full"], counts["agree_in_full"]

    # Of 200 epochs; a run that has learned its task stops early.
    assert found(59, 0.5) == (0.295, 0, 0)
    assert found(60, 0.5) == (0.3, 1, 1)
    assert found(60, 1.0) == (0.3, 1, 0)
    assert found(400, 0.5) == (1.0, 1, 1)


@pytest.mark.parametrize(("epochs", "agree"), [(59, 1), (60, 0)])
def test_runs_in_full_decide_before_those_of_the_first_protocol(epochs, agree, monkeypatch):
    data = dataclasses.replace(
        S3, durations=dict.fromkeys(SIZES, 60), epochs=dict.fromkeys(SIZES, epochs)
    )
    table = PaperTable("tiny", (Column("s3", (data,)),), {"LSTM": {"s3": 0.5}})
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"tiny": table})
    mad, paper = (cell_of(table, protocol, "laptop") for protocol in ("mad", "paper"))
    rows = rows_of([mad], lambda _: 0.1) | rows_of([paper], lambda _: 0.5)
    assert overview(rows)["agree"] == agree


@pytest.mark.parametrize("size", SIZES)
def test_every_state_size_and_rate_is_screened_before_the_best_are_trained_in_full(size):
    task = TaskSpec("permutation", group="S_3", length=6, train_size=20_000)
    data = dataclasses.replace(
        S3, task=task, durations=dict.fromkeys(SIZES, 2), epochs=dict.fromkeys(SIZES, 100)
    )
    grid = GRIDS[size]
    (entry,) = entries_of(CONTENDERS["BD-LRU m=2"], Column("c", (data,)), "mad", size)
    settings = len(grid.screened_sizes) * len(grid.learning_rates)
    found = list(entry.trials)
    short, full = found[:settings], found[settings:]
    assert [len(trial.runs) for trial in short] == [1] * settings
    assert {run.schedules.epochs for trial in short for run in trial.runs} == {25}
    assert {run.schedules.epochs for trial in full for run in trial.runs} == {100}
    for one, trial in zip(short, full, strict=True):
        assert one.setting == f"{trial.setting}, 25 epochs"
        assert one.runs[0].model == trial.runs[0].model
        assert one.runs[0].optimizer == trial.runs[0].optimizer
        assert [run.seed for run in trial.runs] == list(grid.seeds)
    # Nothing is decided until every short run has ended.
    rows = {}
    for place, trial in enumerate(short):
        assert all(entry.trials.is_wanted(key(trial.runs[0]), rows) for trial in short)
        assert entry.trials.is_wanted(key(full[0].runs[0]), rows) is None
        scores = {"product": {"token_accuracy": 0.5 + 0.1 * (place == settings - 1)}}
        rows[key(trial.runs[0])] = {"status": "done", "best_test": scores}
    # The best one, and of equal ones the first; a run that diverged loses.
    rows[key(short[0].runs[0])]["status"] = "diverged"
    wanted = [entry.trials.is_wanted(key(trial.runs[1]), rows) for trial in full]
    best = {settings - 1, *range(1, grid.kept)}
    assert wanted == [place in best for place in range(settings)]


def test_where_all_epochs_are_few_steps_the_first_seed_screens_the_settings():
    data = dataclasses.replace(S3, durations={"laptop": 200})
    (entry,) = entries_of(CONTENDERS["LSTM"], Column("c", (data,)), "mad", "laptop")
    trials = entry.trials
    assert {run.schedules.epochs for trial in trials for run in trial.runs} == {200}
    firsts, *others = zip(*(trial.runs for trial in trials), strict=True)
    assert len(trials.runs) == 3 * len(firsts) == 3 * len(GRIDS["laptop"].screened_sizes)
    rows = {}
    for run in firsts:
        assert trials.is_wanted(key(run), rows) is True
        assert trials.is_wanted(key(others[0][0]), rows) is None
        rows[key(run)] = {"status": "done", "best_test": {"product": {"token_accuracy": 0.5}}}
    assert [trials.is_wanted(key(run), rows) for run in others[0]] == [True, False, False, False]


def test_the_protocol_mad_has_the_parts_of_mad():
    config = next(iter(cell(protocol="mad").parts["S_3"])).runs[0].resolved()
    assert config.model.channel_mixer == MixerSpec("mlp")
    assert (config.model.bos, config.model.residual, config.model.norm) == (False, True, "rms")
    assert (config.optimizer.weight_decay, config.batches.size) == (0, 128)
    assert config.schedules.min_learning_rate == 1e-5
    parity = TABLES["table6"].columns[0].data[0]
    assert "train_size" not in parity.task.options
    assert parity.task_of("mad").options["train_size"] == 10_000
    assert (parity.updates("mad"), parity.updates("paper")) == (200 * 79, None)


def test_longer_sequences_are_scored_with_the_last_weights_of_the_chosen_setting(monkeypatch):
    data = dataclasses.replace(S3, durations=dict.fromkeys(SIZES, 2), lengths=(64,))
    table = PaperTable("tiny", (Column("s3", (data,)),), {"LSTM": {"s3": 0.5}})
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"tiny": table})
    one = cell_of(table, "paper", "workstation")
    # The first learning rate is better at the training length, and worse beyond.
    first, second = (trial.runs[0].optimizer.learning_rate for trial in one.parts["S_3"])
    rows = rows_of([one], lambda config: 0.9 if config.optimizer.learning_rate == first else 0.5)
    for config in (run for trial in one.parts["S_3"] for run in trial.runs):
        value = 0.25 * config.seed if config.optimizer.learning_rate == first else 1.0
        rows[key(config)]["test"] = {"64": {"product": {"token_accuracy": value}}}
    assert first != second
    (cell_row,) = (c for c in overview(rows)["cells"] if c["size"] == "workstation")
    assert cell_row["data"]["S_3"]["longer"] == {"64": 0.25}
    *_, longer = text.cell_table(tidy(one, rows), one).lines
    assert (longer.cells[0].strip(), longer.cells[1]) == ("longer", ".250 at 64")
    assert len(text.cell_table(tidy(one, {}), one).lines) == 2


@pytest.mark.parametrize("name", FIGURES)
def test_every_point_of_a_figure_has_runs_that_can_be_built(name):
    points = list(points_of(name, "paper", "laptop"))
    places = [(point.panel, point.line, point.x, point.model) for point in points]
    assert len(set(places)) == len(places)
    for point in points:
        assert not any(entry.published for entry in point.entries)
        assert (len(point.entries) == 5) == point.panel.startswith("mean over")
    # Layers of a view differ by panel only in their data.
    for spec in {layer for point in points for layer in point.entries[0].layers}:
        assert spec.build(hidden_size=128, device="meta").hidden_size == 128


def test_figures_share_runs_with_the_tables():
    def keys(cells):
        return {key(c) for cell in cells for entry in cell for t in entry.trials for c in t.runs}

    tables = {
        name: keys([Cell(table.entries("paper", "workstation"))]) for name, table in TABLES.items()
    }
    for name in ("fig1c", "fig1d"):
        found = keys(point.entries for point in points_of(name, "paper", "workstation"))
        assert found <= tables["table3"] | tables["table4"]
    gates = {point.line: point for point in points_of("fig2", "paper", "workstation")}
    # Softmax is the default, as in the tables.
    assert keys([gates["BD-LRU, softmax"].entries]) <= tables["table3"]
    assert not keys([gates["BD-LRU, signed"].entries]) & tables["table3"]


def test_figures_of_a_laptop_show_sequences_that_it_learns():
    decisive = {entry.column for entry in claims.claim_entries("paper", "laptop")}
    for name in ("fig2", "fig5", "fig6"):
        columns = columns_of(name, "laptop")
        assert columns <= decisive
        assert columns <= {"compression of 16", "copying of 6"}
        assert {"compression"} <= columns_of(name, "paper")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FIGURES)
def test_runs_of_a_figure_have_names_of_their_own(name, size, tmp_path):
    points = points_of(name, "paper", size)
    planned = plan([point.entries for point in points], tmp_path)
    assert len({one.job.name for one in planned}) == len(planned)


def test_a_figure_begins_with_the_ends_of_all_its_lines():
    points = list(points_of("fig2", "paper", "workstation"))
    lines = list(dict.fromkeys(point.line for point in points))
    assert len(lines) == 12
    assert [(point.line, point.x) for point in points[:24]] == [
        (line, m) for m in (1, 16) for line in lines
    ]
    assert sorted(point.x for point in points if point.line == lines[0]) == sorted(ORDERS)


def test_figure_5_goes_as_far_as_the_paper_at_its_size():
    largest = {
        size: max(p.x for p in points_of("fig5", "paper", size) if "LRU" in p.line)
        for size in SIZES
    }
    assert largest == {"laptop": 1536, "workstation": 1536, "paper": 6144}
    lines = collections.Counter(
        point.line for point in points_of("fig5", "paper", "paper") if point.panel[0] == "c"
    )
    assert {line: n for line, n in lines.items() if "LRU" not in line} == {
        "Mamba2, 2 taps": 3,
        "Mamba2, 4 taps": 3,
        "DeltaNet [-1,1]": 3,
        "DeltaProduct_4 [-1,1]": 3,
    }


def test_figure_6_shows_models_against_their_parameters_without_further_runs():
    points = list(points_of("fig6", "paper", "laptop"))
    panels = list(dict.fromkeys((point.panel, point.x_label) for point in points))
    assert panels == [
        ("compression of 16 tokens, by m", "m, or taps of the convolution"),
        ("compression of 16 tokens, by size", "parameters"),
        ("compression of 16 tokens, H-LRU", "m"),
        ("compression of 16 tokens, BD-LRU", "m"),
    ]
    of = {panel: [p for p in points if p.panel == panel] for panel, _ in panels}
    by_m, by_size = of[panels[0][0]], of[panels[1][0]]
    for point, other in zip(by_m, by_size, strict=True):
        assert point.line == other.line
        ((trial,), (same,)) = (next(iter(one.entries.parts.values())) for one in (point, other))
        assert [key(run) for run in trial.runs] == [key(run) for run in same.runs]
        layer = trial.runs[0].model.layers[0].build(hidden_size=128, device="meta")
        assert other.x == sum(parameter.numel() for parameter in layer.parameters())
    pointwise = {p.x: p for p in of[panels[2][0]] if p.line == "H-LRU, pointwise gates"}
    assert pointwise[4].entries[0].layers[0].options["selective"] == "pointwise"
    (trial,) = next(iter(pointwise[4].entries.parts.values()))
    assert trial.runs[0].model.layers[0].options["num_channels"] == 128


def test_the_mean_over_data_pairs_their_seeds():
    def accuracy(config):
        return 0.125 * config.seed + (0.25 if config.task.options["group"] == "S_3" else 0.5)

    one = cell(S3, S4)
    assert score(one, rows_of([one], accuracy)).by_seed == (0.375, 0.5, 0.625)
    assert score(one, rows_of([cell(S3)], accuracy)).by_seed == ()


def test_a_forecast_grows_with_the_steps_and_measures_a_network_once():
    one = Forecast()
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    longer = config.replace(schedules=ScheduleConfig(epochs=2000))
    short, long = one.seconds(config), one.seconds(longer)
    assert 0 < short < long
    assert long == pytest.approx(one.seconds(longer), rel=1e-12)
    assert len(one._known) == 1


def test_a_search_is_expected_to_take_an_attempt():
    one = Forecast()
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    # One step per epoch.
    schedules = config.schedules.replace(epochs=100)
    config = config.replace(schedules=schedules)
    search = SearchConfig(attempts=3, max_steps=300)
    ratio = one.seconds(config.replace(search=search)) / one.seconds(config)
    assert ratio == pytest.approx(4, rel=0.1)


def test_a_forecast_times_few_tokens_of_a_large_batch(monkeypatch):
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    real, sizes = forecast.parts_of, []

    def build(config, *arguments):
        sizes.append(config.batches.size)
        return real(config, *arguments)

    monkeypatch.setattr(forecast, "parts_of", build)
    length = config.build_task().length
    for size, accumulate in ((128, 1), (10**6, 1), (10**6, 2048)):
        batches = config.batches.replace(size=size, accumulate=accumulate)
        Forecast().seconds(config.replace(batches=batches))
    assert sizes == [min(128, 2048 // length), 2048 // length, 2048]


@pytest.fixture
def clocked(monkeypatch):
    """Replace training and evaluation by a clock that each call sets forward."""
    durations = {"step": itertools.repeat(0.02), "evaluation": itertools.repeat(0.01)}
    now = [0.0]

    def advance(name):
        now[0] += next(durations[name])

    def trainer(*_, **__):
        return SimpleNamespace(step=0, train_step=lambda _: advance("step"))

    def evaluator(*_, **__):
        return lambda *_, **__: advance("evaluation")

    monkeypatch.setattr(forecast, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(forecast, "Loop", trainer)
    monkeypatch.setattr(forecast, "SplitEvaluator", evaluator)
    return durations


@pytest.mark.parametrize(
    ("durations", "counts"),
    [
        ((0.09, 0.05, 0.02, 0.03), 0.02),
        ((0.01, 0.7), 0.7),
        ((0.01, 0.3, 0.2), 0.2),
        ((0.6,), 0.6),
    ],
)
@pytest.mark.parametrize("what", ["step", "evaluation"])
def test_the_fastest_of_three_calls_counts_or_of_half_a_second(clocked, what, durations, counts):
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    clocked[what] = iter(durations)
    one = Forecast()
    one.seconds(config)
    (price,) = one._known.values()
    tokens = 6 * config.batches.size
    assert getattr(price, what) * tokens == pytest.approx(counts)
    assert next(clocked[what], None) is None


def test_a_forecast_counts_steps_and_both_evaluations(clocked):
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    # Two epochs of a step on 10 words, each followed by an evaluation.
    evaluation = config.evaluation.replace(test_size=300, validation_size=50)
    config = config.replace(evaluation=evaluation)
    seconds = (2 * 10 * 0.02 + 2 * (300 + 50) * 0.01) / config.batches.size
    assert Forecast().seconds(config) == pytest.approx(seconds)


@pytest.mark.parametrize(("limit_s", "known"), [(None, 3), (0.3, 3), (0.2, 2), (0.01, 1)])
def test_a_forecast_measures_no_network_after_its_limit(clocked, limit_s, known):
    """A network takes four steps of .02 s and four evaluations of .01 s."""
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    one = Forecast(limit_s)
    sizes = [config.replace(model=config.model.replace(hidden_size=size)) for size in (4, 8, 16)]
    found = [one.seconds(each) for each in sizes]
    assert [seconds is not None for seconds in found] == [n < known for n in range(3)]
    # What has been measured stays known.
    assert one.seconds(sizes[0]) == found[0]


def test_a_forecast_evaluates_with_the_attributes_of_tests(monkeypatch):
    layer = LayerSpec("fp_rnn", max_iterations=2)
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    evaluation = config.evaluation.replace(attributes=Assignments(max_iterations=7))
    model = config.model.replace(layers=(layer,), hidden_size=8)
    seen = []

    def evaluator(*_, **__):
        return lambda model, **_: seen.extend(
            layer.max_iterations for layer in model.modules() if isinstance(layer, FPRNN)
        )

    monkeypatch.setattr(forecast, "SplitEvaluator", evaluator)
    Forecast().seconds(config.replace(model=model, evaluation=evaluation))
    assert set(seen) == {7}


def test_a_run_of_one_step_has_a_price():
    (config, *_) = next(trials("paper", "laptop", CONTENDERS["LSTM"], S3)).runs
    for schedules, task in (
        (ScheduleConfig(epochs=1), config.task),
        (ScheduleConfig(num_steps=1), TaskSpec("permutation", group="S_3", length=6)),
    ):
        one = Forecast()
        one.seconds(config.replace(schedules=schedules, task=task))
        (price,) = one._known.values()
        assert price.step > 0


def test_a_table_is_filled_resumed_and_never_repeated(tmp_path, tiny_models):
    cells = [cell(model="LSTM"), cell(model="BD-LRU m=1")]
    planned = plan(cells, tmp_path / "runs")
    store = Store(tmp_path / "runs.jsonl")

    class Stopped(Exception):
        pass

    ended = []

    def stop(row):
        ended.append(row)
        if len(ended) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        fill(planned, store, num_workers=1, on_end=stop)
    # Killed after its end and before its row: the run is there, and its row is made.
    lines = store.path.read_text().splitlines(keepends=True)
    store.path.write_text(lines[0])
    left = due(planned, store.rows(), retry=False)
    assert left == planned[1:]
    ended.clear()
    fill(left, store, num_workers=1, on_end=ended.append)
    assert [row.started for row in ended] == [False, True, True, True, True]
    assert due(planned, store.rows(), retry=False) == []
    assert all(score(one, store.rows()).complete for one in cells)


def test_a_failing_run_gets_its_row_and_stops_no_other(tmp_path, tiny_models, monkeypatch):
    one = cell(model="LSTM")
    planned = plan([one], tmp_path / "runs")
    monkeypatch.setitem(planned[1].job.__dict__, "folder", tmp_path / "a file" / "run")
    (tmp_path / "a file").write_text("")
    store = Store(tmp_path / "runs.jsonl")
    fill(planned, store, num_workers=1)
    statuses = [store.rows()[run.key]["status"] for run in planned]
    assert statuses == ["done", "failed", "done"]
    assert score(one, store.rows()).parts["S_3"].lost == ("failed",)


def test_a_run_of_another_process_has_no_row_and_stays_due(tmp_path, tiny_models):
    planned = plan([cell(model="LSTM")], tmp_path / "runs")
    store, ended = Store(tmp_path / "runs.jsonl"), []
    planned[0].job.folder.mkdir(parents=True)
    with FileLock(planned[0].job.folder / ".statemix.lock"):
        fill(planned, store, num_workers=1, on_end=ended.append)
    assert [row.status for row in ended] == ["interrupted", "done", "done"]
    assert "another process is using" in ended[0].message
    left = due(planned, store.rows(), retry=False)
    assert left == planned[:1]
    fill(left, store, num_workers=1)
    assert due(planned, store.rows(), retry=False) == []


HOLDER = """
import json, sys, time
from pathlib import Path
from statemix.training import config_from_plain, train

def hold(event):
    if event.kind == "step":
        print("training", flush=True)
        time.sleep(600)

train(config_from_plain(json.loads(sys.argv[1])), Path(sys.argv[2]), on_event=hold)
"""


def test_a_run_whose_process_is_killed_is_trained_by_another(tmp_path, tiny_models):
    planned = plan([cell(model="LSTM")], tmp_path / "runs")[:1]
    store, job = Store(tmp_path / "runs.jsonl"), planned[0].job
    asked = json.dumps(job.config.asked())
    command = [sys.executable, "-c", HOLDER, asked, str(job.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "training\n"
            fill(planned, store, num_workers=1)
            assert store.rows() == {}
        finally:
            holder.kill()
    fill(due(planned, store.rows(), retry=False), store, num_workers=1)
    assert store.rows()[planned[0].key]["status"] == "done"


def test_the_end_of_the_time_saves_active_runs_and_begins_no_others(
    tmp_path, tiny_models, monkeypatch
):
    endless = dataclasses.replace(S3, durations={"laptop": 10**6})
    planned = plan([cell(endless)], tmp_path / "runs")
    store = Store(tmp_path / "runs.jsonl")
    ended, stepped = [], []
    began = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: began + (61 if "step" in stepped else 59))
    monkeypatch.setattr(runner, "time", clock)
    fill(
        planned,
        store,
        num_workers=1,
        until=began + 60,
        on_end=ended.append,
        on_event=lambda job, event: stepped.append(event.kind),
    )
    # No second step was waited for.
    assert stepped.count("step") == 1
    assert [(row.status, row.message) for row in ended] == [("interrupted", "the time was up")]
    assert list((planned[0].job.folder / "checkpoints").glob("step-*"))
    assert not planned[1].job.folder.exists()
    assert store.rows() == {}


def test_a_setting_with_fewer_seeds_is_chosen_only_where_there_is_no_other():
    one = cell(dataclasses.replace(S3, durations={"workstation": 2}), size="workstation")
    (trials_of_one,) = one.parts.values()
    whole, better = trials_of_one[:2]
    rows = rows_of([one], lambda config: 0.9 if config in better.runs else 0.5)
    missing = {key(config) for config in better.runs[1:]}
    known = {name: row for name, row in rows.items() if name not in missing}
    (part,) = score(one, known).parts.values()
    assert (part.setting, part.values) == (whole.setting, (0.5, 0.5, 0.5))
    assert part.best == 0.9
    (alone,) = score(one, {key(better.runs[0]): rows[key(better.runs[0])]}).parts.values()
    assert (alone.setting, alone.values) == (better.setting, (0.9,))
