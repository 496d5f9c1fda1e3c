"""The paper's tables as plans of runs: protocols, sizes, and cells with changes."""

import itertools
from dataclasses import replace

import pytest

from statemix.layers import LayerSpec
from statemix.models import MixerSpec
from statemix.tasks import TaskSpec
from statemix_lab.studies.higher_order.contenders import CONTENDERS, STATE_SIZES, layer_price
from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import TABLES, column, wrapper_entries
from statemix_lab.studies.higher_order.protocols import (
    GRIDS,
    MLP_DECODER,
    Column,
    Data,
    cell,
    trials,
)
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import SIZES, plan

TASK = TaskSpec("permutation", group="S_3", length=6, train_size=10)
DATA = Data("S_3", TASK, dict.fromkeys(SIZES, 2))
S3 = column("table4", "s3_250").data[0]


def runs(entry):
    return [config for _, config, _ in entry.trials.runs]


def test_the_tables_hold_the_papers_196_numbers():
    counts = {}
    for name, table in TABLES.items():
        counts[name] = len({entry.cell for entry in table.entries("paper", "laptop")})
        assert set(table.first) <= set(table.published) <= set(CONTENDERS)
        for numbers in table.published.values():
            assert set(numbers) == {column.name for column in table.columns}
        for one in table.columns:
            assert all(set(data.durations) == set(SIZES) for data in one.data)
            assert len(one.data) == (4 if name == "table3" else 1)
    assert counts == {"table3": 60, "table4": 100, "table6": 36}
    assert TABLES["table4"].published["BD-LRU m=4"]["s5_100k"] == 0.88
    assert TABLES["table3"].published["DeltaProduct_4 [-1,1]"]["compression"] == 0.717


def test_a_model_has_one_layer_on_a_laptop_and_all_variants_on_the_whole_grid():
    layers = {
        "Mamba2": LayerSpec("mamba2", d_state=8, d_conv=4),
        "DeltaNet [-1,1]": LayerSpec("delta_net", num_heads=4),
        "DeltaProduct_4 [-1,1]": LayerSpec("delta_product", num_heads=4, num_householder=4),
        "LSTM": LayerSpec("lstm"),
        "BD-LRU m=5": LayerSpec("bd_lru", num_blocks=38, block_size=5),
        "H-LRU m=5": LayerSpec("h_lru", num_channels=38, order=5),
    }
    for name, layer in layers.items():
        for protocol in ("paper", "mlp", "tuned"):
            found = trials(protocol, "laptop", CONTENDERS[name], S3)
            assert {run.model.layers for trial in found for run in trial.runs} == {(layer,)}

    def variants(name):
        return [layer.options for layer in CONTENDERS[name].choices((192,), all_variants=True)]

    kernels = {(one["d_state"], one["d_conv"]) for one in variants("Mamba2")}
    assert kernels == set(itertools.product((2, 4, 8), (2, 4)))
    for name in ("DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]"):
        assert sorted(one["num_heads"] for one in variants(name)) == [2, 4, 8]


@pytest.mark.parametrize(
    ("protocol", "size"),
    [("mad", "laptop"), ("paper", "workstation"), ("mlp", "paper"), ("tuned", "laptop")],
)
def test_every_setting_has_words_of_its_own_and_every_seed(protocol, size):
    grid = GRIDS[size]
    for contender in CONTENDERS.values():
        words = [trial.setting for trial in trials(protocol, size, contender, DATA)]
        assert len(set(words)) == len(words)
    if protocol != "mad":
        found = list(trials(protocol, size, CONTENDERS["BD-LRU m=2"], DATA))
        settings = grid.num_settings if protocol == "tuned" else len(grid.learning_rates)
        assert len(found) == settings * len(grid.state_sizes)
        names = {key(run) for trial in found for run in trial.runs}
        assert len(names) == len(found) * len(grid.seeds)
        assert all([run.seed for run in trial.runs] == list(grid.seeds) for trial in found)


