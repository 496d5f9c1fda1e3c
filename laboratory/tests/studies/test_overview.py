"""Which measurement of a cell counts in the overview, and in which order cells stand."""

import dataclasses

import pytest

from statemix.tasks import TaskSpec
from statemix_lab.studies.higher_order.cell_table import overview
from statemix_lab.studies.higher_order.paper_tables import TABLES, PaperTable
from statemix_lab.studies.higher_order.protocols import Column, Data
from statemix_lab.studies.store import key
from statemix_lab.studies.study_entries import SIZES

S3 = Data(
    "S_3",
    TaskSpec("permutation", group="S_3", length=6, train_size=10),
    dict.fromkeys(SIZES, 2),
)
S4 = dataclasses.replace(S3, name="S_4", task=TaskSpec("permutation", group="S_4", length=6))


def rows_of(runs, accuracy):
    scores = {"product": {"token_accuracy": accuracy, "mad_accuracy": accuracy}}
    names = ("best_test", "best_validation", "test_at_best_validation")
    row = {"status": "done", **dict.fromkeys(names, scores)}
    return {key(run): row | {"key": key(run)} for run in runs}


def runs_of(cell):
    return [run for _, run, _ in cell.trials.runs]


@pytest.fixture
def tables(monkeypatch):
    found = {}
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", found)
    return found


def test_a_larger_size_decides_only_once_it_is_complete(tables):
    columns = (Column("s3", (S3,)),)
    tables["tiny"] = PaperTable("tiny", columns, {"BD-LRU m=1": {"s3": 0.5}})
    (small,), (large,) = (
        tables["tiny"].entries("paper", size) for size in ("laptop", "workstation")
    )
    rows = rows_of(runs_of(small), 0.5)
    *most, last = (run for run in runs_of(large) if key(run) not in rows)
    found = overview(rows | rows_of(most, 1.0))
    assert [(one["size"], one["verdict"]) for one in found["cells"]] == [
        ("laptop", "agrees"),
        ("workstation", "above"),
    ]
    assert (found["measured"], found["agree"]) == (1, 1)
    found = overview(rows | rows_of([*most, last], 1.0))
    assert (found["measured"], found["agree"]) == (1, 0)


def test_protocol_paper_decides_even_where_only_the_other_one_is_complete(tables):
    longer = dataclasses.replace(S3, durations={"laptop": 2, "workstation": 3, "paper": 3})
    columns = (Column("s3", (longer,)),)
    tables["tiny"] = PaperTable("tiny", columns, {"BD-LRU m=1": {"s3": 0.5}})
    (tuned,) = tables["tiny"].entries("tuned", "workstation")
    # Protocol "paper" counts these runs with another score, and would try further learning rates.
    best = {"best_test": {"product": {"token_accuracy": 1.0, "mad_accuracy": 1.0}}}
    rows = {name: row | best for name, row in rows_of(runs_of(tuned), 0.5).items()}
    found = overview(rows)
    assert [(one["protocol"], one["size"], one["verdict"]) for one in found["cells"]] == [
        ("tuned", "workstation", "agrees"),
        ("paper", "workstation", "above"),
    ]
    assert found["cells"][1]["runs"] < found["cells"][1]["planned"]
    assert (found["measured"], found["agree"]) == (1, 0)
    # A complete cell of a smaller size comes first.
    (small,) = tables["tiny"].entries("paper", "laptop")
    found = overview(rows | rows_of(runs_of(small), 0.5))
    assert (found["measured"], found["agree"]) == (1, 1)


def test_without_results_every_cell_of_the_tables_is_empty():
    found = overview({})
    assert (found["measured"], found["agree"], found["of"]) == (0, 0, 196)
    places = {(one["table"], one["column"], one["model"]) for one in found["cells"]}
    assert len(places) == len(found["cells"]) == 196
    for one in found["cells"]:
        numbers = (one["ours"], one["mean"], one["deviation"])
        assert (one["verdict"], one["seeds"], one["runs"], numbers) == ("empty", 0, 0, (None,) * 3)
        assert (one["protocol"], one["size"]) == ("mad", "laptop")
        assert one["published"] == TABLES[one["table"]].published[one["model"]][one["column"]]


def test_cells_stand_in_the_order_of_the_papers_tables(tables):
    columns = (Column("s4", (S4,)), Column("s3", (S3,)))
    models = ("LSTM", "BD-LRU m=1")
    for name, rates in (("second", 2), ("first", 3)):
        own = tuple(
            dataclasses.replace(
                column,
                data=(dataclasses.replace(column.data[0], durations=dict.fromkeys(SIZES, rates)),),
            )
            for column in columns
        )
        published = {model: {"s3": 0.5, "s4": 0.5} for model in models}
        # The plan begins with the second model.
        tables[name] = PaperTable("tiny", own, published, first=models[1:])
    rows = {}
    for table in tables.values():
        for protocol in ("paper", "tuned"):
            for cell in table.entries(protocol, "laptop"):
                rows |= rows_of(runs_of(cell), 0.5)
    cells = overview(rows)["cells"]
    assert [(one["table"], one["column"], one["model"]) for one in cells[::2]] == [
        (table, column, model)
        for table in ("second", "first")
        for column in ("s4", "s3")
        for model in models
    ]
    # Protocol "paper", which decides, stands last.
    assert [one["protocol"] for one in cells] == ["tuned", "paper"] * 8
