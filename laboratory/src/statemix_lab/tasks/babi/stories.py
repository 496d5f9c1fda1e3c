"""Stories of bAbI as tokens: files, parsing, vocabulary and splits."""

import hashlib
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from statemix.errors import OptionError
from statemix.tasks.addressing import SPLITS, Split

STORY = "<story>"
"""The word before every story; its token is 0."""

HELD_OUT: dict[Split, int] = {"validation": 9, "test": 8}
"""Of ten training stories in a row, the one for a split that has no file of its own."""

_LINE = re.compile(r"(\d{1,9}) +(\S.*)")
_WORD = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")
_FORM = "'ID text' or 'ID question?<tab>answer<tab>IDs of facts'"


_NAME = re.compile(r"qa(\d+)_(?:.*_)?(train|valid|test)\.txt")
_SPLITS: dict[str, Split] = {"train": "train", "valid": "validation", "test": "test"}
_EXPECTED = "qaN_..._train.txt, optionally _valid.txt and _test.txt"


class TextFile(NamedTuple):
    """The stories of one bAbI task for one split: its number, and the name and text of the file."""

    number: int
    split: Split
    name: str
    text: str


Place = tuple[str, str, tuple[tuple[str, int, int], ...]]
"""A folder or an archive, the folder within the archive, and the state of the files on disk."""


def locate(folder: str) -> Place:
    """Return where the files are, without reading them; it changes if files are replaced."""
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
    """Read all files, sorted by task and split."""
    root, inside, state = place
    if Path(root).is_dir():
        contents = {Path(name).name: Path(name).read_bytes() for name, *_ in state}
    else:
        contents = _unpacked(root, PurePosixPath(inside))
    files: dict[tuple[int, Split], TextFile] = {}
    for name, content in contents.items():
        match = _NAME.fullmatch(name)
        assert match is not None
        number, split = int(match[1]), _SPLITS[match[2]]
        if (number, split) in files:
            first = files[number, split].name
            raise OptionError(
                f"folder must hold one file for each task and split, got {first} and {name}"
            )
        try:
            files[number, split] = TextFile(number, split, name, content.decode())
        except UnicodeDecodeError as error:
            raise OptionError(
                f"folder must hold text files in UTF-8, got byte {error.start} of {name}"
            ) from error
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
            depth = len(inside.parts)
            chosen = [path for path in folders if not depth or path.parts[-depth:] == inside.parts]
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


@dataclass(frozen=True, eq=False)
class Stories:
    """The stories of one split, end to end."""

    tokens: NDArray[np.int64]
    # Whether the next token is the answer to a question.
    asked: NDArray[np.bool_]
    # Index of the first token of every story, and the number of tokens.
    begins: NDArray[np.int64]

    @property
    def answers(self) -> NDArray[np.int64]:
        """The answers in order."""
        return self.tokens[1:][self.asked[:-1]]


@dataclass(frozen=True, eq=False)
class Corpus:
    """All stories of a folder by split, and the vocabulary: ``STORY``, then sorted words."""

    words: tuple[str, ...]
    splits: dict[Split, Stories]

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the words and of the stories of all splits."""
        parts = [array for s in self.splits.values() for array in (s.tokens, s.asked, s.begins)]
        content = [repr(self.words).encode(), *(part.tobytes() for part in parts)]
        return hashlib.sha256(b"".join(content)).hexdigest()


def corpus(folder: str) -> Corpus:
    """Read a folder or archive as in :func:`locate`, once until its files change."""
    try:
        return _corpus(locate(folder))
    except OSError as error:
        raise OptionError(f"folder must be readable, got {folder!r} ({error})") from error


@lru_cache(maxsize=4)
def _corpus(place: Place) -> Corpus:
    found = read(place)
    having = {(file.number, file.split) for file in found}
    vocabulary = {STORY: 0}
    stories: dict[Split, list[tuple[list[int], list[int]]]] = {split: [] for split in SPLITS}
    for file in found:
        for index, story in enumerate(_parsed(file, vocabulary)):
            own = file.split
            for split, place_of_ten in HELD_OUT.items():
                missing = (file.number, split) not in having
                if own == "train" and missing and index % 10 == place_of_ten:
                    own = split
            stories[own].append(story)
    words = (STORY, *sorted(word for word in vocabulary if word != STORY))
    renumbered = np.empty(len(words), dtype=np.int64)
    renumbered[[vocabulary[word] for word in words]] = np.arange(len(words))
    return Corpus(words, {split: _joined(stories[split], renumbered) for split in SPLITS})


def _joined(stories: list[tuple[list[int], list[int]]], renumbered: NDArray[np.int64]) -> Stories:
    begins = np.cumsum([0, *(len(tokens) for tokens, _ in stories)], dtype=np.int64)
    tokens = np.array([token for tokens, _ in stories for token in tokens], dtype=np.int64)
    asked = np.zeros(len(tokens), dtype=np.bool_)
    for begin, (_, places) in zip(begins, stories, strict=False):
        asked[begin + np.array(places, dtype=np.int64)] = True
    return Stories(renumbered[tokens], asked, begins)


def _parsed(file: TextFile, vocabulary: dict[str, int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens of every story and the places of its question marks."""

    def token(word: str) -> int:
        return vocabulary.setdefault(word.lower(), len(vocabulary))

    tokens: list[int] = []
    asked: list[int] = []
    last, any_asked = 0, False
    # Few different sentences make up all stories.
    known: dict[str, list[int]] = {}
    lines = file.text.removesuffix("\n").split("\n")
    if lines == [""]:
        raise OptionError(f"folder must hold bAbI's files, got an empty {file.name}")
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line.rstrip(" \r"))
        text, *answering = match[2].split("\t") if match else [""]
        if not match or not _fits(text, answering):
            raise _malformed(file, number, f"must be {_FORM}", line)
        identity = int(match[1])
        if identity == 1:
            if tokens:
                yield tokens, asked
            tokens, asked = [token(STORY)], []
        elif identity <= last:
            raise _malformed(file, number, f"must have ID 1 or an ID above {last}", line)
        elif not tokens:
            raise _malformed(file, number, "must have ID 1, which begins a story", line)
        last = identity
        if text not in known:
            known[text] = [token(word) for word in _WORD.findall(text)]
        tokens += known[text]
        if answering:
            asked.append(len(tokens) - 1)
            tokens.append(token(answering[0].strip()))
            any_asked = True
    if not any_asked:
        raise OptionError(f"folder must hold bAbI's files, got {file.name} without a question")
    yield tokens, asked


def _fits(text: str, answering: list[str]) -> bool:
    """Return whether a line has words and, if it is a question, an answer and IDs of facts."""
    if not answering:
        return _WORD.search(text) is not None
    if len(answering) != 2 or not text.rstrip().endswith("?"):
        return False
    answer, facts = answering
    return len(answer.split()) == 1 and all(fact.isdecimal() for fact in facts.split())


def _malformed(file: TextFile, number: int, condition: str, line: str) -> OptionError:
    shown = repr(line if len(line) <= 80 else f"{line[:80]}…")
    return OptionError(
        f"folder must hold bAbI's files: line {number} of {file.name} {condition}, got {shown}"
    )
