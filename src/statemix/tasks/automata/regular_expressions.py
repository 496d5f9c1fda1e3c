"""Regular expressions as finite automata: a parser, derivatives, and a comparison on words."""

import itertools
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from statemix.automaton import Automaton, merge_states
from statemix.errors import OptionError
from statemix.tasks.automata.automaton_text import MOST_STATES, NamedAutomaton

OPERATORS = frozenset("|&*+?(){}[].^$\\")
"""Characters that mean a letter only after a backslash."""

_MOST_REPETITIONS, _MOST_NESTED = 1000, 50
# Derivatives, and parts of terms that are put together: a search ends within seconds.
_MOST_DERIVATIVES, _MOST_WORK = 10_000, 1_000_000
# Short words on which an automaton is compared with the pattern's second reading, at most.
_MOST_COMPARED, _LONGEST_COMPARED = 500, 12


def compile_pattern(pattern: str, alphabet: str | None) -> tuple[NamedAutomaton, int]:
    """Return the smallest automaton that tells whether the word so far matches a pattern.

    :class:`~statemix.tasks.automata.language_tasks.Regex` describes both arguments. States are
    numbered in the order in which words reach them, shortest words first.

    Source: Brzozowski (1964), "Derivatives of Regular Expressions". The automaton is compared with
    the short words of the pattern, which are built from the words of its parts; the number is the
    length of the longest of them.
    """
    letters = _letters(pattern, alphabet)
    terms = _Terms(pattern)
    whole = _Parser(pattern, letters, terms).read()
    numbers, waiting, rows = {whole: 0}, [whole], []
    for term in waiting:
        after = [terms.after(term, letter) for letter in letters]
        waiting += [new for new in dict.fromkeys(after) if new not in numbers]
        for new in after:
            numbers.setdefault(new, len(numbers))
        rows.append([numbers[new] for new in after])
        if len(numbers) > _MOST_DERIVATIVES:
            raise terms.refused
    accepting = np.array([terms.has_empty_word[term] for term in waiting], dtype=np.int64)
    if not accepting.any():
        raise OptionError(f"pattern must match a word, got {pattern!r}, which matches none")
    transitions, kept = merge_states(0, np.array(rows), accepting[:, None])
    if len(kept) > MOST_STATES:
        most = f"an automaton of at most {MOST_STATES} states"
        raise OptionError(f"pattern must have {most}, got {len(kept):,} for {pattern!r}")
    automaton = Automaton(0, transitions, accepting[kept][transitions])
    longest = 1
    while longest < _LONGEST_COMPARED and len(letters) ** (longest + 1) <= _MOST_COMPARED:
        longest += 1
    matched = terms.words(whole, longest)
    for length in range(1, longest + 1):
        for tokens in itertools.product(range(len(letters)), repeat=length):
            word = "".join(letters[token] for token in tokens)
            if automaton.answers(tokens)[-1] != (word in matched):
                raise RuntimeError(f"the automaton of {pattern!r} is wrong on {word!r}: report it")
    states = tuple(map(str, range(len(kept))))
    return NamedAutomaton(automaton, states, tuple(letters), ("no", "yes")), longest


def _tokens(pattern: str) -> list[str]:
    """Return the characters of a pattern but blanks; one after a backslash stays with it."""
    return re.findall(r"\\.|\S", pattern, re.DOTALL)


def _letters(pattern: object, alphabet: object) -> list[str]:
    for name, value in (("pattern", pattern), ("alphabet", alphabet)):
        if not isinstance(value, str) and not (name == "alphabet" and value is None):
            raise OptionError(f"{name} must be a string, got {value!r}")
    assert isinstance(pattern, str)
    if alphabet is None:
        if not re.fullmatch(r"([^\W_]|[|&*+?()\s]|\\.)*", pattern, re.DOTALL):
            more = "a pattern has more than letters, digits and | & * + ? ( )"
            raise OptionError(f"alphabet must be given where {more}, got None with {pattern!r}")
        named = {token[-1] for token in _tokens(pattern) if token not in OPERATORS}
        letters = sorted(letter for letter in named if not letter.isspace())
        if not letters:
            raise OptionError(f"pattern must have a letter, got {pattern!r}")
        return letters
    letters = list(str(alphabet))
    if len(set(letters)) != len(letters) or not letters or any(map(str.isspace, letters)):
        raise OptionError(f"alphabet must have different characters and no blank, got {alphabet!r}")
    return letters


