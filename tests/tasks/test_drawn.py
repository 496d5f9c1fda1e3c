"""What all tasks of independent draws share: addressing, sizes, errors, listings."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemix.tasks import IGNORED, TASKS, addressing
from statemix.tasks.drawn import DrawnTask

DRAWN = [name for name, task in TASKS.items() if issubclass(task, DrawnTask)]
# Games are slow to draw.
SHORT = {"chess": {"length": 4}}


def equal(one, other):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    for head, targets in one.targets.items():
        np.testing.assert_array_equal(targets, other.targets[head])
    if one.lengths is not None:
        np.testing.assert_array_equal(one.lengths, other.lengths)


def part(examples, rows):
    lengths = None if examples.lengths is None else examples.lengths[rows]
    targets = {head: targets[rows] for head, targets in examples.targets.items()}
    return type(examples)(examples.tokens[rows], targets, lengths)


@pytest.mark.parametrize("name", DRAWN)
@given(start=st.integers(0, 10**12), count=st.integers(0, 5), seed=st.integers(0, 2**64 - 1))
def test_an_example_depends_on_its_address_alone(build, name, start, count, seed):
    task = build(name, train_size=None, seed=seed, **SHORT.get(name, {}))
    for split in addressing.SPLITS:
        whole = task.examples(split, start, start + 5)
        equal(task.examples(split, start + count, start + 5), part(whole, slice(count, None)))


@pytest.mark.parametrize("name", DRAWN)
def test_shapes_and_ranges(build, name):
    task = build(name)
    tokens, targets, lengths = task.examples("test", 0, 300)
    assert 0 <= tokens.min() <= tokens.max() < task.vocab_size
    assert list(targets) == list(task.heads)
    for head, classes in targets.items():
        assert tokens.dtype == classes.dtype == np.int64
        assert tokens.shape == classes.shape == (300, task.length)
        scored = classes[classes != IGNORED]
        assert 0 <= scored.min() <= scored.max() < task.heads[head]
        assert (classes != IGNORED).any(1).all()
        if lengths is not None:
            outside = np.arange(task.length) >= lengths[:, None]
            assert (classes[outside] == IGNORED).all()
    if lengths is not None:
        assert 1 <= lengths.min() <= lengths.max() <= task.length


@pytest.mark.parametrize("name", DRAWN)
def test_splits_seeds_and_tasks_have_streams_of_their_own(build, name):
    task = build(name, train_size=None)
    other = build(name, train_size=None, seed=1)
    made = [task.examples(split, 0, 40).tokens for split in addressing.SPLITS]
    made.append(other.examples("train", 0, 40).tokens)
    for n, one in enumerate(made):
        for another in made[:n]:
            assert (one != another).any(1).mean() > 0.8


@pytest.mark.parametrize("name", DRAWN)
def test_presets_can_be_built_and_a_smaller_set_begins_a_larger_one(build, name):
    for options in TASKS[name].presets.values():
        task = build(name, **options)
        assert task.train_size == options.get("train_size")
        equal(
            task.examples("train", 0, 3),
            build(name, **options | {"train_size": 3}).examples("train", 0, 3),
        )
        if task.train_size is None:
            continue
        with pytest.raises(ValueError, match=f"stop must be at most train_size={task.train_size}"):
            task.examples("train", 0, task.train_size + 1)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"seed": -1}, ValueError, "^seed must be at least 0, got -1"),
        ({"seed": 2**64}, ValueError, r"^seed must be below 2\^64, got 18446744073709551616"),
        ({"train_size": 0}, ValueError, "^train_size must be at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_named(build, name, changed, error, message):
    with pytest.raises(error, match=message):
        build(name, **changed)


@pytest.mark.parametrize("name", DRAWN)
def test_ranges_out_of_range_are_named(build, name):
    task = build(name)
    for arguments, message in [
        (("training", 0, 1), "^split must be one of train, validation, test, got 'training'"),
        (("test", -1, 1), "^start must be at least 0, got -1"),
        (("test", 2, 1), "^stop must be at least 2, got 1"),
        (("test", 0, 1, 2**25), "^length must be at most"),
    ]:
        with pytest.raises(ValueError, match=message):
            task.examples(*arguments)


# Of several heads, a text shows more than a line of targets can.
SEVERAL_HEADS = {"arrangement", "chess", "cube"}


@pytest.mark.parametrize("name", [name for name in DRAWN if name not in SEVERAL_HEADS])
def test_an_example_as_text_shows_tokens_over_targets(build, name):
    task = build(name)
    tokens, targets, lengths = task.examples("test", 3, 4)
    (head,) = task.heads
    length = task.length if lengths is None else lengths[0]
    title, *lines = task.describe(3, "test").splitlines()
    assert title == f"test example 3 of {task.title}, {length} tokens"
    shown = {"tokens": [], "targets": []}
    for line in filter(None, lines):
        kind, *words = line.split()
        shown[kind] += words
    assert shown["tokens"] == [task.word(token) for token in tokens[0, :length]]
    assert shown["targets"] == [
        "." if label == IGNORED else task.label(label) for label in targets[head][0, :length]
    ]
    assert max(map(len, lines)) <= 88


def test_the_data_stay_what_they_were(build):
    """Changed data would make old results incomparable: change this only with a new task name."""
    found = {}
    for name in DRAWN:
        task = build(name)
        digest = hashlib.sha256()
        for split in addressing.SPLITS:
            tokens, targets, lengths = task.examples(split, 100, 110)
            digest.update(tokens.tobytes() + targets[next(iter(task.heads))].tobytes())
            digest.update(b"" if lengths is None else lengths.tobytes())
        found[name] = digest.hexdigest()[:16]
    assert found == KEPT


KEPT = {
    "compression": "fc2c266e0082f50f",
    "selective_copying": "8cdca13890a061e0",
    "recall": "9f2acbfd426de9df",
    "noisy_recall": "9152ecb694f95f5b",
    "fuzzy_recall": "db6dc620ec0ba94f",
    "memorization": "72163c840a0f5be0",
    "parity": "6e401ad2eb228176",
    "cycle_navigation": "569a5713f76434d7",
    "modular_arithmetic": "a3f069f84aec00e2",
    "bracket_arithmetic": "654f38d5576b5f6f",
    "copying": "95d0b9bef4b90fbe",
    "automaton": "01f538c6505bd787",
    "regex": "6916cede7483ef45",
    "random_automaton": "2b118ac68a85b21b",
    "traces": "5094c2d97c6b5972",
    "arrangement": "9d2da3b4b9c101a0",
    "chess": "66445799c6f93468",
    "cube": "deb7747d93d15c64",
}
