"""Requests beyond memory are refused before anything is made, and the message names the setting."""

import re

import pytest

from statemix import memory
from statemix.cli.main import main
from statemix.errors import RequestError, SettingError
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import ScheduleConfig, size, train
from statemix.training.parts import build_model

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
        # Few weights, but the updates of a token form one matrix.
        (
            {
                "model.layers": (
                    LayerSpec("lstm"),
                    LayerSpec("delta_product", num_heads=1, num_householder=200_000, head_dim=1),
                )
            },
            r"model.layers must fit .*\(one sequence in delta_product num_heads=1 "
            r"num_householder=200000 head_dim=1: at least",
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
    monkeypatch.setattr(size, "available_bytes", lambda: 1000 * 3 * 8)
    config = tiny(
        {
            "evaluation.lengths": (1000,),
            "evaluation.tokens": 10,
            f"evaluation.{field}": (value,) if field == "lengths" else value,
        }
    )
    task = config.build_task()
    if what is None:
        size.check_scored_fit(task, 1000, at_most=9, tokens=value)
        return
    with pytest.raises(SettingError, match=rf"^evaluation.{field} must fit into memory \({what}$"):
        size.check_run_fits(config, task)


def test_sizes_are_compared_with_the_memory_that_is_available(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(size, "available_bytes", lambda: 10**9)
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
        # In three parts, of which the largest has 334 sequences; the residual stream is read by one
        # layer and by the readout.
        config = tiny(STREAM | {"batches.size": 1000, "batches.accumulate": 3})
        needed = 20 * (2 * 8 * 1000 + 334 * 2 * 8 * 4)
    else:
        config = tiny(STREAM | {"model.hidden_size": 64, "model.num_layers": 3, "batches.size": 1})
        model = build_model(config, config.build_task())
        # Weights and gradients, two moments, the two best, and all but the gradients as bytes.
        needed = 11 * 4 * sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(size, "available_bytes", lambda: needed)
    size.check_run_fits(config, config.build_task())
    monkeypatch.setattr(size, "available_bytes", lambda: needed - 1)
    with pytest.raises(SettingError, match=part):
        size.check_run_fits(config, config.build_task())


def test_a_layer_is_blamed_only_if_one_sequence_does_not_fit(tiny, monkeypatch):
    layer = LayerSpec("delta_product", num_heads=1, num_householder=1000, head_dim=1)
    config = tiny(STREAM | {"model.layers": (layer,), "batches.size": 10})
    task = config.build_task()
    matrices = 20 * 4 * 1000**2
    for available, name in ((10 * matrices - 1, "batches.size"), (matrices - 1, "model.layers")):
        monkeypatch.setattr(size, "available_bytes", lambda available=available: available)
        with pytest.raises(SettingError, match=rf"^{name} must fit into memory"):
            size.check_run_fits(config, task)
    monkeypatch.setattr(size, "available_bytes", lambda: 10 * (matrices + 20 * 2 * 8))
    size.check_run_fits(config, task)
    mixed = tiny(STREAM | {"model.layers": (layer,), "runtime.precision": "bf16-mixed"})
    monkeypatch.setattr(size, "available_bytes", lambda: 8 * (matrices // 2 + 20 * 2 * 8))
    size.check_run_fits(mixed, task)
    with pytest.raises(SettingError, match=r"^batches.size must .*, 3 times"):
        size.check_run_fits(mixed, task, replicas=3)


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
