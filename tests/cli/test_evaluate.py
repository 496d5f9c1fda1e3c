"""The command that scores a finished run."""

import errno
import json
import shutil
import sys
import tempfile

import pytest
import torch

from statemix.cli.main import main
from statemix.tasks import TASKS
from statemix.training import evaluate, fit, load_model, load_outcome
from statemix.training.settings import to_plain


@pytest.fixture
def run(finished_run, tmp_path):
    """A writable copy of the finished run."""
    return shutil.copytree(finished_run, tmp_path / "run")


def test_table_has_a_row_per_length(run, capsys):
    assert main(["evaluate", str(run), "--lengths", "5", "20", "--sequences", "30"]) == 0
    rows = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    expected = load_outcome(run).last.test[5]["product"].token_accuracy
    assert ["last", "5", "product", "30", f"{expected:.4f}"] in rows
    assert ["last", "20", "product", "30"] in [row[:4] for row in rows]


def test_json_has_a_line_per_length_and_is_recorded(run, capsys):
    options = ["--lengths", "5", "2", "1000", "--sequences", "30", "--tokens", "100", "--json"]
    for weights in ("last", "best_validation"):
        assert main(["evaluate", str(run), *options, "--weights", weights]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [
        (row["weights"], row["length"], row["scores"]["product"]["num_sequences"]) for row in rows
    ]
    # The test split has 4 of the 36 words of 2 letters.
    each = [(5, 20), (2, 4), (1000, 1)]
    assert found == [(name, *one) for name in ("last", "best_validation") for one in each]
    recorded = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert all(row.pop("time").endswith("+00:00") for row in recorded)
    assert {row.pop("run") for row in recorded} == {str(run)}
    assert recorded == rows


def test_scores_are_those_that_training_found(tmp_path, tiny_arguments, printed_by):
    """The precision is the run's, and so are the batches: MAD accuracy is a mean over batches."""
    run = str(tmp_path / "run")
    # Tokens limit the sequences at other lengths only.
    options = tiny_arguments("--runtime.precision=bf16-mixed", "--evaluation.tokens=20")
    printed_by(["train", "--folder", run, *options])
    row = json.loads(printed_by(["evaluate", run, "--json"]))
    assert (row["length"], row["scores"]) == (5, to_plain(load_outcome(run).last.test[5]))


def test_a_loss_that_is_not_finite_is_null(tmp_path, tiny_arguments, capsys, printed_by):
    folder = tmp_path / "run"
    layer = ["--model.layers", "bd_lru", "num_blocks=2", "block_size=3", "gate=none"]
    rate = ["--optimizer.learning-rate", "0.3"]
    printed_by(["train", "--folder", str(folder), *tiny_arguments(*layer, *rate)])
    assert main(["evaluate", str(folder), "--lengths", "4000", "--json"]) == 0
    lines = [capsys.readouterr().out, (folder / "evaluations.jsonl").read_text()]
    for line in lines:
        row = json.loads(line, parse_constant=pytest.fail)
        assert row["scores"]["product"]["loss"] is None


def with_a_flipped_bit(run):
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)


def of_fit(run):
    shutil.rmtree(run)
    model = torch.nn.Linear(2, 1)
    batch = torch.ones(3, 2)
    fit(model, lambda _: batch, lambda net, x: net(x).mean(), run, num_steps=1, device="cpu")


