"""A suite makes the same run for every network and seed, except for inapplicable schedules."""

import dataclasses
import json

import pytest

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.studies.suite import Network, Suite, check_folders
from statemix.training import AttributeSchedule, RunConfig, train
from statemix.training.settings import Assignments

BLOCKS = Network((LayerSpec("bd_lru", num_blocks=2, block_size=3),))
LAGS = Network((LayerSpec("h_lru", num_channels=4, order=2),))
LSTM = Network((LayerSpec("lstm"),))
HYBRID = Network((LayerSpec("bd_lru", num_blocks=2, block_size=3), LayerSpec("lstm")))


@pytest.mark.parametrize(
    ("network", "label", "name"),
    [
        (BLOCKS, "BD-LRU m=3", "bd_lru-m3"),
        (LAGS, "H-LRU m=2", "h_lru-m2"),
        (LSTM, "LSTM", "lstm"),
        (HYBRID, "BD-LRU m=3 + LSTM", "bd_lru-m3-lstm"),
        (Network(LSTM.layers * 2), "LSTM", "lstm"),
        (Network(BLOCKS.layers, "narrow: 2/8"), "narrow: 2/8", "narrow-2-8"),
    ],
)
def test_networks_are_named_by_their_layers_unless_told_otherwise(network, label, name):
    assert (network.label, network.name) == (label, name)


def test_jobs_are_all_networks_seed_by_seed(tmp_path):
    jobs = Suite((BLOCKS, LSTM), (3, 1), RunConfig()).jobs(tmp_path)
    assert [job.name for job in jobs] == [
        "bd_lru-m3-seed3",
        "lstm-seed3",
        "bd_lru-m3-seed1",
        "lstm-seed1",
    ]
    assert [job.folder for job in jobs] == [tmp_path / job.name for job in jobs]
    assert [(job.config.model.layers, job.config.seed) for job in jobs] == [
        (BLOCKS.layers, 3),
        (LSTM.layers, 3),
        (BLOCKS.layers, 1),
        (LSTM.layers, 1),
    ]


def test_networks_of_one_name_are_refused():
    wide = Network((LayerSpec("bd_lru", num_blocks=8, block_size=3),))
    with pytest.raises(ValueError, match="distinct names, got 'bd_lru-m3' twice"):
        Suite((BLOCKS, wide), (0,), RunConfig())
    Suite((BLOCKS, dataclasses.replace(wide, label="wide")), (0,), RunConfig())


@pytest.mark.parametrize(
    ("network", "follows"), [(BLOCKS, True), (LAGS, True), (LSTM, False), (HYBRID, True)]
)
def test_attributes_are_set_only_where_a_layer_declares_them(network, follows):
    protocol = RunConfig()
    protocol = protocol.replace(
        schedules=protocol.schedules.replace(
            attributes=(AttributeSchedule("gate_temperature", end=0.5),)
        ),
        evaluation=protocol.evaluation.replace(attributes=Assignments(gate_temperature=0.1)),
    )
    config = network.configured(protocol, seed=7)
    attributes = protocol.schedules.attributes
    assert config.schedules.attributes == (attributes if follows else ())
    assert dict(config.evaluation.attributes) == ({"gate_temperature": 0.1} if follows else {})
    # Nothing else changes.
    same = config.replace(
        model=protocol.model,
        schedules=protocol.schedules,
        evaluation=protocol.evaluation,
        seed=0,
    )
    assert same == protocol


class TestFolders:
    def test_absent_finished_and_begun_runs_are_fine(self, jobs):
        train(jobs[0].config, jobs[0].folder)
        check_folders(jobs)

    def test_another_configuration_is_named_with_its_cure(self, jobs):
        train(jobs[0].config, jobs[0].folder)
        other = dataclasses.replace(jobs[0], config=jobs[0].config.replace(seed=5))
        with pytest.raises(RequestError, match=r"same configuration, got .*; --fresh .* removes"):
            check_folders([other])

    def test_an_older_version_is_named_with_its_cure(self, jobs):
        jobs[1].folder.mkdir()
        (jobs[1].folder / "config.json").write_text(json.dumps({"layer": "lstm", "seed": 0}))
        with pytest.raises(RequestError, match=r"older development version.*--fresh .* removes"):
            check_folders(jobs)

    def test_what_a_fresh_start_would_not_remove_is_not_promised(self, jobs):
        jobs[0].folder.mkdir()
        (jobs[0].folder / "stranger").touch()
        with pytest.raises(RequestError, match="stranger") as caught:
            check_folders(jobs)
        assert "--fresh" not in str(caught.value)
