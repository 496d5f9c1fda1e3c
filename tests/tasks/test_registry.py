"""Every task of the registry keeps the common promises, and mistakes are named."""

from typing import Literal, get_args, get_origin

import numpy as np
import pytest

from statemix import tasks

each_task = pytest.mark.parametrize("name", tasks.names())


@each_task
def test_task_is_built_from_its_defaults(name):
    task = tasks.build(name)
    assert task.name == name
    for option, (_, default) in tasks.options(name).items():
        built = getattr(task, option)
        assert getattr(built, "name", built) == default


@each_task
def test_examples_have_the_promised_form(name):
    task = tasks.build(name)
    for split in ("train", "validation", "test"):
        tokens, targets = task.examples(split, 3, 10)
        assert tokens.shape == targets.shape == (7, task.length)
        assert tokens.dtype == targets.dtype == np.int64
        assert tokens.min() >= 0
        assert tokens.max() < task.vocab_size
        scored = targets[targets != -100]
        assert scored.size > 0
        assert scored.min() >= 0
        assert scored.max() < task.num_classes
    assert 0 < task.chance < 1


@each_task
def test_seed_and_split_choose_the_examples(name):
    blocks = [
        tasks.build(name, seed=seed).examples(split, 0, 20)[0]
        for seed in (0, 1)
        for split in ("train", "validation", "test")
    ]
    for i, first in enumerate(blocks):
        assert not any(np.array_equal(first, second) for second in blocks[:i])


@each_task
def test_every_choice_and_every_preset_can_be_built_and_described(name):
    choices = [
        {option: choice}
        for option, (annotation, _) in tasks.options(name).items()
        if get_origin(annotation) is Literal
        for choice in get_args(annotation)
    ]
    for options in [*choices, *tasks.find(name).presets.values()]:
        assert "train" in tasks.build(name, **options).describe(0)


def test_permutation_lists_its_options():
    options = tasks.options("permutation")
    assert {option: default for option, (_, default) in options.items()} == {
        "group": "S_3",
        "length": 16,
        "train_size": None,
        "seed": 0,
    }


@pytest.mark.parametrize("call", [tasks.build, tasks.find, tasks.options])
def test_unknown_tasks_are_named_with_the_choices(call):
    with pytest.raises(ValueError, match=r"task must be one of permutation.*, got 'permutations'"):
        call("permutations")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"train_sise": 250},
            ValueError,
            "options of task 'permutation' must be among group, length, train_size, seed, "
            "got 'train_sise'",
        ),
        ({"train_size": 0}, ValueError, "train_size must be at least 1, got 0"),
        ({"group": "Z_5"}, ValueError, "group must be one of .* got 'Z_5'"),
        ({"length": "16"}, TypeError, "length must be an integer, got '16'"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        tasks.build("permutation", **options)
