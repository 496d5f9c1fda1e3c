"""The configuration: errors name bad values, defaults are written out, files keep it."""

import json
import os
from pathlib import Path

import pytest

from statemix.errors import RequestError, SettingError
from statemix.layers import LAYERS, LayerSpec
from statemix.models import MixerSpec
from statemix.tasks import TaskSpec
from statemix.training import RunConfig, config_from_plain, train
from statemix.training.settings import read_tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"task": "checkers"}, "task.name: task must be one of .*permutation.* got 'checkers'"),
        ({"task": {"name": "permutation", "size": 3}}, "task: options of task .* must be among"),
        ({"model": {"layers": ["gru"]}}, "model.layers.0.name: layer must be .*bd_lru.* got 'gru'"),
        ({"batches": {"size": True}}, "batches.size must be a valid integer, got True"),
        ({"schedules": {"min_learning_rate": 0.1}}, "schedules.min_.* at most .*=0.001, got 0.1"),
        ({"optimizer": {"learning_rate": 10**400}}, r"optim.* got 1000.*… \(401 characters\)$"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, r"optimizer.betas.1 must be less than 1, got 1\.0"),
        ({"evaluation": {"attributes": [1]}}, "evaluation.attributes must be a table of names and"),
        ({"imports": "json"}, "imports must be a list of module names, got 'json'"),
        ({"imports": ["no_such_module"]}, "imports must name importable .*, got 'no_such_module'"),
        ({"lr": 1}, "lr must be one of task, model, batches, .*, got 'lr'"),
        ([], r"configuration must be a table, got \[\]"),
    ],
)
def test_bad_value_is_named(tree, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        config_from_plain(tree)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"begin": 0.95, "finish": 0.9}, "begin must be at most finish=0.9, got 0.95"),
        ({"end": 0.0, "curve": "reciprocal"}, "end must be above 0 with curve='reciprocal', got"),
        ({"start": -1.0, "curve": "geometric"}, "start must be above 0 with curve='geometric', go"),
    ],
)
def test_a_bad_schedule_is_named(fields, message):
    plain = {"attribute": "gate_temperature", "end": 0.5} | fields
    with pytest.raises(SettingError, match=rf"^schedules.attributes.0.{message}"):
        config_from_plain({"schedules": {"attributes": [plain]}})


