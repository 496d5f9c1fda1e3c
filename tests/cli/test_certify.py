"""The command that proves or refutes a trained run."""

import contextlib
import copy
import hashlib
import io
import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from statemix import proofs
from statemix.cli.certify import print_certificate
from statemix.cli.main import main
from statemix.errors import RequestError
from statemix.proofs import EntryMachine, StateMachine, check_certificate, search
from statemix.proofs.certificate import Certificate
from statemix.proofs.horizon import Horizon
from statemix.training import load_model, load_outcome
from statemix.training.certificates import load_proven

CERTIFICATES = Path(__file__).parents[2] / "laboratory" / "results" / "certificates"
# Pairs of transpositions, learned in a second or two.
S_2 = shlex.split(
    """
    --task permutation group=S_2 length=8 train_size=100 --model.bos --model.hidden-size 16
    --batches.size 20 --optimizer.learning-rate 0.01 --schedules.epochs 30
    --evaluation.every 30 --evaluation.test-size 20 --evaluation.validation-size 20
    --runtime.num-threads 1 --runtime.device cpu
    """
)
BLOCKS = shlex.split(
    """
    --model.layers bd_lru num_blocks=4 block_size=2
    --schedules.attributes gate_temperature end=0.125 begin=0.3 finish=0.8 curve=reciprocal
    """
)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """``train(name, words...)`` trains once for this file, and returns the folder."""

    def trained(name, *words):
        folder = tmp_path_factory.getbasetemp() / f"certify-{name}"
        if not folder.exists():
            common = S_2[S_2.index("--model.bos") if "--task" in words else 0 :]
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(["train", "--folder", str(folder), *common, *words]) == 0
        return folder

    return trained


@pytest.fixture
def tracker(train):
    return train("tracker", "--seed", "1", *BLOCKS)


def certificate(folder, about=""):
    return json.loads((folder / f"certificate{about}.json").read_text())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("certifi*")}


def test_a_tracker_is_proven_and_its_network_is_kept(tracker, printed_by):
    lines = printed_by(["certify", str(tracker)]).splitlines()
    assert lines[0] == "proven: right after every word of every length"
    stored = certificate(tracker)
    tracking = stored["tracking"]
    assert 0 < len(tracking) < stored["num_blocks"] == 4
    assert lines[1] == f"  network  with gates of 0 and 1, {len(tracking)} of 4 blocks"
    assert (stored["verdict"], stored["weights"], stored["word"]) == ("proven", "last", [])
    assert lines[-1] == f"written: {tracker}/certificate.json, {tracker}/certified.safetensors"
    # The network in the file is the one that is proven, and not the one that was trained.
    model, task = load_proven(tracker), load_outcome(tracker).config.build_task()
    found = search(model, task.automaton())
    assert found.verdict == "proven"
    assert (found.pairs, found.margin) == (stored["pairs"], stored["margin"])
    examples = task.examples("test", 0, 4, 5000)
    answers = model(torch.from_numpy(examples.tokens))["product"].argmax(-1).numpy()
    assert (answers == examples.targets["product"]).all()
    loads = model.backbone.blocks[0].mixer.value_proj.weight.view(2, 4, -1).abs().sum((0, 2))
    assert loads.nonzero().flatten().tolist() == tracking


