"""The command that trains: its options reach the run, and Ctrl-C is no loss."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from statemix.cli.main import main
from statemix.cli.train import parse
from statemix.training import load_config, load_outcome


def test_options_reach_the_configuration(tiny_arguments):
    config = parse(["--folder", "x", *tiny_arguments, "--eval-lengths", "10", "20"]).config
    assert config.task_options == {"group": "S_3", "length": 5, "train_size": 20}
    assert config.layer_options == {"num_blocks": 2, "block_size": 3}
    assert (config.bos, config.hidden_size, config.eval_lengths) == (True, 8, (10, 20))


def test_values_of_options_are_typed():
    options = ["selective=False", "gate_temperature=0.5", "backend=none", "gate=tanh"]
    config = parse(["--folder", "x", "--layer-options", *options]).config
    assert config.layer_options == {
        "selective": False,
        "gate_temperature": 0.5,
        "backend": None,
        "gate": "tanh",
    }


def test_a_run_tells_its_progress_and_prints_its_scores(tmp_path, tiny_arguments, capsys):
    assert main(["train", "--folder", str(tmp_path / "run"), *tiny_arguments]) == 0
    printed = capsys.readouterr()
    assert "run: started at step 0 of 12" in printed.err
    assert "run: step 12: train loss" in printed.err
    assert "best validation" in printed.out
    outcome = load_outcome(tmp_path / "run")
    assert f"{outcome.last.test[5].token_accuracy:.4f}" in printed.out
    # The same command again has nothing to do.
    assert main(["train", "--folder", str(tmp_path / "run"), *tiny_arguments]) == 0
    assert "holds this run, finished" in capsys.readouterr().err


def test_from_repeats_a_run_into_another_folder(tmp_path, finished_run):
    assert main(["train", "--folder", str(tmp_path / "again"), "--from", str(finished_run)]) == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (finished_run / name).read_bytes()


@pytest.mark.parametrize("spelling", [["--from", "{}"], ["--from={}"]])
def test_options_beside_from_replace_the_runs(finished_run, spelling):
    source = [part.format(finished_run) for part in spelling]
    config = parse(["--folder", "x", *source, "--seed", "7", "--no-bos"]).config
    stored = load_config(finished_run / "config.json")
    assert (config.seed, config.bos, config.epochs) == (7, False, stored.epochs)
    assert config.layer_options == stored.layer_options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "lstm"], "with --layer lstm, since those of --from are for bd_lru: "),
        (["--layer", "h_lru"], "with --layer h_lru, since those of --from are for bd_lru: "),
    ],
)
def test_another_layer_beside_from_needs_its_own_options(
    tmp_path, finished_run, capsys, arguments, message
):
    command = ["train", "--folder", str(tmp_path / "run"), "--from", str(finished_run), *arguments]
    assert main(command) == 2
    assert f"--layer-options must be given {message}" in capsys.readouterr().err
    assert main([*command, "--layer-options", "size=3"]) == 2
    assert "must be given" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_layer_beside_from_may_have_no_options(tmp_path, finished_run):
    layer = ["--layer", "lstm", "--layer-options"]
    config = parse(["--folder", "x", "--from", str(finished_run), *layer]).config
    assert (config.layer, config.layer_options) == ("lstm", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "gru"], "layer must be one of"),
        (["--layer-options", "block_size=3"], "must include ['num_blocks']"),
        (["--layer-options", "num_blocks=2", "block_size=3", "order=2"], "must be among"),
        (["--layer-options", "num_blocks=2", "block_size=three"], "block_size must be an int"),
        (["--task-options", "group=S_9"], "group must be one of"),
        (["--task-options", "group=S_3"], "num_steps must be given"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--from", "nowhere"], "--from must be a run's folder, got nowhere"),
        (["--eval-lengths", "1"], "eval_lengths must fit the task"),
    ],
)
def test_bad_request_is_one_line_and_exit_code_2(
    tmp_path, tiny_arguments, capsys, arguments, message
):
    folder = tmp_path / "run"
    assert main(["train", "--folder", str(folder), *tiny_arguments, *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not folder.exists()


def test_another_configuration_in_the_folder_is_one_line_and_exit_code_2(
    finished_run, tiny_arguments, capsys
):
    assert main(["train", "--folder", str(finished_run), *tiny_arguments, "--seed", "1"]) == 2
    printed = capsys.readouterr().err
    assert "folder must hold a run of the same configuration" in printed
    assert printed.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_one_line_and_exit_code_2(
    tmp_path, tiny_arguments, capsys
):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "run")
    assert main(["train", "--folder", folder, *tiny_arguments]) == 2
    assert "folder must be writable" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["config.json.tmp", "metrics.jsonl", "state.json", "model.safetensors.tmp"]
)
def test_a_full_disk_is_exit_code_1_and_names_the_file(
    tmp_path, tiny_arguments, capsys, monkeypatch, name
):
    def full(descriptor, sync=os.fsync):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"/{name}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert main(["train", "--folder", str(tmp_path / "run"), *tiny_arguments]) == 1
    printed = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in printed
    assert printed.endswith(f"/{name}'")


def test_a_loss_that_is_not_finite_is_exit_code_1(tmp_path, tiny_arguments, capsys):
    wild = ["--learning-rate", "3e38", "--schedule", "constant", "--batch-size", "4"]
    assert main(["train", "--folder", str(tmp_path / "run"), *tiny_arguments, *wild]) == 1
    assert "loss must be finite, got nan at step" in capsys.readouterr().err


def test_a_grid_trains_every_pair_and_names_the_best(tmp_path, tiny_arguments, capsys):
    rates = ["--learning-rates", "1e-5", "3e-2", "3e38", "--schedule", "constant"]
    command = ["train", "--folder", str(tmp_path), *tiny_arguments, *rates, "--epochs", "30"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "lr3e+38-wd0.01: loss must be finite" in printed.err
    assert "diverged" in printed.out
    assert "best on validation: lr0.03-wd0.01" in printed.out
    for name in ("lr1e-05-wd0.01", "lr0.03-wd0.01"):
        outcome = load_outcome(tmp_path / name)
        best = outcome.test_at_best_validation
        row = f"{best.validation.token_accuracy:.4f}   {best.test[5].token_accuracy:.4f}"
        assert row in printed.out
    # The same command again trains nothing that is finished.
    assert main(command) == 0
    assert capsys.readouterr().err.count("holds this run, finished") == 2


def test_a_grid_of_which_every_run_diverges_fails(tmp_path, tiny_arguments, capsys):
    rates = ["--learning-rates", "3e38", "1e38", "--schedule", "constant"]
    assert main(["train", "--folder", str(tmp_path), *tiny_arguments, *rates]) == 1
    assert "every run of the grid diverged" in capsys.readouterr().err


def test_a_bad_rate_in_a_grid_trains_nothing(tmp_path, tiny_arguments, capsys):
    folder = tmp_path / "grid"
    command = ["train", "--folder", str(folder), *tiny_arguments, "--learning-rates", "1e-3", "-1"]
    assert main(command) == 2
    assert "learning_rate must be finite and not negative, got -1.0" in capsys.readouterr().err
    assert not folder.exists()


def test_ctrl_c_saves_says_so_and_the_same_command_goes_on(tmp_path, tiny_arguments):
    code = "import sys; from statemix.cli.main import main; sys.exit(main())"
    arguments = ["train", *tiny_arguments, "--epochs", "150", "--eval-every", "50"]
    command = [sys.executable, "-c", code, *arguments, "--folder", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "started at step 0" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "interrupted; the same command goes on where it stopped" in rest
    assert "Traceback" not in rest
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))

    assert main([*arguments, "--folder", str(tmp_path / "run")]) == 0
    assert main([*arguments, "--folder", str(tmp_path / "whole")]) == 0
    resumed, whole = ((tmp_path / name / "model.safetensors") for name in ("run", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()
