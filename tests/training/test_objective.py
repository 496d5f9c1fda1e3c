"""Weights of positions, noise, the penalty on what does not permute, and representations."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from statemix.errors import SettingError
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.tasks.groups import shares
from statemix.training import load_model, train
from statemix.training.attempts import (
    PermutationPenalty,
    permutation_penalty,
    representations,
    token_transitions,
)
from statemix.training.batches import CrossEntropy
from statemix.training.folder import read_metrics

EXACT = {"runtime.precision": "64-true"}
# Float64, sums of a hundred terms in another order.
TIGHT = {"rel": 1e-12}


def ragged(**changes):
    task = TaskSpec("ragged", train_size=20)
    return EXACT | {"task": task, "imports": ("statemix_toys",), **changes}


def weighted(run, batch, power, length):
    """The mean over all scored positions, token by token."""
    logits = run.model(batch.tokens, batch.cu_seqlens, batch.lengths)
    bounds = batch.cu_seqlens.tolist() if batch.cu_seqlens is not None else None
    found = {}
    for head, classes in batch.targets.items():
        logs = logits[head].log_softmax(-1).detach().numpy()
        sum_, count = 0.0, 0
        for row, place in np.argwhere(classes.numpy() != -100):
            start = max(bound for bound in bounds if bound <= place) if bounds else 0
            weight = (place - start + 1.0) ** power
            sum_ -= weight * logs[row, place, classes[row, place]]
            count += 1
        mean = np.mean([float(t) ** power for t in range(1, length + 1)])
        found[head] = sum_ / mean / count
    return found


@pytest.mark.parametrize(("packed", "power"), [(False, -1.0), (True, 0.5)])
def test_positions_weigh_as_powers_of_their_place(toys, tiny, begun, packed, power):
    run = begun(tiny(ragged(**{"batches.packed": packed, "objective.position_power": power})))
    (batch,) = run.loop.batches.parts(0)
    found = {head: loss.item() for head, loss in run.losses(run.model, batch).items()}
    expected = weighted(run, batch, power, run.task.length)
    assert found == pytest.approx(expected, **TIGHT)
    plain = {head: loss.item() for head, loss in CrossEntropy()(run.model, batch).items()}
    assert found != pytest.approx(plain, rel=1e-3)
    assert run.step() == pytest.approx(sum(expected.values()), rel=1e-12)


@pytest.mark.parametrize(("accumulate", "packed"), [(3, False), (8, True)])
def test_losses_do_not_depend_on_the_form_of_the_batches(toys, tiny, begun, accumulate, packed):
    asked = {"objective.position_power": -1.0, "objective.permutation_penalty": 0.3}
    form = {"batches.accumulate": accumulate, "batches.packed": packed}
    runs = [begun(tiny(ragged(**asked, **changes))) for changes in ({}, form)]
    losses = [[run.step() for _ in range(4)] for run in runs]
    assert_allclose(losses[1], losses[0], rtol=1e-9)
    means = [run.loop.averages.read() for run in runs]
    assert means[1] == pytest.approx(means[0], rel=1e-9)
    assert means[0]["loss/permutation_penalty"] > 0


def test_the_penalty_is_the_distance_of_all_transitions_from_permutations(tiny, begun):
    run = begun(tiny(EXACT))
    layer = run.model.backbone.blocks[0].mixer
    tables = []
    for token in range(6):
        vector = run.model.backbone.blocks[0].norm(run.model.backbone.embedding.weight[token])
        raw = layer.gate_proj(vector).view(3, 4, 2).detach().numpy()
        gates = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
        tables.append(np.moveaxis(gates[:, :3], -1, 0))
    table = np.stack(tables)
    torch.testing.assert_close(token_transitions(run.model, 6).detach().numpy(), table)
    distances = [
        ((matrix @ matrix.T - np.eye(3)) ** 2).sum() for blocks in table for matrix in blocks
    ]
    found = permutation_penalty(run.model)
    assert found.item() == pytest.approx(np.mean(distances), **TIGHT)
    found.backward()
    assert layer.gate_proj.weight.grad.abs().min() > 0
    assert run.model.backbone.embedding.weight.grad[:6].abs().min() > 0
    # The learned token before each sequence is not in the table.
    assert not run.model.backbone.embedding.weight.grad[6:].any()


def test_the_penalty_is_part_of_the_loss(tiny, begun):
    run = begun(tiny(EXACT | {"objective.permutation_penalty": 2.0}))
    before = permutation_penalty(run.model).item()
    (batch,) = run.loop.batches.parts(0)
    task = CrossEntropy()(run.model, batch)["product"].item()
    assert run.step() == pytest.approx(task + 2.0 * before, **TIGHT)


def test_a_penalty_needs_transitions(tiny, begun):
    changes = {"model.layers": (LayerSpec("lstm"),), "objective.permutation_penalty": 0.1}
    message = r"^objective.permutation_penalty must be 0 with a first layer .* got 0.1"
    with pytest.raises(SettingError, match=message):
        begun(tiny(changes))


def test_in_a_search_attempts_are_penalised_when_they_have_left_their_plateau(fresh, begun):
    search = {"search.attempts": 2, "search.plateau": 1.0, "search.every": 3, "search.tests": 1}
    search |= {"search.accept_last": 1.0, "objective.permutation_penalty": 0.5}
    run = begun(fresh(search))
    seen = {}
    (penalty,) = (hook for hook in run.loop.hooks if isinstance(hook, PermutationPenalty))
    losses = penalty.losses

    def spy(loop, batch):
        found = losses(loop, batch)
        seen[loop.step] = bool(found)
        return found

    penalty.losses = spy
    run.loop.run()
    first, second = run.attempts.search.attempts
    expected = [*range(first.left, first.ended), *range(second.left, run.loop.step)]
    assert [number for number, penalised in seen.items() if penalised] == expected
    assert not seen[0]
    assert not seen[second.began]


def test_noise_depends_on_seed_and_step_alone(tiny, begun):
    layer = LayerSpec("bd_lru", num_blocks=2, block_size=3, gate_noise=0.5)

    def first_loss(seed, steps):
        run = begun(tiny({"model.layers": (layer,)}))
        run.loop._seed, run.loop.step = seed, steps
        # The batch of step 0, whatever the step.
        (batch,) = run.loop.batches.parts(0)
        run.loop.batches.parts = lambda _: [batch]
        torch.rand(steps + 1)
        return run.step()

    assert first_loss(1, 2) == first_loss(1, 2)
    assert len({first_loss(seed, step) for seed in range(3) for step in range(3)}) == 9


def test_weights_do_not_move_the_plateau(fresh, begun):
    """With 1/t, whoever knows the first position alone has lost .3 of the loss, not .2."""
    changes = {"search.attempts": 1, "search.max_steps": 4, "search.accept_last": 1.0}
    seen = []
    for power in (0.0, -1.0):
        run = begun(fresh(EXACT | changes | {"objective.position_power": power}))
        (batch,) = run.loop.batches.parts(0)
        plain = CrossEntropy()(run.model, batch)["product"].item()
        search = run.attempts.search
        saw = search.saw
        search.saw = lambda step, loss, saw=saw: (seen.append((step, loss)), saw(step, loss))

        run.attempts.before_step(run.loop)
        run.attempts.after_step(run.loop, run.step())
        assert seen[-1] == (1, pytest.approx(plain, rel=1e-12))


def test_the_race_of_representations_is_in_the_metrics(fresh, tmp_path):
    config = fresh()
    train(config, tmp_path)
    rows = read_metrics(tmp_path)
    model = load_model(tmp_path)
    tokens = torch.arange(6)
    x = model.backbone.blocks[0].norm(model.backbone.embedding(tokens)).unsqueeze(0)
    with torch.no_grad():
        table = model.backbone.blocks[0].mixer.recurrence(x).transitions[0].flatten(1).double()
    assert rows[-1]["representations"] == pytest.approx(shares(table.numpy(), "S_3"))
    assert set(rows[0]["representations"]) == {"1'", "2"}
    assert rows[0]["representations"] != rows[-1]["representations"]


@pytest.mark.parametrize(
    "changes",
    [
        {"task": TaskSpec("parity")},
        {"task": TaskSpec("permutation", group="S_3", generators=True)},
        {"model.layers": (LayerSpec("lstm"),)},
        # 120 blocks of 10 entries have 12,000 transitions.
        {"model.layers": (LayerSpec("bd_lru", num_blocks=120, block_size=10),)},
    ],
)
def test_other_networks_and_tasks_have_no_race(fresh, begun, changes):
    run = begun(fresh(changes))
    assert representations(run.model, run.task) == {}
