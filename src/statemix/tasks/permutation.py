"""Permutation composition: follow the running product of a word over a permutation group."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, Automaton, reachable
from statemix.errors import OptionError
from statemix.tasks import addressing, groups
from statemix.tasks.groups import Group, GroupName
from statemix.tasks.task import Examples
from statemix.tasks.task_bases import AddressedTask, example_text

PAPER_SETS: dict[str, dict[str, object]] = {
    "S3-250": {"group": "S_3", "train_size": 250},
    "S3-10k": {"group": "S_3", "train_size": 10_000},
    "S4-3k": {"group": "S_4", "train_size": 3_000},
    "S4-50k": {"group": "S_4", "train_size": 50_000},
    "S5-100k": {"group": "S_5", "train_size": 100_000},
}
"""Data sets of Dubinin et al. (Table 4): our name -> options of ``Permutation``.

Words have 16 elements, the default. We read the sizes as numbers of training words, with separate
test words. The paper gives no size for S_2 and A_5.
"""


class Permutation(AddressedTask):
    r"""Compose permutations: after every element of a word, predict the product so far.

    .. math:: target_t = x_1 * x_2 * \dots * x_t, \qquad (a * b)(i) = a(b(i))

    Words are uniform over the group; tokens and targets are element ids (0 is the identity, the
    rest in lexicographic order), and every position is scored. Where words are made of some
    elements only, tokens are places in ``letters``. Source: the word problem of Merrill
    et al., "The Illusion of State in State-Space Models", in the setting of Dubinin et al. The
    words have no begin-of-sequence token; the model may prepend one.

    Word i does not depend on ``train_size``: a smaller training set is the beginning of a larger
    one. Splits of small spaces share no word (``addressing``).

    With ``min_length``, training mixes words of many lengths. Word i is then the beginning of the
    word i that training has without the option; its length is drawn by its index, uniformly from
    ``min_length`` ... ``length``. Nothing else changes: validation words, test words and words of
    another length than ``length`` have exactly the length asked for. So scores at a length are
    comparable between training with and without the mixture. A short training word may be a test
    word of its own length. Source: the released code of Movahedi et al., "Fixed-Point RNNs", which
    trains on words of all lengths 2 ... k and holds out words of length k. Its lengths are equally
    frequent, except short ones that have too few words.

    With ``generators``, words are made of two elements only, whose products are the whole group.
    States are the same, but a model need not learn what every pair of elements makes, which takes
    most of the training otherwise. Ours; not comparable with scores on words of all elements.

    With ``num_generators``, words are made of so many random elements whose products are the whole
    group, as in the tasks (A_5; k) and (S_5; k) of Terzic et al., "Structured Sparse Transition
    Matrices to Enable State Tracking in State-Space Models".

    Args:
        group: name of the group, one of ``groups.NAMES``.
        length: elements per word in training, at most ``addressing.MAX_LENGTH``. ``examples`` also
            makes words of other lengths.
        min_length: elements of the shortest training word, at most ``length``; None means that all
            training words have ``length`` elements.
        generators: whether words are over (1 2) and (1 2 ... n) in S_n, n > 2, or (1 2 3) and
            (1 2 3 4 5) in A_5, instead of over all elements.
        num_generators: number of random elements that words are over; None means as ``generators``
            says. The identity is not among them.
        generator_seed: seed of these elements, 0 <= generator_seed < 2^64.
        train_size: number of training words; None means an endless stream of fresh words (in a
            small space they repeat once all training words are used).
    """

    name: ClassVar[str] = "permutation"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = PAPER_SETS

    def __init__(
        self,
        *,
        group: GroupName = "S_3",
        length: int = 16,
        min_length: int | None = None,
        generators: bool = False,
        num_generators: int | None = None,
        generator_seed: int = 0,
        train_size: int | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(group, str):
            raise OptionError(f"group must be a string, got {group!r}")
        super().__init__(length=length, train_size=train_size, seed=seed)
        self.group = groups.group(group)
        self.min_length: int | None = None
        if min_length is not None:
            self.min_length = addressing.check_min_length(min_length, self.length)
        if not isinstance(generators, bool):
            raise OptionError(f"generators must be true or false, got {generators!r}")
        self.generators = generators
        self.letters = self.group.generators if generators else tuple(range(self.group.order))
        if len(self.letters) < 2:
            raise OptionError(f"generators must be false for {group}, which has only one, got true")
        self.generator_seed = addressing.check_seed(generator_seed, "generator_seed")
        self.num_generators: int | None = None
        if num_generators is not None:
            # The identity generates nothing.
            most = self.group.order - 1
            self.num_generators = addressing.check_integer(
                "num_generators", num_generators, minimum=2, maximum=most
            )
            if generators:
                raise OptionError("generators must be false with num_generators, got true")
            self.letters = _random_generators(self.group, self.num_generators, self.generator_seed)
        if self.train_size is not None:
            self._check_space("train_size", self.train_size, "train", self.length)

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    @property
    def heads(self) -> dict[str, int]:
        return {"product": self.group.order}

    @property
    def chance(self) -> dict[str, float]:
        return {"product": 1 / self.group.order}

    @property
    def title(self) -> str:
        if self.num_generators is not None:
            return f"{self.group.name}, {self.num_generators} generators"
        return f"{self.group.name}, two generators" if self.generators else self.group.name

    def _examples(self, split: addressing.Split, start: int, stop: int, length: int) -> Examples:
        if split != "train" or self.train_size is not None:
            self._check_space("stop", stop, split, length)
        tokens = addressing.words(
            self.vocab_size, length, seed=self.seed, split=split, start=start, stop=stop
        )
        targets = self.group.running_products(np.array(self.letters)[tokens])
        if split != "train" or length != self.length or self.min_length is None:
            return Examples(tokens, {"product": targets})
        raw = addressing.draws(
            f"{self.name}: lengths", 1, seed=self.seed, split="train", start=start, stop=stop
        )
        lengths = self.min_length + addressing.below(raw[:, 0], length - self.min_length + 1)
        targets[np.arange(length) >= lengths[:, None]] = IGNORED
        return Examples(tokens, {"product": targets}, lengths)

    def automaton(self) -> Automaton:
        """Return the automaton whose states are the products."""
        moves = self.group.table[:, self.letters]
        return Automaton(0, moves, moves)

    def token_features(self) -> NDArray[np.float32]:
        """Return the matrix of each token's permutation, row by row, shape (vocab_size, n^2).

        A permutation x of n points has a 1 at row i and column x(i).
        """
        images = np.array(self.group.elements)[list(self.letters)] - 1
        matrices: NDArray[np.float32] = np.eye(self.group.degree, dtype=np.float32)[images]
        return matrices.reshape(self.vocab_size, -1)

    def describe(self, index: int, split: addressing.Split = "train") -> str:
        """Return one example as text: the permutations of a word and of its running product."""
        return example_text(self, index, split)

    def word(self, token: int) -> str:
        """Return a token's permutation as its images of 1, 2, ..., such as "231"."""
        return self.label(self.letters[token])

    def label(self, target: int) -> str:
        """Return an element likewise."""
        return "".join(str(image) for image in self.group.elements[target])

    def _check_space(self, name: str, count: int, split: addressing.Split, length: int) -> None:
        size = addressing.split_size(self.vocab_size, length, split)
        if size is not None and count > size:
            raise OptionError(
                f"{name} must be at most {size} (share of the {split} split in the "
                f"{self.vocab_size**length} words of length {length} over {self.title}), "
                f"got {count}"
            )


def _random_generators(group: Group, count: int, seed: int) -> tuple[int, ...]:
    """Return ids of random elements whose products are all elements of a group."""
    drawn = 0
    while True:
        (raw,) = addressing.draws(
            "random generators", group.order, seed=seed, split="train", start=drawn, stop=drawn + 1
        )
        drawn += 1
        generators = tuple(sorted((1 + np.argsort(raw[1:])[:count]).tolist()))
        if len(reachable(group.table[:, generators].tolist(), 0)) == group.order:
            return generators
