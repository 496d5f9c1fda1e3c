"""Steps of gradient descent, which do not depend on the layout of the batches."""

import itertools
import math

import pytest
import torch

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import AttributeSchedule, ParameterGroup
from statemix.training.batches import Averages, CrossEntropy

# Sums of a few hundred terms in another order, after five steps of AdamW.
TIGHT = {"rtol": 1e-9, "atol": 1e-11}


def ragged(**changes):
    """Two heads and unequal lengths, in float64."""
    return {
        "task": TaskSpec("ragged", train_size=20),
        "runtime.precision": "64-true",
        "imports": ("statemix_toys",),
        **changes,
    }


LAYERS = {
    "bd_lru": LayerSpec("bd_lru", num_blocks=2, block_size=3, initial_state="learned"),
    "h_lru": LayerSpec("h_lru", num_channels=4, order=2),
    "lstm": LayerSpec("lstm"),
}


def trained(run, steps=5):
    losses = [run.step() for _ in range(steps)]
    return losses, run.loop.averages.read(), run.loop.tensors()


@pytest.mark.parametrize(
    ("layer", "bos", "accumulate", "packed"),
    [
        *(("bd_lru", False, 3, False), ("bd_lru", True, 8, True)),
        *(("h_lru", False, 1, True), ("lstm", True, 3, True)),
    ],
)
def test_steps_are_those_of_other_batches(toys, tiny, begun, layer, bos, accumulate, packed):
    usual = ragged(**{"model.layers": (LAYERS[layer],), "model.bos": bos})
    changes = {"batches.accumulate": accumulate, "batches.packed": packed}
    expected = trained(begun(tiny(usual)))
    found = trained(begun(tiny(usual | changes)))
    torch.testing.assert_close(found, expected, **TIGHT)
    # Both heads have learnt something.
    assert expected[0][-1] < expected[0][0]
    assert expected[1]["loss/sum"] != expected[1]["loss/parity"]


def test_the_loss_is_the_mean_over_the_scored_positions_of_every_head(toys, tiny, begun):
    run = begun(tiny(ragged()))
    (batch,) = run.loop.batches.parts(0)
    logits = run.model(batch.tokens)
    means = {}
    for head, classes in batch.targets.items():
        chosen = logits[head].log_softmax(-1)[classes != -100]
        means[head] = -chosen[range(len(chosen)), classes[classes != -100]].mean()
    torch.testing.assert_close(CrossEntropy()(run.model, batch), means)
    assert run.step() == pytest.approx(sum(means.values()).item())


def solvers(**changes):
    return ragged(
        **{
            "model.layers": (LayerSpec("solver"), LayerSpec("solver", iterations=3)),
            "schedules.attributes": (AttributeSchedule("iterations", start=1, end=5.0),),
        }
        | changes
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_averages_are_means_over_steps_and_over_calls(toys, tiny, begun, accumulate):
    run = begun(tiny(solvers(**{"batches.accumulate": accumulate})))
    assert run.loop.averages.read() == {}
    for first in (0, 3):
        losses, sizes = [], []
        for _ in range(3):
            losses.append(run.step())
            sizes.append(float(run.model.backbone.blocks[1].mixer.reports()["size"]))
        averages = run.loop.averages.read()
        assert averages["loss"] == pytest.approx(sum(losses) / 3)
        assert averages["loss"] == averages["loss/sum"] + averages["loss/parity"]
        # The attribute rises by 4 over 12 steps and is rounded.
        expected = sum(round(1 + step / 3) for step in range(first, first + 3)) / 3
        for block in (0, 1):
            assert averages[f"backbone.blocks.{block}.mixer.iterations"] == pytest.approx(expected)
        if accumulate == 1:
            size = averages["backbone.blocks.1.mixer.size"]
            assert size == pytest.approx(sum(sizes) / 3, rel=1e-6)
    assert run.loop.averages.read() == {}


def test_every_part_of_a_step_counts_in_the_average_of_reported_numbers(toys, tiny, begun):
    run = begun(tiny(solvers(**{"batches.accumulate": 3})))
    calls = itertools.count()
    run.model.backbone.blocks[0].mixer.reports = lambda: {"call": torch.tensor(float(next(calls)))}
    run.step()
    run.step()
    assert run.loop.averages.read()["backbone.blocks.0.mixer.call"] == (0 + 1 + 2 + 3 + 4 + 5) / 6


def test_a_part_of_the_loss_weighs_by_the_steps_that_have_it():
    averages, parts = Averages(), {"task": torch.tensor(1.0), "penalty": torch.tensor(0.5)}
    for step in range(8):
        averages.collect([parts if step < 2 else {"task": parts["task"]}], [])
    state = averages.state_dict()
    for dropped in ("none", "loss"):  # which checkpoints of older versions lack
        counts = {name: count for name, count in state["counts"].items() if name != dropped}
        averages.load_state_dict({**state, "counts": counts}, torch.device("cpu"))
        assert averages.read() == {"loss": 1.125, "loss/task": 1.0, "loss/penalty": 0.5}


@pytest.mark.parametrize(("factor", "rate"), [(1.0, "0.001"), (0.0, "0")])
def test_a_loss_that_is_no_number_names_the_rate_although_a_group_is_frozen(
    tiny, begun, factor, rate
):
    frozen, other = ParameterGroup("*.bias", 0.0), ParameterGroup("*", factor)
    run = begun(tiny({"optimizer.groups": (frozen, other)}))
    run.schedules.before_step(run.loop)
    assert f"with learning rate {rate};" in str(run.loop.refusal(math.nan, 1.0))


def test_a_step_that_is_not_made_is_in_no_average(tiny, begun):
    run = begun(tiny())
    first = run.step()
    weights = {name: t.clone() for name, t in run.model.state_dict().items()}
    hook = run.model.register_forward_hook(
        lambda *call: {head: math.nan * logits for head, logits in call[2].items()}
    )
    with pytest.raises(FloatingPointError, match=r"^loss must be finite, got nan at step 2 of 12"):
        run.step()
    hook.remove()
    assert run.loop.step == 1
    assert run.loop.averages.state_dict()["sums"] == {"loss/product": pytest.approx(first)}
    assert all(torch.equal(t, weights[name]) for name, t in run.model.state_dict().items())
    second = run.step()
    assert run.loop.averages.read()["loss"] == pytest.approx((first + second) / 2)


def test_a_step_waits_for_the_device_once(toys, tiny, begun, monkeypatch):
    # The kernels for the CPU read the temperature where nothing waits; this backend runs anywhere.
    loop = LayerSpec("bd_lru", num_blocks=2, block_size=3, backend="loop")
    solver = {"model.layers": (LayerSpec("solver"), loop), "optimizer.clip_norm": 0.1}
    run = begun(tiny(ragged(**solver) | {"batches.accumulate": 2}))
    run.step()
    # Only on the CPU, where nothing waits.
    monkeypatch.setattr("statemix.models.backbone.check_values", lambda *_: None)
    waits = []
    names = ["item", "tolist", "numpy", "cpu", "nonzero"]
    names += [f"__{name}__" for name in ("bool", "float", "int", "index")]
    for name in names:
        original = getattr(torch.Tensor, name)

        def counted(self, *arguments, name=name, original=original, **options):
            waits.append(name)
            return original(self, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)
    run.step()
    monkeypatch.undo()
    assert waits == ["tolist"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_a_gpu_waits_once(tiny, begun, recwarn):
    run = begun(tiny({"runtime.device": "cuda", "batches.accumulate": 2}))
    run.step()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        run.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum("synchroniz" in str(warning.message) for warning in recwarn) == 1
