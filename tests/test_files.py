"""Errors of files name the file."""

import errno
from pathlib import Path

import pytest

from statemix.files import naming


def test_an_error_without_a_file_gets_its_name_and_keeps_its_kind():
    with pytest.raises(PermissionError) as caught, naming(Path("a/b")):
        raise PermissionError(errno.EPERM, "Operation not permitted")
    assert (caught.value.errno, caught.value.filename) == (errno.EPERM, "a/b")


def test_an_error_that_names_a_file_or_has_a_message_of_its_own_is_left_alone():
    for error in (OSError(errno.EIO, "broken", "other"), OSError("b must be readable")):
        with pytest.raises(OSError, match=r"broken|readable") as caught, naming(Path("a")):
            raise error
        assert caught.value is error
