"""What the tests of training share: a run that takes a fraction of a second."""

import dataclasses

import pytest

from statemix.training import RunConfig

TINY = RunConfig(
    task_options={"group": "S_3", "length": 5, "train_size": 20},
    layer_options={"num_blocks": 2, "block_size": 3},
    hidden_size=8,
    bos=True,
    batch_size=8,
    epochs=4,
    test_size=30,
    validation_size=20,
    num_threads=1,
    device="cpu",
)


@pytest.fixture
def tiny():
    """A run of 4 epochs with 3 steps each; keyword arguments change its fields."""
    return lambda **changes: dataclasses.replace(TINY, **changes)


@pytest.fixture
def fresh():
    """A run on fresh examples."""
    options = {"group": "S_3", "length": 5, "train_size": None}
    settings = {"task_options": options, "epochs": None, "num_steps": 6, "eval_every": 2}
    return lambda **changes: dataclasses.replace(TINY, **(settings | changes))
