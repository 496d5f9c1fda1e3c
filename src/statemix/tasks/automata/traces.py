"""Labelled traces of a system whose automaton nobody has."""

import contextlib
import io
from collections.abc import Mapping
from hashlib import sha256 as hashed
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_words import check_flipped
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import DrawnTask, Raw

# Of ten traces in a row, those that are held out.
_HELD_OUT: dict[addressing.Split, int] = {"test": 8, "validation": 9}
_PERIOD = 10
_FORM = "words LETTER/ANSWER, or LETTER without a label"


class Traces(DrawnTask):
    """Answer like a system that is known from labelled traces alone: file=PATH.

    A line of the file is a trace: ``LETTER/ANSWER`` after each other, with blanks between; a letter
    without an answer is not scored. Lines that begin with ``#``, and empty lines, are skipped. Of
    ten traces in a row, the ninth is for tests and the tenth for validation. An example is a trace
    of its split, drawn uniformly.

    Args:
        file: path of the file. A configuration stores the path as it is given.
        sha256: hash of the file, which it must still have; a request stores that of the file. None
            means that any file will do.
        num_states: states that an automaton with these answers may need, at most; the recipe
            ``exact`` makes room for them.
        flipped: share of labels that may be wrong, which the recipe ``exact`` accepts.

    Attributes:
        letters: name of each token, in the order of the file.
        classes: name of each answer, in the order of the file.
    """

    name: ClassVar[str] = "traces"
    head = "answer"
    title = "traces"

    def __init__(
        self,
        *,
        file: str,
        sha256: str | None = None,
        num_states: int = 8,
        flipped: float = 0.0,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.num_states = addressing.check_integer("num_states", num_states, minimum=1)
        self.file, self.sha256 = file, sha256
        content = _content(file)
        if sha256 and hashed(content).hexdigest() != sha256:
            raise OptionError(f"file must be the one with sha256={sha256}, got another: {file}")
        rows = _rows(content, file)
        self.letters = tuple(dict.fromkeys(letter for row in rows for letter, _ in row))
        self.classes = tuple(dict.fromkeys(answer for row in rows for _, answer in row if answer))
        self.flipped = check_flipped(flipped, len(self.classes))
        shape = len(rows), max(map(len, rows))
        self._tokens, self._targets = np.zeros(shape, np.int64), np.full(shape, IGNORED)
        self._lengths = np.array([len(row) for row in rows])
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        answers = {answer: number for number, answer in enumerate(self.classes)} | {"": IGNORED}
        for place, row in enumerate(rows):
            self._tokens[place, : len(row)] = [numbers[letter] for letter, _ in row]
            self._targets[place, : len(row)] = [answers[answer] for _, answer in row]
        turns = np.arange(len(rows)) % _PERIOD
        # The traces of each split.
        self._splits = {split: np.flatnonzero(turns == n) for split, n in _HELD_OUT.items()}
        self._splits["train"] = np.flatnonzero(~np.isin(turns, list(_HELD_OUT.values())))
        for split in addressing.SPLITS:
            if not self.num_labels(split):
                raise OptionError(
                    f"file must have traces of words LETTER/ANSWER, with answers in the split "
                    f"{split}, got none in {file}"
                )
        super().__init__(length=shape[1], train_size=train_size, seed=seed)

    @staticmethod
    def with_contents(options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that hold the hash of the file."""
        if "file" not in options or options.get("sha256"):
            return options
        # The constructor says what is wrong with a file that cannot be read.
        with contextlib.suppress(OptionError):
            return {**options, "sha256": hashed(_content(options["file"])).hexdigest()}
        return options

    @property
    def vocab_size(self) -> int:  # type: ignore[override]  # fixed once the file is read
        return len(self.letters)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def guessing(self) -> float:
        targets = self._targets[self._splits["train"]]
        counts = np.bincount(targets[targets != IGNORED])
        return float(counts.max() / counts.sum())

    def num_labels(self, split: addressing.Split) -> int:
        """Return the number of labels of a split."""
        return int((self._targets[self._splits[split]] != IGNORED).sum())

    def word(self, token: int) -> str:
        return self.letters[token]

    def label(self, target: int) -> str:
        return self.classes[target]

    def _check_length(self, length: int) -> None:
        longest = self._tokens.shape[1]
        if length > longest:
            raise OptionError(f"length must be at most {longest}, the longest trace, got {length}")

    def _count(self, length: int) -> int:
        del length
        return 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        traces = self._splits[split]
        chosen = traces[addressing.below(raw[:, 0], len(traces))]
        targets = {self.head: self._targets[chosen, :length]}
        lengths = np.minimum(self._lengths[chosen], length)
        return Examples(self._tokens[chosen, :length], targets, lengths)


def _content(file: object) -> bytes:
    if not isinstance(file, str):
        raise OptionError(f"file must be a string, got {file!r}")
    try:
        if not Path(file).is_file() and Path(file).exists():
            raise OptionError(f"file must be a regular file, got {file!r}")
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"file must be a text file ({reason}), got {file!r}") from error


def _rows(content: bytes, file: str) -> list[list[tuple[str, str]]]:
    """Return the traces: letters with their answers, empty where there is no label."""
    try:
        # Lines end as in a text file; str.splitlines would also end them at a form feed.
        lines = list(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise OptionError(f"file must be a text file ({error}), got {file!r}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        pairs = [word.rpartition("/") for word in words]
        row = [(letter, answer) if slash else (answer, "") for letter, slash, answer in pairs]
        if any(not letter for letter, _ in row) or any(word.endswith("/") for word in words):
            raise OptionError(f"{file}:{number} must have {_FORM}, got {line.strip()!r}")
        rows.append(row)
    if len(rows) < _PERIOD:
        raise OptionError(f"file must have at least {_PERIOD} traces, got {len(rows)} in {file}")
    return rows
