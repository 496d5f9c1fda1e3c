"""Some cells of the paper's tables with what it leaves open changed."""

from statemix_lab.studies.higher_order.higher_order_studies import STUDIES
from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import CHANGES, TABLES, wrapper_entries
from statemix_lab.studies.higher_order.protocols import MLP_DECODER
from statemix_lab.studies.store import key


def runs(entry):
    return [config for _, config, _ in entry.trials.runs]


def change(entry):
    return entry.column.partition(", ")[2]


ENTRIES = list(wrapper_entries("paper", "laptop"))


def test_without_a_change_the_runs_are_those_of_the_tables():
    plain = [entry for entry in ENTRIES if not change(entry)]
    tables = {}
    for table in TABLES.values():
        for entry in table.entries("paper", "laptop"):
            tables.setdefault((entry.model, entry.column), []).append(entry)
    assert len(plain) == 20
    for entry in plain:
        same = tables[entry.model, entry.column]
        # Of several data sets the first, which the paper's number is not about.
        assert entry.published == ({} if len(same) > 1 else same[0].published)
        assert runs(entry) == runs(same[0])


def test_the_narrow_mlp_is_what_protocol_mlp_adds():
    added = [entry for entry in ENTRIES if change(entry) == "narrow MLP"]
    tables = [entry for table in TABLES.values() for entry in table.entries("mlp", "laptop")]
    assert len(added) == 18
    for entry in added:
        column = entry.column.partition(", ")[0]
        (same, *_) = (one for one in tables if (one.model, one.column) == (entry.model, column))
        assert runs(entry) == runs(same)


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


def test_a_change_is_the_only_difference():
    assert len(ENTRIES) == 9 * 6 + 4 * 3 + 5 * 9 + 2 * 2
    assert {change(entry) for entry in ENTRIES} == set(CHANGES)
    assert len({key(run) for entry in ENTRIES for run in runs(entry)}) == 3 * len(ENTRIES)
    of = {(entry.model, entry.data, change(entry)): entry for entry in ENTRIES}
    found = {
        "constant rate": {"schedules.learning_rate"},
        "start token": {"model.bos"},
        "SwiGLU": {"model.channel_mixer"},
        "wide MLP": {"model.channel_mixer"},
        "narrow MLP": {"model.channel_mixer"},
        "200 epochs": {"schedules.epochs"},
        "wide MLP and 200 epochs": {"schedules.epochs", "model.channel_mixer"},
        "SwiGLU and 200 epochs": {"schedules.epochs", "model.channel_mixer"},
    }
    for (model, data, name), entry in of.items():
        for run, usual in zip(runs(entry), runs(of[model, data, ""]), strict=True):
            changed, same = run.to_plain(), usual.to_plain()
            for section, _, setting in (one.partition(".") for one in found.get(name, ())):
                assert changed[section].pop(setting) != same[section].pop(setting, None)
            assert changed == same
            assert (run.schedules.epochs == 200) == (usual.schedules.epochs == 200 or "200" in name)
        assert entry.trials.runs[0][0].endswith(name)


def test_a_changed_cell_has_begun_with_its_own_runs():
    first, changed = (
        next(entry for entry in ENTRIES if change(entry) == name) for name in ("", "start token")
    )
    assert first.model == changed.model
    assert changed.begun({key(runs(changed)[1])})
    assert not changed.begun({key(run) for run in runs(first)})


def test_there_is_one_protocol():
    (study,) = (one for one in STUDIES if one.name == "wrapper")
    assert study.protocols == ("paper",)
