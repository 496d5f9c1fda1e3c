"""Automata that `statemix learn` and AALpy learn from the words of a task."""

import contextlib
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from statemix import files
from statemix.automaton import IGNORED, NEVER
from statemix.errors import RequestError
from statemix.learning import Log, learn
from statemix.proofs import SafetyProperty, StateMachine, parse_property
from statemix.proofs.safety import check_safety
from statemix.sweeps.runner import StudyRun
from statemix.tasks import TaskSpec
from statemix.tasks.addressing import Split
from statemix.tasks.automata.automaton_words import AutomatonTask
from statemix.training import Event
from statemix.training.evaluation import mad_accuracy
from statemix.training.folder import WRITING_S, lock_folder
from statemix_lab.studies.store import PlainHeads

Algorithm = Literal["statemix learn", "RPNI", "EDSM", "Alergia", "Alergia EDSM", "L*"]

_RESULT = "learned.json"
# Random words that L* compares with each of its automata, and all words that it asks for at most.
_WALKS, _WORDS = 1000, 20_000


@dataclass(frozen=True)
class LearnedAutomaton(StudyRun):
    """An automaton that `statemix learn` or AALpy learns, and what is known about it.

    All but L* read the words of training and validation. RPNI and EDSM merge states that no label
    tells apart; of several labels of a word, the most frequent one counts. EDSM merges the states
    first that most labels say are equal. Alergia merges states
    whose labels are about equally frequent, by the bound of Hoeffding with AALpy's eps of 0.05, and
    here answers with the most frequent label.

    L* asks for the label of every letter of words of its choice. Of its labels, too, a share
    ``flipped`` of the task is wrong, and a word always has the same one. With wrong labels, L* does
    not end: its last automaton within 20,000 words counts.

    Where the words of the learner do not lead, its automaton stays in the state, and answers with
    the most frequent label of all.

    Sources: Oncina and Garcia (1992), "Inferring regular languages in polynomial updated time";
    Carrasco and Oncina (1994), "Learning stochastic regular grammars by means of a state merging
    method"; Lang et al. (1998), "Results of the Abbadingo One DFA learning competition and a new
    evidence-driven state merging algorithm"; Angluin (1987), "Learning regular sets from queries
    and counterexamples".
    """

    algorithm: Algorithm
    task: TaskSpec
    watched: str
    num_validation: int
    length: int
    size: int
    seed: int = 0
    num_threads: int | None = 1

    def asked(self) -> dict[str, Any]:
        return {
            "learned": {
                "algorithm": self.algorithm,
                "task": self.task.asked(),
                "property": self.watched,
                "num_validation": self.num_validation,
                "tests": [self.size, self.length],
                "seed": self.seed,
            }
        }

    def train(
        self, folder: Path, on_event: Callable[[Event], None], checkpoint_every_s: float | None
    ) -> None:
        del on_event, checkpoint_every_s
        if (folder / _RESULT).exists():
            return
        task = cast(AutomatonTask, self.task.build(seed=self.seed))
        began = time.process_time()
        if self.algorithm == "L*":
            machine = _by_queries(task)
        else:
            words = labelled(task, self.num_validation)
            machine = READERS[self.algorithm](words, task)
        cpu_s = time.process_time() - began
        watched = parse_property(self.watched, task.language.letters, task.language.classes)
        found = {
            "num_states": machine.num_states,
            "cpu_s": cpu_s,
            "certificate": _checked(machine, specification(task)),
            "property": _checked(machine, watched),
            "validation": _scores(task, machine, "validation", self.num_validation, task.length),
            "test": {
                str(length): _scores(task, machine, "test", self.size, length)
                for length in (task.length, self.length)
            },
        }
        with lock_folder(folder, patience_s=WRITING_S):
            files.write_file(folder / _RESULT, json.dumps(found, allow_nan=False).encode())

    def seconds(self) -> float | None:
        return None

    def described(self) -> dict[str, Any]:
        return {"layers": [], "task": {"name": self.task.name, **self.task.options}}

    def results(self, folder: Path) -> dict[str, Any]:
        found = files.read_json(folder / _RESULT, "a result")
        test = next(iter(found["test"].values()))
        # Results of older versions lack the scores on the words of validation.
        best = {"best_validation": found.pop("validation", test)}
        best |= dict.fromkeys(("best_test", "test_at_best_validation"), test)
        return {**found, **best, "time_s": found["cpu_s"]}

    def ending(self, folder: Path) -> str:
        found = files.read_json(folder / _RESULT, "a result")
        return f"{found['certificate']['verdict']}, {found['num_states']} states"


