"""A demo that takes a second."""

import dataclasses

import pytest

from statemix.experiments import demo
from statemix.tasks import TaskSpec
from statemix.training import BatchConfig


@pytest.fixture
def tiny():
    """Two small networks, one seed, two epochs."""
    suite = demo.SUITES["S_3"]
    protocol = suite.protocol
    return dataclasses.replace(
        suite,
        networks=(demo.bd_lru(2, 3), demo.LSTM),
        seeds=(0,),
        protocol=dataclasses.replace(
            protocol,
            task=TaskSpec("permutation", group="S_3", train_size=20),
            model=dataclasses.replace(protocol.model, hidden_size=8),
            batches=BatchConfig(size=8),
            schedules=dataclasses.replace(protocol.schedules, epochs=2),
            evaluation=dataclasses.replace(
                protocol.evaluation,
                every=1,
                test_size=8,
                validation_size=8,
                lengths=(24, 40),
                tokens=160,
            ),
        ),
    )


@pytest.fixture
def jobs(tiny, tmp_path):
    return tiny.jobs(tmp_path)