class _Parser:
    """Reads a pattern as a term."""

    def __init__(self, pattern: str, letters: list[str], terms: "_Terms") -> None:
        self._pattern, self._letters, self._terms = pattern, letters, terms
        self._waiting = _tokens(pattern)[::-1]
        self._open = 0

    def read(self) -> int:
        term = self._choices()
        if self._waiting:
            raise self._refused(f"no {self._next!r} without an opening one")
        return term

    @property
    def _next(self) -> str:
        return self._waiting[-1] if self._waiting else ""

    def _take(self) -> str:
        return self._waiting.pop() if self._waiting else ""

    def _refused(self, condition: str) -> OptionError:
        return OptionError(f"pattern must have {condition}, got {self._pattern!r}")

    def _choices(self) -> int:
        parts, operator = [self._sequence()], ""
        while self._next in ("|", "&"):
            if operator not in ("", self._next):
                raise self._refused("parentheses where | and & stand side by side")
            operator = self._take()
            parts.append(self._sequence())
        return self._terms.both(parts) if operator == "&" else self._terms.either(parts)

    def _sequence(self) -> int:
        parts = []
        while self._next not in ("", "|", "&", ")", "]", "}"):
            parts.append(self._repeated(self._atom()))
        if not parts:
            raise self._refused(f"something to match before {self._next or 'its end'!r}")
        return self._terms.join(parts)

    def _atom(self) -> int:
        token = self._take()
        if token == "(":
            if self._next == ")":
                self._take()
                return self._terms.EMPTY_WORD
            self._open += 1
            if self._open > _MOST_NESTED:
                raise self._refused(f"at most {_MOST_NESTED} parentheses within each other")
            term = self._choices()
            if self._take() != ")":
                raise self._refused("a ) for every (")
            self._open -= 1
            return term
        if token == "[":
            return self._terms.letters(self._class())
        if token == ".":
            return self._terms.letters(self._letters)
        return self._terms.letters([self._letter(token)])

    def _letter(self, token: str) -> str:
        """Return the letter that a token means."""
        if token in ("^", "$"):
            raise self._refused(f"no {token}, as it always matches whole words, or \\{token}")
        if token in OPERATORS:
            said = f"\\{token} for the letter {token}, or something to match before it"
            raise self._refused(said)
        letter = token[-1]
        if len(token) == 2 and letter.isascii() and letter.isalnum():
            raise self._refused(f"no {token}: only operators have a backslash")
        if letter not in self._letters:
            alphabet = "".join(self._letters)
            raise self._refused(f"letters of the alphabet {alphabet!r} alone, not {letter!r}")
        return letter

    def _class(self) -> list[str]:
        """Return the letters of [...]."""
        negated = self._next == "^" and bool(self._take())
        chosen = list[str]()
        while (token := self._take()) != "]":
            if not token:
                raise self._refused("a ] for every [")
            first = last = self._letter(token)
            if self._next == "-" and self._waiting[-2:-1] != ["]"]:
                self._take()
                last = self._letter(self._take() or "]")
                if first > last:
                    raise self._refused(f"no {first}-{last}, which nothing matches")
            chosen += [letter for letter in self._letters if first <= letter <= last]
        if not chosen:
            raise self._refused("a letter in every [...]")
        return [letter for letter in self._letters if (letter in chosen) != negated]

    def _repeated(self, term: int) -> int:
        ranges = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._next == "{":
            least, most = self._counts()
        elif self._next in ranges:
            least, most = ranges[self._take()]
        else:
            return term
        if self._next and self._next in "*+?{":
            raise self._refused(f"parentheses around what a second operator {self._next} repeats")
        return self._terms.repeat(term, least, most)

    def _counts(self) -> tuple[int, int | None]:
        text = ""
        while not text.endswith("}") and self._waiting:
            text += self._take()
        found = re.fullmatch(r"\{(?=.*\d)(\d{0,4})(?:(,)(\d{0,4}))?\}", text, re.ASCII)
        if not found:
            raise self._refused("counts of the form {2}, {2,}, {,5} or {2,5}")
        least = int(found[1] or 0)
        most = (int(found[3]) if found[3] else None) if found[2] else least
        if max(least, most or 0) > _MOST_REPETITIONS:
            raise self._refused(f"counts of at most {_MOST_REPETITIONS:,}")
        if most is not None and least > most:
            raise self._refused(f"no {text}, which nothing matches")
        return least, most


