"""``statemix train``: options reach the run, and Ctrl-C loses nothing."""

import csv
import itertools
import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from filelock import FileLock

from statemix.cli import train as cli_train
from statemix.cli.main import main
from statemix.cli.options import split_values
from statemix.cli.train import parse
from statemix.layers import LAYERS, LSTM, LayerSpec
from statemix.models import MixerSpec
from statemix.sweeps.grid import Axis, grid
from statemix.sweeps.recipes import exact
from statemix.tasks import TaskSpec
from statemix.training import AttributeSchedule, ParameterGroup, accuracy, load_config, load_outcome


def config_of(*arguments):
    return parse(["--folder", "x", *arguments]).run_config


def test_tables_of_other_kinds_are_read_alike():
    config = config_of(
        "--schedules.attributes", "gate_temperature", "end=0.125", "curve=reciprocal",
        "--optimizer.groups", "*.bias", "weight_decay=0", "*.weight", "learning_rate_factor=0.5",
        "--evaluation.attributes", "gate_temperature=0.25",
        "--model.channel-mixer", "swiglu", "intermediate_size=32",
    )  # fmt: skip
    assert config.schedules.attributes == (
        AttributeSchedule("gate_temperature", end=0.125, curve="reciprocal"),
    )
    assert config.optimizer.groups == (
        ParameterGroup("*.bias", weight_decay=0.0),
        ParameterGroup("*.weight", learning_rate_factor=0.5),
    )
    assert dict(config.evaluation.attributes) == {"gate_temperature": 0.25}
    assert config.model.channel_mixer == MixerSpec("swiglu", intermediate_size=32)
    assert config_of("--model.channel-mixer", "none").model.channel_mixer is None


def test_settings_may_have_the_form_name_equals_value():
    config = config_of(
        "seed=3", "--schedules.epochs", "5", "model.hidden_size=16", "--model.bos", "task.length=9",
        "--model.layers", "lstm", "bd_lru", "num_blocks=2", "block_size=2", "batches.size=4",
        "evaluation.lengths=[4,8]", "--task", "permutation", "seed=7", "optimizer.betas=[0.5,0.9]",
    )  # fmt: skip
    assert (config.seed, config.schedules.epochs, config.model.hidden_size) == (3, 5, 16)
    assert (config.model.bos, config.batches.size, config.evaluation.lengths) == (True, 4, (4, 8))
    assert config.task == TaskSpec("permutation", length=9, seed=7)
    assert config.optimizer.betas == (0.5, 0.9)
    assert config.model.layers == (
        LayerSpec("lstm"), LayerSpec("bd_lru", num_blocks=2, block_size=2)
    )  # fmt: skip


class Outer(LSTM):
    """A layer with another layer as an option."""

    name = "outer"

    def __init__(self, hidden_size: int, inner: LayerSpec, *, device=None, dtype=None):
        super().__init__(hidden_size, device=device, dtype=dtype)


def test_options_of_nested_layers_have_dotted_names():
    inner = LayerSpec("bd_lru", num_blocks=8, block_size=2)
    options = ["inner.num_blocks=8", "inner.block_size=2"]
    table = 'inner={"name":"bd_lru","num_blocks":8,"block_size":2}'
    LAYERS.register(Outer)
    try:
        for words in (["inner=bd_lru", *options], [table]):
            (layer,) = config_of("--model.layers", "outer", *words).model.layers
            assert layer.options["inner"] == inner
        parts = [f"--model.layers.0.{word}" for word in ("inner=bd_lru", *options)]
        (layer,) = config_of("--model.layers", "outer", "inner=lstm", *parts).model.layers
        assert layer.options["inner"] == inner
    finally:
        LAYERS.remove("outer")


