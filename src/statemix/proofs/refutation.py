"""A search for words that a network gets wrong, whatever kind of network it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from statemix.automaton import IGNORED, NEVER, Automaton, reachable
from statemix.errors import RequestError
from statemix.proofs.candidate_words import CandidateWords, Compressed, Word, compress
from statemix.proofs.certificate_tables import automaton_table
from statemix.proofs.check_certificate import digest
from statemix.proofs.driven_network import DrivenNetwork
from statemix.proofs.stepping import in_evaluation_mode
from statemix.proofs.word_trials import Accuracy, WordTrials, drive_alone

# Letters by which a word may be shortened, even if the search has read fewer.
_SHORTENING = 1_000_000


@dataclass(frozen=True)
class Refutation:
    """What a search for wrong words has found.

    Attributes:
        verdict: "refuted" (``word`` fails), or "not refuted" within the budget, which is no proof.
        letters: letters that the network has read in the search.
        word: the shortened word; its last answer is the first wrong one. Empty unless refuted.
        answer: class that the network answers after the word; None if it is not a number, or if
            nothing is refuted.
        expected: class that is right after the word; None unless refuted.
        found_by: the words that the search tried when it found one: "short words", "covering
            words", "loops", "alternating loops", "random words" or "guided words".
        found_length: letters of the word before it was shortened.
        minimal: whether every shorter word that removing a piece leaves was tried and is right.
        margins: logit of the right class minus the next largest one after each letter of the word;
            None where nothing is scored, and in all for a network without logits.
        accuracy: right answers by their position, among all words of the search.
        notes: what was left out, in sentences.
    """

    verdict: Literal["refuted", "not refuted"]
    letters: int
    word: tuple[int, ...] = ()
    answer: int | None = None
    expected: int | None = None
    found_by: str = ""
    found_length: int = 0
    minimal: bool = False
    margins: tuple[float | None, ...] | None = None
    accuracy: tuple[Accuracy, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def compressed(self) -> Compressed:
        """The word as u v^n w."""
        return compress(np.array(self.word, np.int64))

    def tables(self, automaton: Automaton) -> dict[str, Any]:
        """Return what ``check_certificate.py`` compares with the automaton, as JSON data.

        ``docs/certificates.md`` describes them.
        """
        tables = {
            "format": 3,
            "automaton": automaton_table(automaton),
            "word": self.compressed.named(range(automaton.num_tokens)),
            "expected": self.expected,
            "answer": -1 if self.answer is None else self.answer,
        }
        return {**tables, "sha256": digest(tables)}


@in_evaluation_mode
def refute(
    model: Any,
    automaton: Automaton,
    *,
    budget: int = 10_000_000,
    seconds: float | None = None,
    longest: int = 100_000,
    head: str | None = None,
    tokens: Sequence[int] | None = None,
    classes: Sequence[int] | None = None,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Refutation:
    """Look for a word after which a network answers differently from an automaton.

    The search tries, in this order: all short words; words that take each transition and tell the
    state after it from other states; and then, at lengths that double, loops of the automaton,
    two loops by turns, random words, and words that repeat the loop along which the margin of an
    earlier word shrank fastest. It ends at the first wrong answer, at a tie of logits, or at a
    logit that is not a number. The word is then shortened by removing pieces (Zeller and
    Hildebrandt, 2002, "Simplifying and Isolating Failure-Inducing Input"), within as many letters
    as the search has read, or a million. A word counts only if the network also fails on it alone.

    Without a wrong answer, nothing is proven.

    Args:
        model: one of these, whose answers depend on earlier letters only. It is put into evaluation
            mode if it is a module.

            - an object with ``extend(tokens (B, T), state)``, which returns the outputs and the
              next state, such as a ``TokenClassifier``; the first state is None;
            - an object with ``step(tokens (B,), state)``, which returns the same of one token;
            - a model of transformers with a cache;
            - a function or module of tokens (B, T), int64, which reads whole words.

            Outputs are logits (B, T, classes), integer answers (B, T), or a table of them by head.
        automaton: the automaton. States that no word reaches are left out, with a note.
        budget: letters that the network may read in the search.
        seconds: time that the search may need; None means any.
        longest: letters of the longest word, about.
        head: head that answers, for a model with several; None means the first one.
        tokens: token of the model for each letter; None means the number of the letter.
        classes: class of the model for each answer, among which it chooses; None means that the
            number of the answer is the class.
        seed: seed of the random words.
        on_progress: function called with the number of letters read so far.
    """
    if budget < 1:
        raise RequestError(f"budget must be at least 1, got {budget}")
    if seconds is not None and not seconds > 0:
        raise RequestError(f"seconds must be above 0, got {seconds}")
    if longest < 1:
        raise RequestError(f"longest must be at least 1, got {longest}")
    automaton, notes = _trimmed(automaton)
    candidates = CandidateWords(automaton, seed)
    network = _driven(model, automaton, head, tokens, classes)
    trials = WordTrials(network, candidates, budget, seconds, on_progress)
    found = trials.search(longest)
    if trials.unstable:
        notes.append(f"{trials.unstable} words failed in a batch and not alone; they do not count")
    shared: dict[str, Any] = {"letters": trials.letters, "accuracy": tuple(trials.accuracy())}
    if found is None:
        return Refutation("not refuted", notes=tuple(notes), **shared)
    found_by, word = found
    more = max(trials.letters, _SHORTENING)
    shorter, minimal = WordTrials(network, candidates, more, seconds).shorten(word)
    shared |= {"found_by": found_by, "found_length": len(word), "minimal": minimal}
    return _examined(network, candidates, shorter, notes=tuple(notes), **shared)


@in_evaluation_mode
def check_word(
    model: Any,
    automaton: Automaton,
    word: Sequence[int],
    *,
    head: str | None = None,
    tokens: Sequence[int] | None = None,
    classes: Sequence[int] | None = None,
) -> Refutation:
    """Return whether a network is wrong along one word; the arguments are those of :func:`refute`.

    The word of the result ends with the first wrong answer.
    """
    automaton.answers(word)
    network = _driven(model, automaton, head, tokens, classes)
    return _examined(network, CandidateWords(automaton, 0), np.array(word), letters=len(word))


def _trimmed(automaton: Automaton) -> tuple[Automaton, list[str]]:
    """Return the automaton of the states that words reach, and a note if there are others."""
    kept = sorted(reachable(automaton.transitions.tolist(), automaton.start))
    if not ((automaton.outputs != IGNORED) & (automaton.transitions != NEVER))[kept].any():
        raise RequestError("automaton must score an answer to some word, got none")
    if len(kept) == automaton.num_states:
        return automaton, []
    numbers = np.full(automaton.num_states, NEVER)
    numbers[kept] = np.arange(len(kept))
    moves = automaton.transitions[kept]
    moves = np.where(moves == NEVER, NEVER, numbers[moves])
    left = automaton.num_states - len(kept)
    note = f"{left} of {automaton.num_states} states were left out, because no word reaches them"
    return Automaton(int(numbers[automaton.start]), moves, automaton.outputs[kept]), [note]


def _driven(
    model: Any,
    automaton: Automaton,
    head: str | None,
    tokens: Sequence[int] | None,
    classes: Sequence[int] | None,
) -> DrivenNetwork:
    num_answers = int(automaton.outputs.max()) + 1
    names: dict[str, Any] = {"head": head, "tokens": tokens, "classes": classes}
    return DrivenNetwork(model, automaton.num_tokens, num_answers, **names)


def _examined(
    network: DrivenNetwork, candidates: CandidateWords, word: Word, **known: Any
) -> Refutation:
    """Drive a word alone, and return its first wrong answer."""
    wrong, answers, margins = drive_alone(network, candidates, word)
    if wrong is None:
        return Refutation("not refuted", **known)
    expected = candidates.expected(word[None])[0, : wrong + 1]
    along = None
    if margins is not None:
        scored = zip(margins[: wrong + 1].tolist(), expected.tolist(), strict=True)
        along = tuple(
            margin if answer >= 0 and np.isfinite(margin) else None for margin, answer in scored
        )
    answer = int(answers[wrong])
    known |= {"word": tuple(word[: wrong + 1].tolist()), "expected": int(expected[-1])}
    return Refutation("refuted", answer=None if answer < 0 else answer, margins=along, **known)
