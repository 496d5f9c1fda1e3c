"""What every run of the paper's tables has in common, in numbers: a change orphans all results."""

import itertools

import pytest

from statemix.layers import LayerSpec
from statemix_lab.studies.higher_order.contenders import CONTENDERS
from statemix_lab.studies.higher_order.paper_tables import TABLES, column
from statemix_lab.studies.higher_order.protocols import GRIDS, trials
from statemix_lab.studies.store import key
from statemix_lab.studies.study_entries import PROTOCOLS, plan

S3 = column("table4", "s3_250").data[0]


def first_run(table, protocol, data):
    entries = table.entries(protocol, "laptop")
    return next(one for one in entries if one.data == data.name).trials.runs[0][1]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_runs_are_as_wide_as_the_papers_and_stop_when_they_have_learned(name, protocol):
    for one in TABLES[name].columns:
        if (one.name, protocol) == ("compression", "mlp"):
            # Its model has an MLP of its own, so this protocol has no such column.
            continue
        for data in one.data:
            config = first_run(TABLES[name], protocol, data)
            assert config.model.hidden_size == 128
            assert config.evaluation.stop_at == 0.999
            # Table 6 is about words that are longer than those of training.
            assert config.evaluation.lengths == ((255,) if name == "table6" else ())
            assert len(config.model.layers) == 1
            assert config.task == data.task_of(protocol)
            autoencoder = one.name == "compression"
            assert config.model.backbone == ("autoencoder" if autoencoder else "causal")
            assert data.metric == ("mad_accuracy" if name == "table3" else "token_accuracy")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("Mamba2", LayerSpec("mamba2", d_state=8, d_conv=4)),
        ("DeltaNet [-1,1]", LayerSpec("delta_net", num_heads=4)),
        ("DeltaProduct_4 [-1,1]", LayerSpec("delta_product", num_heads=4, num_householder=4)),
        ("LSTM", LayerSpec("lstm")),
        ("BD-LRU m=5", LayerSpec("bd_lru", num_blocks=38, block_size=5)),
        ("H-LRU m=5", LayerSpec("h_lru", num_channels=38, order=5)),
    ],
)
@pytest.mark.parametrize("protocol", [one for one in PROTOCOLS if one != "mad"])
def test_a_model_has_one_layer_on_a_laptop(name, layer, protocol):
    runs = [run for trial in trials(protocol, "laptop", CONTENDERS[name], S3) for run in trial.runs]
    assert {run.model.layers for run in runs} == {(layer,)}


def test_the_whole_grid_has_every_state_kernel_and_number_of_heads():
    def layers(name):
        return [layer.options for layer in CONTENDERS[name].choices((192,), all_variants=True)]

    assert {(one["d_state"], one["d_conv"]) for one in layers("Mamba2")} == set(
        itertools.product((2, 4, 8), (2, 4))
    )
    for name in ("DeltaNet [-1,1]", "DeltaProduct_4 [-1,1]"):
        assert sorted(one["num_heads"] for one in layers(name)) == [2, 4, 8]


@pytest.mark.parametrize(
    ("size", "count", "rates"),
    [
        # Those drawn for a laptop lack the lowest rate.
        ("laptop", 7, {3e-3, 1e-3, 5e-4}),
        ("workstation", 13, {3e-3, 1e-3, 5e-4, 1e-4}),
        ("paper", 25, {3e-3, 1e-3, 5e-4, 1e-4}),
    ],
)
def test_the_tuned_protocol_chooses_from_what_the_paper_fixes_or_leaves_open(size, count, rates):
    found = [trial.runs[0] for trial in trials("tuned", size, CONTENDERS["LSTM"], S3)]
    assert len(found) == count
    tried = {
        "rate": {run.optimizer.learning_rate for run in found},
        "decay": {run.optimizer.weight_decay for run in found},
        "residual": {run.model.residual for run in found},
        "bos": {run.model.bos for run in found},
        "schedule": {run.schedules.learning_rate for run in found},
    }
    assert tried == {
        "rate": rates,
        "decay": {0.0, 0.1, 1.0},
        "residual": {True, False},
        "bos": {True, False},
        "schedule": {"cosine", "constant"},
    }


@pytest.mark.parametrize(("name", "count"), [("table3", 9), ("table4", 9), ("table6", 5)])
def test_the_most_telling_models_lead_the_plan(name, count, tmp_path):
    decisive = [
        "BD-LRU m=3",
        "BD-LRU m=2",
        "BD-LRU m=1",
        "LSTM",
        "BD-LRU m=4",
        "H-LRU m=4",
        "DeltaProduct_4 [-1,1]",
        "DeltaNet [-1,1]",
        "Mamba2",
    ][:count]
    table = TABLES[name]
    planned = plan(table.entries("paper", "laptop"), tmp_path)
    models = list(dict.fromkeys(one.job.name.partition(", ")[0] for one in planned))
    others = [model for model in table.published if model not in decisive]
    assert models == decisive + others
    # One column after the other.
    columns = list(dict.fromkeys(entry.column for entry in table.entries("paper", "laptop")))
    assert columns == [one.name for one in table.columns]


def test_a_cell_has_begun_with_any_seed_of_its_first_setting():
    cells = TABLES["table4"].entries("paper", "workstation")
    cell = next(one for one in cells if one.model == "BD-LRU m=2")
    first, *others = cell.trials
    assert [run.seed for run in first.runs] == list(GRIDS["workstation"].seeds)
    for run in first.runs:
        assert cell.begun({key(run)})
    assert others
    assert not cell.begun({key(run) for trial in others for run in trial.runs})
