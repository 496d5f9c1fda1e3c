"""What the runs of a cell add up to, which measurement counts, and how a store is filled."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from filelock import FileLock

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix_lab.studies.higher_order import cell_table as text
from statemix_lab.studies.higher_order.cell_table import overview
from statemix_lab.studies.higher_order.contenders import CONTENDERS, layer_price
from statemix_lab.studies.higher_order.higher_order_studies import STUDIES
from statemix_lab.studies.higher_order.paper_tables import PaperTable
from statemix_lab.studies.higher_order.protocols import Column, Data
from statemix_lab.studies.higher_order.protocols import cell as entries_of
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import SIZES, due, plan
from statemix_lab.studies.tidy import scores, seed_means, tidy

TASK = TaskSpec("permutation", group="S_3", length=6, train_size=10)
S3 = Data("S_3", TASK, dict.fromkeys(SIZES, 2))
S4 = replace(S3, name="S_4", task=TaskSpec("permutation", group="S_4", length=6, train_size=10))

fill = Study("table", "some numbers", lambda *_: []).fill


def cell(*data, protocol="paper", size="laptop", published=0.5, model="BD-LRU m=3"):
    column = Column("column", data or (S3,))
    return entries_of(CONTENDERS[model], column, protocol, size, published)


def score(entries, rows):
    (found,) = scores(tidy(entries, rows)).to_dicts()
    parts = {part["data"]: SimpleNamespace(**part) for part in found["parts"]}
    by_seed = seed_means(found["parts"])
    return SimpleNamespace(**found | {"parts": parts, "by_seed": by_seed})


def runs_of(entries):
    return [run for entry in entries for _, run, _ in entry.trials.runs]


def rows_of(runs, accuracy, validation=None):
    """A finished row of every run; ``accuracy`` is a number or a function of a configuration."""
    rows = {}
    for config in runs:
        value = accuracy(config) if callable(accuracy) else accuracy
        other = value if validation is None else validation(config)
        rows[key(config)] = {
            "key": key(config),
            "status": "done",
            "best_test": {"product": {"token_accuracy": value, "mad_accuracy": 1 - value}},
            "test_at_best_validation": {"product": {"token_accuracy": value - 0.125}},
            "best_validation": {"product": {"token_accuracy": other}},
        }
    return rows


@pytest.fixture
def tables(monkeypatch):
    """Tables of one's own, by name."""
    found = {}
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", found)
    return found


def add(tables, data=S3, models=("LSTM",), name="tiny"):
    """Add a table of one column, and return a function of protocol and size to its entries."""
    columns = (Column("s3", (data,) if isinstance(data, Data) else data),)
    tables[name] = PaperTable("tiny", columns, {model: {"s3": 0.5} for model in models})
    return lambda protocol, size: list(tables[name].entries(protocol, size))


def test_a_plan_names_every_run_once_and_begins_with_the_first_data_of_every_cell(tmp_path):
    cells = [*cell(S3, S4), *cell(S3, S4, model="LSTM"), *cell(S3, model="LSTM")]
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
    # Runs in the store are not due, and failed ones only to be retried.
    rows = {planned[0].key: {"status": "done"}, planned[1].key: {"status": "diverged"}}
    assert due(planned, rows, retry=False) == planned[2:]
    assert due(planned, rows, retry=True) == planned[1:]


def test_a_cell_of_the_paper_protocol_is_the_best_run_and_the_mean_of_the_best_setting():
    one = cell(size="workstation", published=0.9)
    # Two rates, two state sizes: the best run is not of the setting with the best mean.
    best = list(one[0].trials)[2]

    def accuracy(config):
        if config in best.runs:
            return 0.8 + 0.03125 * config.seed
        return 1.0 if config.seed == 2 else 0.5

    found = score(one, rows_of(runs_of(one), accuracy))
    assert found.parts["S_3"].setting == best.setting
    assert found.parts["S_3"].values == [0.8, 0.83125, 0.8625]
    assert (found.best, found.ours) == (1.0, 1.0)
    assert found.mean == pytest.approx(0.83125)
    assert found.deviation == pytest.approx(0.03125)
    assert (found.seeds, found.measured, found.complete) == (3, True, True)
    assert found.verdict == "above"


