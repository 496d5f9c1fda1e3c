"""The command that learns a machine from a log."""

import ctypes
import itertools
import json
import runpy
import shutil
import subprocess
from xml.etree import ElementTree

import numpy as np
import pytest

from statemix.cli.learn import Learn
from statemix.cli.main import main
from statemix.learning import LearnedMachine
from statemix.learning.machine_texts import to_svg
from statemix.proofs import StateMachine
from statemix.tasks import TaskSpec

SAFE = """\
start: closed
bad: wrong
closed read ok wrong
closed open-read * opened
opened close * closed
"""
FILES = {
    "contradictions.jsonl",
    "machine.c",
    "machine.dot",
    "machine.json",
    "machine.py",
    "machine.svg",
    "report.html",
}


@pytest.fixture(scope="module")
def task():
    options = {"preset": "file-handle", "length": 12, "train_size": 400, "flipped": 0.05}
    return TaskSpec("automaton", **options).build(seed=0)


@pytest.fixture(scope="module")
def traces(task, tmp_path_factory):
    """Traces of a file handle; 5% of the labels are wrong."""
    tokens, targets, _ = task.examples("train", 0, 400)
    path = tmp_path_factory.mktemp("log") / "traces.jsonl"
    rows = [
        {"events": [task.word(token) for token in word], "labels": list(map(task.label, labels))}
        for word, labels in zip(tokens.tolist(), targets[task.head].tolist(), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def learned(traces):
    folder = traces.parent / "learned"
    assert main(["learn", str(traces), "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def module(learned):
    return runpy.run_path(str(learned / "machine.py"))


def words_of(task):
    """Words of the task with the numbers of their right answers."""
    tokens, targets, _ = task.examples("test", 0, 20, 200)
    return zip(tokens.tolist(), targets[task.head].tolist(), strict=True)


def test_folder_holds_the_machine_and_the_report(learned):
    assert {path.name for path in learned.iterdir()} >= FILES
    stored = json.loads((learned / "machine.json").read_text())
    assert stored["states"].keys() == {"start", "open-read", "open-write"}
    step = stored["states"]["open-read"]["close"]
    assert (step["next"], step["answer"]) == ("start", "ok")


def test_programs_answer_like_the_system(learned, module, task):
    """The machine in JSON, in Python, and the system itself."""
    states = json.loads((learned / "machine.json").read_text())["states"]
    for word, labels in words_of(task):
        machine, state = module["Machine"](), "start"
        for token, label in zip(word, labels, strict=True):
            step = states[state][task.word(token)]
            state = step["next"]
            assert machine.step(task.word(token)) == step["answer"] == task.label(label)


def test_c_answers_like_python(learned, module, task, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "machine.so"
    source = str(learned / "machine.c")
    command = [compiler, "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", source]
    subprocess.run([*command, "-o", str(library)], check=True)
    step = ctypes.CDLL(str(library)).machine_step
    step.argtypes = [ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint32]
    for word, _ in words_of(task):
        machine, state = module["Machine"](), ctypes.c_uint8(0)
        for token in word:
            event = task.word(token)
            answer = step(ctypes.byref(state), module["EVENTS"][event])
            assert module["ANSWERS"][answer] == machine.step(event)


def test_contradictions_are_the_wrong_labels(learned, task):
    """The log has about 5% of them, and the machine is the system."""
    found = [
        json.loads(line) for line in (learned / "contradictions.jsonl").read_text().splitlines()
    ]
    tokens, targets, _ = task.examples("train", 0, 400)
    automaton, wrong = task.automaton(), []
    for row, (word, labels) in enumerate(zip(tokens, targets[task.head], strict=True), 1):
        right = automaton.answers(word)
        wrong += [(row, place + 1) for place in np.flatnonzero(labels != right).tolist()]
    assert [(line["row"], line["position"]) for line in found] == wrong
    assert len(wrong) == pytest.approx(0.05 * tokens.size, rel=0.3)


def test_page_names_states_and_rows(learned):
    page = (learned / "report.html").read_text()
    line = json.loads((learned / "contradictions.jsonl").read_text().splitlines()[0])
    cells = "".join(f"<td>{cell}</td>" for cell in line.values())
    assert f"<tr>{cells}</tr>" in page
    assert "<td>open-write</td>" in page
    assert (learned / "machine.svg").read_text() in page


def test_labels_of_the_picture_lie_apart():
    # From state 1, an arrow passes the loop of state 2.
    transitions = np.array([[2, 1, 0], [2, 3, 0], [2, 2, 0], [2, 4, 0], [4, 4, 0]], np.int32)
    machine = StateMachine(transitions, np.zeros_like(transitions))
    names = ("right", "wrong", "unlock"), ("ok",)
    none = np.zeros(0, np.int64)
    picture = to_svg(LearnedMachine(machine, *names, transitions, none, none, 0.0, 1.0))
    places, circles = [], []
    for shape in ElementTree.fromstring(picture).iter():
        kind, at = shape.tag.split("}")[1], shape.attrib
        if kind == "circle":
            circles.append((float(at["cx"]), float(at["cy"])))
        elif kind == "text" and "class" not in at:
            places.append((float(at["x"]), float(at["y"]), 3 * len(shape.text)))
    assert len(places) == 13
    for (x, y, half), (other_x, other_y, other_half) in itertools.combinations(places, 2):
        assert abs(x - other_x) >= half + other_half or abs(y - other_y) >= 12
    # No label lies on a state.
    for (x, y, half), (left, top) in itertools.product(places, circles):
        assert abs(x - left) >= half + 26 or abs(y - 4 - top) >= 26
    # Labels of loops stay above their circles.
    for x, y in (circles[2], circles[4]):
        assert (x, y - 72) in {place[:2] for place in places}


def test_properties_are_proven_or_refuted(learned, traces, tmp_path, capsys):
    folder = shutil.copytree(learned, tmp_path / "learned")
    (tmp_path / "safe.txt").write_text(SAFE)
    (tmp_path / "broken.txt").write_text(SAFE.replace("closed read ok", "opened read ok"))
    command = ["learn", str(traces), "--output", str(folder), "--property"]
    assert main([*command, str(tmp_path / "safe.txt")]) == 0
    assert "safe.txt: proven" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "broken.txt")]) == 1
    told = capsys.readouterr()
    assert "broken.txt: refuted by open-read / ok, read / ok" in told.out
    assert f"refuted: {tmp_path / 'broken.txt'}" in told.err


def test_a_property_sees_events_without_labels(tmp_path, capsys):
    """Only the last event of each trace has a label."""
    traces = [(("open", "read"), "ok"), (("read",), "bad")] * 50
    rows = [json.dumps({"events": events, "label": label}) for events, label in traces]
    (tmp_path / "log.jsonl").write_text("\n".join(rows))
    rule = "start: a\nbad: wrong\na open {} b\nb read ok wrong\n"
    (tmp_path / "any.txt").write_text(rule.format("*"))
    (tmp_path / "never.txt").write_text("start: wrong\nbad: wrong\n")
    command = ["learn", str(tmp_path / "log.jsonl"), "--output", str(tmp_path / "out")]
    assert (
        main([*command, "--property", *(str(tmp_path / f"{n}.txt") for n in ("any", "never"))]) == 1
    )
    said = capsys.readouterr().out
    assert "any.txt: refuted by open / no label, read / ok" in said
    assert "never.txt: refuted by the empty word" in said
    # No line but one with * can name the missing label.
    (tmp_path / "named.txt").write_text(
        rule.format("ok").replace("b read ok", "b read * b\na read ok")
    )
    assert main([*command, "--property", str(tmp_path / "named.txt")]) == 1
    assert "named.txt: refuted by open / no label, read / ok" in capsys.readouterr().out


def test_unknown_event_of_a_property_is_named(learned, traces, tmp_path, capsys):
    (tmp_path / "unknown.txt").write_text("start: a\nbad: b\na delete * b")
    command = ["learn", str(traces), "--output", str(learned), "--property"]
    assert main([*command, str(tmp_path / "unknown.txt")]) == 2
    assert "got 'delete' on line 3" in capsys.readouterr().err


def test_properties_with_one_name_are_all_checked(learned, traces, tmp_path, capsys):
    """Two files with the same name in different folders."""
    folder = shutil.copytree(learned, tmp_path / "learned")
    paths = [tmp_path / "first" / "rule.txt", tmp_path / "second" / "rule.txt"]
    for path, state in zip(paths, ("opened", "closed"), strict=True):
        path.parent.mkdir()
        path.write_text(SAFE.replace("closed read ok", f"{state} read ok"))
    command = ["learn", str(traces), "--output", str(folder), "--property"]
    assert main([*command, *map(str, paths)]) == 1
    said = capsys.readouterr().out
    assert f"{paths[0]}: refuted" in said
    assert f"{paths[1]}: proven" in said


def test_names_may_look_like_programs(tmp_path):
    """Event names end comments and texts, are keywords, or are the name of the start state."""
    names = ["start", "int", "*/", "/*", "//", "\\", '"', "'''", "<b>", "é", "😀", "{x}", "%s"]
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        events, labels, armed = rng.choice(names, 8).tolist(), [], False
        for event in events:
            labels.append("*/<i>" if armed else "ok")
            armed = event == "start" or (armed and event != "int")
        rows.append({"events": events, "labels": labels})
    log, folder = tmp_path / "log.jsonl", tmp_path / "learned"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["learn", str(log), "--output", str(folder), "--noise", "0"]) == 0
    stored = json.loads((folder / "machine.json").read_text())
    assert (stored["start"], set(stored["states"])) == ("(start)", {"(start)", "start"})
    assert '"(start)" -> "start"' in (folder / "machine.dot").read_text()
    assert (folder / "contradictions.jsonl").read_text() == ""
    ElementTree.parse(folder / "machine.svg")
    machine = runpy.run_path(str(folder / "machine.py"))["Machine"]()
    assert [machine.step(event) for event in rows[0]["events"]] == rows[0]["labels"]
    if compiler := shutil.which("cc"):
        command = [compiler, "-std=c99", "-Wall", "-Werror", "-fsyntax-only"]
        subprocess.run([*command, str(folder / "machine.c")], check=True)


def test_files_of_others_are_not_overwritten(traces, tmp_path, capsys):
    for name in ("attempt-7.json", "machine.py"):
        (tmp_path / name).write_text("mine")
    assert main(["learn", str(traces), "--output", str(tmp_path)]) == 2
    said = "output must be empty or hold a learned machine, got"
    assert f"{said} {tmp_path} with 'attempt-7.json'" in capsys.readouterr().err
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


def test_order_of_attempts_does_not_matter(traces, learned, tmp_path):
    """The second attempt is stored, the first is not."""
    for name in ("attempt-1.json", "request.json"):
        shutil.copy(learned / name, tmp_path)
    assert main(["learn", str(traces), "--output", str(tmp_path)]) == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (learned / name).read_bytes()


def test_workers_find_the_same_machine(learned, traces, tmp_path):
    assert main(["learn", str(traces), "--output", str(tmp_path), "--workers", "2"]) == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (learned / name).read_bytes()


def test_stored_attempts_are_not_repeated(traces, tmp_path, monkeypatch, capsys):
    """An interrupt after the first attempt, then the same command again."""
    command = ["learn", str(traces), "--output", str(tmp_path)]
    finish = "statemix.learning.finish"
    stop = pytest.MonkeyPatch()
    (tmp_path / "request.json.tmp").write_text("{")  # of a process that was killed
    stop.setattr(finish, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(command) == 130
    assert "repeat the command to resume" in capsys.readouterr().err
    stop.undo()
    monkeypatch.setattr("statemix.learning.search", lambda *_, **__: pytest.fail("was repeated"))
    assert main(command) == 0
    assert {path.name for path in tmp_path.iterdir()} >= FILES


def test_folder_of_another_request_is_refused(learned, traces, tmp_path, capsys):
    assert main(["learn", str(traces), "--output", str(learned), "--states", "9"]) == 2
    assert "of another request (states differs)" in capsys.readouterr().err
    longer = tmp_path / "longer.jsonl"
    longer.write_text(traces.read_text() * 2)
    assert main(["learn", str(longer), "--output", str(learned)]) == 2
    assert "of another request (traces differs)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": 0}, "states must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"noise": 0.5}, "noise must be at least 0 and below 0.5, got 0.5"),
    ],
)
def test_bad_options_are_named(traces, options, message):
    with pytest.raises(ValueError, match=message):
        Learn(traces, **options).run()