FILE = """
seed = 3
[task]
name = "permutation"
group = "S_4"
[[model.layers]]
name = "bd_lru"
num_blocks = 2
block_size = 3
[[model.layers]]
name = "lstm"
[[schedules.attributes]]
attribute = "gate_temperature"
end = 0.5
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize("equals", [False, True])
def test_any_field_of_a_file_is_overridden_by_its_dotted_name(file, equals):
    whole = config_of("--config", file)
    assert (whole.seed, whole.task.options["group"]) == (3, "S_4")
    for name, value, found, expected in (
        ("model.hidden-size", "16", lambda c: c.model.hidden_size, 16),
        ("task.group", "A_5", lambda c: c.task, TaskSpec("permutation", group="A_5")),
        ("model.layers.0.block_size", "2", lambda c: c.model.layers[0].options["block_size"], 2),
        ("model.layers.0.gate", "tanh", lambda c: c.model.layers[0].options.get("gate"), "tanh"),
        ("schedules.attributes.0.end", "0.25", lambda c: c.schedules.attributes[0].end, 0.25),
        ("evaluation.attributes.size", "2.0", lambda c: c.evaluation.attributes.get("size"), 2.0),
    ):
        flag = [f"--{name}={value}"] if equals else [f"--{name}", value]
        changed = config_of("--config", file, *flag)
        assert found(changed) == expected
        assert found(whole) != expected
        assert changed.model.layers[1] == whole.model.layers[1]


def test_a_run_reports_its_progress_and_prints_its_scores(tmp_path, tiny_arguments, capsys):
    assert main(["train", "--folder", str(tmp_path / "run"), *tiny_arguments()]) == 0
    printed = capsys.readouterr()
    assert "run: started at step 0 of 12" in printed.err
    assert "run: step 12: train loss" in printed.err
    assert "best validation" in printed.out
    outcome = load_outcome(tmp_path / "run")
    assert f"{outcome.last.test[5]['product'].token_accuracy:.4f}" in printed.out
    # The repeated command has nothing to do.
    assert main(["train", "--folder", str(tmp_path / "run"), *tiny_arguments()]) == 0
    assert "holds this run, finished" in capsys.readouterr().err


def test_the_attempts_of_a_search_are_counted(tmp_path, tiny_arguments, printed_by):
    search = ["--search.attempts", "2", "--search.max-steps", "1", "--search.accept-last", "1"]
    out = printed_by(["train", "--folder", str(tmp_path / "run"), *tiny_arguments(*search)])
    assert " steps in 2 attempts, none of which passed, " in out
    assert "for more attempts, repeat with --extend --search.attempts 4\n" in out


def test_options_beside_from_replace_the_runs(finished_run):
    source = f"--from={finished_run}"
    config = config_of(source, "--seed", "7", "--model.no-bos", "--task.group", "S_4")
    stored = load_config(finished_run)
    assert (config.seed, config.model.bos) == (7, False)
    assert config.task.options["group"] == "S_4"
    assert config.schedules.epochs == stored.schedules.epochs
    assert config.model.layers == stored.model.layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.layers", "bd_lru", "block_size=3"], "num_blocks of layer 'bd_lru' must be"),
        (["--model.layers.0.block_size", "three"], "0.block_size must be a valid integer, got 'th"),
        (["--model.layers", "num_blocks=2"], "a name must come before its options"),
        (["--model.layers"], "model.layers must be valid (Tuple should have at least 1 item"),
        (["--model.layers.3.block_size", "4"], "must exist, got 'model.layers.3.block_size'"),
        (["--model.layers.0.block_size"], "model.layers.0.block_size must have a value"),
        (["--task", "permutation", "group=S_9"], "task.group must be 'S_2', 'S_3'"),
        (["--task", "permutation", "group=S_3"], "schedules.epochs must not be given for a"),
        (["--task", "permutation", "S_3"], "task: one name must be given, got 2"),
        (["--config", "a.toml", "--from", "b"], "must not be given together"),
        (["--runtime.device", "cuda"], "runtime.device must be available"),
        (["--retry"], "--retry needs --grid"),
        (["--workers", "2"], "--workers needs --grid"),
        (["--grid", "seed"], "grid must have the form NAME=VALUE,VALUE..., got 'seed'"),
        (["--grid", 'model.layers=["lstm"],["bd_lru"]'], "block_size of layer 'bd_lru' must be"),
        (["--grid", "sead=1"], "sead must be one of"),
        (["--grid", "seed=1", "--workers", "0"], " workers must be in 1.."),
        (["--from", "--seed", "3"], "--from must have a value, got none"),
        (["--config", "a.toml", "--config", "b.toml"], "--config must be given once"),
        (["--model.norm", "rms", "--model.norm", "layer"], "model.norm must be given once"),
        (["--model.norm", "rms", "model.norm=layer"], "model.norm must be given once"),
        (["--evaluation.stop-at", "1"], "evaluation.stop_at must be less than 1"),
        (["--grid"], "--grid must have a value, got none"),
        (["--model.layers.-1.block_size", "4"], "setting must exist, got 'model.layers.-1"),
        (["--evaluation.attributes", "gate_temperature=none"], "gate_temperature must be a number"),
        (["--recipe", "fast"], "--recipe must be one of ['exact'], got 'fast'"),
        (["--recipe", "exact", "--task", "recall"], "task must have a finite automaton"),
        (["--recipe", "exact", "--grid", "task.group=S_3,S_4"], "grid must not change the task of"),
        (["--dry-run"], "lists, got --dry-run"),
    ],
)
def test_bad_requests_are_one_line(tmp_path, tiny_arguments, refused, arguments, message):
    folder = tmp_path / "run"
    refused(["train", "--folder", str(folder), *tiny_arguments(*arguments)], message)
    assert not folder.exists()


def test_a_grid_trains_every_pair_and_names_the_best(tmp_path, tiny_arguments, capsys):
    rates = ["--grid", "optimizer.learning_rate=1e-5,3e-2,3e38", "batches.size=4,20"]
    constant = ["--schedules.learning-rate", "constant", "--schedules.epochs", "10"]
    command = ["train", "--folder", str(tmp_path), *tiny_arguments(*rates, *constant)]
    # A rate that diverges is a result, not a failure of the grid.
    assert main(command) == 0
    printed = capsys.readouterr()
    wild = "optimizer.learning_rate=3e+38,batches.size=4"
    assert f"{wild}: diverged: loss must be finite" in printed.err
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["3e+38", "4", "diverged"] in lines
    with (tmp_path / "grid.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    done = [row for row in rows if row["status"] == "done"]
    for row, (rate, size) in zip(done, itertools.product((1e-5, 0.03), (4, 20)), strict=True):
        outcome = load_outcome(tmp_path / row["folder"])
        assert (outcome.config.optimizer.learning_rate, outcome.config.batches.size) == (rate, size)
        best = outcome.test_at_best_validation
        scores = [best.validation_accuracy, accuracy(best.test[5])]
        assert [float(row["validation"]), float(row["test"])] == scores
        assert [f"{rate}", f"{size}", "done", *(f"{score:.4f}" for score in scores)] in lines
    best = max(done, key=lambda row: float(row["validation"]))
    assert f"best on validation: {best['folder']}" in printed.out
    # The repeated command trains no run that has ended.
    assert main(command) == 0
    again = capsys.readouterr().err
    assert again.count("holds this run, finished") == 4
    assert "(in an earlier call; use --retry to try again)" in again
    assert "started" not in again
    assert main([*command, "--retry"]) == 0
    assert "resumed at step" in capsys.readouterr().err


def test_a_grid_in_an_impossible_folder_is_refused_in_one_line(tiny_arguments, capsys):
    assert main(["train", "--folder", "/dev/null/x", *tiny_arguments("--grid", "seed=0,1")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_tables_of_two_grids_lose_no_row(tmp_path):
    rows = [[{"seed": f"{k}-{i}", "folder": f"{k}-{i}"} for i in range(30)] for k in range(2)]
    for row in itertools.chain(*rows):
        (tmp_path / row["folder"]).mkdir()

    def write(mine):
        for row in mine:
            cli_train._store_grid(tmp_path / "grid.csv", [row])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, rows))
    assert len((tmp_path / "grid.csv").read_text().splitlines()) == 61


def test_a_further_grid_keeps_the_rows_of_the_first(tmp_path, tiny_arguments):
    def rows_after(*axes):
        assert main(["train", "--folder", str(tmp_path), *tiny_arguments("--grid", *axes)]) == 0
        with (tmp_path / "grid.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    first, second = rows_after("seed=0,1")
    assert rows_after("seed=1,2")[:2] == [{**first}, {**second}]
    *kept, new = rows_after("batches.size=4")
    assert [(row["seed"], row["batches.size"], row["folder"]) for row in kept] == [
        (str(seed), "", f"seed={seed}") for seed in (0, 1, 2)
    ]
    assert (new["seed"], new["batches.size"], new["status"]) == ("", "4", "done")
    assert list(new) == ["batches.size", "seed", "status", "validation", "test", "folder"]
    shutil.rmtree(tmp_path / "seed=0")
    assert [row["folder"] for row in rows_after("seed=2")] == ["seed=1", "batches.size=4", "seed=2"]


def test_a_mistaken_grid_loses_no_row(tmp_path, tiny_arguments, capsys):
    command = ["train", "--folder", str(tmp_path), *tiny_arguments("--grid", "seed=0")]
    assert main(command) == 0
    table = (tmp_path / "grid.csv").read_text()
    capsys.readouterr()
    assert main([*command, "--optimizer.weight-decay", "0.3"]) == 1
    said = capsys.readouterr().err
    assert "seed=0: failed: folder must hold a run of the same configuration" in said
    assert "--retry" not in said
    assert (tmp_path / "grid.csv").read_text() == table


def test_a_grid_fails_if_every_run_diverges(tmp_path, tiny_arguments, capsys):
    rates = ["--grid", "optimizer.learning_rate=3e38,1e38", "--schedules.learning-rate", "constant"]
    assert main(["train", "--folder", str(tmp_path), *tiny_arguments(*rates)]) == 1
    assert "of 2 runs: 2 diverged" in capsys.readouterr().err


def test_a_grid_names_the_run_that_another_process_trains(tmp_path, tiny_arguments, capsys):
    command = ["train", "--folder", str(tmp_path), *tiny_arguments("--grid", "seed=0,1")]
    (tmp_path / "seed=1").mkdir()
    with FileLock(tmp_path / "seed=1" / ".statemix.lock"):
        assert main(command) == 1
    said = capsys.readouterr().err
    assert "seed=1: interrupted: another process is using " in said
    assert "of 2 runs: 1 done, 1 interrupted" in said
    assert main(command) == 0


def test_an_interrupted_command_is_resumed(tmp_path, tiny_arguments, capsys, monkeypatch):
    command = ["train", *tiny_arguments("--folder")]
    backward, steps = torch.Tensor.backward, itertools.count()

    def signalled(*arguments, **options):
        if next(steps) == 5:
            signal.raise_signal(signal.SIGTERM)
        backward(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", signalled)
        assert main([*command, str(tmp_path / "run")]) == 130
    assert "interrupted; repeat the command to resume" in capsys.readouterr().err
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    for name in ("run", "whole"):
        assert main([*command, str(tmp_path / name)]) == 0
    resumed, whole = ((tmp_path / name / "model.safetensors") for name in ("run", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()


def test_names_from_imported_modules_are_known_to_the_other_options(toys):
    words = ["--task", "ragged", "--model.layers", "solver", f"--imports={toys.__name__}"]
    config = config_of(*words)
    assert (config.task.name, config.model.layers[0].name) == ("ragged", "solver")
    assert config.imports == ("statemix_toys",)


def test_the_type_of_a_setting_decides_how_its_text_is_read():
    assert config_of("--model.layers.0.gate", "none").model.layers[0].options["gate"] == "none"
    assert config_of("--model.norm", "none").model.norm == "none"
    assert config_of("--task.train_size", "none").task.options["train_size"] is None
    assert config_of("--model.layers.0", "lstm").model.layers == (LayerSpec("lstm"),)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("model.norm=rms,none", ["rms", "none"]),
        ("model.bos=true,false", [True, False]),
        ("evaluation.lengths=[],[4,8]", [(), (4, 8)]),
    ],
)
def test_any_setting_is_an_axis_of_a_grid(tmp_path, axis, values):
    name, _, texts = axis.partition("=")
    jobs = grid(config_of(), tmp_path, [Axis(name, tuple(split_values(texts)))])
    part, _, field = name.partition(".")
    assert [getattr(getattr(job.config, part), field) for job in jobs] == values


def test_a_finished_run_is_read_where_it_could_not_be_trained(tmp_path, finished_run, capsys):
    folder = shutil.copytree(finished_run, tmp_path / "moved")
    stored = json.loads((folder / "config.json").read_text())
    del stored["asked"]["runtime"]["device"]
    stored["resolved"]["runtime"]["device"] = "cuda"
    (folder / "config.json").write_text(json.dumps(stored))
    (folder / "checkpoints").mkdir()
    assert main(["train", "--folder", str(folder), "--from", str(folder)]) == 0
    assert "holds this run, finished" in capsys.readouterr().err
    assert not (folder / "checkpoints").exists()


def test_a_recipe_is_made_for_the_task_and_may_be_changed():
    words = ["--recipe", "exact", "--task", "permutation", "group=S_3", "--task.group", "A_5"]
    config = config_of(*words)
    assert config == exact(TaskSpec("permutation", group="A_5"))
    changed = config_of(*words, "--search.length", "32", "--model.layers.0.num_blocks", "3")
    assert changed.search == config.search.replace(length=32)
    assert changed.model.layers[0].options["num_blocks"] == 3
    assert changed.schedules == config.schedules


@pytest.mark.parametrize(("words", "length"), [((), 12), (("length=20",), 20)])
def test_a_recipe_may_add_options_of_the_task(words, length):
    config = config_of("--recipe", "exact", "--task", "arrangement", "moves=(1 2); (1 2 3)", *words)
    assert config.build_task().length == length
    assert config.search.length == 4 * length
