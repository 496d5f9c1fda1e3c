"""``statemix tasks`` lists every option and data set, and shows the right examples."""

import pytest

from statemix.cli.main import main
from statemix.cli.options import text_of
from statemix.cli.parser import parse_class
from statemix.cli.tasks import Tasks
from statemix.registry import REQUIRED
from statemix.tasks import TASKS


def output(capsys, *arguments):
    parse_class(Tasks, arguments, "statemix tasks").run()
    return capsys.readouterr().out


def test_without_a_name_every_task_has_one_line(capsys):
    lines = output(capsys).splitlines()
    assert [line.split()[0] for line in lines[: len(TASKS)]] == list(TASKS)
    assert len(lines) == len(TASKS) + 2


def test_overviews_show_every_option_data_set_and_an_example(capsys):
    text = "".join(output(capsys, name) for name in TASKS)
    lines = text.splitlines()
    for name in TASKS:
        options = TASKS.options(name)
        for option, (_, default) in options.items():
            shown = "(required)" if default is REQUIRED else text_of(default)
            assert any(line.split()[:1] == [option] and line.endswith(shown) for line in lines)
        assert all(data_set in text for data_set in TASKS[name].presets)
        if REQUIRED not in [default for _, default in options.values()]:
            assert TASKS.build(name).describe(0) in text
    rows = {tuple(line.split()) for line in lines}
    assert ("group=A_5", "60", "fresh", "0.0167") in rows
    assert ("file", "str", "(in", "place", "of", "rules)") in rows
    assert ("S4-3k", "group=S_4", "train_size=3000", "24", "3,000", "0.0417") in rows
    # Without published data sets, the defaults have their chance.
    for task, training, chance in (
        ("memorization", "256", "0.0078"),
        ("parity", "fresh", "0.5000"),
    ):
        assert ("defaults", str(TASKS.build(task).vocab_size), training, chance) in rows
    # No table is empty, and the output is plain text.
    headers = [n for n, line in enumerate(lines) if line.split()[-1:] in (["default"], ["chance"])]
    assert all(lines[n + 1] for n in headers)
    assert text.isascii()
    assert all(line == line.rstrip() for line in lines)


def test_tasks_that_need_a_folder_are_listed_and_shown_once_they_have_it(capsys, required_options):
    alone = output(capsys, "catbabi")
    assert "Needs the files of bAbI: folder=PATH/en-valid-10k." in alone
    assert alone.rstrip().endswith("seed        int         0")
    (folder,) = required_options["catbabi"].values()
    text = output(capsys, "catbabi", f"folder={folder}", "length=30", "--count", "2")
    task = TASKS.build("catbabi", folder=folder, length=30)
    for index in (0, 1):
        assert task.describe(index) in text


def test_examples_are_those_that_the_task_makes(capsys):
    words = "permutation group=S_4 length=20 --count 3 --split test --start 7"
    text = output(capsys, *words.split())
    task = TASKS.build("permutation", group="S_4", length=20)
    for index in (7, 8, 9):
        assert task.describe(index, "test") in text
    assert text.count("test example") == 3
    assert "24 tokens, length 20" in text
    assert "product: 24 classes" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("permuation", "; did you mean 'permutation'?"),
        ("group=S_3", "task must be one of"),
        ("permutation S_3", "form option=value, got 'S_3'"),
        ("permutation length=4 length=5", "option 'length' must be given once"),
        ("permutation length=100001", "length must be at most 100,000 where examples are shown"),
        ("permutation length=40000 --count 3", "count must be at most 2 at length 40,000, got 3"),
        ("permutation --count 0", "count must be in 1..10000, got 0"),
        ("permutation --start -1", "index must be at least 0, got -1"),
        ("permutation train_size=1 --count 2", "stop must be at most train_size=1, got 2"),
        ("automaton length=4", "must be given, or file or preset"),
        ("catbabi seed=1", "folder of task 'catbabi' must be given"),
    ],
)
def test_bad_requests_are_named(capsys, words, message):
    assert main(["tasks", *words.split()]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_own_tasks_are_listed(capsys, toys):
    assert "\nragged " in output(capsys, "--imports", toys.__name__)
