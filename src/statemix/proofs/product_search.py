"""Proofs that a model answers as an automaton on words of every length."""

import math
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.errors import RequestError
from statemix.layers import Layer, State, take_rows
from statemix.layers.state import map_state, placement, tensors
from statemix.memory import available_bytes, gigabytes
from statemix.models import ReadoutModel, TokenClassifier
from statemix.proofs.hardening import ROWS, rounding_of
from statemix.proofs.stepping import Stepper, in_evaluation_mode

# A logit is rounded so many times at most, in units of the largest one.
_ROUNDINGS = 64

Verdict = Literal["proven", "refuted", "open"]


@dataclass(frozen=True)
class SearchResult:
    """What a search of all words has found.

    Attributes:
        verdict: "proven" (right after words of every length), "refuted" (``word`` fails) or "open"
            (neither, for ``reason``).
        pairs: pairs of states of the model and of the automaton that were visited.
        margin: smallest difference between the logit of a right answer and the next largest one,
            among the answers seen; None if none is scored, or if there is no other class.
        word: a shortest word that fails; empty unless refuted.
        reason: why the verdict is open; otherwise empty.
        answer: class that the model gives after the word: the wrong class with the largest logit.
            None unless refuted, or if a logit is not a number.
        expected: class that is right after the word; None unless refuted.
        checked: number of tokens up to which all words were checked and are right; None if all
            words of every length are.
    """

    verdict: Verdict
    pairs: int
    margin: float | None
    word: tuple[int, ...] = ()
    reason: str = ""
    answer: int | None = None
    expected: int | None = None
    checked: int | None = None


@torch.no_grad()
@in_evaluation_mode
def search(
    model: nn.Module,
    automaton: Automaton,
    *,
    head: str | None = None,
    max_pairs: int = 100_000,
    on_progress: Callable[[int], None] | None = None,
) -> SearchResult:
    """Prove that a model answers like an automaton on every word, or find a shortest wrong word.

    The model and the automaton read the same tokens. The search visits pairs of their states
    breadth first from the empty word, by the model's own step. Two states are equal if their bytes
    are equal. If no new pair is left, every word leads to a visited pair, and every answer was
    checked. A wrong answer ends the search. No shorter word is wrong, because shorter words come
    first.

    The proof assumes that a step is a function of the token and of the bytes of the state. The
    search checks this: it makes each step twice, with its rows in opposite order. Both must give
    states of the same bytes, and the same logits up to rounding. Another shape of batch may round
    logits differently; the margin says how much an answer can tolerate.

    Args:
        model: a module, as for :func:`prove`.
        automaton: the automaton, with the model's tokens.
        head: head that answers; None means the first one.
        max_pairs: pairs after which the search gives up.
        on_progress: function called with the number of pairs visited, about once per level.
    """
    stepper = check_fits(model, automaton, head)
    return search_steps(stepper, automaton, max_pairs=max_pairs, on_progress=on_progress)


@torch.no_grad()
def search_steps(
    stepper: Stepper,
    automaton: Automaton,
    *,
    max_pairs: int,
    on_progress: Callable[[int], None] | None = None,
) -> SearchResult:
    """Do what :func:`search` does, with a network that fits the automaton."""
    if max_pairs < 1:
        raise ValueError(f"max_pairs must be at least 1, got {max_pairs}")
    layers = [part for part in stepper.model.modules() if isinstance(part, Layer)]
    states = [layer.init_state(1) for layer in layers]
    state_bytes = sum(part.nbytes for state in states for _, part in tensors(state))
    # Its key in a dictionary takes 150 bytes more.
    needed, available = max_pairs * (150 + state_bytes), available_bytes()
    if needed > available:
        raise RequestError(
            f"max_pairs must fit into memory (at least {gigabytes(needed)} needed, "
            f"{gigabytes(available)} available), got {max_pairs}"
        )
    return ProductSearch(stepper, automaton, max_pairs, on_progress=on_progress).run()


def check_fits(model: nn.Module, automaton: Automaton, head: str | None) -> Stepper:
    """Check that a model reads an automaton's tokens and gives its answers; return its steps."""
    if not isinstance(automaton, Automaton):
        raise TypeError(f"automaton must be an Automaton, got {automaton!r}")
    if isinstance(model, ReadoutModel) and not isinstance(model, TokenClassifier):
        raise TypeError(f"model must classify each token by itself, got {type(model).__name__}")
    stepper = Stepper.of(model, head)
    num_tokens = automaton.num_tokens
    if isinstance(model, TokenClassifier) and num_tokens != model.backbone.vocab_size:
        raise ValueError(
            f"automaton must have the {model.backbone.vocab_size} tokens of the model, got "
            f"{num_tokens}"
        )
    stepper.check(num_tokens)
    classes = stepper.readout_layer.out_features
    if automaton.outputs.max() >= classes:
        raise ValueError(
            f"outputs must be below the {classes} classes of the model, got "
            f"{automaton.outputs.max()}"
        )
    return stepper


