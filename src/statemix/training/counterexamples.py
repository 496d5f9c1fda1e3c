"""Words that a network gets wrong, by which an attempt is repaired."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from statemix.automaton import IGNORED
from statemix.models import ReadoutModel
from statemix.proofs.candidate_words import CandidateWords
from statemix.tasks.automata.automaton_words import AutomatonTask

# Words of a search for wrong ones at most, which fill a few megabytes, and wrong words that are
# kept: two batches of training, so that their loss takes no longer than that of the task.
_MOST_WORDS, _MOST_KEPT = 4096, 256


class Counterexamples:
    """Words that a network has answered wrong, each up to its first wrong answer.

    Angluin (1987), "Learning regular sets from queries and counterexamples", learns automata from
    such words.

    Attributes:
        words: the words that were found in the present attempt, at most 256: the one that refutes
            the network, then the shortest ones.
    """

    def __init__(self, task: AutomatonTask) -> None:
        self._task = task
        self.words: list[tuple[int, ...]] = []

    @torch.no_grad()
    def add(self, model: ReadoutModel, known: Sequence[int]) -> None:
        """Add wrong words of a model on the CPU, and one that is known to be wrong.

        The words that are tried take each transition from the start, and then tell the state that
        it reaches from others.
        """
        candidates = CandidateWords(self._task.automaton(), seed=0).covering()
        words = [tuple(word.tolist()) for word in islice(candidates, _MOST_WORDS)]
        tokens, targets = self._batch(words)
        logits = model.eval()(tokens)
        wrong = torch.zeros(tokens.shape, dtype=torch.bool)
        for head, classes in targets.items():
            wrong |= (logits[head].argmax(-1) != classes) & (classes != IGNORED)
        places = zip(words, wrong.int().argmax(1).tolist(), wrong.any(1).tolist(), strict=True)
        found = {word[: first + 1] for word, first, is_wrong in places if is_wrong}
        others = sorted({*self.words, *found} - {tuple(known)}, key=lambda word: (len(word), word))
        self.words = [tuple(known), *others][:_MOST_KEPT]

    def loss(self, model: ReadoutModel) -> Tensor:
        """Return the mean cross-entropy of a model on the words, summed over heads, in nats."""
        tokens, targets = self._batch(self.words)
        device = next(model.parameters()).device
        logits = model(tokens.to(device))
        losses = [
            functional.cross_entropy(
                logits[head].flatten(0, 1), classes.flatten().to(device), ignore_index=IGNORED
            )
            for head, classes in targets.items()
        ]
        return torch.stack(losses).sum()

    def _batch(self, words: Sequence[Sequence[int]]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return padded words and their targets, both of shape (N, T)."""
        lengths = np.array([len(word) for word in words])
        tokens = np.zeros((len(words), lengths.max()), np.int64)
        for row, word in enumerate(words):
            tokens[row, : len(word)] = word
        padding = np.arange(tokens.shape[1]) >= lengths[:, None]
        targets = self._task.targets(tokens)
        for classes in targets.values():
            classes[padding] = IGNORED
        return torch.from_numpy(tokens), {h: torch.from_numpy(t) for h, t in targets.items()}
