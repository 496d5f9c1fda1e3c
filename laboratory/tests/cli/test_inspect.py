"""The command that looks into a trained run."""

import dataclasses
import json
import shutil

import pytest
import torch

from statemix.cli.main import main
from statemix.proofs import join_actions, read_actions
from statemix.training import certificates, load_model, load_outcome
from statemix.training.folder import read_metrics
from statemix_lab.inspection.layer_numbers import inspected
from statemix_lab.inspection.layer_text import together


@pytest.fixture
def run(finished_run, tmp_path):
    """A writable copy of the finished run: a BD-LRU of two blocks of three after a start token."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory, tiny_arguments):
    """A run whose second layer runs no linear recurrence."""
    folder = tmp_path_factory.mktemp("runs") / "hybrid"
    words = ["bd_lru", "num_blocks=2", "block_size=3", "lstm", "h_lru", "num_channels=9", "order=2"]
    arguments = [*tiny_arguments("--model.layers", *words, "--schedules.epochs", "1")]
    assert main(["train", "--folder", str(folder), *arguments]) == 0
    return folder


def numbers(folder):
    return json.loads((folder / "numbers.json").read_text())


def test_the_run_is_shown_in_pictures_numbers_and_sentences(run, printed_by):
    text = printed_by(["inspect", str(run)])
    folder, found = run / "inspect", numbers(run / "inspect")
    names = {"eigenvalues-0.png", "gates-0.png", "mixing-0.png", "block-attention-0.png"}
    names |= {"actions.png", "representations.png", "sharpening-0.png"}
    assert {path.name for path in folder.iterdir()} == names | {"numbers.json"}
    assert all((folder / name).read_bytes()[1:4] == b"PNG" for name in names)
    model, task = load_model(run), load_outcome(run).config.build_task()
    examples = task.examples("test", 0, 2).tokens.tolist()
    assert found["tokens"] == {"sequence 0": examples[0], "sequence 1": examples[1]}
    assert (found["weights"], found["split"], found["start"]) == ("last", "test", 0)
    assert found["layers"][0]["shown"] == [0, 1]
    summary = found["layers"][0]["summary"]
    (line,) = (line for line in text.splitlines() if line.startswith("0 "))
    assert "BD-LRU" in line
    assert "2 blocks of 3" in line
    assert {f"{summary['largest']:.3f}", f"{summary['negative']:.1%}"} <= {*line.split()}
    assert text.endswith(f"written: {folder}\n")
    # The automaton that was learned.
    assert found["actions"] == read_actions(model, task.automaton())
    assert "in no block does the task's state alone decide what the block holds" in text
    assert "with gates of 0 and 1: of another kind: 2 blocks\n" in text
    joint = found["joint"]
    assert joint == join_actions(model, found["actions"], task.automaton(), name="S_3")
    assert together(joint) in text.splitlines()
    # The race of representations.
    assert [one["step"] for one in found["representations"]] == [
        row["step"] for row in read_metrics(run)
    ]
    assert found["representations"][0]["representations"].keys() == {"1'", "2"}
    # Without a schedule, gates are shown beside gates of 0 and 1.
    assert "unsharpened" not in text
    (sharpened,) = found["sharpening"]
    moments = [sharpened[name]["temperature"] for name in ("before", "after")]
    assert moments == [1.0, 0.0]
    assert sharpened["before"]["gates"] == found["layers"][0]["gates"][0]


def test_of_several_layers_those_with_transitions_are_shown(hybrid, tmp_path, printed_by):
    options = ["--output", str(tmp_path / "all")]
    text = printed_by(["inspect", str(hybrid), *options])
    assert "layer 1 (LSTM) has no transitions to show: it writes out no linear recurrence" in text
    assert {line.split()[0] for line in text.splitlines()} >= {"0", "2"}
    assert not list((tmp_path / "all").glob("*-1.png"))
    # Only a single layer is an automaton.
    assert "with gates of 0 and 1" not in text
    found = numbers(tmp_path / "all")
    assert (found["actions"], found["joint"]) == ([], None)
    assert not (tmp_path / "all" / "actions.png").exists()
    assert "gate entropy" not in printed_by(["inspect", str(hybrid), "--layer", "1", *options])


def test_metrics_that_are_lost_or_damaged_stop_no_more_than_the_race(run, refused):
    metrics = run / "metrics.jsonl"
    text = metrics.read_text()
    for damaged in (text[:-5], text.splitlines()[0].replace('"2"', '"3"') + "\n"):
        metrics.write_text(damaged)
        refused(["inspect", str(run)], "metrics.jsonl must hold a run's metrics, got: ")
    metrics.unlink()
    assert main(["inspect", str(run)]) == 0
    assert numbers(run / "inspect")["representations"] == []
    assert not (run / "inspect" / "representations.png").exists()


def test_a_proven_network_is_never_said_to_track_nothing(run, monkeypatch, capsys):
    """Its blocks may hold more than the task's state."""
    monkeypatch.setattr(certificates, "load_proven", lambda folder, weights: None)
    assert main(["inspect", str(run)]) == 0
    said = "with gates of 0 and 1: the network is proven; its blocks tell more states apart than"
    assert said in capsys.readouterr().out


