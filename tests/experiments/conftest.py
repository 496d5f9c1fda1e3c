"""A demo that takes a second."""

import dataclasses

import pytest

from statemix.experiments import demo


@pytest.fixture
def tiny():
    """Two small networks, one seed, two epochs."""
    suite = demo.SUITES["S_3"]
    return dataclasses.replace(
        suite,
        networks=(demo.bd_lru(2, 3), demo.LSTM),
        seeds=(0,),
        protocol=dataclasses.replace(
            suite.protocol,
            task_options={"group": "S_3", "train_size": 20},
            hidden_size=8,
            batch_size=8,
            epochs=2,
            eval_every=1,
            test_size=8,
            validation_size=8,
            eval_lengths=(24, 40),
            eval_tokens=160,
        ),
    )