def specification(task: AutomatonTask) -> SafetyProperty:
    """Return the property that all answers are those of the task's automaton."""
    automaton = task.automaton()
    # Behind the states: one for words that cannot occur, and one for wrong answers.
    beyond, wrong = automaton.num_states, automaton.num_states + 1
    after = np.where(automaton.transitions == NEVER, beyond, automaton.transitions)
    shape = (automaton.num_states + 2, automaton.num_tokens, task.num_classes)
    transitions = np.empty(shape, dtype=np.int64)
    answers = np.arange(task.num_classes)
    outputs = automaton.outputs[:, :, None]
    right = (outputs == answers) | (outputs == IGNORED)
    transitions[:beyond] = np.where(right, after[:, :, None], wrong)
    transitions[beyond], transitions[wrong] = beyond, wrong
    states = (*map(str, range(automaton.num_states)), "beyond", "wrong")
    return SafetyProperty(automaton.start, transitions, np.arange(wrong + 1) == wrong, states)


def _checked(machine: StateMachine, watched: SafetyProperty) -> dict[str, Any]:
    result = check_safety(machine, watched)
    return {"verdict": result.verdict, "pairs": result.pairs, "word": list(result.word)}


def _scores(task: AutomatonTask, machine: StateMachine, split: Split, *sizes: int) -> PlainHeads:
    tokens, targets, _ = task.examples(split, 0, *sizes)
    answers, classes = machine.run(tokens)[0], targets[task.head]
    right = answers == classes
    scores = {
        "num_sequences": len(tokens),
        "token_accuracy": float(right.mean()),
        "mad_accuracy": mad_accuracy(*map(torch.from_numpy, (answers.astype(np.int64), classes))),
        "sequence_accuracy": float(right.all(1).mean()),
        "loss": None,
    }
    return {task.head: scores}


def _aalpy(module: str) -> Any:
    try:
        return import_module(f"aalpy.{module}")
    except ImportError as error:
        advice = "RPNI, EDSM, Alergia and L* need AALpy: pip install 'statemix-lab[automata]'"
        raise RequestError(advice) from error


# Letters of a word with their labels.
_Word = list[tuple[int, int]]


def labelled(task: AutomatonTask, num_validation: int) -> list[_Word]:
    """Return the words of training and validation; every letter must have a label."""
    assert task.train_size is not None
    counts: dict[Split, int] = {"train": task.train_size, "validation": num_validation}
    words = []
    for split, count in counts.items():
        tokens, targets, lengths = task.examples(split, 0, count)
        assert lengths is None
        pairs = np.stack([tokens, targets[task.head]], -1)
        words += [list(map(tuple, word)) for word in pairs.tolist()]
    return words


def _by_statemix(words: list[_Word], task: AutomatonTask) -> StateMachine:
    tokens, targets = np.array(words).reshape(-1, 2).T
    starts = np.concatenate([[0], np.cumsum([len(word) for word in words])])
    names = task.language.letters, task.language.classes
    found = learn(Log(*names, tokens, targets, starts, np.zeros_like(tokens)), seed=task.seed)
    transitions, answers = found.machine.transitions, found.machine.answers
    unknown = transitions == NEVER
    return StateMachine(
        np.where(unknown, np.arange(len(transitions))[:, None], transitions),
        np.where(unknown, _most_frequent(words), answers),
    )


def _by_labels(function: str, words: list[_Word], task: AutomatonTask) -> StateMachine:
    votes: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for word in words:
        letters = tuple(letter for letter, _ in word)
        for place, (_, label) in enumerate(word, 1):
            votes[letters[:place]][label] += 1
    data = [(letters, labels.most_common(1)[0][0]) for letters, labels in votes.items()]
    run = getattr(_aalpy("learning_algs"), function)
    learned = run(data, "mealy", print_info=False)
    return machine_of(learned.initial_state, _arrows(learned), task, _most_frequent(words))


