"""The text files of bAbI, in a folder or in an archive."""

import lzma
import re
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from statemix.errors import OptionError
from statemix.tasks.addressing import Split

_NAME = re.compile(r"qa(\d+)_(?:.*_)?(train|valid|test)\.txt")
_SPLITS: dict[str, Split] = {"train": "train", "valid": "validation", "test": "test"}
_EXPECTED = "qaN_..._train.txt, optionally _valid.txt and _test.txt"


class TextFile(NamedTuple):
    """The stories of one bAbI task for one split.

    Attributes:
        number: number of the bAbI task.
        split: split that the file is meant for.
        name: name of the file, for messages.
        text: its content.
    """

    number: int
    split: Split
    name: str
    text: str


Place = tuple[str, str, tuple[tuple[str, int, int], ...]]
"""A folder or an archive, the folder within the archive, and the state of the files on disk."""


def locate(folder: str) -> Place:
    """Return where the files are, without reading them.

    Args:
        folder: path of a folder; path of an archive (.tar.gz), or such a path continued by the path
            of a folder within the archive.

    Returns:
        A value that changes if files are replaced.

    Raises:
        OptionError: if there is no such folder or archive.
        OSError: if the folder cannot be read.
    """
    path = Path(folder).absolute()
    if path.is_dir():
        found = sorted(entry for entry in path.iterdir() if _NAME.fullmatch(entry.name))
        return str(path), "", tuple(map(_state, found))
    for place in (path, *path.parents):
        if place.is_file():
            inside = "" if place == path else path.relative_to(place).as_posix()
            return str(place), inside, (_state(place),)
    raise OptionError(
        f"folder must be an existing folder or archive of bAbI's files, got {folder!r}"
    )


def read(place: Place) -> list[TextFile]:
    """Read all files, sorted by task and split.

    Raises:
        OptionError: if there are no such files, a task has two files of one split or none to train
            on, or a file or the archive cannot be decoded.
        OSError: if a file cannot be read.
    """
    root, inside, state = place
    if Path(root).is_dir():
        contents = {Path(name).name: Path(name).read_bytes() for name, *_ in state}
    else:
        contents = _unpacked(root, PurePosixPath(inside))
    files: dict[tuple[int, Split], TextFile] = {}
    for name, content in contents.items():
        number, split = _meaning(name)
        if (number, split) in files:
            first = files[number, split].name
            raise OptionError(
                f"folder must hold one file for each task and split, got {first} and {name}"
            )
        files[number, split] = TextFile(number, split, name, _text(name, content))
    if not files:
        raise OptionError(f"folder must hold bAbI's files ({_EXPECTED}), got none in {root!r}")
    for number, split in files:
        if (number, "train") not in files:
            name = files[number, split].name
            raise OptionError(f"folder must hold qa{number}_..._train.txt, got only {name}")
    return [files[key] for key in sorted(files)]


def _state(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns


def _meaning(name: str) -> tuple[int, Split]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), _SPLITS[match[2]]


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OptionError(
            f"folder must hold text files in UTF-8, got byte {error.start} of {name}"
        ) from error


def _unpacked(archive: str, inside: PurePosixPath) -> dict[str, bytes]:
    """Return name -> content of the files in one folder of an archive; nothing is written."""
    try:
        with tarfile.open(archive) as packed:
            members = {
                PurePosixPath(member.name): member
                for member in packed
                if member.isfile() and _NAME.fullmatch(PurePosixPath(member.name).name)
            }
            folders = sorted({path.parent for path in members})
            asked = len(inside.parts)
            chosen = [one for one in folders if not asked or one.parts[-asked:] == inside.parts]
            if folders and len(chosen) != 1:
                raise OptionError(
                    f"folder must name one folder of the archive ({', '.join(map(str, folders))}), "
                    f"such as {archive}/{folders[0]}, got {str(inside)!r}"
                )
            contents = {}
            for path, member in members.items():
                stream = packed.extractfile(member) if path.parent in chosen else None
                if stream is not None:
                    contents[path.name] = stream.read()
            return contents
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise OptionError(
            f"folder must be a folder or a complete .tar.gz archive, got {archive!r} ({error})"
        ) from error