def test_places_are_proven_by_structure(train, printed_by, refused):
    folder = train(
        "places", "--task", "arrangement", "moves=(1); (1 2)", "length=8", "train_size=100", *BLOCKS
    )
    lines = printed_by(["certify", str(folder)]).splitlines()
    assert lines[0] == "proven: right after every word of every length"
    assert lines[2] == "  proof    by structure: tokens do to entries what they do to places"
    stored = certificate(folder)
    assert (stored["method"], stored["without_tables"]) == ("structure", None)
    assert check_certificate.check_structure(stored["tables"]) == 2
    examples = load_outcome(folder).config.build_task().examples("test", 0, 4, 5000)
    logits = load_proven(folder)(torch.from_numpy(examples.tokens))
    for head, answers in examples.targets.items():
        np.testing.assert_array_equal(logits[head].argmax(-1).numpy(), answers)
    refused(["certify", str(folder), "--soft"], "soft must be absent for a task with places")
    lines = printed_by(["compile", str(folder)]).splitlines()
    assert lines[:2] == ["proven at every length", "letters: 0 (1), 1 (1 2)"]
    assert lines[3:5] == ["places: 0 place_1, 1 place_2", "2 entries, 2 letters, 2 answers"]
    with np.load(folder / "machine.npz") as arrays:
        machine = EntryMachine(**arrays)
    reached = machine.answers(machine.run(examples.tokens))
    for place, answers in enumerate(examples.targets.values()):
        np.testing.assert_array_equal(reached[:, place], answers[:, -1])
    (folder / "rule.txt").write_text("start: a\nbad: c\na (1_2) 1 b\nb (1_2) 2 c\n")
    assert main(["certify", str(folder), "--property", str(folder / "rule.txt")]) == 1
    (folder / "mine.c").write_text("int main(void) { return 0; }")
    refused(["compile", str(folder), "--name", "mine"], "mine.c must not exist: it is another")
    stored["tables"]["start"][0] ^= 1
    (folder / "certificate.json").write_text(json.dumps(stored))
    refused(["compile", str(folder)], "must hold the tables of a proof, got: its tables were")


def test_a_stranger_can_check_the_tables_of_a_proof(tracker):
    assert main(["certify", str(tracker)]) == 0
    stored = certificate(tracker)
    assert check_certificate.check(stored["tables"]) == (stored["pairs"], None)
    assert (stored["letters"], stored["answers"]) == (["12", "21"], ["12", "21"])
    main(["certify", str(tracker), "--soft", "--max-pairs", "50"])
    stored = certificate(tracker, "-soft")
    assert "tables" not in stored
    assert stored["without_tables"] == "the gates of the network are not 0 and 1"


def without_certificates(tracker, tmp_path):
    """A copy of a run that nobody has certified."""
    run = shutil.copytree(tracker, tmp_path / "run")
    for path in run.glob("certif*"):
        path.unlink()
    return run


KEPT = "start: a\nbad: wrong\na 21 21 odd\nodd 21 21 wrong\nodd * 21 odd\nodd * * a\n"
BROKEN = "start: a\nbad: wrong\na * 21 b\nb * 21 wrong\nb * * a\n"


def test_properties_are_proven_or_broken(tracker, tmp_path, capsys, printed_by):
    """The answer is 1 after an odd number of letters 1."""
    run = without_certificates(tracker, tmp_path)
    kept, broken = tmp_path / "kept.txt", tmp_path / "broken.txt"
    kept.write_text(KEPT)
    broken.write_text(BROKEN)

    def check(file, *options):
        code = main(["certify", str(run), "--property", str(file), *options])
        return code, capsys.readouterr()

    code, said = check(kept, "--max-pairs", "1")
    assert (code, said.err) == (1, f"statemix: the verdict on {run} is open\n")
    assert said.out.startswith("open: more than 1 states\n  network  with gates")
    printed_by(["certify", str(run)])
    code, said = check(kept)
    lines = said.out.splitlines()
    assert (code, lines[-1]) == (0, f"written: {run}/property-kept.json")
    assert lines[:2] == ["proven: no word leads to a bad state", "  network  the proven one"]
    # Another search of the same network may only have been shorter.
    code, said = check(kept, "--max-pairs", "1")
    assert said.out.endswith("not written: the file holds a verdict, which stays\n")
    assert json.loads((run / "property-kept.json").read_text())["verdict"] == "proven"
    code, said = check(broken, "--json")
    row = json.loads(said.out)
    assert row == json.loads((run / "property-broken.json").read_text())
    assert (row["verdict"], row["word"], row["answers"]) == ("refuted", ["21", "12"], ["21", "21"])
    assert (row["state"], row["network"], row["property"]) == ("wrong", "proven", BROKEN)
    # A proof beside the run counts everywhere, and one in another folder there.
    elsewhere = ("--output", str(tmp_path / "proofs"))
    assert check(kept, *elsewhere)[1].out.splitlines()[1] == lines[1]
    assert main(["certify", str(run), *elsewhere]) == 0
    (run / "certificate.json").unlink()
    capsys.readouterr()
    assert check(kept, *elsewhere)[1].out.splitlines()[1] == lines[1]
    # Another question about the network has another file.
    assert check(broken, "--soft", "--max-pairs", "100", "--output", str(tmp_path / "new"))[0] == 1
    stored = json.loads((tmp_path / "new" / "property-broken-soft.json").read_text())
    assert stored["network"] == "as trained"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "wrong.txt").write_text("start: a\nbad: b\na 7 12 b\n")
    for name, message in (
        ("pipe", "pipe: not a regular file"),
        ("wrong.txt", "property must name letters among 12, 21, got '7' on line 3"),
    ):
        code, said = check(tmp_path / name)
        assert code == 2
        assert message in said.err


