"""The configuration: errors name bad values, defaults are written out, files keep it."""

import json
import os
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from statemix.errors import RequestError, SettingError
from statemix.layers import LAYERS, LayerSpec
from statemix.models import MODELS, MixerSpec, ModelKind, backbone
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    RunConfig,
    ScheduleConfig,
    config_from_plain,
    train,
)
from statemix.training.settings import Assignments, read_tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"task": "checkers"}, "task.name: task must be one of .*permutation.* got 'checkers'"),
        ({"task": {"name": "permutation", "size": 3}}, "task: options of task .* must be among"),
        ({"model": {"layers": ["gru"]}}, "model.layers.0.name: layer must be .*bd_lru.* got 'gru'"),
        ({"model": {"hidden_size": 0}}, "model.hidden_size must be greater than or equal to 1, g"),
        ({"model": {"hidden_size": 8.0}}, "model.hidden_size must be a valid integer, got 8.0"),
        ({"model": {"num_layers": 0}}, "model.num_layers must be greater than or equal to 1, got"),
        ({"model": {"norm": "batch"}}, "model.norm must be 'rms', 'layer' or 'none', got 'batch'"),
        ({"model": {"channel_mixer": "glu"}}, "model.channel_mixer.name: channel mixer must be"),
        ({"model": {"bos": "no"}}, "model.bos must be a valid boolean, got 'no'"),
        ({"model": {"backbone": "mad"}}, "model.backbone must be 'causal' or 'autoencoder', got "),
        ({"model": {"linear_init": 0.02}}, "model.linear_init must be 'own' or 'normal', got 0.02"),
        ({"model": {"residual": 1}}, "model.residual must be a valid boolean, got 1"),
        ({"batches": {"size": True}}, "batches.size must be a valid integer, got True"),
        ({"batches": {"size": 2**31}}, "batches.size must be less than 2147483648"),
        ({"batches": {"accumulate": 0}}, "batches.accumulate must be greater than or equal to 1"),
        ({"schedules": {"epochs": 0}}, "schedules.epochs must be greater than or equal to 1, got"),
        ({"schedules": {"learning_rate": "linear"}}, "schedules.learning_rate must be 'cosine' or"),
        (
            {"schedules": {"min_learning_rate": 0.1}},
            "schedules.min_learning_rate must be at most optimizer.learning_rate=0.001, got 0.1",
        ),
        ({"schedules": {"warmup_steps": -1}}, "schedules.warmup_steps must be greater than or equ"),
        ({"seed": -1}, "seed must be greater than or equal to 0, got -1"),
        ({"seed": 2**63}, "seed must be less than 9223372036854775808"),
        ({"seed": "x"}, "seed must be a valid integer, got 'x'"),
        ({"runtime": {"precision": "16"}}, "runtime.precision must be '32-true', 'bf16-mixed' or"),
        ({"runtime": {"device": "tpu"}}, "runtime.device must be 'auto', 'cpu' or 'cuda', got"),
        ({"runtime": {"num_threads": 0}}, "runtime.num_threads must be greater than or equal to 1"),
        ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate must be greater than 0"),
        (
            {"optimizer": {"learning_rate": float("nan")}},
            "optimizer.learning_rate must be a finite number",
        ),
        (
            {"optimizer": {"learning_rate": 10**400}},
            r"optimizer.learning_rate must be a valid number, got 1000.*… \(401 characters\)$",
        ),
        ({"optimizer": {"learning_rate": "fast"}}, "optimizer.learning_rate must be a valid num"),
        ({"optimizer": {"weight_decay": -0.1}}, "optimizer.weight_decay must be greater than or"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, r"optimizer.betas.1 must be less than 1, got 1\.0"),
        ({"optimizer": {"betas": ["0.9", 0.999]}}, "optimizer.betas.0 must be a valid number, got"),
        ({"optimizer": {"betas": 0.9}}, "optimizer.betas must be a valid tuple, got 0.9"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas"),
        ({"optimizer": {"clip_norm": 0.0}}, "optimizer.clip_norm must be greater than 0, got 0.0"),
        ({"optimizer": {"groups": [{}]}}, "optimizer.groups.0.parameters must be given"),
        ({"evaluation": {"stop_at": 1.5}}, "evaluation.stop_at must be less than or equal to 1, g"),
        ({"evaluation": {"lengths": [16, 0]}}, "evaluation.lengths.1 must be greater than or equ"),
        ({"evaluation": {"lengths": [True]}}, "evaluation.lengths.0 must be a valid integer, got"),
        ({"evaluation": {"attributes": [1]}}, "evaluation.attributes must be a table of names and"),
        ({"imports": [3]}, "imports must be a list of module names, got"),
        ({"imports": "json"}, "imports must be a list of module names, got 'json'"),
        (
            {"imports": ["no_such_module"]},
            "imports must name importable modules .*, got 'no_such_module'",
        ),
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
        (
            {"end": 1.0, "start": -1.0, "curve": "geometric"},
            "start must be above 0 with curve='geometric', got -1.0",
        ),
        ({"finish": 1.5}, "finish must be less than or equal to 1, got 1.5"),
        ({"curve": "cubic"}, "curve must be 'linear', 'reciprocal' or 'geometric', got 'cubic'"),
        ({"end": None}, "end must be a valid number, got None"),
    ],
)
def test_a_bad_schedule_is_named(fields, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        AttributeSchedule(**({"attribute": "gate_temperature", "end": 0.5} | fields))
    plain = {"attribute": "gate_temperature", "end": 0.5} | fields
    with pytest.raises(SettingError, match=rf"^schedules.attributes.0.{message}"):
        config_from_plain({"schedules": {"attributes": [plain]}})


def test_features_need_a_task_that_has_them_and_a_network_wide_enough(tmp_path):
    features = {"embedding_init": "features"}
    tree = {"task": "parity", "model": features}
    with pytest.raises(SettingError, match=r"model\.embedding_init must be 'normal' for the task"):
        train(config_from_plain(tree), tmp_path / "run")
    tree = {"task": {"name": "permutation", "group": "S_4"}, "model": {"hidden_size": 15}}
    tree["model"].update(features)
    with pytest.raises(RequestError, match="model: hidden_size must be at least 16, the features"):
        train(config_from_plain(tree), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_choices_are_those_of_the_model():
    assert get_args(backbone.Norm) == tuple(backbone.NORMS)
    assert get_args(ModelKind) == tuple(MODELS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedules.num_steps": 5}, "schedules.num_steps must not be given .*train_size=20, "),
        (
            {"task": TaskSpec("permutation"), "schedules.num_steps": 5},
            "schedules.epochs must not be given for a task with fresh examples, got 4",
        ),
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
    assert resolved.task.options == {
        "group": "S_3",
        "length": 5,
        "min_length": None,
        "generators": False,
        "num_generators": None,
        "generator_seed": 0,
        "train_size": 20,
    }
    assert resolved.build_task().seed == 3
    assert dict(resolved.model.layers[0].options) == {
        "num_blocks": 2,
        "block_size": 3,
        "value_channels": 1,
        "gate": "softmax",
        "gate_temperature": 1.0,
        "selective": True,
        "initial_state": "zero",
        "initial_std": 0.0,
        "input_gate_bias": 0.0,
        "memory": None,
        "gate_noise": 0.0,
        "block_dropout": 0.0,
        "checkpoint_every": None,
        "backend": None,
    }
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


def test_fresh_examples_are_evaluated_every_hundred_steps(fresh):
    assert fresh({"evaluation.every": None}).resolved().evaluation.every == 100
    assert fresh().resolved().schedules.epochs is None


def test_the_default_configuration_can_be_trained():
    schedules = RunConfig().resolved().schedules
    assert (schedules.epochs, schedules.num_steps) == (None, 2000)


def test_a_stack_repeats_its_layers_in_turn(tiny):
    first, second = LayerSpec("bd_lru", num_blocks=2, block_size=3), LayerSpec("lstm")

    def stack(**changes):
        model = {f"model.{name}": value for name, value in changes.items()}
        return tiny(model).model.stack()

    assert stack(layers=(first, second)) == (first, second)
    assert stack(layers=(first, second), num_layers=5) == (first, second, first, second, first)
    assert stack(layers=(first, second), num_layers=1) == (first,)


def test_task_seed_can_be_held_while_the_run_seed_moves(tiny):
    task = TaskSpec("permutation", **tiny().task.options, seed=9)
    assert tiny(task=task, seed=1).build_task().seed == 9
    assert tiny(task=task, seed=1).resolved().task.options["seed"] == 9
    assert tiny(seed=1).build_task().seed == 1


def test_another_seed_gives_a_stored_run_other_examples(tiny):
    stored = tiny(seed=1).resolved().to_plain()
    repeated = config_from_plain(stored | {"seed": 2}).resolved()
    assert repeated.to_plain() == tiny(seed=2).resolved().to_plain()
    words = config_from_plain(stored).build_task().examples("train", 0, 20).tokens
    others = repeated.build_task().examples("train", 0, 20).tokens
    assert not np.array_equal(words, others)


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_configuration_survives_a_file(tiny, tmp_path, suffix):
    config = tiny({"evaluation.lengths": (10,), "evaluation.stop_at": 0.5})
    path = tmp_path / f"config.{suffix}"
    asked = config.asked()
    path.write_text(json.dumps(asked) if suffix == "json" else toml(asked))
    assert config_from_plain(read_tree(path)) == config


def toml(asked):
    """Write these tables as TOML."""

    def value(item):
        if isinstance(item, dict):
            return "{" + ", ".join(f"{name} = {value(one)}" for name, one in item.items()) + "}"
        return (
            json.dumps(item) if not isinstance(item, list) else f"[{', '.join(map(value, item))}]"
        )

    return "".join(f"{name} = {value(item)}\n" for name, item in asked.items())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "must be JSON, got"),
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


def test_modules_are_imported_before_their_names_are_used(toys, tiny):
    tree = {"imports": ["statemix_toys"], "model": {"layers": ["solver"]}, "task": "ragged"}
    config = config_from_plain(tree)
    assert "solver" in LAYERS
    assert config.asked() == {
        "imports": ["statemix_toys"],
        "model": {"layers": [{"name": "solver"}]},
        "task": {"name": "ragged"},
    }


def test_values_of_attributes_are_kept_as_they_are():
    config = config_from_plain({"evaluation": {"attributes": {"iterations": 3, "gain": 0.5}}})
    assert config.evaluation.attributes == Assignments(iterations=3, gain=0.5)
    assert type(config.evaluation.attributes["iterations"]) is int


def test_the_cosine_may_end_where_a_constant_rate_stays(tiny):
    RunConfig(schedules=ScheduleConfig(learning_rate="constant", min_learning_rate=0.5))


def test_defaults_are_those_of_the_protocol():
    """Sections 0 and 8 of the MAD protocol, as far as it fixes them."""
    config = RunConfig(task=TaskSpec("permutation", train_size=250)).resolved()
    assert (config.model.hidden_size, config.model.norm, config.model.residual) == (
        128,
        "rms",
        True,
    )
    assert (config.model.bos, config.model.channel_mixer) == (False, None)
    assert (config.batches.size, config.batches.accumulate) == (128, 1)
    assert config.optimizer.betas == (0.9, 0.999)
    assert (config.schedules.learning_rate, config.schedules.min_learning_rate) == ("cosine", 1e-5)
    assert (config.evaluation.test_size, config.evaluation.validation_size) == (1280, 1280)
    assert config.schedules.epochs == 200


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    """Some editors write one."""
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 7\n")
    assert read_tree(path) == {"seed": 7}


def test_completing_writes_out_the_options_of_the_task():
    config = RunConfig(task=TaskSpec("permutation", train_size=9), seed=5).completed()
    # The seed stays that of the run.
    assert config.task.options == {
        "group": "S_3",
        "length": 16,
        "min_length": None,
        "generators": False,
        "num_generators": None,
        "generator_seed": 0,
        "train_size": 9,
    }
    given = RunConfig(task=TaskSpec("permutation", train_size=9, seed=2)).completed()
    assert given.task.options["seed"] == 2


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
