"""Some cells of the paper's tables with what it leaves open changed."""

from statemix.studies.higher_order.paper_tables import TABLES
from statemix.studies.higher_order.wrapper import CHANGES, WRAPPER
from statemix.studies.store import key
from statemix.training.plain import difference


def runs(cell):
    return [run for trials in cell.parts.values() for trial in trials for run in trial.runs]


def test_without_a_change_the_runs_are_those_of_the_tables():
    plain = [cell for cell in WRAPPER.cells("paper", "laptop") if not cell.change]
    tables = {
        (cell.model, cell.column.name): cell
        for table in TABLES.values()
        for cell in table.cells("paper", "laptop")
    }
    assert len(plain) == 12
    for cell in plain:
        same = tables[cell.model, cell.column.name]
        # Of several data sets the first, which the paper's number is not about.
        assert cell.published == (None if len(same.column.data) > 1 else same.published)
        assert runs(cell) == runs(same)[:3]


def test_a_change_is_the_only_difference():
    cells = list(WRAPPER.cells("paper", "laptop"))
    assert len(cells) == 9 * 4 + 3 * 5
    assert {cell.change for cell in cells} == set(CHANGES)
    assert len({key(run) for cell in cells for run in runs(cell)}) == 3 * len(cells)
    of = {(cell.model, cell.column.data[0].name, cell.change): cell for cell in cells}
    found = {
        "constant rate": "schedules.learning_rate",
        "start token": "model.bos",
        "SwiGLU": "model.channel_mixer",
        "200 epochs": "schedules.epochs",
    }
    for (model, data, change), cell in of.items():
        for run, usual in zip(runs(cell), runs(of[model, data, ""]), strict=True):
            differs = difference(run.to_plain(), usual.to_plain())
            assert (differs and differs[0].startswith(found[change])) if change else not differs
        (trials,) = cell.parts.values()
        assert trials[0].setting.endswith(change)


def test_a_changed_cell_has_begun_with_its_own_runs():
    first, changed = (
        next(cell for cell in WRAPPER.cells("paper", "laptop") if cell.change == change)
        for change in ("", "start token")
    )
    assert first.model == changed.model
    assert changed.begun({key(runs(changed)[1])})
    assert not changed.begun({key(run) for run in runs(first)})


def test_no_other_protocol_has_cells():
    assert list(WRAPPER.cells("tuned", "laptop")) == []
