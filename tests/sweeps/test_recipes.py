"""Configurations with a name."""

import pytest

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.sweeps.recipes import exact
from statemix.sweeps.runner import request
from statemix.tasks import TaskSpec


@pytest.mark.parametrize(("name", "entries"), [("parity", 2), ("cycle_navigation", 5)])
def test_blocks_have_room_for_the_automaton(name, entries):
    config = exact(TaskSpec(name))
    assert config.task == TaskSpec(name)
    assert config.model.layers[0].options["block_size"] == entries
    assert request(config).resolved["search"]["attempts"] == 12


def test_automata_of_the_user_get_one_block_of_columns():
    config = exact(TaskSpec("random_automaton", num_states=8))
    options = {"num_blocks": 1, "block_size": 16, "gate": "column_softmax"}
    options |= {"initial_state": "unit", "input_gate_bias": -6.0}
    assert config.model.layers == (LayerSpec("bd_lru", **options),)
    assert config.search.confirm == "proof"
    ends = {schedule.attribute: schedule.end for schedule in config.schedules.attributes}
    assert ends == {"gate_temperature": 1 / 8, "gate_noise": 1.0}


@pytest.mark.parametrize(("num_states", "size"), [(16, 32), (17, 32), (25, 32), (32, 40)])
def test_large_automata_have_fewer_entries_for_each_state(num_states, size):
    (layer,) = exact(TaskSpec("random_automaton", num_states=num_states)).model.layers
    assert layer.options["block_size"] == size


def test_a_state_with_several_answers_needs_entries_for_each():
    """After a letter, "closed" tells whether this letter was allowed: it stands for two states."""
    gate = "start: closed\nclosed open open ok\nclosed close closed bad\n"
    gate += "open open open bad\nopen close closed ok"
    # No word leads to the start, and to the other state both answers.
    once = "start: new\nnew x old yes\nnew y old yes\nold x old yes\nold y old no"
    for rules, entries in ((gate, 4), (once, 3)):
        (layer,) = exact(TaskSpec("automaton", rules=rules)).model.layers
        assert layer.options["block_size"] == 2 * entries


def test_states_that_share_answers_are_named_in_training():
    """Answers tell no state of a language; they do where the answer is the state."""
    # Both answers of this automaton lead to both states.
    toggle = "start: p\np x q 0\np y p 0\nq x p 1\nq y q 0"
    for task in (
        TaskSpec("regex", preset="tomita-4"),
        TaskSpec("regex", preset="D_5"),
        TaskSpec("automaton", rules=toggle),
        TaskSpec("automaton", preset="lift", states=True),
    ):
        config = exact(task)
        assert config.task == TaskSpec(task.name, **{**task.options, "states": True})
        assert (config.search.repairs, config.search.size, config.search.length) == (4, 64, 64)
    named = exact(TaskSpec("random_automaton"))
    assert (named.task, named.search.repairs) == (TaskSpec("random_automaton"), 4)


def test_learners_that_know_labels_alone_are_not_taught_by_the_automaton():
    for kept in (
        TaskSpec("regex", preset="tomita-4", labels="last"),
        TaskSpec("regex", preset="tomita-4", train_size=1000),
        TaskSpec("regex", preset="tomita-4", states=False),
        TaskSpec("automaton", preset="login", flipped=0.1),
    ):
        config = exact(kept)
        assert (config.task, config.search.repairs) == (kept, None)


def test_distinguishing_words_stand_in_for_states():
    task = TaskSpec("regex", preset="tomita-4", words="distinguishing")
    config = exact(task)
    search = config.search
    assert (config.task, search.repairs) == (task, None)
    assert (search.size, search.length, search.tests) == (2048, 16, 15)
    assert (search.accept, search.accept_last) == (0.99, 0.95)
    assert search.attributes == {"gate_temperature": 1 / 8}


def test_single_labels_are_tested_on_many_words_of_the_training_length():
    config = exact(TaskSpec("regex", preset="D_2", labels="last", length=40))
    assert config.batches.packed
    assert (config.search.size, config.search.length, config.search.accept) == (2048, 40, 0.9999)
    assert not config.search.attributes
    every = exact(TaskSpec("regex", preset="D_2", length=40))
    assert not every.batches.packed
    assert (every.search.size, every.search.length, every.search.accept) == (64, 160, 0.9)
    alone = exact(TaskSpec("regex", preset="D_2", length=40, states=False))
    noises = [one.schedules.attributes[1].end for one in (config, every, alone)]
    assert noises == [1.0, 1.0, 0.3]
    assert every.schedules.replace(attributes=()) == config.schedules.replace(attributes=())


