"""Batches: every example once per epoch, in an order that depends on the seed alone."""

import numpy as np
import pytest
import torch

from statemix.tasks import IGNORED, TaskSpec
from statemix.training.batches import TaskBatches, packed, padded, rows

CPU = torch.device("cpu")


def batches_of(config, device=CPU):
    config = config.resolved()
    return TaskBatches(
        config.build_task(), config.batches, config.schedules, seed=config.seed, device=device
    )


def batch(batches, step):
    (one,) = batches.parts(step)
    return one


def test_an_epoch_shows_every_example_once_and_keeps_the_last_partial_batch(tiny):
    batches = batches_of(tiny())
    assert (batches.steps_per_epoch, batches.num_steps) == (3, 12)
    assert [batches.epoch(step) for step in (0, 2, 3, 12)] == [0, 0, 1, 4]
    shown = [batch(batches, step).tokens for step in range(3)]
    assert [len(tokens) for tokens in shown] == [8, 8, 4]
    examples = tiny().build_task().examples("train", 0, 20)
    assert sorted(map(tuple, torch.cat(shown).tolist())) == sorted(
        map(tuple, examples.tokens.tolist())
    )
    # Targets stay with their tokens.
    products = torch.from_numpy(tiny().build_task().group.running_products(shown[2].numpy()))
    assert torch.equal(batch(batches, 2).targets["product"], products)


def test_order_changes_between_epochs_and_seeds(tiny):
    held = TaskSpec("permutation", **tiny().task.options, seed=0)
    batches, other = batches_of(tiny()), batches_of(tiny(seed=1, task=held))
    first = batch(batches, 0).tokens
    assert not torch.equal(first, batch(batches, 3).tokens)
    assert not torch.equal(first, batch(other, 0).tokens)


def test_fresh_examples_are_taken_in_order_each_once(fresh):
    batches = batches_of(fresh())
    assert (batches.steps_per_epoch, batches.num_steps, batches.epoch(5)) == (1, 6, None)
    examples = fresh().build_task().examples("train", 0, 48)
    shown = torch.cat([batch(batches, step).tokens for step in range(6)])
    assert torch.equal(shown, torch.from_numpy(examples.tokens))


def test_sequences_are_short_at_first(tiny):
    """Later steps are those of a run without cuts; the first ones have their beginnings."""
    short = batches_of(tiny({"schedules.first_length": 2, "schedules.first_share": 0.25}))
    usual = batches_of(tiny())
    for step in range(12):
        ours, whole = batch(short, step), batch(usual, step)
        kept = 2 if step < 3 else whole.tokens.shape[1]
        assert torch.equal(ours.tokens, whole.tokens[:, :kept])
        assert torch.equal(ours.targets["product"], whole.targets["product"][:, :kept])
        assert ours.num_scored == {"product": len(ours.tokens) * kept}


def test_words_of_several_lengths_are_short_at_first(fresh):
    task = TaskSpec("permutation", group="S_3", length=9, min_length=1)
    one = batch(batches_of(fresh({"task": task, "schedules.first_length": 3})), 0)
    assert one.tokens.shape[1] == 3
    assert set(one.lengths.tolist()) <= {1, 2, 3}
    assert one.num_scored["product"] == one.lengths.sum()


@pytest.mark.parametrize(("accumulate", "sizes"), [(3, [3, 3, 2]), (9, [1] * 8)])
def test_a_step_is_split_into_parts_that_know_the_whole(tiny, accumulate, sizes):
    whole = batch(batches_of(tiny()), 0)
    parts = batches_of(tiny({"batches.accumulate": accumulate})).parts(0)
    assert [len(part.tokens) for part in parts] == sizes
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert all(part.num_scored == {"product": 40} for part in parts)


def test_padding_ends_with_the_longest_and_packing_keeps_what_is_there(toys):
    examples = toys.Ragged(length=6).examples("train", 0, 7)
    assert examples.lengths.tolist() == [1, 2, 3, 4, 5, 6, 1]
    short = rows(examples, np.array([2, 1, 6]))
    beside, joined = padded(short, {}), packed(short, {})
    assert beside.tokens.shape == (3, 3)
    assert beside.cu_seqlens is None
    assert joined.cu_seqlens.tolist() == [0, 3, 5, 6]
    assert joined.tokens.shape == (1, 6)
    lengths = [3, 2, 1]
    assert (beside.lengths.tolist(), joined.lengths) == (lengths, None)
    for form in ("tokens", "sum", "parity"):
        is_input, filler = form == "tokens", 4 if form == "tokens" else IGNORED
        one, other = (b.tokens if is_input else b.targets[form] for b in (beside, joined))
        assert torch.equal(
            other[0], torch.cat([row[:n] for row, n in zip(one, lengths, strict=True)])
        )
        assert all((row[n:] == filler).all() for row, n in zip(one, lengths, strict=True))