def _arrows(learned: Any) -> dict[Any, dict[int, tuple[Any, int]]]:
    """Return the next state and the answer of each state and letter of a Mealy machine."""
    return {
        state: {
            letter: (after, state.output_fun[letter]) for letter, after in state.transitions.items()
        }
        for state in learned.states
    }


def _by_shares(function: str, words: list[_Word], task: AutomatonTask) -> StateMachine:
    learned = getattr(_aalpy("learning_algs"), function)(words, "smm")
    arrows = {
        state: {
            letter: max(ways, key=lambda way: way[2])[:2]
            for letter, ways in state.transitions.items()
            if ways
        }
        for state in learned.states
    }
    return machine_of(learned.initial_state, arrows, task, _most_frequent(words))


READERS: dict[str, Callable[[list[_Word], AutomatonTask], StateMachine]] = {
    "statemix learn": _by_statemix,
    "RPNI": partial(_by_labels, "run_RPNI"),
    "EDSM": partial(_by_labels, "run_EDSM"),
    "Alergia": partial(_by_shares, "run_Alergia"),
    "Alergia EDSM": partial(_by_shares, "run_Alergia_EDSM"),
}


def _most_frequent(words: list[_Word]) -> int:
    return Counter(label for word in words for _, label in word).most_common(1)[0][0]


def _by_queries(task: AutomatonTask) -> StateMachine:
    letters = list(range(task.vocab_size))
    automaton = task.automaton()
    oracles: Any = _aalpy("oracles")

    class Teacher(_aalpy("base").SUL):  # type: ignore[misc]
        """Answers of the automaton, some of which are wrong."""

        asked = 0

        def pre(self) -> None:
            self.asked += 1
            if self.asked > _WORDS:
                raise _TooManyWordsError
            self.word: list[int] = []
            self.state = automaton.start

        def post(self) -> None:
            pass

        def step(self, letter: int) -> int:
            self.word.append(letter)
            answer = int(automaton.outputs[self.state, letter])
            self.state = int(automaton.transitions[self.state, letter])
            # A word of its length, as a seed that ends with zeros is that without them.
            chance = np.random.default_rng([task.seed, len(self.word), *self.word])
            if chance.random() < task.flipped:
                answer += 1 + int(chance.integers(task.num_classes - 1))
            return answer % task.num_classes

    class Examiner(oracles.RandomWordEqOracle):  # type: ignore[misc]
        """Compares an automaton with random words, and keeps it."""

        def find_cex(self, hypothesis: Any) -> Any:
            self.examined = hypothesis
            return super().find_cex(hypothesis)

    # AALpy draws its random words from Python's own generator.
    before = random.getstate()
    random.seed(task.seed)
    try:
        teacher = Teacher()
        walks = {"num_walks": _WALKS, "min_walk_len": 1, "max_walk_len": task.length}
        examiner = Examiner(letters, teacher, **walks)
        with contextlib.suppress(_TooManyWordsError):
            _aalpy("learning_algs").run_Lstar(letters, teacher, examiner, "mealy", print_level=0)
    finally:
        random.setstate(before)
    learned = examiner.examined
    return machine_of(learned.initial_state, _arrows(learned), task, 0)


class _TooManyWordsError(Exception):
    """L* has asked for more words than it may."""


def machine_of(
    start: Any, arrows: dict[Any, dict[int, tuple[Any, int]]], task: AutomatonTask, guess: int
) -> StateMachine:
    """Return tables: state -> letter -> next state and answer, and what is answered elsewhere."""
    numbers = {state: number for number, state in enumerate(dict.fromkeys([start, *arrows]))}
    transitions = np.empty((len(numbers), task.vocab_size), dtype=np.int32)
    answers = np.empty_like(transitions)
    for state, number in numbers.items():
        for letter in range(task.vocab_size):
            after, answer = arrows[state].get(letter, (state, guess))
            transitions[number, letter], answers[number, letter] = numbers[after], answer
    return StateMachine(transitions, answers)
