"""The learner: several searches on most traces, and the best machine on all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED, NEVER
from statemix.learning.logs import Log
from statemix.learning.prefix_tree import Ints, PrefixTree
from statemix.learning.state_merging import LOG_ODDS, Merging
from statemix.proofs import StateMachine

ATTEMPTS = 2
"""Searches, of which the one with the most probable machine counts."""

MOST_STATES = 64
"""States of a machine at most, unless asked otherwise."""

# Of ten labelled traces in a row, the tenth is held out.
_PERIOD = 10
# Events from which a machine is learned; all of them are compared with it.
_MOST_EVENTS, _LONGEST = 200_000, 256
# Prefixes with fewer labels say little about noise, and without any such prefix it is assumed.
_LEAST_LABELS, _ASSUMED_NOISE = 20, 0.05
# The search continues if the measured noise is further from the assumed noise than this factor.
_FACTOR = 1.2
# No log is so long that it could not have a wrong label.
_LEAST_NOISE = 1e-4

Progress = Callable[[int, float], None]


class Options(TypedDict):
    """Options that all searches of a machine share, as :func:`search` describes them."""

    num_states: int
    noise: float | None
    seed: int


@dataclass(frozen=True)
class FoundMachine:
    """The machine of a search, as plain data.

    Attributes:
        transitions: the next states by state and event; ``NEVER`` where the log has no transition.
        noise: share of labels that contradict the machine.
        score: logarithm of the probability of the labels, with the price of the states.
    """

    transitions: list[list[int]]
    noise: float
    score: float


@dataclass(frozen=True, eq=False)
class LearnedMachine:
    """A deterministic machine that was learned from a log, and how well the log supports it.

    Attributes:
        machine: the smallest machine with the learned answers. Its states are numbered in the order
            in which words reach them, shortest words first.
        events: name of each event.
        labels: name of each answer.
        visits: how often the log takes each transition, shape (states, events).
        contradictions: steps of the log whose label is another answer, shape (contradictions,).
        given: the machine's answers there, same shape; ``NEVER`` where it has none.
        noise: share of labels that contradict the machine.
        accuracy: share of right answers on held-out traces, of the machine that was learned without
            them; NaN if less than ten traces have labels.
    """

    machine: StateMachine
    events: tuple[str, ...]
    labels: tuple[str, ...]
    visits: Ints
    contradictions: Ints
    given: Ints
    noise: float
    accuracy: float

    def words(self) -> list[list[int]]:
        """Return a shortest word that leads to each state."""
        words: dict[int, list[int]] = {0: []}
        for state in range(self.machine.num_states):
            for event, after in enumerate(self.machine.transitions[state].tolist()):
                if after != NEVER:
                    words.setdefault(after, [*words[state], event])
        return [words[state] for state in range(self.machine.num_states)]


def search(
    log: Log,
    number: int,
    *,
    num_states: int = MOST_STATES,
    noise: float | None = None,
    seed: int = 0,
    on_progress: Progress = lambda *_: None,
) -> FoundMachine:
    """Search for a machine on nine of ten labelled traces, and on all others.

    Args:
        log: traces with labels.
        number: number of the attempt, from 0. Later attempts begin with more states.
        num_states: states at most.
        noise: share of wrong labels; None means that it is estimated.
        seed: seed of the order in which changes are tried.
        on_progress: function called with the number of states and the score.
    """
    merging = _merging(log.select(np.flatnonzero(~_held_out(log))), num_states, noise)
    merging.growth_odds = LOG_ODDS / (1 + number)
    return _attempt(merging, np.random.default_rng([seed, number]), noise, on_progress)


def finish(
    log: Log,
    attempts: Sequence[FoundMachine],
    *,
    num_states: int = MOST_STATES,
    noise: float | None = None,
    seed: int = 0,
    on_progress: Progress = lambda *_: None,
) -> LearnedMachine:
    """Continue the best search on all traces, and compare its machine with the log.

    ``attempts`` are results of :func:`search`, which describes the other arguments.
    """
    best = max(attempts, key=lambda attempt: attempt.score)
    is_held_out = _held_out(log)
    held_out, others = (log.select(np.flatnonzero(one)) for one in (is_held_out, ~is_held_out))
    _, wrong, _ = _compared(_machine(others, best), held_out)
    scored = int((held_out.targets != IGNORED).sum())
    accuracy = 1 - len(wrong) / scored if scored else np.nan
    merging = _merging(log, num_states, best.noise if noise is None else noise)
    merging.delta = np.array(best.transitions)
    final = _attempt(merging, np.random.default_rng(seed), noise, on_progress)
    machine = _machine(log, final)
    visits, wrong, given = _compared(machine, log)
    labelled = (log.targets != IGNORED).sum()
    names = log.events, log.labels
    return LearnedMachine(machine, *names, visits, wrong, given, len(wrong) / labelled, accuracy)


def learn(
    log: Log, *, num_states: int = MOST_STATES, noise: float | None = None, seed: int = 0
) -> LearnedMachine:
    """Learn a machine from a log by all searches; :func:`search` describes the arguments.

    Example:
        >>> steps = np.arange(40) % 2
        >>> log = Log(("a", "b"), ("0", "1"), steps, steps, np.arange(0, 41, 2), steps)
        >>> learn(log).machine.num_states
        1
    """
    options: Options = {"num_states": num_states, "noise": noise, "seed": seed}
    return finish(log, [search(log, number, **options) for number in range(ATTEMPTS)], **options)


def _held_out(log: Log) -> NDArray[np.bool_]:
    """Return which traces the attempts do not learn from, shape (traces,)."""
    traces = np.repeat(np.arange(log.num_traces), np.diff(log.starts))
    labels = np.bincount(traces, log.targets != IGNORED, log.num_traces)
    chosen = np.zeros(log.num_traces, np.bool_)
    chosen[np.flatnonzero(labels)[_PERIOD - 1 :: _PERIOD]] = True
    return chosen


def _attempt(
    merging: Merging, rng: np.random.Generator, noise: float | None, on_progress: Progress
) -> FoundMachine:
    merging.search(rng, on_progress)
    assumed, measured = merging.evidence.noise, max(merging.measured_noise(), _LEAST_NOISE)
    if noise is None:
        merging.evidence = replace(merging.evidence, noise=measured)
        if not 1 / _FACTOR < measured / assumed < _FACTOR:
            merging.search(rng, on_progress)
    return FoundMachine(merging.delta.tolist(), merging.measured_noise(), merging.score())


def _merging(log: Log, num_states: int, noise: float | None) -> Merging:
    short = log.shortened(_LONGEST)
    most = int(np.searchsorted(short.starts, _MOST_EVENTS, side="right")) - 1
    if most < short.num_traces:
        # Traces from all over the log.
        chosen = np.linspace(0, short.num_traces - 1, max(most, 1)).astype(np.int64)
        short = short.select(np.unique(chosen))
    tree = PrefixTree.of(short.tokens, short.targets, short.starts)
    shape = len(log.events), len(log.labels)
    noise = _estimated_noise(tree) if noise is None else noise
    return Merging(tree, shape, max(noise, _LEAST_NOISE), num_states)


def _estimated_noise(tree: PrefixTree) -> float:
    """Return the share of labels that others after the same prefix contradict."""
    total = np.bincount(tree.labelled, tree.count)
    most = np.zeros_like(total)
    np.maximum.at(most, tree.labelled, tree.count)
    often = total >= _LEAST_LABELS
    return float(1 - most[often].sum() / total[often].sum()) if often.any() else _ASSUMED_NOISE


def _machine(log: Log, attempt: FoundMachine) -> StateMachine:
    """Return the smallest machine that gives each transition its most frequent label."""
    transitions = np.array(attempt.transitions, np.int32)
    states = _follow(transitions, log)
    at = states * len(log.events) + log.tokens
    scored = (states != NEVER) & (log.targets != IGNORED)
    shape = *transitions.shape, len(log.labels)
    place = at[scored] * len(log.labels) + log.targets[scored]
    counts = np.bincount(place, minlength=int(np.prod(shape))).reshape(shape)
    answers = np.where(counts.any(2), counts.argmax(2), NEVER)
    return StateMachine(transitions, answers.astype(np.int32)).minimized()


def _compared(machine: StateMachine, log: Log) -> tuple[Ints, Ints, Ints]:
    """Return the visits of transitions, the steps that contradict answers, and these answers."""
    states = _follow(machine.transitions, log)
    known = states != NEVER
    at = states * machine.num_letters + log.tokens
    visits = np.bincount(at[known], minlength=machine.transitions.size)
    answers = np.where(known, machine.answers.ravel()[at], NEVER)
    wrong = np.flatnonzero((log.targets != IGNORED) & (answers != log.targets))
    return visits.reshape(machine.transitions.shape), wrong, answers[wrong]


def _follow(transitions: NDArray[np.integer[Any]], log: Log) -> Ints:
    """Return the state before each step of a log; ``NEVER`` behind an unknown transition."""
    table = np.vstack([transitions, np.full(transitions.shape[1], NEVER)])
    lengths, states = np.diff(log.starts), np.full(len(log.tokens), NEVER)
    traces = np.flatnonzero(lengths > 0)
    now = np.zeros(len(lengths), np.int64)
    for place in range(int(lengths.max(initial=0))):
        traces = traces[lengths[traces] > place]
        at = log.starts[traces] + place
        states[at] = now[traces]
        now[traces] = table[now[traces], log.tokens[at]]
    return states