LAMP = "start: off\noff switch on\noff repair -\non switch off\non repair off\n"


def test_a_property_is_about_the_words_of_the_task(tmp_path, capsys):
    """No word begins with "repair", so no network can break the property."""
    rules, first = tmp_path / "lamp.txt", tmp_path / "first.txt"
    rules.write_text(LAMP)
    first.write_text("start: s\nbad: b\ns switch * t\ns repair * b\n")
    run = str(tmp_path / "run")
    train = ["train", "--folder", run, "--task", "automaton", f"file={rules}"]
    train += ["--model.layers", "bd_lru", "num_blocks=1", "block_size=2"]
    train += ["--schedules.num-steps", "1", "--evaluation.test-size", "2"]
    assert main([*train, "--evaluation.validation-size", "2"]) == 0
    assert main(["certify", run, "--property", str(first)]) == 0
    first.write_text("start: s\nbad: b\ns switch * b\n")
    assert main(["certify", run, "--property", str(first)]) == 1
    assert "refuted: switch leads to b" in capsys.readouterr().out


def test_a_proof_is_compiled(tracker, tmp_path, printed_by):
    printed_by(["certify", str(tracker)])
    output = tmp_path / "new" / "folder"
    said = printed_by(["compile", str(tracker), "--name", "s2", "--output", str(output)])
    lines = ["proven at every length", "letters: 0 12, 1 21", "answers: 0 12, 1 21"]
    lines.append("2 states, 2 letters")
    assert said.splitlines() == [*lines, f"written: {output}/s2.c, {output}/s2.npz"]
    assert "int32_t s2_step(s2_state *state, uint32_t letter)" in (output / "s2.c").read_text()
    with np.load(output / "s2.npz") as arrays:
        machine = StateMachine(**arrays)
    examples = load_outcome(tracker).config.build_task().examples("test", 0, 4, 5000)
    answers, _ = machine.run(examples.tokens)
    np.testing.assert_array_equal(answers, examples.targets["product"])


def test_names_of_letters_and_answers_are_compiled(tmp_path, capsys, printed_by, monkeypatch):
    """Traces have no automaton, so how right the machine is on test traces takes its place."""
    traces, folder = tmp_path / "lamp.txt", tmp_path / "run"
    words = np.random.default_rng(0).integers(2, size=(200, 8))
    # The first letter and the first answer name the numbers 0.
    words[0, 0] = 0
    letters = np.array(["wait/", "press/"])[words]
    lines = np.strings.add(letters, np.array(["dark", "lit"])[words.cumsum(1) % 2])
    traces.write_text("\n".join(map(" ".join, lines)))
    task = ["--task", "traces", f"file={traces}", "train_size=100"]
    words = [*task, *S_2[S_2.index("--model.bos") :], *BLOCKS]
    printed_by(["train", "--folder", str(folder), *words])
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["compile", str(folder)]) == 0
    printed = capsys.readouterr()
    assert " states" in printed.err
    said = printed.out.splitlines()
    with np.load(folder / "machine.npz") as arrays:
        machine = StateMachine(**arrays)
    examples = load_outcome(folder).config.build_task().examples("test", 0, 20)
    (targets,) = examples.targets.values()
    accuracy = (machine.run(examples.tokens)[0] == targets).mean()
    assert said[:3] == [
        f"no automaton to compare with: {accuracy:.4f} of the answers on test traces are right",
        "letters: 0 wait, 1 press",
        "answers: 0 dark, 1 lit",
    ]
    head = (folder / "machine.c").read_text().partition("#include")[0]
    assert "   letters: 0 wait, 1 press\n" in head
    assert head.endswith("answers: 0 dark, 1 lit */\n")


