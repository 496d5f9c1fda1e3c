"""A run's folder: identity, locking, status and damage."""

import errno
import json
import math
import shutil
import threading
from pathlib import Path

import filelock
import pytest

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.training import evaluate, load_config, load_model, load_outcome, train
from statemix.training import folder as runs
from statemix.training.folder import read_metrics, read_status, write_status
from statemix.training.outcome import WEIGHT_FILES, load_asked
from statemix.training.schedules import attributes_set


def begin(config, folder):
    """Leave an unfinished run of one step in a folder."""

    def stop(event):
        if event.kind == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, on_event=stop)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("thesis.tex", "", "folder must be empty or hold a run, got .* with 'thesis.tex'"),
        ("config.json", '{"task"', "config.json must hold a run's configuration, got"),
        ("config.json", '{"model_type": "statemix"}', "a run's .*, got that of a model alone"),
        ("config.json", '{"schema": 1, "asked": {}}', "must hold the tables 'asked' and"),
        ("config.json", '{"schema": 99}', "config.json must have schema 1, got schema 99"),
    ],
)
def test_a_folder_of_something_else_is_refused_untouched(tiny, tmp_path, file, text, message):
    (tmp_path / file).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RequestError, match=message):
        train(tiny(), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model.bos": False}, r"model\.bos=its default, not True;"),
        ({"schedules.warmup_steps": 5}, r"schedules\.warmup_steps=5, not its default;"),
    ],
)
def test_another_run_is_refused_with_the_field_and_both_values(tiny, tmp_path, asked, message):
    begin(tiny(asked), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    text = rf"^folder must hold a run of the same configuration, got .* with .*{message}"
    with pytest.raises(RequestError, match=text):
        train(tiny(), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_folder_in_use_is_refused(tiny, tmp_path):
    begin(tiny(), tmp_path)
    with runs.lock_folder(tmp_path), pytest.raises(RequestError, match=r"another process is using"):
        train(tiny(), tmp_path)
    train(tiny(), tmp_path)


def test_a_lock_that_fails_says_why(tiny, tmp_path, monkeypatch):
    def fail(self, **_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    message = r"^folder must be on a file system that can lock files, got .*: No locks available"
    with pytest.raises(RequestError, match=message):
        train(tiny(), tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"must be writable, got .*file/run: Not a directory"):
        train(tiny(), tmp_path / "file" / "run")


def test_how_a_run_stands_is_noted(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    seen = []

    def look(event):
        seen.append(read_status(folder).status)
        if event.kind == "step":
            raise error

    assert read_status(folder) is None
    for error, status, message in [
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (FloatingPointError("loss must be finite"), "diverged", "loss must be finite"),
        (LookupError("no such neuron"), "failed", "no such neuron"),
    ]:
        with pytest.raises(type(error)):
            train(tiny(), folder, on_event=look)
        found = read_status(folder)
        # Where a loss is not finite, the last good checkpoint is named, too.
        assert (found.status, found.message.partition(";")[0]) == (status, message)
    train(tiny(), folder)
    assert read_status(folder) == runs.Status("done")
    assert json.loads((folder / "status.json").read_text())["status"] == "done"
    assert set(seen) == {"running"}


def test_damaged_weights_are_not_loaded(tiny, tmp_path):
    train(tiny({"schedules.epochs": 1}), tmp_path)
    files = {weights: tmp_path / file for weights, file in WEIGHT_FILES.items()}
    content = bytearray(files["last"].read_bytes())
    content[-3] ^= 1
    files["last"].write_bytes(content)
    files["best_test"].unlink()
    # As if they were of another run.
    files["best_validation"].write_bytes((tmp_path / "optimizer.safetensors").read_bytes())
    for weights, path in files.items():
        with pytest.raises(RequestError, match=rf"^{path} must hold the run's weights, got: "):
            load_model(tmp_path, weights)


def test_a_run_whose_process_is_gone_was_interrupted(tiny, tmp_path, monkeypatch):
    begin(tiny(), tmp_path)
    for content in ("{", '{"status": "well", "message": ""}'):
        (tmp_path / "status.json").write_text(content)
        assert read_status(tmp_path).status == "interrupted"
    write_status(tmp_path, "running")
    assert read_status(tmp_path) == runs.Status("interrupted", "its process died")
    with runs.lock_folder(tmp_path):
        assert read_status(tmp_path).status == "running"
        # Where the system has no shared locks.
        monkeypatch.setattr(runs, "fcntl", None)
        assert read_status(tmp_path).status == "running"
    assert read_status(tmp_path).status == "interrupted"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "summary.json must hold a run's summary, got: "),
        ("{}", "summary.json must hold a run's summary, got none of its weights"),
        (None, r"folder must hold a finished run, got .* without summary.json; train it again"),
    ],
)
def test_a_damaged_summary_is_named(tiny, tmp_path, text, message):
    begin(tiny(), tmp_path)
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    for load in (load_outcome, load_model):
        with pytest.raises(RequestError, match=message):
            load(tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path):
    for load in (load_outcome, load_model, load_config):
        with pytest.raises(RequestError, match=r"^folder must hold a run, got .* without config.j"):
            load(tmp_path)
    with pytest.raises(RequestError, match=r"^weights must be one of \['last', .*, got 'first'"):
        load_model(tmp_path, "first")


def test_what_hand_edits_made_impossible_is_refused(tiny, tmp_path):
    train(tiny({"schedules.epochs": 1}), tmp_path)
    path = tmp_path / "summary.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"num_parameters": "many"}))
    with pytest.raises(RequestError, match=r"a run's summary.*num_parameters: .* valid integer"):
        load_outcome(tmp_path)
    for attribute, value, message in (
        ("backbone.blocks.0.mixer.gate_temperature", 1e300, "must be positive and finite"),
        ("backbone.blocks.9.mixer.gate_temperature", 1.0, "has no part 'backbone.blocks.9.mixer'"),
    ):
        stored["last"]["attributes"] = {attribute: value}
        path.write_text(json.dumps(stored))
        refusal = rf"^{path} must hold attributes of the network: .*{message}"
        with pytest.raises(RequestError, match=refusal):
            load_model(tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    stored["resolved"]["model"]["layers"] = ["unknown"]
    path.write_text(json.dumps(stored))
    with pytest.raises(RequestError, match=r"config.json: model.layers.0.name: .* must be one of"):
        load_model(tmp_path)


STORED = Path(__file__).parents[1] / "data" / "runs"


@pytest.fixture
def stored(tmp_path):
    """Copy a stored run."""
    return lambda name: shutil.copytree(STORED / name, tmp_path / name)


def test_a_run_of_the_time_before_schemas_is_refused_with_the_reason(tiny, stored):
    folder = stored("before-schema")
    message = (
        r"config.json must have schema 1, got an older development version, which can no longer be "
        r"read; train again in another folder, or use the commit named in environment.json$"
    )
    for load in (load_config, load_outcome, load_model, lambda f: train(tiny(), f)):
        with pytest.raises(RequestError, match=message):
            load(folder)
    assert json.loads((folder / "environment.json").read_text())["commit"]


def test_a_stored_finished_run_is_read_and_scores_as_it_did(stored):
    """Runs of schema 1 stay readable in later versions."""
    folder = stored("schema-1-finished")
    outcome = load_outcome(folder)
    config = outcome.config
    assert (outcome.last.step, outcome.last.epoch) == (6, 2)
    assert list(outcome.last.test) == [4, 9]
    assert [row["step"] for row in read_metrics(folder)] == [3, 6]
    assert read_status(folder).status == "done"
    assert config.optimizer.groups[0].parameters == "*.bias"
    assert config.schedules.attributes[0].end == 0.5
    assert config.model.channel_mixer.name == "mlp"
    model = load_model(str(folder))
    assert [block.mixer.name for block in model.backbone.blocks] == ["bd_lru", "lstm"]
    for length, heads in outcome.last.test.items():
        expected = heads["product"]
        examples = config.build_task().examples("test", 0, expected.num_sequences, length)
        with attributes_set(model, config.evaluation.attributes):
            found = evaluate(model, examples, batch_size=config.batches.size)["product"]
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert load_model(folder, "best_test").heads == model.heads
    # The same request finds it finished.
    assert train(load_asked(folder), folder) == outcome


# It comes from another machine.
@pytest.mark.filterwarnings("ignore:.*resumes a run with other results")
def test_a_stored_unfinished_run_is_resumed_to_the_end(stored):
    folder = stored("schema-1-unfinished")
    assert read_status(folder).status == "interrupted"
    before = read_metrics(folder)
    events = []
    outcome = train(load_asked(folder), folder, on_event=events.append)
    assert (events[0].kind, events[0].step) == ("started", 4)
    assert not [event for event in events if event.kind == "message"]
    rows = read_metrics(folder)
    assert rows[: len(before)] == before
    assert [row["step"] for row in rows] == [3, 6]
    assert outcome.last.step == 6
    # Elsewhere the last bits may differ; the finished run is the same one, uninterrupted.
    whole = load_outcome(STORED / "schema-1-finished")
    found, expected = (o.last.test[4]["product"].loss for o in (outcome, whole))
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_run_killed_while_it_noted_its_end_is_tidied(tiny, tmp_path):
    outcome = train(tiny({"schedules.epochs": 1}), tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "status.json").write_text('{"status": "running", "message": ""}')
    (tmp_path / "status.json.tmp").write_text('{"sta')
    (tmp_path / "checkpoints").mkdir()
    assert train(tiny({"schedules.epochs": 1}), tmp_path) == outcome
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "done"


def test_a_poller_of_the_status_keeps_no_run_from_starting(tiny, tmp_path):
    begin(tiny(), tmp_path)
    stop = threading.Event()
    polls = (read_status(tmp_path) for _ in iter(stop.is_set, True))
    poller = threading.Thread(target=list, args=[polls])
    poller.start()
    try:
        for _ in range(100):
            with runs.lock_folder(tmp_path):
                pass
    finally:
        stop.set()
        poller.join()


def test_what_is_no_number_is_null_in_every_file(tiny, tmp_path):
    """Without normalisation a state grows beyond all numbers at a long length."""
    layer = LayerSpec("h_lru", num_channels=4, order=2, gate="none")
    further = {"evaluation.lengths": (4096,), "evaluation.tokens": 8192}
    optimizer = {"optimizer.learning_rate": 0.3, "schedules.learning_rate": "constant"}
    outcome = train(tiny({"model.layers": (layer,)} | further | optimizer), tmp_path)
    assert math.isnan(outcome.last.test[4096]["product"].loss)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    for name in ("summary.json", "status.json", "state.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=refuse)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_runs_that_are_removed_are_locked(tiny, tmp_path):
    for name in ("one", "two"):
        begin(tiny(), tmp_path / name)
    with runs.lock_folder(tmp_path / "two"), pytest.raises(runs.FolderInUseError):
        runs.remove_runs([tmp_path / "one", tmp_path / "two"])
    assert (tmp_path / "one" / "config.json").exists()
    config = tmp_path / "one" / "config.json"
    kept = config.read_text()
    config.write_text('{"model_type": "statemix"}')
    with pytest.raises(RequestError, match=r"config\.json must hold a run's configuration, got"):
        runs.remove_runs([tmp_path / "two", tmp_path / "one"])
    config.write_text(kept)
    runs.remove_runs([tmp_path / "one", tmp_path / "two", tmp_path / "absent"])
    assert not list(tmp_path.iterdir())
