"""Figure 7: one run for each m and normalisation, and the eigenvalues stored for each."""

import json

import numpy as np
import pytest

from statemix.errors import RequestError
from statemix.tasks import TaskSpec
from statemix.training import load_model, train
from statemix_lab.studies.higher_order.contenders import ORDERS, bd_lru, h_lru
from statemix_lab.studies.higher_order.higher_order_studies import SpectraStudy
from statemix_lab.studies.higher_order.paper_tables import TABLES
from statemix_lab.studies.higher_order.protocols import Column, Data, cell
from statemix_lab.studies.higher_order.run_spectra import (
    _first_run,
    due_with_spectra,
    measured,
    read_spectra,
    spectra_entries,
    store_spectra,
)
from statemix_lab.studies.store import Store, key
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import plan

S3 = Data("S_3", TaskSpec("permutation", group="S_3", length=6, train_size=10), {"laptop": 2})
fill = Study("fig7", "tiny", lambda *_: []).fill


def points_of(*contenders):
    column = Column("s3", (S3,))
    return [
        entry
        for one in contenders
        for entry in cell(one, column, "paper", "laptop", change=_first_run)
    ]


def config_of(entry):
    ((_, config, _),) = entry.trials.runs
    return config


@pytest.mark.parametrize(
    ("protocol", "size"), [("mad", "laptop"), ("paper", "paper"), ("tuned", "workstation")]
)
def test_every_m_and_normalisation_has_one_run_on_s5(protocol, size):
    points = spectra_entries(protocol, size)
    configs = [config_of(point) for point in points]
    assert len({key(config) for config in configs}) == len(points) == 4 * len(ORDERS)
    assert {config.seed for config in configs} == {0}
    assert {config.task.options["group"] for config in configs} == {"S_5"}
    for point, config in zip(points, configs, strict=True):
        (layer,) = config.model.layers
        family, gate = point.labels["line"].split(", ")
        assert family == {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}[layer.name]
        assert layer.complete().options["gate"] == gate
        assert layer.options["block_size" if family == "BD-LRU" else "order"] == point.labels["x"]
    # All lines at one m, before the next: an unfinished figure compares them.
    assert [point.labels["x"] for point in points[:8]] == [5] * 4 + [2] * 4
    # A run has a name of its own in displays and on the command line.
    assert len({point.model for point in points}) == len(points)


def test_normalised_runs_are_shared_with_table_4():
    table = {
        name
        for entry in TABLES["table4"].entries("paper", "laptop")
        for _, _, name in entry.trials.runs
    }
    points = spectra_entries("paper", "laptop")
    shared = [point for point in points if key(config_of(point)) in table]
    assert {point.labels["line"] for point in shared} == {"BD-LRU, softmax", "H-LRU, softmax"}
    assert len(shared) == len(points) / 2


@pytest.fixture
def trained(tmp_path, tiny_models):
    """Two runs of a fraction of a second, their store, and the folder of their eigenvalues."""
    points = points_of(h_lru(2, gate="none"), bd_lru(3))
    planned = plan(points, tmp_path / "runs")
    store = Store(tmp_path / "runs.jsonl")
    fill(planned, store, num_workers=1)
    return planned, store, store.path.parent / "spectra"


def test_eigenvalues_are_stored_beside_the_store_and_only_once(trained, tmp_path):
    planned, _, spectra = trained
    assert read_spectra(spectra) == {}
    store_spectra(planned, spectra)
    assert {path.name for path in (tmp_path / "spectra").iterdir()} == {
        f"{one.key}.json" for one in planned
    }
    found = read_spectra(spectra)
    for one in planned:
        assert found[one.key] == measured(one.key, one.job.folder)
        assert found[one.key]["steps"] == [1, 4]  # of six
    path = tmp_path / "spectra" / f"{planned[0].key}.json"
    path.write_text(path.read_text() + "\n")
    store_spectra(planned, spectra)
    assert path.read_text().endswith("\n\n")
    # A folder of stores is read by its pattern; this one must not match.
    assert [one.name for one in tmp_path.glob("*.jsonl")] == ["runs.jsonl"]


@pytest.mark.parametrize("bos", [False, True])
def test_they_are_those_of_the_trained_gates(trained, bos, tmp_path):
    run, folder = trained[0][0], trained[0][0].job.folder  # of the H-LRU
    if bos:
        # Steps do not count a start token.
        config, folder = run.job.config, tmp_path / "bos"
        train(config.replace(model=config.model.replace(bos=True)), folder)
    found = measured(run.key, folder)
    model = load_model(folder)
    layer = model.backbone.blocks[0].mixer
    tokens = run.job.config.build_task().examples("test", 0, found["sequences"]).tokens
    expected = []
    for row in tokens:
        x = model.backbone.blocks[0].norm(model.backbone.embedding.weight[int(row[3])])  # step 4
        a = layer.gate_proj(x).detach().double().numpy().reshape(3, -1)[:2]
        expected += [root for pair in a.T for root in np.roots([1.0, *-pair])]
    stored = [complex(*pair) for pair in found["eigenvalues"][1]]
    assert len(stored) == len(expected) == found["sequences"] * layer.num_channels * 2
    order = lambda one: (round(one.real, 3), round(one.imag, 3))  # noqa: E731
    np.testing.assert_allclose(sorted(stored, key=order), sorted(expected, key=order), atol=1e-4)


def test_a_run_is_trained_until_its_eigenvalues_are_stored_or_can_be(trained, tmp_path):
    planned, store, spectra = trained
    rows = {key: dict(row) for key, row in store.rows().items()}
    assert due_with_spectra(planned, rows, spectra, retry=False) == []
    for one in planned:
        one.job.folder.rename(tmp_path / f"moved-{one.key}")
    assert due_with_spectra(planned, rows, spectra, retry=False) == planned
    (tmp_path / f"moved-{planned[0].key}").rename(planned[0].job.folder)
    store_spectra(planned, spectra)
    assert due_with_spectra(planned, rows, spectra, retry=False) == planned[1:]
    # Without a result there are no eigenvalues to wait for.
    rows[planned[1].key]["status"] = "diverged"
    assert due_with_spectra(planned, rows, spectra, retry=False) == []
    assert due_with_spectra(planned, rows, spectra, retry=True) == planned[1:]
    assert due_with_spectra(planned, {}, spectra, retry=False) == planned
    SpectraStudy("fig7", "tiny", lambda *_: []).fill(planned, store)
    assert read_spectra(spectra).keys() == store.rows().keys() == {one.key for one in planned}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSONDecodeError"),
        (json.dumps({"key": "b", "steps": [], "eigenvalues": []}), "got others"),
        (json.dumps({"key": "a", "steps": [1], "eigenvalues": []}), "got others"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    (tmp_path / "spectra").mkdir()
    (tmp_path / "spectra" / "a.json").write_text(content)
    with pytest.raises(RequestError, match=rf"a\.json must hold .*{message}"):
        read_spectra(tmp_path / "spectra")
