"""File errors name the file, and rows are appended completely or not at all."""

import errno
import os
import resource
from pathlib import Path

import pytest

from statemix.errors import RequestError
from statemix.files import append, check_writable, make_folder, naming, write_file


def test_an_error_without_a_file_or_a_message_gets_its_name_and_keeps_its_kind():
    with pytest.raises(PermissionError) as caught, naming(Path("a/b")):
        raise PermissionError(errno.EPERM, "Operation not permitted")
    assert (caught.value.errno, caught.value.filename) == (errno.EPERM, "a/b")
    for error in (OSError(errno.EIO, "broken", "other"), OSError("b must be readable")):
        with pytest.raises(OSError, match=r"broken|readable") as caught, naming(Path("a")):
            raise error
        assert caught.value is error


def test_a_file_that_cannot_be_written_leaves_nothing_and_keeps_the_old(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write_file(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_append_adds_lines_to_the_end(tmp_path):
    path = tmp_path / "rows"
    append(path, "one")
    append(path, "zwölf\n")
    append(path, "three\n")
    assert path.read_text() == "one\nzwölf\nthree\n"


def test_a_row_that_does_not_fit_leaves_nothing_behind(tmp_path):
    """A file size limit stands in for a full disk: both cut a write short."""
    path = tmp_path / "rows"
    append(path, "one\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="rows"):
            append(path, "a long row\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append(path, "two\n")
    assert path.read_text() == "one\ntwo\n"


def test_what_cannot_be_written_is_refused_by_its_option(tmp_path):
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)
    # A pipe is not waited for.
    for path, reason in ((tmp_path, ""), (file / "below", ""), (pipe, r"\(a pipe\)")):
        with pytest.raises(RequestError, match=f"output must be a writable file, got .*{reason}"):
            check_writable("output", path)
    # Rows can be appended to this file, but its folder takes no other.
    with file.open() as opened:
        same = Path(f"/proc/self/fd/{opened.fileno()}")
        check_writable("output", same)
        with pytest.raises(RequestError, match=f"output must be a writable file, got '{same}'"):
            check_writable("output", same, replaced=True)
    with pytest.raises(RequestError, match=r"^output must be a writable folder, got .*/file/below"):
        make_folder("output", file / "below")
    for _ in range(2):
        make_folder("output", tmp_path / "deep" / "runs")
    assert (tmp_path / "deep" / "runs").is_dir()


def test_what_can_be_appended_to_is_left_as_it_was(tmp_path):
    check_writable("output", tmp_path / "new" / "certificate.json")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "old").write_text("x")
    check_writable("output", tmp_path / "old", replaced=True)
    assert (tmp_path / "old").read_text() == "x"
