"""Finite automata as text: a line for each transition."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from statemix.automaton import IGNORED, NEVER, Automaton, reachable
from statemix.errors import OptionError

MOST_STATES = 500
"""States of an automaton; the shortest paths between 500 take seconds to find."""

_NEVER = "-"


@dataclass(frozen=True)
class NamedAutomaton:
    """An automaton whose states, tokens and classes have names."""

    automaton: Automaton
    states: tuple[str, ...]
    letters: tuple[str, ...]
    classes: tuple[str, ...]


def parse_automaton(text: str, *, has_unreached: bool = False) -> NamedAutomaton:
    """Read an automaton from text.

    A line ``state letter next`` is a transition; ``-`` as the next state means that the letter
    cannot follow. The line ``start: state`` names the state before the first letter. What the
    automaton answers after each letter is one of:

    - a fourth word on each transition;
    - with a line ``accept: state ...``, whether the word read so far is accepted;
    - otherwise, the name of the state.

    Lines that begin with ``#``, and empty lines, are skipped. States, letters and answers are
    numbered by their first appearance. ``has_unreached`` allows states that no word reaches.
    """
    lines = _Lines()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            lines.read(number, line.split())
    return lines.automaton(has_unreached=has_unreached)


@dataclass
class _Lines:
    """What the lines so far have said."""

    start: str | None = None
    accepted: list[str] | None = None
    # (state, letter) -> (number of the line, next state, answer), in the order of the lines.
    arrows: dict[tuple[str, str], tuple[int, str, str | None]] = field(default_factory=dict)

    def read(self, number: int, words: list[str]) -> None:
        line = " ".join(words)
        if words[0] == "start:":
            if len(words) != 2 or self.start is not None:
                raise _refused(f"name one start state, on one line 'start: STATE', got {line!r}")
            self.start = words[1]
        elif words[0] == "accept:":
            if self.accepted is not None:
                raise _refused(f"have one line 'accept: STATE ...', got another one: {line!r}")
            if len(words) == 1:
                raise _refused(f"name a state after 'accept:', got {line!r} on line {number}")
            self.accepted = words[1:]
        elif len(words) not in (3, 4) or (words[2] == _NEVER and len(words) == 4):
            form = "'STATE LETTER NEXT' or 'STATE LETTER NEXT ANSWER'"
            raise _refused(f"have lines of the form {form}, got {line!r} on line {number}")
        else:
            before, letter, after = words[:3]
            answer = words[3] if len(words) == 4 else None
            earlier, *_ = self.arrows.setdefault((before, letter), (number, after, answer))
            if earlier != number:
                pair = f"state {before!r} and letter {letter!r}"
                raise _refused(f"have one line for {pair}, got lines {earlier} and {number}")

    def automaton(self, *, has_unreached: bool) -> NamedAutomaton:
        if not self.arrows:
            raise _refused("have a line 'STATE LETTER NEXT' for each transition, got none")
        states = _numbered(before for before, _ in self.arrows)
        letters = _numbered(letter for _, letter in self.arrows)
        if len(states) > MOST_STATES:
            raise _refused(f"have at most {MOST_STATES} states, got {len(states):,}")
        self._check(states, letters)
        transitions = np.full((len(states), len(letters)), NEVER, dtype=np.int64)
        answers = []
        for (before, letter), (_, after, answer) in self.arrows.items():
            if after != _NEVER:
                transitions[states[before], letters[letter]] = states[after]
                answers.append(answer)
        if self.accepted is not None:
            classes = {"no": 0, "yes": 1}
            accepting = np.array([state in self.accepted for state in states], dtype=np.int64)
            outputs = accepting[transitions]
        elif answers[0] is None:
            classes, outputs = states, transitions.copy()
        else:
            classes = _numbered(filter(None, answers))
            outputs = np.zeros_like(transitions)
            for (before, letter), (_, _, answer) in self.arrows.items():
                if answer is not None:
                    outputs[states[before], letters[letter]] = classes[answer]
        outputs[transitions == NEVER] = IGNORED
        assert self.start is not None
        found = Automaton(states[self.start], transitions, outputs)
        reached = reachable(transitions.tolist(), found.start)
        unreached = ", ".join(name for name, state in states.items() if state not in reached)
        if unreached and not has_unreached:
            said = f"lead from the start {self.start} to every state, got no way to {unreached}"
            raise _refused(said)
        return NamedAutomaton(found, tuple(states), tuple(letters), tuple(classes))

    def _check(self, states: dict[str, int], letters: dict[str, int]) -> None:
        if self.start is None:
            raise _refused("have a line 'start: STATE', got none")
        named = [("'start:'", self.start), *(("'accept:'", state) for state in self.accepted or ())]
        named += [(f"line {n}", after) for n, after, _ in self.arrows.values() if after != _NEVER]
        for source, state in named:
            if state not in states:
                none = f"none from {state!r}, which {source} names"
                raise _refused(f"have transitions from each state, got {none}")
        for state, letter in itertools.product(states, letters):
            if (state, letter) not in self.arrows:
                raise _refused(
                    f"have a line for every state and letter (NEXT is {_NEVER!r} where a letter "
                    f"cannot follow), got none for state {state!r} with letter {letter!r}"
                )
        answers = {answer is None for _, after, answer in self.arrows.values() if after != _NEVER}
        if not answers:
            raise _refused(f"have a letter that can follow, got {_NEVER!r} on every line")
        if answers == {True, False}:
            raise _refused("have an answer on every transition or on none, got some of both")
        if self.accepted is not None and answers == {False}:
            raise _refused("have either answers on the transitions or a line 'accept:', got both")


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _refused(condition: str) -> OptionError:
    return OptionError(f"rules must {condition}")