def test_the_paper_protocol_is_what_the_paper_says():
    found = list(trials("paper", "paper", CONTENDERS["LSTM"], S3))
    assert [trial.runs[0].optimizer.learning_rate for trial in found] == [1e-3, 5e-4, 1e-4]
    config = found[0].runs[0].resolved()
    schedules = config.schedules
    assert (schedules.learning_rate, schedules.min_learning_rate) == ("cosine", 1e-5)
    assert (schedules.epochs, config.evaluation.every, config.batches.size) == (200, 1, 128)
    assert (config.model.bos, config.model.channel_mixer) == (False, None)
    assert (config.optimizer.weight_decay, config.task.options["train_size"]) == (0, 250)


@pytest.mark.parametrize(
    ("size", "count", "rates"),
    [
        # Those drawn for a laptop lack the lowest rate.
        ("laptop", 7, {3e-3, 1e-3, 5e-4}),
        ("paper", 25, {3e-3, 1e-3, 5e-4, 1e-4}),
    ],
)
def test_the_tuned_protocol_chooses_from_what_the_paper_fixes_or_leaves_open(size, count, rates):
    def settings(model):
        plain = {}
        for trial in trials("tuned", size, model, S3):
            tree = trial.runs[0].to_plain()
            del tree["model"]["layers"]
            # A setting of a larger size has several layers.
            plain.setdefault(str(tree), trial.runs[0])
        return plain

    places = settings(CONTENDERS["LSTM"])
    assert list(settings(CONTENDERS["H-LRU m=5"])) == list(places)
    found = list(places.values())
    assert len(found) == count
    assert {run.optimizer.learning_rate for run in found} == rates
    assert {run.optimizer.weight_decay for run in found} == {0.0, 0.1, 1.0}
    assert (
        {run.model.residual for run in found} == {run.model.bos for run in found} == {True, False}
    )
    assert {run.schedules.learning_rate for run in found} == {"cosine", "constant"}
    # The last one is that of protocol "paper".
    first = next(iter(trials("paper", size, CONTENDERS["LSTM"], S3)))
    assert found[-1] == first.runs[0]


@pytest.mark.parametrize("size", SIZES)
def test_every_state_size_and_rate_is_screened_before_the_best_are_trained_in_full(size):
    task = TaskSpec("permutation", group="S_3", length=6, train_size=20_000)
    data = replace(DATA, task=task, epochs=dict.fromkeys(SIZES, 100))
    grid = GRIDS[size]
    (entry,) = cell(CONTENDERS["BD-LRU m=2"], Column("c", (data,)), "mad", size)
    settings = len(grid.screened_sizes) * len(grid.learning_rates)
    found = list(entry.trials)
    short, full = found[:settings], found[settings:]
    for one, trial in zip(short, full, strict=True):
        assert one.setting == f"{trial.setting}, 25 epochs"
        (screen,) = one.runs
        assert screen.schedules.epochs == 25
        assert {run.schedules.epochs for run in trial.runs} == {100}
        assert (screen.model, screen.optimizer) == (trial.runs[0].model, trial.runs[0].optimizer)
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
    data = replace(DATA, durations={"laptop": 200})
    (entry,) = cell(CONTENDERS["LSTM"], Column("c", (data,)), "mad", "laptop")
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


def test_of_the_sizes_of_a_model_only_the_best_is_trained_with_all_seeds(tmp_path):
    entries = cell(CONTENDERS["LSTM"], Column("c", (DATA,)), "mad", "laptop")
    planned, store = plan(entries, tmp_path / "runs"), Store(tmp_path / "rows.jsonl")
    study = find_study("table4")
    study.fill(planned, store, num_workers=1)
    assert (len(planned), len(store.rows())) == (12, 6)
    assert study.due(planned, store, retry=False) == []


def test_a_screening_run_counts_with_the_mean_over_heads_of_the_metric_of_its_column():
    (entry,) = cell(
        CONTENDERS["LSTM"], Column("c", (replace(DATA, metric="mad_accuracy"),)), "mad", "laptop"
    )
    firsts, seconds, *_ = zip(*(trial.runs for trial in entry.trials), strict=True)
    rows = {
        key(run): {"status": "done", "best_test": scores}
        for run, scores in zip(
            firsts,
            (
                {name: {"token_accuracy": 0.9, "mad_accuracy": 0.1} for name in "ab"},
                {"a": {"mad_accuracy": 0.9}, "b": {"mad_accuracy": 0.1}},
                {"a": {"mad_accuracy": 0.6}, "b": {"mad_accuracy": 0.6}},
                {"a": {"mad_accuracy": 0.0}, "b": {"mad_accuracy": 0.0}},
            ),
            strict=True,
        )
    }
    wanted = [entry.trials.is_wanted(key(run), rows) for run in seconds]
    assert wanted == [False, False, True, False]


