"""The command as a user meets it: what it prints, what it leaves, and how it stops."""

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
from statemix.experiments import demo
from statemix.report import page


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny(monkeypatch, one_thread):
    """Replace both suites by two small networks, one seed, two epochs."""
    suite = demo.SUITES["S_3"]
    tiny = dataclasses.replace(
        suite,
        networks=(demo.bd_lru(2, 3), demo.LSTM),
        seeds=(0,),
        protocol=dataclasses.replace(
            suite.protocol,
            task_options={"group": "S_3", "train_size": 20},
            hidden_size=8,
            epochs=2,
            test_size=8,
            validation_size=8,
            eval_lengths=(24,),
            eval_tokens=96,
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
    assert [set(row) for row in summary["runs"]] == [{"model", "m", "seed", "accuracy"}] * 2
    accuracy = summary["runs"][0]["accuracy"]["16"]
    assert f"1/2  bd_lru-m3-seed0   {accuracy:.3f} at 16 … " in printed
    lines = [line.split() for line in printed.splitlines()]
    assert ["length", "BD-LRU", "m=3", "LSTM"] in lines
    assert ["paper", "1.00", ".32"] in lines
    assert str(folder / "index.html") in printed
    assert f"statemix demo --output {folder}" in (folder / "index.html").read_text()


def test_finished_runs_are_reused_and_said_to_be_unless_a_fresh_start_is_asked(
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


def test_runs_of_another_configuration_end_in_one_line(tiny, tmp_path, monkeypatch, capsys):
    arguments = ["demo", "--output", str(tmp_path)]
    assert main(arguments) == 0
    other = dataclasses.replace(tiny, protocol=dataclasses.replace(tiny.protocol, weight_decay=0.5))
    monkeypatch.setitem(demo.SUITES, "S_3", other)
    capsys.readouterr()
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "must hold a run of the same configuration" in complaint
    assert "--fresh" in complaint


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
from statemix.experiments import demo
if __name__ == "__main__":
    torch.set_num_threads({workers})
    suite = demo.SUITES["S_3"]
    protocol = dataclasses.replace(suite.protocol, epochs=10**6, eval_every=1, test_size=1)
    demo.SUITES["S_3"] = dataclasses.replace(suite, protocol=protocol)
    sys.exit(main(["demo", "--output", sys.argv[1]]))
"""


@pytest.mark.parametrize(("whom", "workers"), [("terminal", 1), ("terminal", 2), ("parent", 2)])
def test_ctrl_c_saves_every_run_under_way(tmp_path, whom, workers):
    """A terminal interrupts all processes at once; ``kill -INT`` only the one it is given."""
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
        if whom == "terminal":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        complaint = process.communicate()[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert complaint == "statemix: interrupted; the same command goes on where it stopped\n"
    runs = list(tmp_path.glob("out/runs/*"))
    assert len(runs) == workers
    assert all(list((run / "checkpoints").iterdir()) for run in runs)
