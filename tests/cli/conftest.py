"""A small finished run, trained once per session."""

import shlex

import pytest

from statemix.cli.main import main

TINY = shlex.split(
    """
    --task permutation group=S_3 length=5 train_size=20
    --model.layers bd_lru num_blocks=2 block_size=3 --model.hidden-size 8 --model.bos
    --batches.size 8 --schedules.epochs 4
    --evaluation.test-size 30 --evaluation.validation-size 20
    --runtime.num-threads 1 --runtime.device cpu
    """
)


@pytest.fixture(scope="session")
def tiny_arguments():
    """Arguments of a run that takes a fraction of a second."""
    return TINY


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Folder of a finished run; do not write to it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", "--folder", str(folder), *TINY]) == 0
    return folder
