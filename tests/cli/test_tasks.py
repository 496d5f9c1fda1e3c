"""``statemix tasks`` lists every option and data set, and shows the right examples."""

import subprocess
import sys
from pathlib import Path

import pytest

from statemix.cli.main import main
from statemix.cli.options import options_of, text_of
from statemix.cli.parser import parse_class
from statemix.cli.tasks import Tasks
from statemix.errors import OptionError, RequestError
from statemix.registry import REQUIRED
from statemix.tasks import TASKS


def output(capsys, *arguments):
    parse_class(Tasks, arguments, "statemix tasks").run()
    return capsys.readouterr().out


def overview(capsys):
    """What the command says about every task."""
    return "".join(output(capsys, name) for name in TASKS)


def test_without_a_name_every_task_has_one_line(capsys):
    lines = output(capsys).splitlines()
    assert [line.split()[0] for line in lines[: len(TASKS)]] == list(TASKS)
    assert len(lines) == len(TASKS) + 2


def test_overview_shows_every_option_group_and_data_set(capsys):
    text = overview(capsys)
    for name in TASKS:
        assert name in text
        for option, (_, default) in TASKS.options(name).items():
            shown = "(required)" if default is REQUIRED else text_of(default)
            assert any(
                line.split()[:1] == [option] and line.endswith(f" {shown}")
                for line in text.splitlines()
            )
        for data_set in TASKS[name].presets:
            assert data_set in text
    rows = {tuple(line.split()) for line in text.splitlines()}
    assert ("group=A_5", "60", "fresh", "0.0167") in rows
    assert ("file", "str", "(in", "place", "of", "rules)") in rows
    assert ("S4-3k", "group=S_4", "train_size=3000", "24", "3,000", "0.0417") in rows


def test_overview_shows_the_chance_of_tasks_without_published_data_sets(capsys):
    rows = {tuple(line.split()) for line in overview(capsys).splitlines()}
    for task, training, chance in (
        ("noisy_recall", "fresh", "0.1250"),
        ("memorization", "256", "0.0078"),
        ("parity", "fresh", "0.5000"),
        ("bracket_arithmetic", "fresh", "0.2000"),
        ("copying", "fresh", "0.0842"),
    ):
        assert ("defaults", str(TASKS.build(task).vocab_size), training, chance) in rows


def test_no_table_of_the_overview_is_empty(capsys):
    lines = overview(capsys).splitlines()
    headers = [n for n, line in enumerate(lines) if line.split()[-1:] in (["default"], ["chance"])]
    assert all(lines[n + 1] for n in headers)


def test_overview_shows_an_example_of_every_task(capsys):
    text = overview(capsys)
    for name in TASKS:
        if REQUIRED not in [default for _, default in TASKS.options(name).values()]:
            assert TASKS.build(name).describe(0) in text


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
    text = output(
        capsys, "permutation", "group=S_4", "length=20", "--count", "3",
        "--split", "test", "--start", "7",
    )  # fmt: skip
    task = TASKS.build("permutation", group="S_4", length=20)
    for index in (7, 8, 9):
        assert task.describe(index, "test") in text
    assert text.count("test word") == 3
    assert "24 tokens, length 20" in text
    assert "product: 24 classes" in text


def test_output_to_a_file_is_plain_text(capsys):
    text = overview(capsys)
    assert text.isascii()
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_output_to_a_terminal_says_the_same(capsys, monkeypatch):
    plain = output(capsys, "permutation")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    coloured = output(capsys, "permutation")
    assert "\x1b[1m" in coloured
    for word in plain.split():
        assert word in coloured


@pytest.mark.parametrize(
    ("assignments", "options"),
    [
        ([], {}),
        (["group=S_3", "length=16"], {"group": "S_3", "length": 16}),
        (["train_size=none"], {"train_size": None}),
        (["train_size=null"], {"train_size": None}),
        (["a=x=y", "b=1.5", "c=true"], {"a": "x=y", "b": 1.5, "c": True}),
        (["a=True", "b=False", "c=None"], {"a": True, "b": False, "c": None}),
    ],
)
def test_options_are_read_as_they_are_meant(assignments, options):
    read = {option: text.natural for option, text in options_of(assignments).items()}
    assert read == options


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["golf"], OptionError, "task must be one of .*permutation.*, got 'golf'"),
        (["permutation", "--count", "0"], RequestError, "count must be in 1..10000, got 0"),
        (["permutation", "--count", "1000000000"], RequestError, "count must be in 1..10000"),
        (["permutation", "--start", "-1"], RequestError, "index must be at least 0, got -1"),
        (["group=S_3"], RequestError, "task must be one of .*, got 'group=S_3'"),
        (["permutation", "S_3"], RequestError, "form option=value, got 'S_3'"),
        (["permutation", "group="], RequestError, "got 'group=', which has no value"),
        (
            ["permutation", "length=4", "length=5"],
            RequestError,
            "option 'length' must be given once, got 'length=5' as well",
        ),
        (["permutation", "grup=S_3"], RequestError, "must be among .*group"),
        (["automaton", "fil=a.txt"], RequestError, "among .*'file', .*; did you mean 'file'?"),
        (["automaton", "length=4"], RequestError, "rules .* must be given, or file or preset$"),
        *(
            ([name, "prset=x"], RequestError, "among .*'preset'.*; did you mean 'preset'?")
            for name in TASKS
            if TASKS[name].presets
        ),
        (
            ["permutation", "length=1000000000"],
            RequestError,
            "length must be at most 16777216, got 1000000000",
        ),
        (["permutation", "length=long"], RequestError, "length must be a valid integer"),
        (
            ["permutation", "train_size=1", "--count", "2"],
            RequestError,
            "stop must be at most train_size=1, got 2",
        ),
        (
            ["permutation", "length=1", "--split", "test"],
            RequestError,
            "stop must be at most 0",
        ),
        (["catbabi", "seed=1"], RequestError, "folder of task 'catbabi' must be given"),
        (["catbabi", "folder=absent"], RequestError, "folder must be an existing .*, got 'absent'"),
        (["permuation"], OptionError, "did you mean 'permutation'"),
    ],
)
def test_bad_requests_are_named(capsys, arguments, error, message):
    with pytest.raises(error, match=message):
        parse_class(Tasks, arguments, "statemix tasks").run()
    assert capsys.readouterr().out == ""


def test_examples_that_nobody_can_read_are_refused(capsys):
    for length, message in (
        (100_001, "length must be at most 100,000 where examples are shown, got 100,001"),
        (40_000, "count must be at most 2 at length 40,000, got 3"),
    ):
        assert main(["tasks", "permutation", f"length={length}", "--count", "3"]) == 2
        assert capsys.readouterr().err == f"statemix: {message}\n"


def test_own_tasks_are_listed_with_their_module(capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1] / "toys")
    code = "import sys; from statemix.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "tasks", "--imports", "statemix_toys"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\nragged " in done.stdout
