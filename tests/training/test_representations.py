"""The race of representations, in the metrics of a run."""

import pytest
import torch

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.tasks.groups import shares
from statemix.training import load_model, train
from statemix.training.attempts import representations
from statemix.training.folder import read_metrics


def test_the_race_of_representations_is_in_the_metrics(fresh, tmp_path):
    config = fresh()
    train(config, tmp_path)
    rows = read_metrics(tmp_path)
    model = load_model(tmp_path)
    tokens = torch.arange(6)
    x = model.backbone.blocks[0].norm(model.backbone.embedding(tokens)).unsqueeze(0)
    with torch.no_grad():
        table = (
            model.backbone.blocks[0].mixer.recurrence(x).transitions[0].flatten(1).double().numpy()
        )
    assert rows[-1]["representations"] == pytest.approx(shares(table, "S_3"))
    assert set(rows[0]["representations"]) == {"1'", "2"}
    assert rows[0]["representations"] != rows[-1]["representations"]


@pytest.mark.parametrize(
    "changes",
    [
        {"task": TaskSpec("parity")},
        {"task": TaskSpec("permutation", group="S_3", generators=True)},
        {"task": TaskSpec("permutation", group="S_3", num_generators=2)},
        {"model.layers": (LayerSpec("lstm"),)},
        # 120 blocks of 10 entries have 12,000 transitions.
        {"model.layers": (LayerSpec("bd_lru", num_blocks=120, block_size=10),)},
    ],
)
def test_other_networks_and_tasks_have_no_race(fresh, begun, changes):
    run = begun(fresh(changes))
    assert representations(run.model, run.task) == {}