def test_screening_runs_count_only_where_no_longer_run_has_ended():
    task = TaskSpec("permutation", group="S_3", length=6, train_size=20_000)
    data = replace(S3, task=task, epochs=dict.fromkeys(SIZES, 100))
    one = cell(data, protocol="mad")
    short, full = ([run for run in runs_of(one) if run.schedules.epochs == n] for n in (25, 100))
    screened = score(one, rows_of(short, 0.75))
    assert (screened.best, screened.share, screened.measured) == (0.75, 0.125, False)
    trained = score(one, rows_of(short, 0.75) | rows_of(full[:3], 0.5))
    assert (trained.best, trained.mean, trained.share, trained.measured) == (0.5, 0.5, 0.5, True)


def test_a_cell_names_the_state_size_of_its_setting(tables):
    one = add(tables, models=("BD-LRU m=3",))("mad", "laptop")

    def accuracy(config):
        return 0.9 if config.model.layers[0].options["num_blocks"] == 64 else 0.5

    found = overview(rows_of(runs_of(one), accuracy))
    assert found["cells"][0]["data"]["S_3"]["state_size"] == 192


def test_the_share_of_several_data_sets_is_the_least():
    other = replace(S4, durations=dict.fromkeys(SIZES, 40))
    one = cell(S3, other)
    assert score(one, rows_of(runs_of(one), 0.5)).share == 0.01
    fresh = replace(S4, task=TaskSpec("permutation", group="S_4", length=6))
    one = cell(S3, fresh)
    assert score(one, rows_of(runs_of(one), 0.5)).share is None


def test_means_over_data_sets_are_of_equal_seeds():
    one = cell(S3, S4)
    rows = rows_of(runs_of(one), lambda run: run.seed / 8 + (run.task == S4.task) / 2)
    rows[key(runs_of(one)[0])]["status"] = "diverged"
    assert score(one, rows).by_seed == [0.375, 0.5]


@pytest.mark.parametrize("protocol", ["paper", "mlp"])
def test_protocols_without_a_search_report_the_best_test_accuracy(protocol, tables):
    one = add(tables)(protocol, "laptop")
    rows = rows_of(runs_of(one), lambda config: 0.25 * config.seed)
    (found,) = overview(rows)["cells"]
    assert (found["protocol"], found["ours"], found["mean"]) == (protocol, 0.5, 0.25)
    assert found["data"]["S_3"]["ours"] == 0.5
    runs = tidy(one, rows)
    assert text.cell_text(scores(runs).to_dicts()[0]) == ".500 (.250±.250) ="
    (study,) = (one for one in STUDIES if one.name == "table4")
    assert [line[4] for line in study.run_lines(runs)] == [".000", ".250", ".500"]


def test_a_cell_of_the_tuned_protocol_is_chosen_by_validation():
    one = cell(protocol="tuned", published=0.4)
    fourth = list(one[0].trials)[3]
    found = score(
        one,
        rows_of(
            runs_of(one),
            lambda config: 0.5 if config in fourth.runs else 0.9,
            lambda config: 0.6 if config in fourth.runs else 0.3,
        ),
    )
    assert found.parts["S_3"].setting == fourth.setting
    # The score is that at the best validation accuracy, not the best on the test set.
    assert found.ours == found.mean == pytest.approx(0.375)
    assert found.verdict == "agrees"


def test_a_cell_of_the_tuned_protocol_counts_every_layer_that_was_tried():
    one = cell(size="workstation", protocol="tuned")

    def accuracy(config):
        return 1.0 if config.model.layers[0].options["num_blocks"] == 64 else 0.5

    found = score(one, rows_of(runs_of(one), accuracy))
    assert (found.complete, len(found.parts["S_3"].done)) == (True, 13 * 2 * 3)
    # Both layers share the words of a setting but for their options; the better one is chosen.
    assert found.parts["S_3"].setting.endswith("num_blocks=64 block_size=3")
    assert found.ours == pytest.approx(0.875)


