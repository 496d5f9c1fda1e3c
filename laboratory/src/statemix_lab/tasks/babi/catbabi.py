"""catbAbI: the stories of bAbI as one stream, with questions to answer."""

import contextlib
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED
from statemix.errors import OptionError
from statemix.tasks import addressing
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import AddressedTask
from statemix_lab.tasks.babi.stories import Stories, corpus

_LINE = 80


class CatBabi(AddressedTask):
    """Answer questions in a stream of stories. Needs the files of bAbI: folder=PATH/en-valid-10k.

    The stories of all bAbI tasks in the folder are shuffled and joined to a stream, which is cut
    into sequences of ``length`` tokens. Words are lower-cased, punctuation marks are tokens of
    their own, and token 0 precedes every story. The answer follows its question in the stream, as
    one token: the files join answers of several words by commas, such as "n,w". Only the answer is
    scored (QA mode): it is the target of its question's "?".

    Validation and test are one pass over their stories; the rest that fills no sequence is left
    out. Training is an endless stream of passes, each in an order of its own. An example depends on
    the seed, the split, the index, the length and the content of the files. A sequence may hold no
    question; then it scores nothing.

    Source: Schlag, Munkhdalai and Schmidhuber, "Learning Associative Inference Using Fast Weight
    Memory", with the stories of Weston et al. Their released code has the same words, answers,
    tokens between stories, random order without replacement, scored positions and length.

    Our reading: every sequence is an example of its own, without the state of the one before, as in
    the released code of Movahedi et al., "Fixed-Point RNNs". So some questions ask for facts that
    the sequence does not show. Punctuation occurs only at the end of sentences; inside of one it
    would be a token, too. Departures from the code of Schlag et al.: there is one stream, where
    each row of their batches has one; the vocabulary is sorted and has only the words of the
    folder; the last story of a file, which their code drops, counts.

    The published data are the folder ``en-valid-10k`` of ``tasks_1-20_v1-2.tar.gz``. Its files are
    called qaN_train.txt, qaN_valid.txt and qaN_test.txt; in other folders, a name may stand behind
    the number. Where a bAbI task has no file for validation or test, as in ``en-10k``, every tenth
    of its training stories is held out instead (``stories.HELD_OUT``).

    Args:
        folder: path of the folder that holds the files, or of a .tar.gz archive followed by the
            folder within it: ``tasks_1-20_v1-2.tar.gz/en-valid-10k``. A configuration stores the
            path as it is given, so a relative one holds only in the same current folder.
        sha256: SHA-256 of the words and stories; a configuration stores the one of today.
    """

    name: ClassVar[str] = "catbabi"

    def __init__(
        self,
        *,
        folder: str,
        sha256: str | None = None,
        length: int = 200,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(folder, str):
            raise OptionError(f"folder must be a string, got {folder!r}")
        super().__init__(length=length, train_size=train_size, seed=seed)
        self.folder, self.sha256 = folder, sha256
        self._corpus = corpus(folder)
        if sha256 and self._corpus.sha256 != sha256:
            raise OptionError(
                f"folder must have stories with sha256={sha256}, got others: {folder}"
            )
        self.words = self._corpus.words

    @staticmethod
    def with_contents(options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that hold the hash of the stories."""
        folder = options.get("folder")
        # The constructor says what is wrong with a folder that cannot be read.
        with contextlib.suppress(OptionError):
            if isinstance(folder, str) and not options.get("sha256"):
                return {**options, "sha256": corpus(folder).sha256}
        return options

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    @property
    def heads(self) -> dict[str, int]:
        return {"answer": len(self.words)}

    @property
    def chance(self) -> dict[str, float]:
        """The share of the most frequent answer in training."""
        answers = self._corpus.splits["train"].answers
        return {"answer": float(np.bincount(answers).max() / len(answers))}

    @property
    def title(self) -> str:
        return "catbAbI"

    def _examples(self, split: addressing.Split, start: int, stop: int, length: int) -> Examples:
        stories = self._corpus.splits[split]
        size = len(stories.tokens)
        if split != "train" and stop > size // length:
            raise OptionError(
                f"stop must be at most {size // length} (sequences of {length} tokens in the "
                f"stories of the {split} split), got {stop}"
            )
        places = self._places(split, start * length, (stop - start) * length)
        tokens = stories.tokens[places]
        # A question mark is never the last token: its answer follows.
        targets = np.where(stories.asked[places], stories.tokens[(places + 1) % size], IGNORED)
        shape = (stop - start, length)
        return Examples(tokens.reshape(shape), {"answer": targets.reshape(shape)})

    def describe(self, index: int, split: addressing.Split = "train") -> str:
        """Return an example as text: its words, with each answer in brackets after its question."""
        index = addressing.check_integer("index", index, minimum=0)
        tokens, targets, _ = self.examples(split, index, index + 1)
        pairs = zip(tokens[0].tolist(), targets["answer"][0].tolist(), strict=True)
        words = [
            self.words[token] if label == IGNORED else f"{self.words[token]} [{self.words[label]}]"
            for token, label in pairs
        ]
        title = f"{split} sequence {index} of {self.title}, {self.length} tokens"
        lines = textwrap.wrap(
            " ".join(words),
            _LINE,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        return "\n".join([title, *lines])

    def _places(self, split: addressing.Split, first: int, count: int) -> NDArray[np.int64]:
        """Return the indices in the stories of ``count`` tokens of the stream."""
        stories = self._corpus.splits[split]
        places = [np.zeros(0, dtype=np.int64)]
        while count:
            lap, begin = divmod(first, len(stories.tokens))
            end = min(begin + count, len(stories.tokens))
            ends, shifts = _order(stories, self.seed, split, lap)
            here = np.arange(begin, end)
            places.append(here + shifts[np.searchsorted(ends, here, side="right")])
            first, count = first + end - begin, count - (end - begin)
        return np.concatenate(places)


@lru_cache(maxsize=8)
def _order(
    stories: Stories, seed: int, split: addressing.Split, lap: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each story of a pass ends, and the way from there to its place on file."""
    raw = addressing.draws(
        f"{CatBabi.name}: order",
        len(stories.begins) - 1,
        seed=seed,
        split=split,
        start=lap,
        stop=lap + 1,
    )
    order = np.argsort(raw[0], kind="stable")
    sizes = np.diff(stories.begins)[order]
    ends = sizes.cumsum()
    return ends, stories.begins[:-1][order] - (ends - sizes)