class RightAnswers(NamedTuple):
    """Right answers of the model: a row for each state and token.

    Attributes:
        length: tokens of the words that lead here.
        before: number of the pair before the token; -1 for the empty word.
        tokens: the last token.
        outputs: what is right after it; ``IGNORED`` where nothing is scored.
        after: the model's state after it.
        reached: number of the pair after it.
        logits: the model's logits after it, shape (rows, classes).
        errors: how far rounding can move each logit.
    """

    length: int
    before: NDArray[np.int64]
    tokens: NDArray[np.int64]
    outputs: NDArray[np.int64]
    after: State
    reached: NDArray[np.int64]
    logits: Tensor
    errors: Tensor


@dataclass
class ProductSearch:
    """The search of :func:`search`, with arguments that are not checked.

    ``observe`` is called with all right answers; if it returns a reason, the search ends.
    """

    stepper: Stepper
    automaton: Automaton
    max_pairs: int
    _: KW_ONLY
    on_progress: Callable[[int], None] | None = None
    observe: Callable[[RightAnswers], str] | None = None
    # Bytes of the model's state and number of the automaton's -> number of the pair.
    pairs: dict[tuple[bytes, int], int] = field(default_factory=dict, init=False)
    # Number of the pair -> the pair before it, -1 for the empty word, and the token between.
    origins: list[tuple[int, int]] = field(default_factory=list, init=False)
    margin: float = field(default=math.inf, init=False)
    # Tokens up to which the answers of all words are right.
    checked: int = field(default=0, init=False)

    def run(self) -> SearchResult:
        """Visit all pairs, level by level."""
        level = _Level(None, np.array([self.automaton.start]), np.array([-1]))
        while len(level.places):
            after = self._next(level)
            if isinstance(after, SearchResult):
                return after
            level = after
            self.checked += 1
            if self.on_progress is not None:
                self.on_progress(len(self.pairs))
        return self._ended("proven", checked=None)

    @property
    def _device(self) -> torch.device:
        return placement(self.stepper.model)[0]

    def _ended(self, verdict: Verdict, **found: Any) -> SearchResult:
        # Without another class, or without a scored answer, there is nothing to exceed.
        margin = self.margin if math.isfinite(self.margin) else None
        return SearchResult(verdict, len(self.pairs), margin, **{"checked": self.checked} | found)

    def _open(self, reason: str) -> SearchResult:
        return self._ended("open", reason=reason)

    def _next(self, level: "_Level") -> "_Level | SearchResult":
        """Visit all pairs that one more token leads to."""
        states: list[State] = []
        places: list[int] = []
        numbers: list[int] = []
        for rows, tokens in self._steps(level):
            stepped = self._step(level, rows, tokens)
            if stepped is None:
                return self._open("a row of a step depends on where it stands in its batch")
            logits, errors, after = stepped
            before = level.places[rows]
            outputs = self.automaton.outputs[before, tokens]
            answers = torch.from_numpy(outputs).to(logits.device)
            scored, right = answers != IGNORED, answers.clamp(min=0)
            exceeded = margins(logits, right)
            # A tie is wrong, and so is what is no number.
            bad = scored & ~(exceeded > 0), scored & may_change(logits, errors, right)
            wrong, near = (int(some.nonzero()[0]) if some.any() else None for some in bad)
            if wrong is None and scored.any():
                self.margin = min(self.margin, float(exceeded[scored].min()))
            if wrong is not None:
                return self._refuted(self._word(level, rows[wrong], tokens[wrong]))
            if near is not None:
                word = self._word(level, rows[near], tokens[near])
                return self._open(f"rounding may change the answer after the word {word}")
            reached = self.automaton.transitions[before, tokens]
            new, after_numbers = [], []
            pairs = zip(_bytes(after, len(rows)), reached.tolist(), strict=True)
            for row, pair in enumerate(pairs):
                if pair not in self.pairs:
                    numbers.append(len(self.pairs))
                    self.pairs[pair] = len(self.pairs)
                    self.origins.append((int(level.numbers[rows[row]]), int(tokens[row])))
                    places.append(pair[1])
                    new.append(row)
                after_numbers.append(self.pairs[pair])
            if self.observe is not None:
                words = self.checked + 1, level.numbers[rows], tokens, outputs
                pairs_after = after, np.array(after_numbers), logits, errors
                if reason := self.observe(RightAnswers(*words, *pairs_after)):
                    return self._open(reason)
            if len(self.pairs) > self.max_pairs:
                return self._open(f"more than {self.max_pairs} pairs of states")
            if new:
                states.append(take_rows(after, torch.tensor(new, device=self._device)))
        together = map_state(lambda *parts: torch.cat(parts), *states) if states else None
        return _Level(together, np.array(places, np.int64), np.array(numbers, np.int64))

    def _steps(self, level: "_Level") -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield rows of a level, and the tokens that can follow them, at most ``ROWS`` each."""
        rows, tokens = np.nonzero(self.automaton.transitions[level.places] != NEVER)
        for start in range(0, len(rows), ROWS):
            yield rows[start : start + ROWS], tokens[start : start + ROWS]

    def _step(
        self, level: "_Level", rows: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor, State] | None:
        """Return logits, their rounding, and states; None if they depend on the order of rows."""
        filled = np.resize(np.arange(len(rows)), ROWS)
        order = torch.from_numpy(rows[filled]).to(self._device)
        read = torch.from_numpy(tokens[filled]).to(self._device).unsqueeze(1)
        before = None if level.states is None else take_rows(level.states, order)
        logits, features, after = self.stepper.step(read, before)
        flipped = None if before is None else map_state(lambda part: part.flip(0), before)
        again, _, after_again = self.stepper.step(read.flip(0), flipped)
        other = map_state(lambda part: part.flip(0), after_again)
        if list(_bytes(after, ROWS)) != list(_bytes(other, ROWS)):
            return None
        # Some processors add up the last rows of a product in another order than the first ones.
        size = float(logits.abs().nan_to_num(0.0, 0.0).amax())
        close = _ROUNDINGS * torch.finfo(logits.dtype).eps * size
        if not torch.allclose(logits, again.flip(0), rtol=0.0, atol=close, equal_nan=True):
            return None
        errors = rounding_of(self.stepper.readout_layer, features)
        used = torch.arange(len(rows), device=self._device)
        return logits[used], errors[used], take_rows(after, used)

    def _word(self, level: "_Level", row: np.int64, last: np.int64) -> list[int]:
        """Return the word that leads to a row of a level, and a last token."""
        number, word = int(level.numbers[row]), [int(last)]
        while number >= 0:
            number, token = self.origins[number]
            word.append(token)
        return word[::-1]

    def _refuted(self, word: list[int]) -> SearchResult:
        """Return the word and both answers, if the ordinary forward pass fails on it too."""
        logits = self.stepper.whole(torch.tensor([word], device=self._device))[:, -1]
        expected = self.automaton.answers(word)[-1]
        if (margins(logits, torch.tensor([expected], device=logits.device)) > 0).all():
            return self._open(f"steps fail on the word {word}, the whole does not")
        others = logits[0].clone()
        others[expected] = -torch.inf
        answer = int(others.argmax()) if others.amax() > -torch.inf else None
        return self._ended("refuted", word=tuple(word), answer=answer, expected=expected)


def margins(logits: Tensor, answers: Tensor) -> Tensor:
    """Return by how much the logits (rows, classes) of some answers exceed all others."""
    right = logits.gather(1, answers.unsqueeze(1)).squeeze(1)
    return right - logits.scatter(1, answers.unsqueeze(1), -torch.inf).amax(1)


def may_change(logits: Tensor, errors: Tensor, answers: Tensor) -> Tensor:
    """Return whether errors of the logits (rows, classes) may change some answers."""
    right = answers.unsqueeze(1)
    moved = (logits + errors).scatter(1, right, (logits - errors).gather(1, right))
    return ~(margins(moved, answers) > 0)


class _Level(NamedTuple):
    """Pairs that words of one length have reached first."""

    # Of the model, as rows; None before the first token.
    states: State | None
    # States of the automaton.
    places: NDArray[np.int64]
    # Of the pairs; -1 for the empty word.
    numbers: NDArray[np.int64]


def _bytes(state: State, rows: int) -> Iterator[bytes]:
    """Yield the bytes of every row of a state."""
    parts = [
        part.detach().cpu().reshape(rows, -1).contiguous().view(torch.uint8).numpy()
        for _, part in tensors(state)
    ]
    for row in np.concatenate(parts, 1):
        yield row.tobytes()
