"""Labelled traces from a file."""

import os

import numpy as np
import pytest

from statemix import tasks
from statemix.automaton import IGNORED
from statemix.cli.main import main
from statemix.errors import OptionError
from statemix.proofs import StateMachine
from statemix.tasks import TaskSpec

LINES = [
    f"open/ok read/ok {'close ' * (n % 3)}read/{'ok' if n % 3 == 0 else 'no'} end{n}"
    for n in range(20)
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("# calls\n\n" + "\n".join(LINES) + "\n")
    return path


def test_examples_are_the_traces_of_their_split(file):
    task = tasks.build("traces", file=str(file))
    assert (task.letters[:4], task.classes) == (("open", "read", "end0", "close"), ("ok", "no"))
    assert (task.length, task.train_size) == (6, None)
    held_out = {"validation": LINES[9::10], "test": LINES[8::10]}
    kept = [line for line in LINES if line not in held_out["validation"] + held_out["test"]]
    for split, lines in {"train": kept, **held_out}.items():
        found, (tokens, targets, lengths) = set(), task.examples(split, 0, 300)
        for row, labels, length in zip(tokens, targets["answer"], lengths, strict=True):
            assert (labels[length:] == IGNORED).all()
            answers = ["" if n == IGNORED else f"/{task.label(n)}" for n in labels[:length]]
            letters = map(task.word, row[:length])
            found.add(" ".join(map("".join, zip(letters, answers, strict=True))))
        assert found == {" ".join(line.split()) for line in lines}
    # Label counts of the split, not of the draws.
    assert task.num_labels("validation") == 6
    # Guessing is the most frequent answer: five of the sixteen training lines end with "ok".
    assert task.chance == {"answer": (2 * 16 + 5) / (3 * 16)}


@pytest.mark.parametrize(("end", "blank"), [("\n", "\f"), ("\r\n", "\x85"), ("\r", "\u2028")])
def test_lines_end_as_in_a_text_file_alone(tmp_path, end, blank):
    path = tmp_path / "log.txt"
    path.write_bytes(end.join([f"a/x{blank}a/x a/y"] * 10).encode())
    assert tasks.build("traces", file=str(path)).length == 3


def test_shorter_examples_are_the_beginnings_of_traces(file):
    task = tasks.build("traces", file=str(file))
    short, long = (task.examples("train", 0, 30, length) for length in (2, 6))
    assert np.array_equal(short.tokens, long.tokens[:, :2])
    assert (short.lengths == 2).all()
    with pytest.raises(OptionError, match="length must be at most 6, the longest trace, got 7"):
        task.examples("test", 0, 1, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/x b/y\n" * 9, "file must have at least 10 traces, got 9 in"),
        ("a/x\n" * 9 + "a/\n", r"log.txt:10 must have words LETTER/ANSWER, .*, got 'a/'"),
        ("a/x\n" * 9 + "/x\n", r"log.txt:10 must have words LETTER/ANSWER, .*, got '/x'"),
        (
            "a/x\n" * 9 + "a\n",
            "words LETTER/ANSWER, with answers in the split validation, got",
        ),
        ("a/x\n" * 8 + "a\na/x\n", "with answers in the split test, got none"),
        (b"\xff\xfe\n", "file must be a text file"),
    ],
)
def test_files_without_what_is_needed_are_refused(tmp_path, text, message):
    path = tmp_path / "log.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(OptionError, match=message):
        tasks.build("traces", file=str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.txt", r"file must be a text file \(No such file.*'nowhere.txt'"),
        (3, "file must be a string, got 3"),
        ("pipe", "file must be a regular file, got 'pipe'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(OptionError, match=message):
        TaskSpec("traces", file=name).build()


def test_a_run_keeps_to_its_file(file):
    spec = TaskSpec("traces", file=str(file))
    assert spec.build().length == 6
    file.write_text("a/x b/y c/x\n" * 10)
    with pytest.raises(OptionError, match="file must be the one with sha256="):
        spec.build()
    assert TaskSpec("traces", file=str(file)).build().length == 3


def test_neither_marks_nor_slashes_change_letters_and_the_longest_trace_may_be_held_out(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("GET/index/ok\n" * 9 + 3 * "GET/index/ok ", encoding="utf-8-sig")
    task = tasks.build("traces", file=str(path))
    assert (task.letters, task.length) == (("GET/index",), 3)


def test_a_monitor_is_trained_on_traces_and_its_property_is_decided(tmp_path, capsys, printed_by):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(400):
        state, line = "closed", []
        for call in rng.choice(["open", "read", "close"], rng.integers(6, 9)):
            fits = (call == "open") == (state == "closed")
            label = f"/{'ok' if fits else 'no'}"
            line.append(f"{call}{label if rng.random() < 0.9 else ''}")
            if fits:
                state = {"open": "opened", "close": "closed"}.get(call, state)
        lines.append(" ".join(line))
    path, folder = tmp_path / "log.txt", tmp_path / "run"
    path.write_text("\n".join(lines))
    rule = tmp_path / "rule.txt"
    rule.write_text(
        "start: shut\nbad: wrong\nshut read ok wrong\nshut open * free\nfree close * shut"
    )
    task = ["--task", "traces", f"file={path}", "num_states=3"]
    options = ["--model.hidden-size", "32", "--evaluation.test-size", "64"]
    assert main(["train", "--folder", str(folder), "--recipe", "exact", *task, *options]) == 0
    assert "proven" in printed_by(["certify", str(folder), "--property", str(rule)])
    assert main(["certify", str(folder)]) != 0
    assert "prove a property with --property FILE" in capsys.readouterr().err
    named = printed_by(["compile", str(folder), "--name", "log"]).splitlines()
    task = tasks.build("traces", file=str(path))
    verdict, _, accuracy = named[0].partition(": ")
    assert verdict == "no automaton to compare with"
    assert accuracy == "1.0000 of the answers on test traces are right"
    assert named[1] == "letters: " + ", ".join(f"{n} {one}" for n, one in enumerate(task.letters))
    assert named[2] == "answers: " + ", ".join(f"{n} {one}" for n, one in enumerate(task.classes))
    tables = np.load(folder / "log.npz")
    machine = StateMachine(tables["transitions"], tables["answers"])
    tokens, targets, lengths = task.examples("test", 0, 40)
    assert set(lengths) == {6, 7, 8}
    labelled = targets["answer"] != tasks.IGNORED
    assert labelled.sum() < lengths.sum()
    assert np.array_equal(machine.run(tokens)[0][labelled], targets["answer"][labelled])
    assert "log_step" in (folder / "log.c").read_text()


def test_only_networks_with_finitely_many_states_are_compiled(tmp_path, refused):
    path, folder = tmp_path / "log.txt", tmp_path / "run"
    path.write_text("a/x b/y\n" * 20)
    train = ["train", "--folder", str(folder), "--task", "traces", f"file={path}"]
    options = "--model.layers lstm --schedules.num-steps 1 --evaluation.test-size 8"
    assert main([*train, *options.split()]) == 0
    refused(["compile", str(folder)], "must hold a network with softmax gates, got another")
