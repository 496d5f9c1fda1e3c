"""The demo command: printed lines, written files, and interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from statemix import files
from statemix.cli.main import main
from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.tasks import TaskSpec
from statemix.training import (
    EvaluationConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
)
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.exactness.exact_studies import CertifiedStudy
from statemix_lab.studies.group_demo import STUDIES
from statemix_lab.studies.study_entries import Number, StudyEntry, Trials


def config(layer, epochs=2):
    return RunConfig(
        task=TaskSpec("permutation", group="S_3", train_size=20),
        model=ModelConfig(layers=(layer,), hidden_size=8, bos=True),
        schedules=ScheduleConfig(epochs=epochs),
        evaluation=EvaluationConfig(test_size=8, validation_size=8, lengths=(24,), tokens=96),
        runtime=RuntimeConfig(device="cpu", num_threads=1),
    )


@pytest.fixture
def tiny(monkeypatch):
    """The demo with two small networks, one seed and two epochs."""
    layers = {"BD-LRU m=3": LayerSpec("bd_lru", num_blocks=2, block_size=3)}
    layers["LSTM"] = LayerSpec("lstm")
    entries = [
        StudyEntry("S_3", name, Trials.seeded(config(layer), (0,)), published={16: Number(0.5)})
        for name, layer in layers.items()
    ]
    names = [study.name for study in STUDIES]
    studies = {name: CertifiedStudy(name, "tiny", lambda *_: entries) for name in names}
    monkeypatch.setattr(catalogue, "_own", lambda: studies)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_command_leaves_page_picture_and_summary_and_prints_the_table(tiny, tmp_path, printed_by):
    folder = tmp_path / "out"
    printed = printed_by(["demo", "--output", str(folder)])
    names = {path.name for path in folder.iterdir()} - {"runs.jsonl.lock"}
    assert names == {"index.html", "demo.png", "summary.json", "runs.jsonl", "runs"}
    summary = json.loads((folder / "summary.json").read_text())
    assert [run["status"] for run in summary] == ["done", "done"]
    tests = {test["length"]: test["accuracy"] for test in summary[0]["tests"]}
    assert f"{tests[16]:.3f} at 16 … {tests[24]:.3f} at 24" in printed
    lines = [line.split() for line in printed.splitlines()]
    assert ["trained", "on", "model", "seeds", "proven", "16", "24", "cost"] in lines
    assert ["paper", ".50"] in lines
    assert "<svg" in (folder / "index.html").read_text()


def test_finished_runs_are_reused_unless_a_fresh_start_is_asked_for(
    tiny, tmp_path, printed_by, refused, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for options, left in (([], 2), ([], 0), (["--fresh"], 2)):
        if options:
            first = json.loads(Path("demo/runs.jsonl").read_text().splitlines()[0])
            files.append(Path("demo/runs.jsonl"), json.dumps(first | {"key": "another"}) + "\n")
        assert f"{left} of 2 runs on S_3" in printed_by(["demo", *options])
    rows = [json.loads(line) for line in Path("demo/runs.jsonl").read_text().splitlines()]
    assert [row["key"] == "another" for row in rows] == [True, False, False]
    # Other groups have folders of their own.
    assert main(["demo", "--group", "S_5"]) == 0
    assert [len(list(Path(folder, "runs").iterdir())) for folder in ("demo", "demo/S_5")] == [2, 2]
    Path("file").touch()
    refused(["demo", "--output", "file"], "output must be a writable folder, got 'file'")


def test_a_run_that_diverges_is_shown_everywhere_and_ends_in_exit_code_1(
    tiny, tmp_path, capsys, monkeypatch
):
    forward = TokenClassifier.forward

    def spoilt(self, *arguments, **named):
        logits = forward(self, *arguments, **named)
        if any(type(module).__name__ == "LSTM" for module in self.modules()):
            return {head: value * float("nan") for head, value in logits.items()}
        return logits

    monkeypatch.setattr(TokenClassifier, "forward", spoilt)
    arguments = ["demo", "--output", str(tmp_path)]
    for _ in range(2):
        assert main(arguments) == 1
        printed = capsys.readouterr()
        assert "0 of 1, 1 without result" in printed.out
        lost = "1 of 2 ended runs have no result; --retry repeats them"
        assert printed.err == f"statemix: {lost}\n"


_ENDLESS = """
import sys, torch
from statemix.cli.main import main
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import StudyEntry, Trials
from statemix_lab.studies.exactness.exact_studies import CertifiedStudy
if __name__ == "__main__":
    torch.set_num_threads({workers})
    entries = [
        StudyEntry(
            one.column,
            one.model,
            Trials.seeded(
                config.replace(
                    schedules=config.schedules.replace(epochs=10**6),
                    evaluation=config.evaluation.replace(every=1, test_size=1),
                ),
                range(2),
            ),
        )
        for one in find_study("demo-S_3").entries("paper", "laptop")
        for _, config, _ in one.trials.runs[:1]
    ]
    endless = CertifiedStudy("demo-S_3", "endless", lambda *_: entries)
    catalogue._own = lambda: {{"demo-S_3": endless}}
    sys.exit(main(["demo", "--output", sys.argv[1]]))
"""


def test_ctrl_c_saves_every_run_under_way(tmp_path):
    """A terminal interrupts all processes at once; signals to one alone are those of the runner."""
    script, workers = tmp_path / "endless.py", 2
    script.write_text(_ENDLESS.format(workers=workers))
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out")],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # A run without a step has nothing to save; the first row follows the first steps.
        while workers > sum(
            f.stat().st_size > 0 for f in tmp_path.glob("out/runs/*/metrics.jsonl")
        ):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        complaint = process.communicate()[1]
    finally:
        process.kill()
    assert process.returncode == 130
    # The single line is the command line's; no worker adds one.
    assert complaint.startswith("statemix: interrupted")
    assert complaint.count("\n") == 1
    runs = list(tmp_path.glob("out/runs/*"))
    assert len(runs) == workers
    assert all(list((run / "checkpoints").iterdir()) for run in runs)