@pytest.mark.parametrize(
    ("number", "verdict"), [(0.95, "agrees"), (0.949, "above"), (1.05, "agrees"), (1.051, "below")]
)
def test_a_verdict_allows_a_difference_of_a_twentieth(number, verdict):
    one = cell(published=number)
    assert score(one, rows_of(runs_of(one), 1.0)).verdict == verdict


def test_a_cell_with_several_data_sets_is_their_mean_and_partial_until_all_are_in():
    one = cell(S3, S4, published=0.5)
    rows = rows_of(runs_of(one[:1]), 0.25) | rows_of(runs_of(one[1:]), 0.75)
    found = score(one, rows)
    assert (found.best, found.mean, found.verdict) == (0.5, 0.5, "agrees")
    lost = key(runs_of(one[1:])[1])
    found = score(one, rows | {lost: {"key": lost, "status": "diverged"}})
    assert (found.seeds, found.measured, found.complete) == (2, False, True)
    assert found.parts["S_4"].lost == ["diverged"]
    assert found.verdict == "partial"
    found = score(one, rows_of(runs_of(one[:1]), 0.25))
    assert (found.best, found.mean, found.deviation, found.verdict) == (None, None, None, "partial")
    assert found.by_seed == []
    assert score(one, {}).verdict == "empty"


def test_the_deviation_over_data_sets_is_the_root_of_their_mean_variance():
    accuracies = {"S_3": (0.0, 0.25, 0.5), "S_4": (0.25, 0.25, 1.0)}
    one = cell(S3, S4)
    rows = rows_of(
        runs_of(one), lambda config: accuracies[config.task.options["group"]][config.seed]
    )
    # The variances are 1/16 and 3/16; seeds are paired.
    assert score(one, rows).deviation == pytest.approx(0.125**0.5)
    assert score(one, rows).by_seed == [0.125, 0.25, 0.75]
    assert score(cell(S4), rows).deviation == pytest.approx(0.1875**0.5)
    del rows[key(runs_of(one[1:])[2])]
    # Two seeds in one of them, 0 apart.
    assert score(one, rows).deviation == pytest.approx((0.0625 / 2) ** 0.5)


def test_the_metric_is_that_of_the_data():
    one = cell(replace(S3, metric="mad_accuracy"))
    assert score(one, rows_of(runs_of(one), 0.75)).best == 0.25


def test_a_setting_with_fewer_seeds_is_chosen_only_where_there_is_no_other():
    one = cell(size="workstation")
    whole, better, *_ = one[0].trials
    rows = rows_of(runs_of(one), lambda config: 0.9 if config in better.runs else 0.5)
    missing = {key(config) for config in better.runs[1:]}
    known = {name: row for name, row in rows.items() if name not in missing}
    (part,) = score(one, known).parts.values()
    assert (part.setting, part.values) == (whole.setting, [0.5, 0.5, 0.5])
    assert part.best == 0.9
    (alone,) = score(one, {key(better.runs[0]): rows[key(better.runs[0])]}).parts.values()
    assert (alone.setting, alone.values) == (better.setting, [0.9])


def test_an_overview_counts_every_cell_once(tables):
    entries = add(tables, models=("LSTM", "BD-LRU m=1"))
    rows = rows_of(runs_of(entries("paper", "laptop")[:1]), 0.5)
    found = overview(rows)
    assert (found["measured"], found["agree"], found["of"]) == (1, 1, 2)
    # The size "workstation" has these runs too, but adds none.
    assert [(c["model"], c["protocol"], c["size"], c["verdict"]) for c in found["cells"]] == [
        ("LSTM", "paper", "laptop", "agrees"),
        ("BD-LRU m=1", "mad", "laptop", "empty"),
    ]
    first = found["cells"][0]
    assert (first["runs"], first["planned"]) == (3, 3)
    assert first["parameters"] == [132_096, 132_096]
    assert first["flops"] == [layer_price(LayerSpec("lstm")).flops.total] * 2
    part = {"seeds": 3, "ours": 0.5, "mean": 0.5, "share": 0.01, "state_size": 256, "longer": {}}
    assert first["data"] == {"S_3": part | {"setting": "learning rate 0.001"}}
    found = overview(rows_of(runs_of(entries("tuned", "laptop")[:1]), 0.1) | rows)
    # Under protocol "tuned" it does not agree; protocol "paper" decides.
    assert (found["measured"], found["agree"]) == (1, 1)
    assert [c["verdict"] for c in found["cells"]] == ["below", "agrees", "empty"]