def test_a_model_without_gates_is_asked_as_it_is(train, capsys):
    folder = train("lstm", "--model.layers", "lstm")
    assert main(["certify", str(folder), "--max-pairs", "200"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["open: more than 200 pairs of states", "  network  as trained"]
    assert lines[-1] == f"written: {folder}/certificate.json"
    assert not [line for line in lines if line.startswith("  soft ")]


def test_a_certificate_needs_no_run_to_be_compiled(tmp_path, printed_by):
    """Names may be missing, numbers, or no text; the format of the tables decides what they are."""
    stored = json.loads((CERTIFICATES / "cube.json").read_text())
    del stored["method"]
    stored |= {"answers": None, "places": [str(place) for place in range(48)]}
    stored["letters"][0] = "\ud800"
    (tmp_path / "certificate.json").write_text(json.dumps(stored))
    lines = printed_by(["compile", str(tmp_path), "--name", "cube"]).splitlines()
    assert lines[1].startswith("letters: 0 \\ud800, 1 U2, ")
    assert lines[2] == "48 entries, 18 letters, 48 answers"
    with np.load(tmp_path / "cube.npz") as arrays:
        machine, expected = EntryMachine(**arrays), EntryMachine.from_tables(stored["tables"])
    word = np.arange(18)
    np.testing.assert_array_equal(machine.run(word), expected.run(word))


def test_what_cannot_be_compiled_is_named(tracker, tmp_path, printed_by, refused):
    run = without_certificates(tracker, tmp_path)

    def refuse(message, change=None, *options, folder=run):
        if change is not None:
            (run / "certificate.json").write_text(change)
        refused(["compile", str(folder), *options], message)

    for change, message in (
        (None, f"certificate.json must exist; run 'statemix certify {run}'"),
        ("[]", "must hold a certificate, got a list"),
        ("{}", "must hold the tables of a proof, got none: run 'statemix certify"),
        ('{"without_tables": "because"}', "must hold the tables of a proof, got none: because"),
        ("[" * 200_000, "certificate.json must hold a certificate, got: maximum recursion"),
        ('{"tables": 3}', "must hold the tables of a proof, got: it has no tables"),
    ):
        refuse(message, change)
    (run / "certificate.json").unlink()
    (run / "summary.json").unlink()
    refuse("folder must hold a finished run")
    refuse("folder must exist", folder=tmp_path / "no")
    shutil.copy(tracker / "summary.json", run)
    printed_by(["certify", str(tracker)])
    stored = certificate(tracker)
    changed = copy.deepcopy(stored)
    rows = changed["tables"]["answers"]
    rows[:] = [[1 if old == 0 else old for old in row] for row in rows]
    changed["tables"]["sha256"] = check_certificate.digest(changed["tables"])
    refuse("cannot be compiled: tables must be those of a proof", json.dumps(changed))
    stored["weights_sha256"] = "0" * 64
    refuse("must be about the weights of the run; run 'statemix certify", json.dumps(stored))
    (run / "certificate.json").unlink()
    weights = ["--weights", "best_test"]
    refuse(f"run 'statemix certify {run} --weights best_test' first", None, *weights)
    for command in ("certify", "compile"):
        printed_by([command, str(run), *weights])
    refuse("must exist")
    assert main(["certify", str(run)]) == 0
    refuse("name must be an identifier of C, got '2s'", None, "--name", "2s")
    refuse("output must be writable", None, "--output", str(run / "config.json"))


def test_a_run_that_is_only_readable_is_certified_elsewhere(tracker, tmp_path, capsys):
    run, output = shutil.copytree(tracker, tmp_path / "run"), tmp_path / "new" / "proofs"
    before = {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]}
    run.chmod(0o555)
    assert main(["certify", str(run), "--output", str(output)]) == 0
    assert {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]} == before
    files = [output / "certificate.json", output / "certified.safetensors"]
    assert capsys.readouterr().out.endswith(f"written: {files[0]}, {files[1]}\n")
    task = load_outcome(run).config.build_task()
    assert search(load_proven(run, output=output), task.automaton()).verdict == "proven"
    # The proof stays, as it does in the folder of a run.
    assert main(["certify", str(run), "--output", str(output), "--max-pairs", "1"]) == 1
    assert f"not written: {files[0]} holds a proof" in capsys.readouterr().out
    run.chmod(0o755)


