"""The predicted time of runs, from a few steps of each network."""

import itertools
from types import SimpleNamespace

import pytest

from statemix.layers import FPRNN, LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig, SearchConfig
from statemix.training.settings import Assignments
from statemix_lab.studies import forecast
from statemix_lab.studies.forecast import Forecast

# Two epochs of a step on 10 words.
CONFIG = RunConfig(
    task=TaskSpec("permutation", group="S_3", length=6, train_size=10),
    model=ModelConfig(layers=(LayerSpec("lstm"),), hidden_size=8),
    schedules=ScheduleConfig(epochs=2),
    evaluation=EvaluationConfig(test_size=300, validation_size=50, every=1),
)


def test_a_forecast_grows_with_the_steps_and_measures_a_network_once():
    one = Forecast()
    longer = CONFIG.replace(schedules=ScheduleConfig(epochs=2000))
    short, long = one.seconds(CONFIG), one.seconds(longer)
    assert 0 < short < long
    assert long == pytest.approx(one.seconds(longer), rel=1e-12)
    assert len(one._known) == 1
    # A search is expected to take an attempt that never leaves its plateau.
    longer = longer.replace(schedules=ScheduleConfig(epochs=100))
    search = longer.replace(search=SearchConfig(attempts=3, max_steps=300))
    assert one.seconds(search) / one.seconds(longer) == pytest.approx(4, rel=0.1)
    fresh = TaskSpec("permutation", group="S_3", length=6)
    assert Forecast().seconds(CONFIG.replace(schedules=ScheduleConfig(num_steps=1), task=fresh)) > 0


@pytest.fixture
def clocked(monkeypatch):
    """Replace training and evaluation by a clock that each call sets forward."""
    durations = {"step": itertools.repeat(0.02), "evaluation": itertools.repeat(0.01)}
    now = [0.0]

    def advance(name):
        now[0] += next(durations[name])

    def trainer(*_, **__):
        return SimpleNamespace(step=0, train_step=lambda _: advance("step"))

    def evaluator(*_, **__):
        return lambda *_, **__: advance("evaluation")

    monkeypatch.setattr(forecast, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(forecast, "Loop", trainer)
    monkeypatch.setattr(forecast, "SplitEvaluator", evaluator)
    return durations


def test_a_forecast_counts_steps_and_both_evaluations(clocked):
    seconds = (2 * 10 * 0.02 + 2 * (300 + 50) * 0.01) / CONFIG.batches.size
    assert Forecast().seconds(CONFIG) == pytest.approx(seconds)


@pytest.mark.parametrize(("limit_s", "known"), [(None, 3), (0.2, 2), (0.01, 1)])
def test_a_forecast_measures_no_network_after_its_limit(clocked, limit_s, known):
    """A network takes four steps of .02 s and four evaluations of .01 s."""
    one = Forecast(limit_s)
    configs = [CONFIG.replace(model=CONFIG.model.replace(hidden_size=n)) for n in (4, 8, 16)]
    found = [one.seconds(config) for config in configs]
    assert [seconds is not None for seconds in found] == [n < known for n in range(3)]
    # What has been measured stays known.
    assert one.seconds(configs[0]) == found[0]


def test_a_forecast_evaluates_with_the_attributes_of_tests(monkeypatch):
    evaluation = CONFIG.evaluation.replace(attributes=Assignments(max_iterations=7))
    model = CONFIG.model.replace(layers=(LayerSpec("fp_rnn", max_iterations=2),))
    seen = []

    def evaluator(*_, **__):
        return lambda model, **_: seen.extend(
            layer.max_iterations for layer in model.modules() if isinstance(layer, FPRNN)
        )

    monkeypatch.setattr(forecast, "SplitEvaluator", evaluator)
    Forecast().seconds(CONFIG.replace(model=model, evaluation=evaluation))
    assert set(seen) == {7}
