"""The demo command: printed lines, written files, and interruption."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from statemix.cli import demo as command
from statemix.cli.main import main
from statemix.models import TokenClassifier
from statemix.studies.demo import demo_page as page
from statemix.studies.demo import demo_suite as demo
from statemix.tasks import TaskSpec


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny(monkeypatch, one_thread):
    """Both suites replaced by two small networks, one seed, two epochs."""
    suite = demo.SUITES["S_3"]
    protocol = suite.protocol
    tiny = dataclasses.replace(
        suite,
        networks=(demo.bd_lru(2, 3), demo.LSTM),
        seeds=(0,),
        protocol=protocol.replace(
            task=TaskSpec("permutation", group="S_3", train_size=20),
            model=protocol.model.replace(hidden_size=8),
            schedules=protocol.schedules.replace(epochs=2),
            evaluation=protocol.evaluation.replace(
                test_size=8, validation_size=8, lengths=(24,), tokens=96
            ),
        ),
    )
    for group in demo.SUITES:
        monkeypatch.setitem(demo.SUITES, group, tiny)
    return tiny


def test_command_leaves_page_picture_and_summary_and_prints_the_table(tiny, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["demo", "--output", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        "learning.png",
        "summary.json",
        "runs",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["status"] for row in summary["runs"]] == ["done", "done"]
    accuracy = summary["runs"][0]["test"]["16"]["product"]["token_accuracy"]
    assert f"1/2  bd_lru-m3-seed0   {accuracy:.3f} at 16 … " in printed
    lines = [line.split() for line in printed.splitlines()]
    assert ["length", "BD-LRU", "m=3", "LSTM"] in lines
    assert ["paper", "1.00", ".32"] in lines
    assert str(folder / "index.html") in printed
    assert f"statemix demo --output {folder}" in (folder / "index.html").read_text()


def test_finished_runs_are_reused_unless_a_fresh_start_is_asked_for(
    tiny, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(page, "write", lambda *_: [])
    arguments = ["demo", "--output", str(tmp_path)]
    reused = []
    for extra in ([], [], ["--fresh"]):
        assert main(arguments + extra) == 0
        reused.append(capsys.readouterr().out.count("(reused)"))
    assert reused == [0, 2, 0]


@pytest.mark.parametrize(("group", "folder"), [("S_3", "demo"), ("S_5", "demo/S_5")])
def test_each_group_has_a_folder_of_its_own(tiny, tmp_path, monkeypatch, group, folder):
    monkeypatch.chdir(tmp_path)
    written = []
    monkeypatch.setattr(page, "write", lambda _, folder, command: written.append(folder) or [])
    assert main(["demo", "--group", group]) == 0
    assert written == [Path(folder)]
    assert len(list(Path(folder, "runs").iterdir())) == 2


@pytest.fixture
def diverging(monkeypatch):
    """Names of layer classes; networks that contain one of them return NaN."""
    layers = set()
    forward = TokenClassifier.forward

    def spoilt(self, *arguments, **named):
        logits = forward(self, *arguments, **named)
        if any(type(module).__name__ in layers for module in self.modules()):
            return {head: value * float("nan") for head, value in logits.items()}
        return logits

    monkeypatch.setattr(TokenClassifier, "forward", spoilt)
    return layers


def test_a_run_that_diverges_is_shown_everywhere_and_ends_in_exit_code_1(
    tiny, tmp_path, capsys, diverging
):
    diverging.add("LSTM")
    arguments = ["demo", "--output", str(tmp_path)]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert "2/2  lstm-seed0        diverged: " in printed.out
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["runs", "1", "of", "1", "0", "of", "1"] in lines
    assert any(line[:1] == ["24"] and line[-1] == "diverged" for line in lines)
    assert printed.err.startswith("statemix: 1 of 2 runs have no result: LSTM, seed 0 diverged: ")
    assert "1 of 2 runs have no result" in (tmp_path / "index.html").read_text()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["status"] for row in summary["runs"]] == ["done", "diverged"]

    diverging.clear()
    assert main(arguments) == 1
    assert "(in an earlier call; use --retry to try again)" in capsys.readouterr().out
    assert main([*arguments, "--retry"]) == 0
    assert "no result" not in (tmp_path / "index.html").read_text()


def test_an_unexpected_error_is_printed_with_its_traceback(tiny, tmp_path, capsys, monkeypatch):
    def fail(*arguments, **named):
        raise KeyError("odd")

    monkeypatch.setattr(TokenClassifier, "forward", fail)
    monkeypatch.setattr(page, "write", lambda *_: [])
    assert main(["demo", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("in fail\n") == 2


def test_runs_of_another_configuration_end_in_one_line(tiny, tmp_path, monkeypatch, capsys):
    arguments = ["demo", "--output", str(tmp_path)]
    assert main(arguments) == 0
    optimizer = tiny.protocol.optimizer.replace(weight_decay=0.5)
    other = dataclasses.replace(tiny, protocol=tiny.protocol.replace(optimizer=optimizer))
    monkeypatch.setitem(demo.SUITES, "S_3", other)
    capsys.readouterr()
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "must hold a run of the same configuration" in complaint
    assert "--fresh" in complaint


def test_runs_of_an_older_version_end_in_one_line_that_names_the_cure(tiny, tmp_path, capsys):
    old = tmp_path / "runs" / "lstm-seed0"
    old.mkdir(parents=True)
    (old / "config.json").write_text(json.dumps({"layer": "lstm", "seed": 0}))
    arguments = ["demo", "--output", str(tmp_path)]
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "an older development version" in complaint
    assert "--fresh" in complaint
    assert main([*arguments, "--fresh"]) == 0


@pytest.mark.parametrize(
    "arguments", [["--group", "S_9"], ["--epochs", "3"], ["--output"]], ids=" ".join
)
def test_malformed_requests_are_refused(arguments):
    assert main(["demo", *arguments]) == 2


def test_an_unwritable_folder_is_named(tiny, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", "--output", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_terminal_display_shows_the_same_results(tiny, tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        command,
        "Console",
        lambda **options: Console(file=screen, force_terminal=True, width=100, **options),
    )
    assert main(["demo", "--output", str(tmp_path)]) == 0
    shown = screen.getvalue()
    assert "all runs" in shown
    assert "2/2  lstm-seed0" in shown
    assert "BD-LRU m=3" in shown


_ENDLESS = """
import dataclasses, sys, torch
from statemix.cli.main import main
from statemix.studies import demo
if __name__ == "__main__":
    torch.set_num_threads({workers})
    suite = demo.SUITES["S_3"]
    protocol = suite.protocol
    protocol = dataclasses.replace(
        protocol,
        schedules=dataclasses.replace(protocol.schedules, epochs=10**6),
        evaluation=dataclasses.replace(protocol.evaluation, every=1, test_size=1),
    )
    demo.SUITES["S_3"] = dataclasses.replace(suite, protocol=protocol)
    sys.exit(main(["demo", "--output", sys.argv[1]]))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_saves_every_run_under_way(tmp_path, workers):
    """A terminal interrupts all processes at once; signals to one alone are those of the runner."""
    script = tmp_path / "endless.py"
    script.write_text(_ENDLESS.format(workers=workers))
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out")],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while len(list(tmp_path.glob("out/runs/*/metrics.jsonl"))) < workers:
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