@pytest.mark.parametrize(
    ("epochs", "accuracy", "counts"),
    [
        # Of 200 epochs; a run that has learned its task stops early.
        (59, 0.5, (0.295, 0, 0)),
        (60, 0.5, (0.3, 1, 1)),
        (60, 1.0, (0.3, 1, 0)),
        (400, 0.5, (1.0, 1, 1)),
    ],
)
def test_a_cell_says_how_much_of_the_published_training_it_had(epochs, accuracy, counts, tables):
    one = add(tables, replace(S3, durations=dict.fromkeys(SIZES, epochs)))("paper", "laptop")
    found = overview(rows_of(runs_of(one), accuracy))
    assert (found["cells"][0]["share"], found["in_full"], found["agree_in_full"]) == counts


@pytest.mark.parametrize(("epochs", "agree"), [(59, 1), (60, 0)])
def test_runs_in_full_decide_before_those_of_the_first_protocol(epochs, agree, tables):
    lengths = {"durations": dict.fromkeys(SIZES, 60), "epochs": dict.fromkeys(SIZES, epochs)}
    entries = add(tables, replace(S3, **lengths))
    mad, paper = (runs_of(entries(protocol, "laptop")) for protocol in ("mad", "paper"))
    assert overview(rows_of(mad, 0.1) | rows_of(paper, 0.5))["agree"] == agree


def test_a_larger_size_decides_only_once_it_is_complete(tables):
    entries = add(tables, models=("BD-LRU m=1",))
    small, large = (runs_of(entries("paper", size)) for size in ("laptop", "workstation"))
    rows = rows_of(small, 0.5)
    *most, last = (run for run in large if key(run) not in rows)
    found = overview(rows | rows_of(most, 1.0))
    sizes = [(one["size"], one["verdict"]) for one in found["cells"]]
    assert sizes == [("laptop", "agrees"), ("workstation", "above")]
    assert (found["measured"], found["agree"]) == (1, 1)
    found = overview(rows | rows_of([*most, last], 1.0))
    assert (found["measured"], found["agree"]) == (1, 0)


def test_longer_sequences_are_scored_with_the_last_weights_of_the_chosen_setting(tables):
    one = add(tables, replace(S3, lengths=(64,)))("paper", "workstation")
    # The first learning rate is better at the training length, and worse beyond.
    first, second = one[0].trials
    rows = rows_of(first.runs, 0.9) | rows_of(second.runs, 0.5)
    for config in (*first.runs, *second.runs):
        value = 0.25 * config.seed if config in first.runs else 1.0
        rows[key(config)]["test"] = {"64": {"product": {"token_accuracy": value}}}
    (found,) = (c for c in overview(rows)["cells"] if c["size"] == "workstation")
    assert found["data"]["S_3"]["longer"] == {"64": 0.25}
    *_, longer = text.cell_table(tidy(one, rows), one).lines
    assert (longer.cells[0].strip(), longer.cells[1]) == ("longer", ".250 at 64")
    assert len(text.cell_table(tidy(one, {}), one).lines) == 2


def test_a_table_is_filled_resumed_and_never_repeated(tmp_path, tiny_models):
    cells = [cell(model="LSTM"), cell(model="BD-LRU m=1")]
    planned = plan([*cells[0], *cells[1]], tmp_path / "runs")
    store = Store(tmp_path / "runs.jsonl")
    ended = []

    def stop(row):
        ended.append(row)
        if len(ended) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
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


def test_a_run_of_another_process_has_no_row_and_stays_due(tmp_path, tiny_models):
    planned = plan(cell(model="LSTM"), tmp_path / "runs")
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
