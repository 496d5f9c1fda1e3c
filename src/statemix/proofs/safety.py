"""Safety properties: what a network must never do, whatever it reads."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from statemix.automaton import IGNORED, NEVER, Automaton, reachable
from statemix.errors import OptionError
from statemix.layers.state import placement
from statemix.models import TokenClassifier
from statemix.proofs.hardening import watch_gaps
from statemix.proofs.product_search import ProductSearch, RightAnswers, margins, may_change
from statemix.proofs.state_machine import StateMachine, require_numbers
from statemix.proofs.stepping import Stepper, in_evaluation_mode

_ANY = "*"


@dataclass(frozen=True, eq=False)
class SafetyProperty:
    """An automaton that watches letters and answers, and must never reach a bad state.

    Attributes:
        start: state before the first letter.
        transitions: the next state, shape (states, letters, answers), int64.
        bad: whether a state is bad, shape (states,).
        states: name of each state.
    """

    start: int
    transitions: NDArray[np.int64]
    bad: NDArray[np.bool_]
    states: tuple[str, ...]

    def within(self, automaton: Automaton) -> "SafetyProperty":
        """Return the property of the words alone that an automaton allows.

        Its states are pairs of a state of each, and one more, which is not bad, for all other
        words.
        """
        task_states = len(automaton.transitions)
        outside = len(self.states) * task_states
        after = automaton.transitions[None, :, :, None]
        moved = np.where(after == NEVER, outside, self.transitions[:, None] * task_states + after)
        transitions = np.full((outside + 1, *self.transitions.shape[1:]), outside)
        transitions[:outside] = moved.reshape(outside, *self.transitions.shape[1:])
        return SafetyProperty(
            self.start * task_states + automaton.start,
            transitions,
            np.append(np.repeat(self.bad, task_states), False),
            (*(name for name in self.states for _ in range(task_states)), "no word of the task"),
        )


@dataclass(frozen=True)
class SafetyResult:
    """What a search has found about a safety property.

    Attributes:
        verdict: "proven" (no word leads to a bad state), "refuted" (``word`` does) or "open"
            (neither, for ``reason``).
        pairs: pairs of a state of the network and a state of the property that were visited.
        word: a shortest word that leads to a bad state; empty unless refuted.
        answers: what the network answers along it.
        state: name of the bad state; empty unless refuted.
        reason: why the verdict is open; otherwise empty.
    """

    verdict: Literal["proven", "refuted", "open"]
    pairs: int
    word: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    state: str = ""
    reason: str = ""


def parse_property(
    text: str, letters: Sequence[str], classes: Sequence[str], *, has_nameless: bool = False
) -> SafetyProperty:
    """Read a safety property from text.

    A line ``state letter answer next`` is a transition: in this state, after this letter and this
    answer of the network, the property goes to the next state. ``*`` stands for every letter or
    every answer. If several lines fit, the first one counts; if none fits, the state stays. The
    line ``start: state`` names the state before the first letter, and ``bad: state ...`` the states
    that must never be reached. Lines that begin with ``#``, and empty lines, are skipped.

    Args:
        text: the lines.
        letters: name of each letter.
        classes: name of each answer.
        has_nameless: whether there is one more answer, the last one, which only ``*`` stands for.

    Example:
        >>> watched = parse_property('''
        ... start: closed
        ... bad: broken
        ... closed open * opened
        ... closed read yes broken
        ... ''', ["open", "read"], ["no", "yes"])
        >>> watched.states
        ('closed', 'broken', 'opened')
    """
    if _ANY in (*letters, *classes):
        raise _refused(f"be about letters and answers other than {_ANY!r}, which means all")
    start, bad = None, None
    arrows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "start:" and len(words) == 2 and start is None:
            start = words[1]
        elif words[0] == "bad:" and len(words) > 1 and bad is None:
            bad = words[1:]
        elif len(words) == 4 and not words[0].endswith(":"):
            arrows.append((number, words))
        else:
            raise _refused(
                "have one line 'start: STATE', one line 'bad: STATE ...', and lines 'STATE LETTER "
                f"ANSWER NEXT', got {line.strip()!r} on line {number}"
            )
    if start is None or bad is None:
        missing = "'start: STATE'" if start is None else "'bad: STATE ...'"
        raise _refused(f"have a line {missing}, got none")
    names = [start, *bad, *(state for _, words in arrows for state in (words[0], words[3]))]
    states = {name: number for number, name in enumerate(dict.fromkeys(names))}
    sizes = len(states), len(letters), len(classes) + has_nameless
    transitions = np.empty(sizes, dtype=np.int64)
    transitions[:] = np.arange(len(states))[:, None, None]
    # The first line that fits is written last.
    for number, (before, letter, answer, after) in reversed(arrows):
        for kind, name, known in (("letter", letter, letters), ("answer", answer, classes)):
            if name != _ANY and name not in known:
                found = f"{', '.join(known)}, got {name!r} on line {number}"
                raise _refused(f"name {kind}s among {found}")
        rows = slice(None) if letter == _ANY else letters.index(letter)
        columns = slice(None) if answer == _ANY else classes.index(answer)
        transitions[states[before], rows, columns] = states[after]
    reached = reachable(transitions.reshape(len(states), -1).tolist(), states[start])
    if unreached := [name for name, state in states.items() if state not in reached]:
        raise _refused(
            f"lead from its start {start} to every state, got no way to {', '.join(unreached)}"
        )
    is_bad = np.isin(np.arange(len(states)), [states[name] for name in bad])
    return SafetyProperty(states[start], transitions, is_bad, tuple(states))


@torch.no_grad()
@in_evaluation_mode
def prove_safety(
    model: nn.Module,
    watched: SafetyProperty,
    head: str | None = None,
    max_states: int = 100_000,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> SafetyResult:
    """Prove that a network keeps a property on words of every length, or find a shortest word.

    All words of the network's tokens are considered. :meth:`SafetyProperty.within` restricts a
    property to the words of a task. The proof assumes what :func:`~statemix.proofs.search` assumes.
    As in :func:`~statemix.proofs.prove`, the verdict is open if rounding may change a gate of 0 or
    1 or an answer. A word that breaks the property is confirmed by the ordinary forward pass.

    Args:
        model: a network with finitely many states, as :func:`~statemix.proofs.harden` returns it;
            any module that :func:`~statemix.proofs.prove` takes.
        watched: the property, with the network's tokens and classes.
        head: head that answers; None means the first one.
        max_states: states of the network after which the search gives up.
        on_progress: function called with the number of states visited, about once per level.
    """
    stepper, given = Stepper.of(model, head), watched.transitions.shape[1]
    num_tokens = model.backbone.vocab_size if isinstance(model, TokenClassifier) else given
    expected = num_tokens, stepper.readout_layer.out_features
    if watched.transitions.shape[1:] != expected:
        raise ValueError(
            f"watched must have the {expected[0]} letters and {expected[1]} answers of the "
            f"network, got {watched.transitions.shape[1:]}"
        )
    machine = explore(stepper, num_tokens, max_states, on_progress)
    if isinstance(machine, str):
        return SafetyResult("open", 0, reason=machine)
    result = check_safety(machine, watched)
    if result.word:
        word = torch.tensor([result.word], device=placement(model)[0])
        answers = tuple(stepper.whole(word)[0].argmax(-1).tolist())
        if answers != result.answers:
            reason = f"steps break the property on {list(result.word)}, the whole word does not"
            return SafetyResult("open", result.pairs, reason=reason)
    return result


@torch.no_grad()
def explore(
    stepper: Stepper,
    num_tokens: int,
    max_states: int,
    on_progress: Callable[[int], None] | None = None,
) -> StateMachine | str:
    """Visit all states of a network, and number them from 0, the state before the first letter.

    The last two arguments are those of :func:`prove_safety`. Returns the network as a state
    machine, or the reason why there is none.
    """
    stepper.check(num_tokens)
    # It lets every token follow everywhere, and scores nothing.
    anything = Automaton(
        0, np.zeros((1, num_tokens), np.int64), np.full((1, num_tokens), IGNORED, np.int64)
    )
    transitions, answers = (dict[int, NDArray[np.int32]]() for _ in range(2))

    def observe(found: RightAnswers) -> str:
        chosen = found.logits.argmax(-1)
        if not (margins(found.logits, chosen) > 0).all():
            return "two answers have the same logit, or a logit is no number"
        if may_change(found.logits, found.errors, chosen).any():
            return "rounding may change an answer of the network"
        steps = found.before, found.tokens, found.reached, chosen
        for before, token, after, answer in zip(*(part.tolist() for part in steps), strict=True):
            # The empty word is state 0.
            for table, value in ((transitions, after + 1), (answers, answer)):
                table.setdefault(before + 1, np.zeros(num_tokens, np.int32))[token] = value
        return ""

    search = ProductSearch(stepper, anything, max_states, on_progress=on_progress, observe=observe)
    with watch_gaps(stepper.model) as gaps:
        result = search.run()
    if result.verdict != "proven" or gaps.doubt:
        return result.reason.replace("pairs of states", "states") or gaps.doubt
    tables = (
        np.array([table[state] for state in range(len(table))]) for table in (transitions, answers)
    )
    return StateMachine(*tables)


def check_safety(machine: StateMachine, watched: SafetyProperty) -> SafetyResult:
    """Follow a state machine and a property through all words, shortest words first.

    Every letter must be able to follow in every state, and must be answered. The verdict is never
    open.
    """
    require_numbers("transitions", machine.transitions, machine.num_states)
    require_numbers("answers", machine.answers, watched.transitions.shape[2])
    first = (0, watched.start)
    # Pair -> the pair before it, the letter and the answer between; None for the first pair.
    origins: dict[tuple[int, int], tuple[tuple[int, int], int, int] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        pair = waiting.popleft()
        state, watcher = pair
        if watched.bad[watcher]:
            steps = []
            while (last := origins[pair]) is not None:
                pair, *step = last
                steps.append(step)
            word, answers = zip(*reversed(steps), strict=True) if steps else ((), ())
            return SafetyResult("refuted", len(origins), word, answers, watched.states[watcher])
        for letter, (after, answer) in enumerate(
            zip(machine.transitions[state].tolist(), machine.answers[state].tolist(), strict=True)
        ):
            reached = after, int(watched.transitions[watcher, letter, answer])
            if reached not in origins:
                origins[reached] = pair, letter, answer
                waiting.append(reached)
    return SafetyResult("proven", len(origins))


def _refused(condition: str) -> OptionError:
    return OptionError(f"property must {condition}")
