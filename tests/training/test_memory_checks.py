"""Requests beyond memory are refused before anything is made, and the message names the setting."""

import json
import re
import subprocess
import sys

import pytest

from statemix import memory
from statemix.cli.main import main
from statemix.errors import RequestError, SettingError
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import ScheduleConfig, devices, train

HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation.test_size": HUGE}, "evaluation.test_size must fit into memory .*, got 2147"),
        ({"evaluation.validation_size": HUGE}, "evaluation.validation_size must fit into memory"),
        (
            {"task": TaskSpec("permutation", length=20, train_size=10**12)},
            r"task.train_size must fit .*\(1000000000000 sequences of length 20: at least 320,000",
        ),
        (
            {"model.hidden_size": 2**20, "model.layers": (LayerSpec("lstm"),)},
            "model must fit into memory .with hidden_size=1048576",
        ),
        (
            {"model.layers": (LayerSpec("bd_lru", num_blocks=2**27, block_size=3),)},
            "model must fit into memory .with hidden_size=8, its layers and channel_mixer",
        ),
        (
            {"model.layers": (LayerSpec("bd_lru", num_blocks=HUGE, block_size=2**30),)},
            r"model.*: num_blocks must give fewer than 2\^31 gates per token",
        ),
        (
            {
                "task": TaskSpec("permutation", length=20),
                "schedules": ScheduleConfig(num_steps=2),
                "batches.size": HUGE,
            },
            "batches.size must fit into memory",
        ),
    ],
)
def test_a_run_beyond_memory_is_refused_and_leaves_nothing(tmp_path, tiny, changes, message):
    with pytest.raises(RequestError, match=message):
        train(tiny({"model.hidden_size": 8} | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("lengths", 1001, r"1 sequence of length 1001: .*, got 1001"),
        ("tokens", 2000, r"2 sequences of length 1000: .*, got 2000"),
        ("tokens", 1999, None),
    ],
)
def test_lengths_are_blamed_only_if_one_sequence_does_not_fit(
    tiny, monkeypatch, field, value, what
):
    # One head: tokens, targets and predictions of 8 bytes.
    monkeypatch.setattr(devices, "available_bytes", lambda: 1000 * 3 * 8)
    config = tiny(
        {
            "evaluation.lengths": (1000,),
            "evaluation.tokens": 10,
            f"evaluation.{field}": (value,) if field == "lengths" else value,
        }
    )
    task = config.build_task()
    if what is None:
        devices.check_scored_fit(task, 1000, at_most=9, tokens=value)
        return
    with pytest.raises(SettingError, match=rf"^evaluation.{field} must fit into memory \({what}$"):
        devices.check_here(config)


def test_sizes_are_compared_with_the_memory_that_is_available(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(devices, "available_bytes", lambda: 10**9)
    config = tiny({"task": TaskSpec("permutation", length=20, train_size=20)})
    further = {"evaluation.tokens": HUGE, "evaluation.lengths": (30,)}
    train(config, tmp_path / "run")
    with pytest.raises(SettingError, match=r"test_size must .* at least 4.8 GB needed, 1.0 GB"):
        train(tiny(further | {"evaluation.test_size": 10**7, "task": config.task}), tmp_path / "a")


STREAM = {
    "task": TaskSpec("permutation", length=20),
    "schedules": ScheduleConfig(num_steps=1),
    "model.hidden_size": 8,
    "model.layers": (LayerSpec("lstm"),),
}


@pytest.mark.parametrize("part", ["batch", "model"])
def test_what_just_fits_is_accepted(tiny, monkeypatch, part):
    if part == "batch":
        # In three parts, of which the largest has 3334 sequences; the residual stream is read by
        # one layer and by the readout, and an LSTM has two states.
        config = tiny(STREAM | {"batches.size": 10_000, "batches.accumulate": 3})
        needed = 3334 * 4 * (20 * 2 * 8 + 2 * 8)
    else:
        config = tiny(STREAM | {"model.hidden_size": 64, "model.num_layers": 3, "batches.size": 1})
        model = config.build_model(config.build_task())
        # Weights and gradients, two moments, and the two best.
        needed = 6 * 4 * sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(devices, "available_bytes", lambda: needed)
    devices.check_here(config)
    monkeypatch.setattr(devices, "available_bytes", lambda: needed - 1)
    with pytest.raises(SettingError, match=part):
        devices.check_here(config)


def test_a_layer_that_needs_too_much_for_one_token_is_refused(tmp_path, tiny):
    layer = LayerSpec("delta_product", num_heads=1, num_householder=10**7, head_dim=1)
    with pytest.raises(RequestError, match=r"^model must fit into memory"):
        train(tiny({"model.hidden_size": 8, "model.layers": (layer,)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_first_check_is_fast(tiny):
    code = (
        "import json, sys, time\n"
        "from statemix.training import config_from_plain\n"
        "from statemix.training.devices import check_here\n"
        "config = config_from_plain(json.loads(sys.argv[1])).resolved()\n"
        "began = time.process_time()\n"
        "check_here(config)\n"
        "print(time.process_time() - began)\n"
    )
    asked = json.dumps(tiny().asked())
    command = [sys.executable, "-c", code, asked]
    seconds = float(subprocess.run(command, capture_output=True, check=True).stdout)
    # A tenth of it is usual; importing the compiler of PyTorch takes a second.
    assert seconds < 0.05


def test_a_large_batch_of_few_examples_is_no_large_batch(tmp_path, tiny):
    train(tiny({"batches.size": HUGE, "schedules.epochs": 1}), tmp_path / "run")


def test_a_command_beyond_memory_ends_with_one_line(tmp_path, capsys):
    arguments = ["train", "--folder", str(tmp_path / "run"), "--evaluation.test-size", str(HUGE)]
    assert main([*arguments, "--task", "permutation", "train_size=9"]) == 2
    error = capsys.readouterr().err
    assert re.match("statemix: evaluation.test_size must fit into memory", error)
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_length_beyond_all_numbers_is_refused_in_one_line(tmp_path, capsys):
    run = ["train", "--folder", str(tmp_path / "run"), "--schedules.epochs", "1"]
    sizes = ["--evaluation.test-size", "8", "--evaluation.validation-size", "8"]
    task = ["--task", "permutation", "length=4", "train_size=9", "--model.hidden-size", "4"]
    assert main([*run, *sizes, *task]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--lengths", "1" + "0" * 400]) == 2
    error = capsys.readouterr().err
    assert "must fit into memory" in error
    assert "at least 1,000,000,000,000 GB needed" in error
    assert error.count("\n") == 1


def test_the_limit_of_a_process_counts():
    resource = pytest.importorskip("resource")
    free, (soft, hard) = memory.available_bytes(), resource.getrlimit(resource.RLIMIT_AS)
    used = memory._kilobytes("/proc/self/status", "VmSize") * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + 10**8, hard))
    try:
        assert memory.available_bytes() <= 10**8 < free
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
