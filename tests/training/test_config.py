"""The configuration: bad values are named, defaults are written out, and it survives a file."""

import dataclasses
from typing import get_args

import numpy as np
import pytest

from statemix.models import synthetic
from statemix.models.channel_mixers import CHANNEL_MIXERS, ChannelMixer
from statemix.training import RunConfig, load_config


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("task", "chess", ValueError, "task must be one of .*permutation.* got 'chess'"),
        ("layer", "gru", ValueError, "layer must be one of .*bd_lru.* got 'gru'"),
        ("hidden_size", 0, ValueError, "hidden_size must be at least 1, got 0"),
        ("hidden_size", 8.0, TypeError, "hidden_size must be an integer, got 8.0"),
        ("batch_size", True, TypeError, "batch_size must be an integer, got True"),
        ("epochs", 0, ValueError, "epochs must be at least 1, got 0"),
        ("seed", -1, ValueError, "seed must be at least 0, got -1"),
        ("norm", "batch", ValueError, r"norm must be one of \['rms', 'layer', 'none'\]"),
        ("channel_mixer", "glu", ValueError, "channel_mixer must be one of"),
        ("schedule", "linear", ValueError, r"schedule must be one of \['cosine', 'constant'\]"),
        ("precision", "16", ValueError, "precision must be one of"),
        ("device", "tpu", ValueError, "device must be one of"),
        ("learning_rate", 0.0, ValueError, "learning_rate must be above 0, got 0.0"),
        ("learning_rate", float("nan"), ValueError, "learning_rate must be finite"),
        ("learning_rate", "fast", TypeError, "learning_rate must be a number, got 'fast'"),
        ("weight_decay", -0.1, ValueError, "weight_decay must be finite and not negative"),
        ("min_learning_rate", 0.1, ValueError, "min_learning_rate must be at most learning_rate="),
        ("betas", (0.9, 1.0), ValueError, r"betas must be two numbers in \[0, 1\), got"),
        ("clip_norm", 0.0, ValueError, "clip_norm must be above 0, got 0.0"),
        ("sharpen_to", 0.0, ValueError, "sharpen_to must be above 0, got 0.0"),
        ("sharpen_start", 0.95, ValueError, r"sharpen_start must be in \[0, sharpen_end=0.9\]"),
        ("stop_at", 1.5, ValueError, r"stop_at must be in \[0, 1\], got 1.5"),
        ("eval_lengths", (16, 0), ValueError, "eval_lengths must be integers of at least 1"),
        ("eval_lengths", (True,), ValueError, "eval_lengths must be integers of at least 1"),
        ("betas", ("0.9", 0.999), ValueError, r"betas must be two numbers in \[0, 1\), got"),
        (
            "task_options",
            [],
            TypeError,
            r"task_options must be a dict of options by name, got \[\]",
        ),
        ("task_options", {3: 1}, TypeError, "task_options must be a dict of options by name"),
        ("layer_options", None, TypeError, "layer_options must be a dict of options by name"),
        ("bos", "no", TypeError, "bos must be True or False, got 'no'"),
        ("residual", 1, TypeError, "residual must be True or False, got 1"),
    ],
)
def test_bad_value_is_named(field, value, error, message):
    with pytest.raises(error, match=message):
        RunConfig(**{field: value})


def test_choices_are_those_of_the_model():
    assert get_args(synthetic.Norm) == tuple(synthetic._NORMS)
    assert get_args(ChannelMixer) == tuple(CHANNEL_MIXERS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 5}, "num_steps must be None for a task with train_size=20"),
        ({"task_options": {}}, "num_steps must be given for a task with fresh examples"),
        ({"task_options": {}, "num_steps": 5}, "epochs must be None for a task with fresh"),
        ({"task_options": {"group": "S_9"}}, "S_9"),
        ({"task_options": {"size": 3}}, "options of task 'permutation' must be among"),
        ({"layer_options": {"order": 2}}, r"options of layer 'bd_lru' must be among .*'order'"),
        ({"layer_options": {}}, r"must include \['num_blocks', 'block_size'\]"),
        ({"layer": "lstm", "layer_options": {"device": "cpu"}}, r"must be among \[\], got \['dev"),
    ],
)
def test_what_does_not_fit_the_task_or_layer_is_named(tiny, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(**changes).resolved()


def test_resolved_says_the_whole_run(tiny):
    resolved = tiny(epochs=None, seed=3, eval_lengths=(40, 10, 40)).resolved()
    assert resolved.epochs == 200
    assert resolved.eval_every == 1
    assert resolved.task_options == {"group": "S_3", "length": 5, "train_size": 20}
    assert resolved.build_task().seed == 3
    assert resolved.layer_options["gate"] == "softmax"
    assert resolved.layer_options["block_size"] == 3
    assert resolved.eval_lengths == (10, 40)
    assert resolved.resolved() == resolved


def test_task_seed_can_be_held_while_the_run_seed_moves(tiny):
    options = tiny().task_options | {"seed": 9}
    assert tiny(task_options=options, seed=1).build_task().seed == 9
    assert tiny(task_options=options, seed=1).resolved().task_options["seed"] == 9
    assert tiny(seed=1).build_task().seed == 1


def test_another_seed_gives_a_stored_run_other_examples(tiny, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(tiny(seed=1).resolved().to_json())
    repeated = dataclasses.replace(load_config(path), seed=2).resolved()
    assert repeated == tiny(seed=2).resolved()
    words, _ = load_config(path).build_task().examples("train", 0, 20)
    others, _ = repeated.build_task().examples("train", 0, 20)
    assert not np.array_equal(words, others)


def test_configuration_survives_a_file(tiny, tmp_path):
    config = tiny(eval_lengths=(10,), stop_at=0.5)
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "must hold the fields of a run's configuration, got list"),
        ('{"lr": 1}', r"got \['lr'\]"),
        ('{"betas": 0.9}', "betas must be two numbers"),
        ('{"betas": ["a", "b"]}', "betas must be two numbers"),
        ('{"seed": -1}', "seed must be at least 0"),
        ('{"seed": "x"}', "seed must be an integer, got 'x'"),
        ('{"task_options": []}', r"task_options must be a dict of options by name, got \[\]"),
        ('{"layer": {}}', "layer must be one of"),
    ],
)
def test_damaged_file_is_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{path} .*{message}"):
        load_config(path)