def test_files_that_cannot_be_written_are_named(tracker, tmp_path, capsys):
    run = without_certificates(tracker, tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["certify", str(run), "--output", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("statemix: output must be a writable file, got ")
    for command, place in (("certify", "certificate.json"), ("inspect", "inspect/numbers.json")):
        (run / place).mkdir(parents=True)
        assert main([command, str(run)]) == 2
        said = capsys.readouterr().err
        assert f"{place}' (Is a directory); choose a folder by --output" in said


def test_gates_as_trained_are_right_up_to_the_length(tracker, capsys, printed_by):
    found = json.loads(printed_by(["certify", str(tracker), "--json"]))
    length, reason = found["horizon"], found["horizon_reason"]
    assert length > 8
    assert reason.startswith("longer words need gates of 0 and 1, or gates trained to a lower temp")
    assert "states can drift by up to" in reason
    assert main(["certify", str(tracker)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "  soft " in line)
    words = f"right up to {length:,} tokens at least. {reason.capitalize()}"
    assert line == f"  soft     these blocks with gates as trained: {words}"


@pytest.mark.parametrize(("checked", "bound", "length"), [(7, 20, 20), (7, 3, 7), (7, None, 7)])
def test_soft_prints_the_longer_of_both_lengths_alone(checked, bound, length, capsys):
    """One length was searched, and the other one follows from a bound on the gates."""
    result = proofs.SearchResult("open", 50, None, reason="more than 50 pairs", checked=checked)
    found = Certificate(result, "as trained", None, "answer", Horizon(bound, "a reason"))
    print_certificate(found, ["a"], ["b"])
    assert capsys.readouterr().out.splitlines() == [
        "open: more than 50 pairs",
        "  network  as trained",
        "  pairs    50 visited",
        f"  checked  right after every word of up to {length} tokens",
    ]


def test_the_model_as_trained_stays_open(tracker, capsys):
    assert main(["certify", str(tracker), "--soft", "--max-pairs", "50", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["network"]) == ("open", "as trained")
    assert found["checked"] == certificate(tracker, "-soft")["checked"] > 0
    # The blocks that do not track count too, and their gates are far from 0 and 1.
    assert (found["horizon"], found["tracking"]) == (0, None)
    assert main(["certify", str(tracker), "--soft", "--max-pairs", "50"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"  checked  right after every word of up to {found['checked']} tokens" in lines
    assert lines[-1] == f"written: {tracker}/certificate-soft.json"
    with pytest.raises(RequestError, match="must hold a proof, got the verdict 'open'"):
        load_proven(tracker, soft=True)


def test_a_proof_is_lost_to_no_other_verdict(tracker, capsys):
    # The run is shared: other tests may have asked other questions.
    for path in tracker.glob("certif*"):
        path.unlink()
    assert main(["certify", str(tracker)]) == 0
    proof = contents(tracker)
    # Another question has other files.
    assert main(["certify", str(tracker), "--weights", "best_test"]) == 0
    assert (tracker / "certificate-best_test.json").exists()
    assert contents(tracker).items() >= proof.items()
    capsys.readouterr()
    # The same question may have been searched less far.
    stays = f"not written: {tracker}/certificate.json holds a proof of these weights, which stays"
    assert main(["certify", str(tracker), "--max-pairs", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == stays
    assert main(["certify", str(tracker), "--max-pairs", "1", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] != "proven"
    assert captured.err.startswith(f"statemix: {stays}\n")
    assert contents(tracker).items() >= proof.items()
    load_proven(tracker)
    # A proof whose network is damaged, is none.
    (tracker / "certified.safetensors").write_bytes(b"x")
    assert main(["certify", str(tracker), "--max-pairs", "1"]) == 1
    assert certificate(tracker)["verdict"] != "proven"
    assert not (tracker / "certified.safetensors").exists()


def change_weights(path, change):
    """Change stored weights and their checksum in the summary, and return it."""
    save_file({name: change(name, one) for name, one in load_file(path).items()}, path)
    summary = json.loads(path.with_name("summary.json").read_text())
    summary["weights"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name("summary.json").write_text(json.dumps(summary))
    return summary["weights"][path.name]


def test_a_proof_of_other_weights_is_stale(tracker, tmp_path, capsys):
    folder = shutil.copytree(tracker, tmp_path / "run")
    assert main(["certify", str(folder)]) == 0
    sha256 = certificate(folder)["weights_sha256"]
    # As if the run had been trained again.
    changed = change_weights(folder / "model.safetensors", lambda name, weight: weight * 2)
    message = f"must be about the weights of the run, got weights_sha256='{sha256}'"
    with pytest.raises(RequestError, match=message):
        load_proven(folder)
    assert main(["certify", str(folder), "--max-pairs", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"written: {folder}/certificate.json"
    assert certificate(folder)["weights_sha256"] == changed


def test_the_weights_that_are_asked_about_are_those_that_are_named(
    tracker, tmp_path, capsys, printed_by
):
    folder = shutil.copytree(tracker, tmp_path / "run")
    without_readout = lambda name, weight: weight * (not name.startswith("readouts"))  # noqa: E731
    sha256 = change_weights(folder / "best_test.safetensors", without_readout)
    # All answers are level.
    for name, verdict in {"last": "open", "best_test": "refuted"}.items():
        words = ["--soft", "--max-pairs", "50", "--weights", name, "--json"]
        assert main(["certify", str(folder), *words]) == 1
        assert json.loads(capsys.readouterr().out)["verdict"] == verdict
    stored = certificate(folder, "-best_test-soft")
    assert (stored["weights"], stored["weights_sha256"]) == ("best_test", sha256)
    # The readout is fitted again.
    assert "readout fitted again" in printed_by(["certify", str(folder), "--weights", "best_test"])


def test_a_failing_word_is_shown_and_fails(train, capsys):
    folder = train("failing", "--seed", "0", *BLOCKS)
    assert main(["certify", str(folder), "--json"]) == 1
    said = capsys.readouterr()
    assert said.err.endswith(f"statemix: the verdict on {folder} is refuted\n")
    found = json.loads(said.out)
    assert (found["verdict"], found["network"]) == ("refuted", "hardened")
    model = load_model(folder)
    model.backbone.blocks[0].mixer.gate_temperature = 1e-30
    automaton = load_outcome(folder).config.build_task().automaton()
    logits = model(torch.tensor([found["word"]]))["product"][0]
    answer, expected = int(logits[-1].argmax()), automaton.answers(found["word"])[-1]
    assert answer != expected
    assert (found["answer"], found["expected"]) == (answer, expected)
    assert main(["certify", str(folder)]) == 1
    names = ("12", "21")
    words = " ".join(names[token] for token in found["word"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"refuted: wrong after {words}, a shortest such word"
    told = f"{names[answer]} after this word, where {names[expected]} is right"
    assert lines[2] == f"  answer   {told}"
    assert not [line for line in lines if line.startswith(("  checked ", "  soft "))]


def test_damaged_files_are_named(tracker):
    assert main(["certify", str(tracker)]) == 0
    (tracker / "certified.safetensors").write_bytes(b"x")
    with pytest.raises(RequestError, match=r"certified.safetensors must hold the run's weights"):
        load_proven(tracker)
    (tracker / "certificate.json").unlink()
    with pytest.raises(RequestError, match="must hold a certificate, got: No such file"):
        load_proven(tracker)


def test_requests_that_cannot_be_met_are_one_line(tracker, train, tmp_path, capsys):
    encoder = train("encoder", *BLOCKS, "--model.backbone", "autoencoder")
    capsys.readouterr()
    for arguments, message in [
        ([str(tracker), "--max-pairs", "0"], "max_pairs must be at least 1, got 0"),
        ([str(tmp_path)], "folder must hold"),
        ([str(encoder)], "backbone must be 'causal' to certify, got 'autoencoder'"),
    ]:
        assert main(["certify", *arguments]) == 2
        assert capsys.readouterr().err.startswith(f"statemix: {message}")
