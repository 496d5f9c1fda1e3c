"""The tasks of automata: a table as text, a regular expression, and random automata."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import Automaton, reachable
from statemix.errors import OptionError, SettingError
from statemix.registry import passed_on
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_text import NamedAutomaton, parse_automaton
from statemix.tasks.automata.automaton_words import AutomatonTask, Labels, Lengths, Words
from statemix.tasks.automata.known_languages import LANGUAGES, TABLES
from statemix.tasks.automata.regular_expressions import compile_pattern


class TableAutomaton(AutomatonTask):
    r"""Answer like a finite automaton that a text (rules=TEXT) or a file (file=PATH) describes.

    :func:`~statemix.tasks.automata.automaton_text.parse_automaton` describes the text, and
    :class:`~statemix.tasks.automata.automaton_words.AutomatonTask` the options of all three tasks.

    Args:
        rules: the text. A request may name a file instead, and then stores the file's text.
    """

    name: ClassVar[str] = "automaton"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = TABLES
    replaced: ClassVar[Mapping[str, str]] = {"file": "rules"}
    title = "automaton"

    def __init__(
        self,
        *,
        rules: str,
        length: int = 16,
        min_length: int | None = None,
        lengths: Lengths = "uniform",
        labels: Labels = "all",
        words: Words = "covering",
        train_size: int | None = None,
        seed: int = 0,
        flipped: float = 0.0,
        states: bool = False,
    ) -> None:
        options = passed_on(locals(), AutomatonTask)
        if not isinstance(rules, str):
            raise OptionError(f"rules must be a string, got {rules!r}")
        self.rules = rules
        super().__init__(parse_automaton(rules), **options)

    @staticmethod
    def with_contents(options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that hold the text of the file in place of its name."""
        if "file" not in options:
            return options
        others = {name: value for name, value in options.items() if name != "file"}
        file = options["file"]
        if "rules" in others:
            raise SettingError("file", "must be absent where rules (or a preset) are given", file)
        if not isinstance(file, str):
            raise SettingError("file", "must be a string", file)
        try:
            return {**others, "rules": Path(file).read_text(encoding="utf-8-sig")}
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingError("file", f"must be a text file ({reason})", file) from error


class Regex(AutomatonTask):
    r"""Tell after every letter whether the word so far matches a regular expression.

    Args:
        pattern: the expression: ``|`` or, ``&`` and, ``*``, ``+``, ``?``, ``{2,5}``, ``.``,
            ``[a-c]``, ``[^a-c]``, and parentheses. A backslash makes a letter of an operator:
            ``\*``. Blanks are skipped. Without ``&``, a pattern means what it means for
            Python's ``re.fullmatch``.
        alphabet: the letters, one character each. None takes them from the pattern, whose operators
            may then be ``|``, ``&``, ``*``, ``+``, ``?`` and parentheses only.

    Attributes:
        checked_against: the words on which the automaton was compared with a second reading of the
            pattern, in words.
    """

    name: ClassVar[str] = "regex"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = LANGUAGES

    def __init__(
        self,
        *,
        pattern: str,
        alphabet: str | None = None,
        length: int = 16,
        min_length: int | None = None,
        lengths: Lengths = "uniform",
        labels: Labels = "all",
        words: Words = "covering",
        train_size: int | None = None,
        seed: int = 0,
        states: bool = False,
    ) -> None:
        options = passed_on(locals(), AutomatonTask)
        language, longest = compile_pattern(pattern, alphabet)
        super().__init__(language, **options)
        self.pattern, self.alphabet = pattern, alphabet
        self.checked_against = (
            f"the words of the pattern {pattern!r}, on all words of 1 to {longest} letters"
        )
        self.title = pattern


class RandomAutomaton(AutomatonTask):
    """Tell the state of a random automaton after every letter.

    Every transition is drawn uniformly, again and again until each state can be reached.

    Args:
        num_states: number of states.
        num_letters: number of letters.
        table_seed: seed of the transitions, 0 <= table_seed < 2^64.
    """

    name: ClassVar[str] = "random_automaton"

    def __init__(
        self,
        *,
        num_states: int = 8,
        num_letters: int = 2,
        table_seed: int = 0,
        length: int = 16,
        min_length: int | None = None,
        lengths: Lengths = "uniform",
        labels: Labels = "all",
        words: Words = "covering",
        train_size: int | None = None,
        seed: int = 0,
        states: bool = False,
    ) -> None:
        options = passed_on(locals(), AutomatonTask)
        # Larger tables hardly ever reach all of their states.
        self.num_states = addressing.check_integer("num_states", num_states, minimum=2, maximum=48)
        bounds = {"minimum": 2, "maximum": 64}
        self.num_letters = addressing.check_integer("num_letters", num_letters, **bounds)
        self.table_seed = addressing.check_seed(table_seed, "table_seed")
        table = _random_table(self.num_states, self.num_letters, self.table_seed)
        names, letters = (tuple(map(str, range(count))) for count in table.shape)
        automaton = Automaton(0, table, table.copy())
        super().__init__(NamedAutomaton(automaton, names, letters, names), **options)
        self.title = f"random automaton of {num_states} states and {num_letters} letters"


def _random_table(num_states: int, num_letters: int, seed: int) -> NDArray[np.int64]:
    """Return transitions by which words reach every state from state 0."""
    count, drawn = num_states * num_letters, 0
    while True:
        raw = addressing.draws(
            "random automaton", count, seed=seed, split="train", start=drawn, stop=drawn + 1024
        )
        tables = addressing.below(raw, num_states).reshape(-1, num_states, num_letters)
        for table in tables:
            if len(reachable(table.tolist(), 0)) == num_states:
                return table
        drawn += len(tables)