def test_wrong_labels_are_tested_by_labels_alone():
    right = exact(TaskSpec("automaton", preset="login", words="covering")).search
    search = exact(TaskSpec("automaton", preset="login", flipped=0.1)).search
    # Wrong answers, too, meet wrong labels.
    for name in ("accept", "accept_last"):
        share = getattr(right, name)
        assert getattr(search, name) == pytest.approx(0.9 * share + 0.1 * (1 - share))
    # 512 words of 64 labels, three standard deviations.
    assert search.size * search.length == 32_768
    assert search.confirm == pytest.approx(0.9 - 3 * (0.09 / 32_768) ** 0.5)
    last = exact(TaskSpec("automaton", preset="login", flipped=0.1, labels="last")).search
    assert last.size == 2048
    assert last.confirm == pytest.approx(0.9 - 3 * (0.09 / 2048) ** 0.5)


def test_traces_get_room_for_their_states_and_are_tested_by_their_labels(tmp_path):
    file = tmp_path / "traces.txt"
    file.write_text("open/ok read/no close\n" * 30)
    task = TaskSpec("traces", file=str(file), num_states=3, flipped=0.0)
    config = exact(task)
    assert config.model.layers[0].options["block_size"] == 6
    assert config.search.length == 3
    assert config.search.confirm == 1
    # Three of the thirty traces validate, with two labels each.
    noisy = exact(TaskSpec("traces", file=str(file), flipped=0.1)).search
    assert noisy.confirm == pytest.approx(0.9 - 3 * (0.09 / 6) ** 0.5)
    with pytest.raises(RequestError, match=r"must need at most 32 states.* needs 33"):
        exact(TaskSpec("traces", file=str(file), num_states=33))


def test_places_get_one_block_of_value_channels_and_words_in_which_they_all_move():
    config = exact(TaskSpec("arrangement", moves="(1 2); (1 2 3 4 5 6 7)"))
    assert config.task.options["length"] == 28
    (layer,) = config.model.layers
    sizes = {"num_blocks": 1, "block_size": 11, "value_channels": 8, "gate_noise": 0.5}
    assert layer.options.items() >= sizes.items()
    assert (config.model.hidden_size, config.search.length) == (128, 112)


def test_a_fixed_training_set_is_repeated_as_long_as_fresh_words_last():
    few, fresh = exact(TaskSpec("permutation", train_size=250)), exact(TaskSpec("permutation"))
    assert (few.schedules.epochs, few.schedules.num_steps) == (350, None)
    assert (fresh.schedules.epochs, fresh.schedules.num_steps) == (None, 700)
    # Three batches an epoch: no fewer than 700 steps, and evaluations no more often than every 50.
    three = exact(TaskSpec("permutation", train_size=300))
    assert (three.schedules.epochs, three.evaluation.every) == (234, 17)


def test_the_recipe_is_the_one_that_was_measured():
    layer = {"name": "bd_lru", "num_blocks": 6, "block_size": 4, "initial_state": "learned"}
    layer |= {"initial_std": 1.0, "input_gate_bias": -6.0}
    temperature = {"attribute": "gate_temperature", "end": 0.125, "finish": 0.7}
    dropout = {"attribute": "block_dropout", "end": 0.5, "finish": 0.01}
    attributes = [temperature | {"curve": "geometric"}, dropout]
    search = {"attempts": 12, "length": 64, "accept_last": 0.75, "confirm": 0.99}
    assert exact(TaskSpec("permutation", group="S_4")).asked() == {
        "task": {"name": "permutation", "group": "S_4"},
        "model": {"layers": [layer]},
        "optimizer": {"learning_rate": 2e-3},
        "schedules": {"num_steps": 700, "warmup_steps": 50, "attributes": attributes},
        "search": search | {"attributes": {"gate_temperature": 0.125}},
        "evaluation": {"every": 50},
    }


ONE_ANSWER = TaskSpec("automaton", rules="start: a\na x a\na y a")
FLIPPED = TaskSpec("automaton", preset="modular-sum", flipped=0.8)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TaskSpec("compression"), r"automaton, places or traces \(.*parity.*\), got compression"),
        (ONE_ANSWER, "task must have two answers or more .*: automaton"),
        (TaskSpec("modular_arithmetic"), "at most 32 states, .* which needs 66"),
        (FLIPPED, r"flipped must be below 0\.8 with 5 answers, .* got 0\.8"),
    ],
)
def test_tasks_that_the_recipe_does_not_fit_are_refused(task, message):
    with pytest.raises(RequestError, match=message):
        exact(task)
