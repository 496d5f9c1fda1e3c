"""Checkpoints: whole or removed, two kept, exact, and never unpickled."""

import errno
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from statemix import files
from statemix.training import checkpoint
from statemix.training.checkpoint import load_checkpoint, save_checkpoint


def save(folder, step):
    tensors = {"model": {"w": torch.full((3,), float(step))}, "optimizer": {}}
    save_checkpoint(folder, step, tensors, {"step": step})


def load(folder):
    said = []
    found = load_checkpoint(folder, said.append)
    return None if found is None else found[1]["step"], said


def test_newest_is_loaded_and_two_are_kept(tmp_path):
    assert load_checkpoint(tmp_path / "absent", pytest.fail) is None
    for step in (5, 20, 100):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000020", "step-000000100"]
    tensors, state = load_checkpoint(tmp_path, pytest.fail)
    assert state == {"step": 100}
    assert torch.equal(tensors["model"]["w"], torch.full((3,), 100.0))
    assert tensors["optimizer"] == {}


def flip(path):
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def pickled(path):
    """Put a pickle in place of the tensors, which the manifest knows."""
    content = pickle.dumps({"w": 1})
    (path / "model.safetensors").write_bytes(content)
    listed(path, hashlib.sha256(content).hexdigest())


def listed(path, sha256=None):
    """Let the manifest list other tensors, or none."""
    hashes = json.loads((path / "manifest.json").read_text())
    hashes["model.safetensors"] = sha256
    kept = {name: sha256 for name, sha256 in hashes.items() if sha256 is not None}
    (path / "manifest.json").write_text(json.dumps(kept))


DAMAGES = {
    "tensors missing from the manifest": listed,
    "flipped bit": flip,
    "missing tensors": lambda path: (path / "model.safetensors").unlink(),
    "changed state": lambda path: (path / "state.json").write_text('{"step": 9}'),
    "manifest too deep to read": lambda path: (path / "manifest.json").write_text("[" * 10**5),
    "pickle": pickled,
    "file in place of the checkpoint": lambda path: shutil.rmtree(path) or path.write_text("x"),
    "link to nowhere": lambda path: shutil.rmtree(path) or path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_is_reported_in_one_line_and_set_aside(tmp_path, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / "step-000000002")
    step, said = load(tmp_path)
    assert step == 1
    (line,) = said
    assert line.startswith("checkpoint step-000000002 is damaged and set aside as damaged-step-")
    assert "\n" not in line
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["damaged-step-000000002", "step-000000001"]
    # The run continues and saves the damaged step again.
    save(tmp_path, 2)
    assert load(tmp_path) == (2, [])


@pytest.mark.parametrize(("damaged", "found"), [((40, 45), None), ((45,), 40)])
def test_no_damaged_checkpoint_counts_as_one_of_the_two(tmp_path, damaged, found):
    save(tmp_path, 40)
    save(tmp_path, 45)
    for step in damaged:
        flip(tmp_path / f"step-{step:09d}")
    assert load(tmp_path)[0] == found
    save(tmp_path, 41)
    assert load(tmp_path) == (41, [])
    save(tmp_path, 42)
    kept = {path.name for path in tmp_path.glob("step-*")}
    assert kept == {"step-000000041", "step-000000042"}


def test_a_checkpoint_that_cannot_be_read_is_an_error_and_no_damage(tmp_path, monkeypatch):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "step-000000002" / "state.json").unlink()
    read = Path.read_bytes

    def fail(path):
        if path.parent.name == "step-000000001":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        message = f"cannot read checkpoint .*step-000000001: {os.strerror(errno.EIO)}"
        with pytest.raises(OSError, match=message):
            load_checkpoint(tmp_path, pytest.fail)
    assert len(list(tmp_path.iterdir())) == 2
    assert load(tmp_path)[0] == 1


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    save(tmp_path, 1)
    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        load_checkpoint(tmp_path, pytest.fail)


def test_the_folder_is_on_the_disk_before_its_first_checkpoint_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints"
    synced = []
    monkeypatch.setattr(
        files,
        "sync_directory",
        lambda path: synced.append((path, folder.exists(), (folder / "step-000000001").exists())),
    )
    save(folder, 1)
    assert (tmp_path, True, False) in synced
    assert synced[-1] == (folder, True, True)


@pytest.mark.parametrize("files_written", [0, 3])
def test_a_save_cut_short_leaves_the_one_before(tmp_path, monkeypatch, files_written):
    save(tmp_path, 1)
    written = []
    write = files.write_synced

    def cut(path, content):
        if len(written) == files_written:
            path.write_bytes(content[: len(content) // 2])
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_synced", cut)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert load(tmp_path) == (1, [])
    save(tmp_path, 2)
    assert load(tmp_path) == (2, [])
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000001", "step-000000002"}


def test_files_of_others_do_no_harm(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    beside = [tmp_path / "notes.txt", tmp_path / "step-000000002.bak"]
    for path in (tmp_path / "step-000000002" / ".DS_Store", *beside):
        path.write_text("mine")
    assert load(tmp_path) == (2, [])
    for step in (3, 4, 5):
        save(tmp_path, step)
    assert load(tmp_path) == (5, [])
    checkpoint.remove_checkpoints(tmp_path)
    assert set(tmp_path.iterdir()) == set(beside)
