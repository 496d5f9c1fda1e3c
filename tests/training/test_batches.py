"""What a step sees: every example once per epoch, in an order that only the seed decides."""

import torch

from statemix.training.batches import Batches
from statemix.training.evaluation import draw

CPU = torch.device("cpu")


def batches_of(config):
    config = config.resolved()
    return Batches(config, config.build_task(), CPU)


def rows(tokens):
    return sorted(map(tuple, tokens.tolist()))


def test_an_epoch_shows_every_example_once_and_keeps_the_last_partial_batch(tiny):
    batches = batches_of(tiny())
    assert (batches.steps_per_epoch, batches.num_steps) == (3, 12)
    shown = [batches.batch(step)[0] for step in range(3)]
    assert [len(tokens) for tokens in shown] == [8, 8, 4]
    examples, _ = draw(tiny().build_task(), "train", 20)
    assert rows(torch.cat(shown)) == rows(examples)


def test_order_changes_between_epochs_and_seeds(tiny):
    batches, other = batches_of(tiny()), batches_of(tiny(seed=1, task_options=seeded(tiny(), 0)))
    first = batches.batch(0)[0]
    assert not torch.equal(first, batches.batch(3)[0])
    assert not torch.equal(first, other.batch(0)[0])


def seeded(config, seed):
    return config.task_options | {"seed": seed}


def test_any_step_can_be_asked_for_in_any_order(tiny):
    forward, backward = batches_of(tiny()), batches_of(tiny())
    asked = {step: backward.batch(step) for step in reversed(range(12))}
    for step in range(12):
        for ours, theirs in zip(forward.batch(step), asked[step], strict=True):
            assert torch.equal(ours, theirs)


def test_targets_stay_with_their_tokens(tiny):
    config = tiny()
    group = config.build_task().group
    tokens, targets = batches_of(config).batch(4)
    assert torch.equal(targets, torch.from_numpy(group.running_products(tokens.numpy())))


def test_fresh_examples_are_taken_in_order_each_once(fresh):
    batches = batches_of(fresh())
    assert (batches.steps_per_epoch, batches.num_steps, batches.epoch(5)) == (1, 6, None)
    examples, _ = draw(fresh().build_task(), "train", 48)
    assert torch.equal(torch.cat([batches.batch(step)[0] for step in range(6)]), examples)
