"""The cases of the decoding benchmark: their results, requests and rows."""

import json

import pytest
import torch

from statemix.errors import RequestError
from statemix.layers import BDLRU, HLRU, LayerSpec
from statemix_lab.bench import step_timing as decode
from statemix_lab.bench.harness import COPY, Measurement, Spread
from statemix_lab.bench.operator_timing import TOLERANCES

TINY = [decode.StepCase(recurrence, 2, 6, 3) for recurrence in ("bd_lru", "h_lru")]


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.recurrence)
def test_the_step_gives_the_reference_result_and_a_wrong_one_is_noticed(case, monkeypatch):
    monkeypatch.setattr(decode, "STEPS_PER_CALL", 7)
    projections, step, copy = decode.providers(case)
    assert (projections.name, step.name, copy.name) == (decode.PROJECTIONS, decode.STEP, COPY)
    assert projections.prepare()().shape == (2, 6)
    y = step.prepare()()
    assert step.error(y) <= 1e-5
    assert step.error(1.1 * y) > 0.05


@pytest.mark.parametrize("broken", [3, 4, 7, 8])
def test_of_a_large_batch_the_first_sequences_and_the_last_are_checked(broken, monkeypatch):
    monkeypatch.setattr(decode, "STEPS_PER_CALL", 2)
    lengths = []
    original = BDLRU.forward

    def counted(self, x, *rest, **options):
        lengths.append(len(x))
        return original(self, x, *rest, **options)

    monkeypatch.setattr(BDLRU, "forward", counted)
    _, step, _ = decode.providers(decode.StepCase("bd_lru", 9, 6, 3))
    y = step.prepare()()
    y = y.clone()
    y[broken] += 1
    assert (step.error(y) > 1e-5) == (broken in (0, 1, 2, 3, 8))
    assert lengths == [5]


def test_a_step_moves_every_parameter_once_and_the_state_of_each_sequence_twice():
    case = decode.StepCase("bd_lru", 3, 6, 3)
    layer = BDLRU(6, num_blocks=2, block_size=3)
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    assert case.moved_bytes(torch.float32) == 4 * (parameters + 3 * (6 + 6 + 6 + 6))
    # States stay in float32.
    assert case.moved_bytes(torch.bfloat16) == 2 * (parameters + 3 * (6 + 6)) + 4 * 3 * (6 + 6)
    lags = decode.StepCase("h_lru", 1, 6, 3)
    assert lags.spec == LayerSpec("h_lru", num_channels=2, order=3)
    gates = HLRU(6, num_channels=2, order=3).gate_proj.out_features
    assert lags.moved_bytes(torch.float64) > 8 * lags.hidden_size * gates


@pytest.mark.parametrize(("batch_size", "steps"), [(2, 200), (255, 200), (256, 20)])
@pytest.mark.parametrize("provider", [decode.PROJECTIONS, decode.STEP])
def test_a_call_makes_the_steps_that_its_time_is_divided_by(
    provider, batch_size, steps, monkeypatch
):
    """Steps of many sequences take milliseconds."""
    case, calls, build = decode.StepCase("bd_lru", batch_size, 4, 2), [], decode._layer

    def noted(*given):
        layer = build(*given)
        layer.out_proj.register_forward_hook(
            lambda *_: calls.append(torch.is_inference_mode_enabled())
        )
        return layer

    monkeypatch.setattr(decode, "_layer", noted)
    next(one for one in decode.providers(case) if one.name == provider).prepare()()
    assert calls == [True] * steps
    assert case.steps_per_call == steps
    measured = Measurement(provider, "", "measured", rounds=3, time_s=Spread(2.0, 4.0, 6.0))
    row = json.loads(json.dumps(decode.row(case, measured)))
    assert row["time_s"] == {"p20": 2 / steps, "p50": 4 / steps, "p80": 6 / steps}
    assert (row["benchmark"], row["steps_per_call"]) == ("decode", steps)
    sizes = {"batch_size": batch_size, "hidden_size": 4, "block_size": 2}
    assert row["case"] == {"recurrence": "bd_lru", **sizes}


def test_every_part_has_the_dtype_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(decode, "STEPS_PER_CALL", 7)
    peers = {"delta": LayerSpec("delta_net", num_heads=1), "lstm": LayerSpec("lstm")}
    *steps, _ = decode.providers(TINY[0], torch.bfloat16, peers)
    for provider in steps:
        y = provider.prepare()()
        assert y.dtype == torch.bfloat16
        if provider.error is not None:
            # The layer whose weights were rounded is the judge.
            assert 0 < provider.error(y) <= TOLERANCES[torch.bfloat16]
    skipped = Measurement("statemix", "", "skipped")
    assert decode.row(TINY[0], skipped, "bfloat16")["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((0,), (4,), (2,)), r"batch_sizes must be at least 1, got \(0,\)"),
        (((1,), (-4,), (2,)), r"hidden_sizes must be at least 1, got \(-4,\)"),
        (((1,), (6,), (4,)), "hidden_sizes must be multiples of block_sizes, got 6 and 4"),
        (((10**12,), (4,), (1,)), "hidden_sizes and batch_sizes must fit into memory"),
    ],
)
def test_sizes_are_refused(sizes, message):
    with pytest.raises(RequestError, match=message):
        decode.cases(("bd_lru",), *sizes)
