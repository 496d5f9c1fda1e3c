"""The script in ``benchmarks/`` runs, and its rows say what was measured."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    train,
)
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.store import key
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import StudyEntry, Trials

SCRIPTS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.usefixtures("process_kept")
@pytest.mark.filterwarnings("ignore:.*not converged:UserWarning")
def test_models_that_track_are_timed_in_training_and_once_trained(monkeypatch, tmp_path):
    def config(layer):
        return RunConfig(
            task=TaskSpec("permutation", group="S_3", length=6, min_length=2),
            model=ModelConfig(layers=(layer,), hidden_size=8, bos=True),
            batches=BatchConfig(size=4),
            schedules=ScheduleConfig(num_steps=2),
            evaluation=EvaluationConfig(test_size=8, validation_size=8),
        )

    plain, iterating = config(LayerSpec("lstm")), config(LayerSpec("fp_rnn", max_iterations=2))
    conditions = (
        StudyEntry("S_3, two generators", "LSTM", Trials.seeded(plain, (0,))),
        StudyEntry("S_3, two generators", "FP-RNN", Trials.seeded(iterating, (0,))),
        StudyEntry("A_5, two generators", "LSTM", Trials.seeded(plain, (0,))),
    )
    study = Study("fp-a5", "tiny", lambda *_: conditions)
    monkeypatch.setattr(catalogue, "_own", lambda: {"fp-a5": study})
    train(plain, tmp_path / "runs" / key(plain))
    script, path = SCRIPTS / "tracking_costs.py", tmp_path / "rows.jsonl"
    options = ["--runs", str(tmp_path / "runs"), "--group", "S_3", "--rounds", "3"]
    monkeypatch.setattr(sys, "argv", [str(script), str(path), *options])
    runpy.run_path(script)["main"]()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    # Only one of the two has been trained.
    assert [(row["work"], row["model"], row["length"]) for row in rows] == [
        ("train", "LSTM", 6),
        ("train", "FP-RNN", 6),
        ("answer", "LSTM", 6),
        ("answer long", "LSTM", 48),
    ]
    for row in rows:
        assert row["tokens_per_s"] == pytest.approx(4 * row["length"] / row["time_s"]["p50"])
        assert ("LSTM" in row["ratios"]) == (row["model"] == "FP-RNN")
        assert row["threads"] == 1
