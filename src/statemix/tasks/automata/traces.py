"""Labelled traces of a system whose automaton nobody has."""

import contextlib
import io
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256 as hashed
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_words import check_flipped
from statemix.tasks.drawn import DrawnTask, Raw, Tokens
from statemix.tasks.task import Examples

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
        self._splits = {split: self._padded(_of_split(rows, split)) for split in addressing.SPLITS}
        for split, (_, targets, _) in self._splits.items():
            if (targets == IGNORED).all():
                raise OptionError(
                    f"file must have traces with labels for the split {split}, got none in {file}"
                )
        super().__init__(length=max(map(len, rows)), train_size=train_size, seed=seed)

    def _padded(self, rows: list[list[tuple[str, str]]]) -> tuple[Tokens, Tokens, Tokens]:
        """Return tokens and targets, (N, T), and lengths, (N,)."""
        tokens = np.zeros((len(rows), max(map(len, rows), default=0)), dtype=np.int64)
        targets = np.full_like(tokens, IGNORED)
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        answers = {answer: number for number, answer in enumerate(self.classes)} | {"": IGNORED}
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = [numbers[letter] for letter, _ in row]
            targets[place, : len(row)] = [answers[answer] for _, answer in row]
        return tokens, targets, np.array([len(row) for row in rows], dtype=np.int64)

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
        targets = self._splits["train"][1]
        counts = Counter(targets[targets != IGNORED].tolist())
        return max(counts.values()) / counts.total()

    def num_labels(self, split: addressing.Split) -> int:
        """Return the number of labels of a split."""
        return int((self._splits[split][1] != IGNORED).sum())

    def word(self, token: int) -> str:
        return self.letters[token]

    def label(self, target: int) -> str:
        return self.classes[target]

    def _check_length(self, length: int) -> None:
        longest = max(tokens.shape[1] for tokens, _, _ in self._splits.values())
        if length > longest:
            raise OptionError(f"length must be at most {longest}, the longest trace, got {length}")

    def _count(self, length: int) -> int:
        del length
        return 1

    def _make(self, raw: Raw, length: int, split: addressing.Split) -> Examples:
        tokens, targets, lengths = self._splits[split]
        chosen = addressing.below(raw[:, 0], len(tokens))
        missing = ((0, 0), (0, max(0, length - tokens.shape[1])))
        return Examples(
            np.pad(tokens[chosen, :length], missing),
            {self.head: np.pad(targets[chosen, :length], missing, constant_values=IGNORED)},
            np.minimum(lengths[chosen], length),
        )


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
        row = [_pair(word) for word in words]
        if any(not letter for letter, _ in row) or any(word.endswith("/") for word in words):
            raise OptionError(f"{file}:{number} must have {_FORM}, got {line.strip()!r}")
        rows.append(row)
    if len(rows) < _PERIOD:
        raise OptionError(f"file must have at least {_PERIOD} traces, got {len(rows)} in {file}")
    return rows


def _pair(word: str) -> tuple[str, str]:
    letter, slash, answer = word.rpartition("/")
    return (letter, answer) if slash else (answer, "")


def _of_split(
    rows: list[list[tuple[str, str]]], split: addressing.Split
) -> list[list[tuple[str, str]]]:
    held_out = set(_HELD_OUT.values())
    kept = {_HELD_OUT[split]} if split in _HELD_OUT else set(range(_PERIOD)) - held_out
    return [row for place, row in enumerate(rows) if place % _PERIOD in kept]