class _Terms:
    """Regular expressions by number. Terms that differ only in the order of choices are one.

    Attributes:
        has_empty_word: whether each term matches the empty word.
        after: function from a term and a letter to the term that matches what may follow the letter
            in the words of the term.
        words: function from a term and a length to the words of at most this length that it
            matches.
    """

    NOTHING, EMPTY_WORD = 0, 1

    def __init__(self, pattern: str) -> None:
        self._pattern, self._work = pattern, 0
        self._terms: list[tuple[str, Any]] = [("nothing", None), ("empty word", None)]
        self._numbers: dict[tuple[str, Any], int] = {}
        self.after, self.words = cache(self._derivative), cache(self._short_words)
        self.has_empty_word = [False, True]

    @property
    def refused(self) -> OptionError:
        """The error of a pattern whose automaton is too large to be found."""
        return OptionError(
            f"pattern must have an automaton of at most {MOST_STATES} states, got "
            f"{self._pattern!r}, for which the search has too many steps"
        )

    def _number(self, kind: str, parts: Any, *, has_empty_word: bool) -> int:
        number = self._numbers.setdefault((kind, parts), len(self._terms))
        if number == len(self._terms):
            self._terms.append((kind, parts))
            self.has_empty_word.append(has_empty_word)
        return number

    def _parts(self, kind: str, terms: Iterable[int]) -> list[int]:
        """Return terms, with their parts in place of those that are of a kind themselves."""
        parts: list[int] = []
        for term in terms:
            parts += self._terms[term][1] if self._terms[term][0] == kind else (term,)
        self._work += len(parts)
        if self._work > _MOST_WORK:
            raise self.refused
        return parts

    def letters(self, letters: Iterable[str]) -> int:
        """Return the term that matches each of some letters."""
        chosen = frozenset(letters)
        return self._number("letters", chosen, has_empty_word=False) if chosen else self.NOTHING

    def join(self, terms: Iterable[int]) -> int:
        """Return the term that matches what terms match one after the other."""
        parts = [part for part in self._parts("join", terms) if part != self.EMPTY_WORD]
        if self.NOTHING in parts:
            return self.NOTHING
        if len(parts) < 2:
            return parts[0] if parts else self.EMPTY_WORD
        kind, choices = self._terms[parts[0]]
        if kind == "either":
            # Else there would be more derivatives than subsets of the positions in the pattern.
            return self.either(self.join((choice, *parts[1:])) for choice in choices)
        empty = all(self.has_empty_word[part] for part in parts)
        return self._number("join", tuple(parts), has_empty_word=empty)

    def repeat(self, term: int, least: int, most: int | None) -> int:
        """Return the term that matches what a term matches ``least`` to ``most`` times."""
        if most == 0 or term == self.EMPTY_WORD or (term == self.NOTHING and least == 0):
            return self.EMPTY_WORD
        if term == self.NOTHING or (least, most) == (1, 1):
            return term
        empty = least == 0 or self.has_empty_word[term]
        return self._number("repeat", (term, least, most), has_empty_word=empty)

    def either(self, terms: Iterable[int]) -> int:
        """Return the term that matches what one of the terms matches."""
        parts = frozenset(self._parts("either", terms)) - {self.NOTHING}
        if len(parts) < 2:
            return next(iter(parts), self.NOTHING)
        empty = any(self.has_empty_word[part] for part in parts)
        return self._number("either", parts, has_empty_word=empty)

    def both(self, terms: Iterable[int]) -> int:
        """Return the term that matches what all terms match, which are one or more."""
        parts = frozenset(self._parts("both", terms))
        if self.NOTHING in parts or len(parts) == 1:
            return min(parts)
        empty = all(self.has_empty_word[part] for part in parts)
        return self._number("both", parts, has_empty_word=empty)

    def _derivative(self, term: int, letter: str) -> int:
        kind, parts = self._terms[term]
        if kind == "letters":
            return self.EMPTY_WORD if letter in parts else self.NOTHING
        if kind == "join":
            choices = []
            for place, part in enumerate(parts):
                choices.append(self.join((self.after(part, letter), *parts[place + 1 :])))
                if not self.has_empty_word[part]:
                    break
            return self.either(choices)
        if kind == "repeat":
            body, least, most = parts
            rest = self.repeat(body, max(least - 1, 0), None if most is None else most - 1)
            return self.join((self.after(body, letter), rest))
        if kind in ("either", "both"):
            after = [self.after(part, letter) for part in parts]
            return self.either(after) if kind == "either" else self.both(after)
        return self.NOTHING

    def _short_words(self, term: int, longest: int) -> frozenset[str]:
        kind, parts = self._terms[term]
        if kind == "letters":
            return frozenset(parts)
        if kind in ("either", "both"):
            words = [self.words(part, longest) for part in parts]
            return words[0].union(*words) if kind == "either" else words[0].intersection(*words)
        matched = frozenset([""])
        if kind == "join":
            for part in parts:
                matched = _joined(matched, self.words(part, longest), longest)
        if kind == "repeat":
            body, least, most = parts
            once = self.words(body, longest)
            # More repetitions make words that are too long, or the same words.
            for _ in range(min(least, longest + 1)):
                matched = _joined(matched, once, longest)
            for _ in range(longest if most is None else min(most - least, longest)):
                matched |= _joined(matched, once, longest)
        return matched if kind != "nothing" else frozenset()


def _joined(first: frozenset[str], second: frozenset[str], longest: int) -> frozenset[str]:
    return frozenset(a + b for a in first for b in second if len(a + b) <= longest)
