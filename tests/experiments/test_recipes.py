"""Configurations with a name."""

import pytest

from statemix.experiments.recipes import exact
from statemix.settings import RequestError
from statemix.tasks import TaskSpec
from statemix.training.request import request


@pytest.mark.parametrize(
    ("task", "entries"),
    [
        (TaskSpec("permutation", group="S_3"), 3),
        (TaskSpec("permutation", group="A_5"), 5),
        (TaskSpec("parity"), 2),
        (TaskSpec("cycle_navigation"), 5),
    ],
)
def test_blocks_have_room_for_the_automaton(task, entries):
    config = exact(task)
    assert config.task == task
    (layer,) = config.model.layers
    assert layer.options["block_size"] == entries
    assert request(config).resolved["search"]["attempts"] == 8


def test_a_fixed_training_set_is_repeated_as_long_as_fresh_words_last():
    few, fresh = exact(TaskSpec("permutation", train_size=250)), exact(TaskSpec("permutation"))
    assert (few.schedules.epochs, few.schedules.num_steps) == (350, None)
    assert (fresh.schedules.epochs, fresh.schedules.num_steps) == (None, 700)


def test_the_last_test_is_passed_half_way_between_guessing_and_certainty():
    assert exact(TaskSpec("parity")).search.accept_last == 0.75
    assert exact(TaskSpec("permutation", group="A_5")).search.accept_last == pytest.approx(61 / 120)


def test_tasks_without_an_automaton_are_refused():
    message = r"task must have a finite automaton \(permutation, parity, .*\), got compression"
    with pytest.raises(RequestError, match=message):
        exact(TaskSpec("compression"))
