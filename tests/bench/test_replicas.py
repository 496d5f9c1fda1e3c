"""The benchmark of replicas: its two ways compute the same, and its rows say what was measured."""

import json
import math

import pytest

from statemix.bench import replicas
from statemix.bench.harness import Measurement, Spread
from statemix.errors import RequestError
from statemix.layers import LayerSpec

BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3)
SIZES = {"hidden_size": 8, "batch_size": 4, "length": 5, "num_scored": 12, "device": "cpu"}


@pytest.mark.parametrize("work", replicas.WORKS)
def test_the_stack_computes_what_the_runs_do_and_a_wrong_loss_is_noticed(work):
    case = replicas.Case(BD_LRU, 3, work, **SIZES)
    stacked, alone = replicas.providers(case)
    assert (stacked.name, alone.name) == (replicas.STACKED, replicas.ALONE)
    call = stacked.prepare()
    losses = call()
    assert len(set(losses)) == 3
    assert losses == pytest.approx(alone.prepare()(), rel=1e-5)
    assert stacked.error(losses) <= replicas.TOLERANCE
    assert stacked.error([1.1 * loss for loss in losses]) > 0.05
    assert stacked.error([*losses[:-1], math.nan]) == math.inf
    # Every call does the same: another step of weights that hardly move, or the same evaluation.
    assert call() == pytest.approx(losses, rel=0.5)


def test_every_layer_and_number_is_timed_at_steps_and_evaluations():
    found = replicas.cases((BD_LRU, LayerSpec("h_lru", num_channels=4, order=2)), (2, 5), **SIZES)
    assert [(case.layer.name, case.replicas, case.work) for case in found] == [
        (layer, count, work)
        for layer in ("bd_lru", "h_lru")
        for count in (2, 5)
        for work in ("step", "evaluation")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": (1,)}, "replicas must be at least 2, got 1"),
        ({"replicas": (10**9,)}, "replicas must be at most 1000, got 1000000000"),
        (
            {"batch_size": 2**19, "length": 2**19},
            "replicas, hidden_size, batch_size, length and num_scored must fit into memory",
        ),
        ({"hidden_size": 0}, r"hidden_size must be in 1\.\.2\^20 - 1, got 0"),
        ({"batch_size": 0}, "batch_size must be in"),
        ({"length": 0}, "length must be in"),
        ({"num_scored": 10**12}, "num_scored must be in"),
        ({"layers": (LayerSpec("bd_lru", num_blocks=0, block_size=1),)}, "num_blocks must be"),
    ],
)
def test_bad_sizes_are_named(changes, message):
    arguments = {"layers": (BD_LRU,), "replicas": (2,), **SIZES} | changes
    with pytest.raises(RequestError, match=message):
        replicas.cases(**arguments)


def test_a_layer_that_cannot_be_stacked_is_refused_before_anything_is_timed():
    with pytest.raises(RequestError, match="model must be one that vmap can batch"):
        replicas.cases((BD_LRU, LayerSpec("lstm")), (2,), **SIZES)


def test_a_layer_that_cannot_be_stacked_is_refused():
    case = replicas.Case(LayerSpec("lstm"), 2, "step", **SIZES)
    with pytest.raises(RequestError, match=r"^model must be one that vmap can batch"):
        replicas.providers(case)[0].prepare()


def test_a_row_holds_the_case_and_the_device():
    case = replicas.Case(BD_LRU, 3, "step", **SIZES)
    ratios = {replicas.STACKED: Spread(1.0, 2.0, 3.0)}
    one = Measurement("alone", "", "measured", time_s=Spread(0.1, 0.2, 0.3), ratios=ratios)
    row = json.loads(json.dumps(replicas.row(case, one)))
    assert row["case"] == {
        **SIZES,
        "layer": BD_LRU.complete().to_plain(),
        "replicas": 3,
        "work": "step",
    }
    assert (row["benchmark"], row["provider"], row["dtype"]) == ("replicas", "alone", "float32")
    assert row["ratios"]["stacked"]["p50"] == 2.0