def test_the_race_of_a_search_marks_its_attempts(tiny_arguments, tmp_path, capsys):
    folder = tmp_path / "searched"
    # Attempts leave their plateau as soon as the loss falls at all, and fail their only test.
    search = "--search.attempts 2 --search.plateau 1 --search.every 2 --search.tests 1"
    strict = "--search.accept 1 --search.accept-last 1 --evaluation.every 1"
    words = [*tiny_arguments(*search.split(), *strict.split())]
    assert main(["train", "--folder", str(folder), *words]) == 0
    assert main(["inspect", str(folder)]) == 0
    attempts = load_outcome(folder).attempts
    assert len(attempts) == 2
    assert numbers(folder / "inspect")["attempts"] == [dataclasses.asdict(one) for one in attempts]


def test_options_choose_layer_units_tokens_and_output(hybrid, tmp_path, capsys):
    output = tmp_path / "new" / "folder"
    options = ["--layer", "2", "--units", "8", "0", "--tokens", "3", "--output", str(output)]
    assert main(["inspect", str(hybrid), *options, "--weights", "best_test", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert {name: line[name] for name in ("layer", "kind", "unit", "units", "size")} == {
        "layer": 2,
        "kind": "H-LRU",
        "unit": "channel",
        "units": 9,
        "size": 2,
    }
    found = numbers(output)
    assert found["layers"][0]["summary"] == line["summary"]
    assert found["layers"][0]["shown"] == [8, 0]
    assert [sharpened["layer"] for sharpened in found["sharpening"]] == [2]
    assert [len(row) for row in found["tokens"].values()] == [3, 3]
    assert found["weights"] == "best_test"
    assert not (hybrid / "inspect").exists()


def test_attributes_of_evaluation_are_those_of_the_run(
    tmp_path, tiny_arguments, capsys, printed_by
):
    folder = str(tmp_path / "run")
    sharp = ["--evaluation.attributes", "gate_temperature=1e-3"]
    printed_by(["train", "--folder", folder, *tiny_arguments(*sharp)])
    assert main(["inspect", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["summary"]["gate_entropy"] < 0.1


def test_gates_are_shown_before_and_after_sharpening(tmp_path, tiny_arguments, capsys, printed_by):
    folder = tmp_path / "run"
    schedule = ["--schedules.attributes", "gate_temperature", "start=2", "end=0.125", "finish=0.5"]
    printed_by(["train", "--folder", str(folder), *tiny_arguments(*schedule)])
    text = printed_by(["inspect", str(folder)])
    (found,) = numbers(folder / "inspect")["sharpening"]
    moments = [found["before"], found["after"]]
    assert [one["temperature"] for one in moments] == [2.0, 0.125]
    layer = numbers(folder / "inspect")["layers"][0]
    assert found["after"]["gates"] == layer["gates"][0]
    assert found["after"]["gate_entropy"] == layer["summary"]["gate_entropy"]
    model = load_model(folder)
    model.backbone.blocks[0].mixer.gate_temperature = 2.0
    tokens = torch.tensor(list(numbers(folder / "inspect")["tokens"].values()))
    (soft,) = inspected(model, tokens, units=range(2))
    assert found["before"]["gates"] == soft["gates"][0]
    assert found["before"]["gate_entropy"] == soft["summary"]["gate_entropy"]
    assert all(f" {one['gate_entropy']:.3f} " in text for one in moments)
    assert main(["inspect", str(folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert row["sharpening"]["before"]["gate_entropy"] == found["before"]["gate_entropy"]
    assert row["joint"] == numbers(folder / "inspect")["joint"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sequences", "0"], "sequences must be in 1..16, got 0"),
        (["--layer", "1"], "layer must be in 0..0, got 1"),
        (["--units", "2"], "units must be in 0..1, got [2]"),
        (["--units", "0", "0"], "units must be distinct and at least 0, got [0, 0]"),
        (["--start", "100", "--split", "train"], "start: stop must be at most train_size=20, got"),
        (["--output", "/dev/null/x"], "output must be a writable file, got '/dev/null/x/numbers"),
    ],
)
def test_a_bad_request_is_one_line_and_leaves_nothing(run, refused, options, message):
    refused(["inspect", str(run.parent)], "folder must hold a run, got")
    refused(["inspect", str(run), *options], message)
    assert not (run / "inspect").exists()