@pytest.mark.parametrize(
    ("prepare", "options", "message"),
    [
        (shutil.rmtree, [], "folder must exist, got"),
        (lambda run: (run / "summary.json").unlink(), [], "folder must hold a finished run, got"),
        (with_a_flipped_bit, [], "model.safetensors must hold the run's weights, got: its SHA-256"),
        (of_fit, [], "must hold a run of a task, got a run of `fit` or of a language model"),
        (None, ["--device", "cuda"], "statemix: device must be available (PyTorch cannot use"),
        (None, ["--lengths", "0"], "lengths must be at least 1, got [0]"),
        (None, ["--tokens", "0"], "tokens must be at least 1, got 0"),
        (
            None,
            ["--lengths", "2", "1"],
            "lengths must have sequences in the test split, got 1 (num_sequences must be at most 0",
        ),
    ],
)
def test_bad_requests_are_one_line(run, refused, monkeypatch, prepare, options, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if prepare is not None:
        prepare(run)
    refused(["evaluate", str(run), *options], message)


def test_attributes_of_evaluation_are_those_of_the_run(
    tmp_path, tiny_arguments, capsys, printed_by
):
    folder = str(tmp_path / "run")
    hot = ["--evaluation.attributes", "gate_temperature=50.0", "--schedules.epochs", "30"]
    rate = ["--optimizer.learning-rate", "0.03"]
    printed_by(["train", "--folder", folder, *tiny_arguments(*hot, *rate)])
    assert main(["evaluate", folder, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores == to_plain(load_outcome(folder).last.test[5])
    # The weights say something else without the attribute.
    model, task = load_model(folder), load_outcome(folder).config.build_task()
    found = evaluate(model, task.examples("test", 0, 30))["product"]
    assert found.loss != scores["product"]["loss"]


def test_a_run_that_is_read_only_has_another_folder(finished_run, tmp_path, refused, monkeypatch):
    def refuse(*, dir, opened=tempfile.TemporaryFile):
        if dir == finished_run:
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return opened(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    refused(["evaluate", str(finished_run)], "choose a folder by --output")
    assert main(["evaluate", str(finished_run), "--output", str(tmp_path / "scores")]) == 0
    (row,) = (tmp_path / "scores" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(row)["length"] == 5


OWN_TASK = """
from statemix.tasks import TASKS
from statemix.tasks.permutation import Permutation

@TASKS.register
class Own(Permutation):
    \"\"\"A task of one's own.\"\"\"

    name = "own"
"""


COMMANDS_ON_RUNS = [
    ["evaluate", "run"], ["compile", "run"], ["certify", "run"], ["inspect", "run"],
    ["train", "--folder", "further", "--from", "run"],
]  # fmt: skip


@pytest.fixture
def own_run(tmp_path, monkeypatch):
    """The folder of a run on a task of one's own, whose module nothing has imported."""
    (tmp_path / "my_task.py").write_text(OWN_TASK)
    arguments = (
        "train --folder run --imports my_task --task own group=S_3 length=5 train_size=20 "
        "--model.layers bd_lru num_blocks=2 block_size=3 --model.hidden-size 8 "
        "--schedules.epochs 1 --evaluation.test-size 16 --evaluation.validation-size 16"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def forget():
        if sys.modules.pop("my_task", None) is not None:
            TASKS.remove("own")

    assert main(arguments.split()) == 0
    forget()
    yield tmp_path / "run"
    forget()


@pytest.mark.parametrize("command", COMMANDS_ON_RUNS, ids=lambda command: command[0])
def test_a_command_on_a_run_imports_only_what_the_user_names(own_run, command, capsys):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "'my_task', which is imported only if you name it, too: add --imports" in error
    assert "my_task" not in sys.modules
    code = main([*command, "--imports", "my_task"])
    told = ("the verdict on run is", "run/certificate.json must")
    error = capsys.readouterr().err
    assert code == 0 or any(text in error for text in told), error
    assert "my_task" in sys.modules


@pytest.mark.parametrize("names", [[None], "json"])
def test_imports_that_are_no_names_are_refused(run, names, refused):
    path = run / "config.json"
    stored = json.loads(path.read_text())
    stored["resolved"]["imports"] = names
    path.write_text(json.dumps(stored))
    refused(["evaluate", str(run)], "imports must be a list of module names")


def test_the_working_directory_is_searched_only_for_modules_that_are_named(tmp_path, monkeypatch):
    """Python also looks there for a library that is not installed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert main(["tasks"]) == 0
    assert str(tmp_path) not in sys.path
    assert main(["tasks", "--imports", "json"]) == 0
    assert str(tmp_path) in sys.path