def test_features_need_a_task_that_has_them_and_a_network_wide_enough(tmp_path):
    model = {"embedding_init": "features", "hidden_size": 15}
    for task, message in (
        ({"name": "parity"}, r"model\.embedding_init must be 'normal' for the task"),
        ({"name": "permutation", "group": "S_4"}, "model: hidden_size must be at least 16, the fe"),
    ):
        with pytest.raises(RequestError, match=message):
            train(config_from_plain({"task": task, "model": model}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedules.num_steps": 5}, "schedules.num_steps must not be given .*train_size=20, "),
        ({"task": TaskSpec("permutation")}, "schedules.epochs must not be given for a task with"),
        ({"task": TaskSpec("permutation", length=0)}, "task: length must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_the_task_is_named(tiny, changes, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        tiny(changes).resolved()


def test_resolved_says_the_whole_run(tiny):
    changes = {
        "schedules.epochs": None,
        "evaluation.lengths": (40, 10, 40),
        "runtime.device": "auto",
        "runtime.num_threads": None,
        "model.channel_mixer": MixerSpec("mlp"),
        "model.num_layers": 3,
    }
    resolved = tiny(changes, seed=3).resolved()
    assert resolved.schedules.epochs == 200
    assert resolved.evaluation.every == 1
    assert resolved.evaluation.lengths == (10, 40)
    # The seed stays that of the run.
    assert resolved.task.options.keys() >= {"group", "length", "generators", "train_size"}
    assert "seed" not in resolved.task.options
    assert resolved.build_task().seed == 3
    options = LAYERS.options("bd_lru")
    assert resolved.model.layers[0].options.keys() == options.keys()
    assert dict(resolved.model.channel_mixer.options) == {"intermediate_size": None}
    assert resolved.model.num_layers == len(resolved.model.stack()) == 3
    assert (resolved.model.backbone, resolved.model.linear_init) == ("causal", "own")
    mad = tiny(changes | {"model.backbone": "autoencoder"}).resolved()
    assert mad.model.linear_init == "normal"
    kept = tiny({"model.backbone": "autoencoder", "model.linear_init": "own"}).resolved()
    assert kept.model.linear_init == "own"
    assert resolved.runtime.device in ("cpu", "cuda")
    assert resolved.runtime.num_threads == 1
    assert resolved.resolved().to_plain() == resolved.to_plain()


def test_a_stack_repeats_its_layers_in_turn(tiny):
    first, second = layers = (LayerSpec("bd_lru", num_blocks=2, block_size=3), LayerSpec("lstm"))
    for depth, expected in ((None, layers), (1, (first,)), (3, (first, second, first))):
        changes = {"model.layers": layers, "model.num_layers": depth}
        assert tiny(changes).model.stack() == expected


def test_task_seed_can_be_held_while_the_run_seed_moves(tiny):
    task = TaskSpec("permutation", **tiny().task.options, seed=9)
    assert tiny(task=task, seed=1).build_task().seed == 9
    assert tiny(task=task, seed=1).resolved().task.options["seed"] == 9
    assert tiny(seed=1).build_task().seed == 1


def test_configuration_survives_a_file(tiny, tmp_path):
    config = tiny({"evaluation.lengths": (10,), "evaluation.stop_at": 0.5})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.asked()))
    assert config_from_plain(read_tree(path)) == config
    path = tmp_path / "config.toml"
    # Some editors write a byte order mark.
    path.write_bytes(b"\xef\xbb\xbfseed = 7\nmodel.layers = [{name = 'lstm'}]\n")
    assert read_tree(path) == {"seed": 7, "model": {"layers": [{"name": "lstm"}]}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.toml", "a = ", "must be TOML, got"),
        ("config.json", "[]", "must hold a table of settings, got list"),
        ("config.json", None, "must be readable, got: No such file"),
        ("config.json", "[" * 100_000, "must be JSON, got"),
    ],
)
def test_damaged_file_is_named(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(RequestError, match=rf"^{path} {message}"):
        read_tree(path)


def test_what_never_ends_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", Path("/dev/zero")):
        with pytest.raises(RequestError, match=f"^{path} must be a regular file$"):
            read_tree(path)


def test_defaults_are_those_of_the_protocol():
    """Sections 0 and 8 of the MAD protocol, as far as it fixes them."""
    config = RunConfig(task=TaskSpec("permutation", train_size=250)).resolved()
    model, schedules, evaluation = config.model, config.schedules, config.evaluation
    assert (model.hidden_size, model.norm, model.residual, model.bos) == (128, "rms", True, False)
    assert (config.batches.size, config.optimizer.betas) == (128, (0.9, 0.999))
    assert (schedules.learning_rate, schedules.min_learning_rate) == ("cosine", 1e-5)
    assert (evaluation.test_size, evaluation.validation_size) == (1280, 1280)
    fresh = RunConfig().resolved()
    assert (schedules.epochs, fresh.schedules.num_steps, fresh.evaluation.every) == (200, 2000, 100)


def asked_in(tree):
    """Every request of "statemix train" within plain data; some studies have other runs."""
    if isinstance(tree, dict):
        asked = tree.get("asked")
        if isinstance(asked, dict) and not {"language", "learned"}.intersection(asked):
            yield asked
        for part in tree.values():
            yield from asked_in(part)


ROOT = Path(__file__).parents[2]
STORED = [
    str(path.relative_to(ROOT))
    for path in [
        *ROOT.glob("laboratory/results/**/*.jsonl"),
        *ROOT.glob("tests/data/runs/*/config.json"),
    ]
    if '"asked"' in path.read_text() and path.name != "language.jsonl"
]


@pytest.mark.parametrize("path", STORED)
def test_every_stored_request_reads_back_as_it_is(path):
    text = (ROOT / path).read_text()
    lines = text.splitlines() if path.endswith(".jsonl") else [text]
    found = {json.dumps(asked) for line in lines for asked in asked_in(json.loads(line))}
    assert found
    for stored in found:
        assert json.dumps(config_from_plain(json.loads(stored)).asked()) == stored
