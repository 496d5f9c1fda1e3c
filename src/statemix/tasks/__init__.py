"""Tasks: generators of labelled sequences. To add one, write a file and a line in ``TASKS``."""

from statemix.automaton import IGNORED
from statemix.registry import Registry
from statemix.tasks.arrangement import Arrangement
from statemix.tasks.automata.automaton_words import AutomatonTask
from statemix.tasks.automata.language_tasks import RandomAutomaton, Regex, TableAutomaton
from statemix.tasks.automata.traces import Traces
from statemix.tasks.chomsky import BracketArithmetic, CycleNavigation, ModularArithmetic, Parity
from statemix.tasks.copying import Copying
from statemix.tasks.mad.fuzzy_recall import FuzzyRecall
from statemix.tasks.mad.recall import NoisyRecall, Recall
from statemix.tasks.mad.storage import Compression, Memorization, SelectiveCopying
from statemix.tasks.permutation import Permutation
from statemix.tasks.task import Examples, HasTokenFeatures, Task, TaskSpec
from statemix.tasks.task_bases import DrawnTask

__all__ = ["IGNORED", "TASKS", "Examples", "HasTokenFeatures", "Task", "TaskSpec", "build"]

TASKS: Registry[type[Task]] = Registry(
    "task",
    [
        Permutation,
        Compression,
        SelectiveCopying,
        Recall,
        NoisyRecall,
        FuzzyRecall,
        Memorization,
        Parity,
        CycleNavigation,
        ModularArithmetic,
        BracketArithmetic,
        Copying,
        TableAutomaton,
        Regex,
        RandomAutomaton,
        Traces,
        Arrangement,
    ],
)


def build(name: str, /, **options: object) -> Task:
    """Construct a task by its name in ``TASKS``, with options of ``TASKS.options(name)``.

    Example:
        >>> build("permutation", group="S_4", train_size=3000).vocab_size
        24
    """
    task: Task = TASKS.build(name, **options)
    return task


def names_of(task: Task, head: str) -> tuple[list[str], list[str]]:
    """Return the names of a task's tokens and of a head's classes."""
    tokens, classes = range(task.vocab_size), range(task.heads[head])
    if not isinstance(task, DrawnTask | Permutation):
        return [str(token) for token in tokens], [str(one) for one in classes]
    # The states of an automaton have numbers; `label` names its answers.
    is_state = isinstance(task, AutomatonTask) and head != task.head
    label = str if is_state else task.label
    return [task.word(token) for token in tokens], [label(one) for one in classes]