EPOCHS = {"s3_250": 200, "s4_3k": 200, "s3_10k": 200, "s4_50k": 40, "s5_100k": 40}


@pytest.mark.parametrize("size", SIZES)
def test_every_column_of_protocol_mad_has_the_epochs_that_the_page_names(size):
    for name, one in ((name, one) for name, table in TABLES.items() for one in table.columns):
        (entry, *_) = cell(CONTENDERS["LSTM"], one, "mad", size)
        short, full = runs(entry)[0].resolved(), runs(entry)[-1].resolved()
        usual = 40 if name == "table3" and size != "paper" else 200
        epochs = EPOCHS.get(one.name, usual) if size == "laptop" else usual
        assert (full.schedules.epochs, full.schedules.num_steps) == (epochs, None)
        assert short.schedules.epochs == (200 if one.name == "s3_250" else epochs // 4)


def test_growing_baselines_grow():
    for name in ("LSTM", "Mamba2", "DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]"):
        sizes = [layer_price(layer).state_size for layer in CONTENDERS[name].growing]
        assert len(sizes) == len(STATE_SIZES)
        assert sizes == sorted(set(sizes))


def test_the_protocol_mad_has_the_parts_of_mad():
    (entry,) = cell(CONTENDERS["BD-LRU m=3"], Column("c", (DATA,)), "mad", "laptop")
    config = runs(entry)[0].resolved()
    assert config.model.channel_mixer == MixerSpec("mlp")
    assert (config.model.bos, config.model.residual, config.model.norm) == (False, True, "rms")
    assert (config.optimizer.weight_decay, config.batches.size) == (0, 128)
    assert config.schedules.min_learning_rate == 1e-5
    for size, every in (("laptop", 8), ("paper", 1)):
        (entry,) = cell(CONTENDERS["BD-LRU m=3"], Column("c", (S3,)), "mad", size)
        assert {run.evaluation.every for run in runs(entry)} == {every}
    parity = TABLES["table6"].columns[0].data[0]
    assert "train_size" not in parity.task.options
    assert parity.task_of("mad").options["train_size"] == 10_000
    assert (parity.updates("mad"), parity.updates("paper")) == (200 * 79, None)


WRAPPER = list(wrapper_entries("paper", "laptop"))


def test_weight_decay_is_that_of_mad():
    changed = [entry for entry in WRAPPER if entry.column.endswith(", weight decay 0.1")]
    assert len(changed) == 18
    assert {run.optimizer.weight_decay for entry in changed for run in runs(entry)} == {0.1}


def change(entry):
    return entry.column.partition(", ")[2]


def test_cells_without_a_change_and_with_a_narrow_mlp_are_those_of_the_tables():
    for protocol, name, count in (("paper", "", 20), ("mlp", "narrow MLP", 18)):
        tables = {}
        for table in TABLES.values():
            for entry in table.entries(protocol, "laptop"):
                tables.setdefault((entry.model, entry.column), []).append(entry)
        same = [entry for entry in WRAPPER if change(entry) == name]
        assert len(same) == count
        for entry in same:
            first, *others = tables[entry.model, entry.column.partition(", ")[0]]
            # Of several data sets the first, which the paper's number is not about.
            assert entry.published == ({} if others else first.published)
            assert runs(entry) == runs(first)


def test_models_with_an_mlp_of_their_own_get_no_other():
    of_mlp, of_paper = (
        [run for entry in FIGURES["fig2"].entries(name, "laptop") for run in runs(entry)]
        for name in ("mlp", "paper")
    )
    assert {run.model.backbone for run in of_mlp} == {"autoencoder"}
    assert of_mlp == of_paper
    # A table does not show such runs again.
    of_table = [run for entry in TABLES["table3"].entries("mlp", "laptop") for run in runs(entry)]
    assert len(of_table) == 480
    assert {run.model.backbone for run in of_table} == {"causal"}
    assert {run.model.channel_mixer for run in of_table} == {MLP_DECODER}
