"""Every registered task meets the common contract, and errors name the mistake."""

from typing import Literal, get_args, get_origin

import numpy as np
import pytest

from statemix import tasks
from statemix.errors import SettingError
from statemix.registry import REQUIRED
from statemix.tasks import IGNORED, TASKS, TaskSpec
from statemix.training.settings import read_spec

each_task = pytest.mark.parametrize("name", TASKS)
SPLITS = ("train", "validation", "test")


@each_task
def test_task_is_built_from_its_defaults(name, build, required_options):
    task = build(name)
    assert task.name == name
    for option, (_, default) in TASKS.options(name).items():
        built = getattr(task, option)
        expected = required_options[name][option] if default is REQUIRED else default
        assert getattr(built, "name", built) == expected
    assert isinstance(task.title, str)
    assert task.title


@each_task
def test_options_reach_the_task(name, required_options):
    task = TaskSpec(name, train_size=7, seed=3, **required_options.get(name, {})).build()
    assert (task.train_size, task.seed) == (7, 3)


@each_task
def test_examples_have_the_promised_form(name, build):
    task = build(name)
    for split in SPLITS:
        tokens, targets, lengths = task.examples(split, 3, 10)
        assert tokens.shape == (7, task.length)
        assert tokens.dtype == np.int64
        assert tokens.min() >= 0
        assert tokens.max() < task.vocab_size
        if lengths is None:
            lengths = np.full(7, task.length)
        assert (lengths.shape, lengths.dtype) == ((7,), np.int64)
        assert 0 < lengths.min() <= lengths.max() <= task.length
        assert list(targets) == list(task.heads)
        ended = np.arange(task.length) >= lengths[:, None]
        for head, classes in targets.items():
            assert classes.shape == tokens.shape
            assert classes.dtype == np.int64
            assert (classes[ended] == IGNORED).all()
            scored = classes[classes != IGNORED]
            assert scored.size > 0
            assert scored.min() >= 0
            assert scored.max() < task.heads[head]
    assert list(task.chance) == list(task.heads)
    assert all(0 < chance < 1 for chance in task.chance.values())


@each_task
def test_seed_and_split_choose_the_examples(name, build):
    blocks = [
        build(name, seed=seed).examples(split, 0, 20).tokens for seed in (0, 1) for split in SPLITS
    ]
    for i, first in enumerate(blocks):
        assert not any(np.array_equal(first, second) for second in blocks[:i])


@each_task
def test_examples_are_addressed_one_by_one(name, build):
    task = build(name)
    for split in SPLITS:
        both, second = task.examples(split, 0, 2), task.examples(split, 1, 2)
        np.testing.assert_array_equal(both.tokens[1:], second.tokens)
        for head in task.heads:
            np.testing.assert_array_equal(both.targets[head][1:], second.targets[head])


@each_task
def test_every_choice_and_every_preset_can_be_built_and_described(name, build):
    choices = [
        {option: choice}
        for option, (annotation, _) in TASKS.options(name).items()
        if get_origin(annotation) is Literal
        for choice in get_args(annotation)
    ]
    for options in [*choices, *TASKS[name].presets.values()]:
        assert "train" in build(name, **options).describe(0)


def test_a_preset_stands_for_its_options_which_others_replace():
    spec = TaskSpec("permutation", preset="S4-3k", train_size=10)
    assert spec.options == {"group": "S_4", "train_size": 10}
    assert read_spec(TaskSpec, {"name": "regex", "preset": "tomita-1"}).options == {
        "pattern": "1*", "alphabet": "01",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [
        (
            "regex",
            "tomita_1",
            r"preset must be one of \['tomita-1', .*; did you mean 'tomita-1'",
        ),
        ("regex", ["D_2"], r"preset must be one of \['tomita-1', .*, got \['D_2'\]"),
        ("parity", "usual", r"preset must be absent, got 'usual'"),
    ],
)
def test_unknown_presets_are_refused(name, preset, message):
    for request in (
        lambda: TaskSpec(name, preset=preset),
        lambda: read_spec(TaskSpec, {"name": name, "preset": preset}),
    ):
        with pytest.raises(SettingError, match=message):
            request()


def test_permutation_lists_its_options():
    options = TASKS.options("permutation")
    assert {option: default for option, (_, default) in options.items()} == {
        "group": "S_3",
        "length": 16,
        "min_length": None,
        "generators": False,
        "num_generators": None,
        "generator_seed": 0,
        "train_size": None,
        "seed": 0,
    }


@pytest.mark.parametrize("call", [tasks.build, TASKS.find, TASKS.options, TaskSpec])
def test_unknown_tasks_are_named_with_the_choices(call):
    with pytest.raises(SettingError, match=r"task must be one of \['permutation'.*, got 'permuta"):
        call("permutations")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"size": 3},
            "options of task 'permutation' must be among .*'length'.*'seed', 'train_size'.*'size'",
        ),
        ({"train_size": 0}, "train_size must be at least 1, got 0"),
        ({"group": "Z_5"}, "group must be one of S_2, .* got 'Z_5'"),
        ({"length": "16"}, "length must be an integer, got '16'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tasks.build("permutation", **options)
