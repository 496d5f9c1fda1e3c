"""The tasks of automata: a table as text, a regular expression, and random automata."""

import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import Automaton, reachable
from statemix.errors import OptionError, SettingError
from statemix.registry import passed_on
from statemix.tasks import addressing
from statemix.tasks.automata.automaton_text import MOST_STATES, NamedAutomaton, parse_automaton
from statemix.tasks.automata.automaton_words import AutomatonTask, Labels, Lengths, Words
from statemix.tasks.automata.known_languages import LANGUAGES, TABLES

if TYPE_CHECKING:
    from automata.fa.dfa import DFA
    from automata.fa.nfa import NFA


class TableAutomaton(AutomatonTask):
    r"""Answer like a finite automaton that a text (rules=TEXT) or a file (file=PATH) describes.

    :func:`~statemix.tasks.automata.automaton_text.parse_automaton` describes the text.

    Args:
        rules: the text. A request may name a file instead, and then stores the file's text.
        length: letters of the longest training word; tests may go beyond.
        min_length: letters of the shortest training word; None means ``length`` if every position
            is scored, and 1 otherwise.
        lengths: "uniform" or "log-uniform": how lengths of training words are drawn.
        labels: "all" (every position is scored) or "last" (the last one of each word alone).
        words: kind of words: "covering", "distinguishing", "uniform", "balanced" or "repeating", as
            in :class:`~statemix.tasks.automata.automaton_words.AutomatonTask`.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.
        flipped: share of the labels of training and validation that are wrong.

    Raises:
        OptionError: if the text cannot be read, or an option is out of range or has the wrong type.

    Example:
        >>> task = TableAutomaton(rules="start: a\na x b\na y a\nb x a\nb y b", length=4)
        >>> task.language.states, task.language.letters
        (('a', 'b'), ('x', 'y'))
    """

    name: ClassVar[str] = "automaton"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = TABLES
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
    ) -> None:
        options = passed_on(locals(), AutomatonTask)
        if not isinstance(rules, str):
            raise OptionError(f"rules must be a string, got {rules!r}")
        self.rules = rules
        super().__init__(parse_automaton(rules), **options)

    @staticmethod
    def with_contents(options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that hold the text of the file in place of its name.

        Raises:
            SettingError: if the file cannot be read, or there are rules, too; or if there is a
                regular expression, which is another task.
        """
        for name in ("regex", "pattern"):
            if name in options:
                condition = "must be the pattern of another task: --task regex pattern=..."
                raise SettingError(name, condition, options[name])
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
    """Tell after every letter whether the word so far matches a regular expression.

    Args:
        pattern: the expression, in the syntax of automata-lib: ``|`` or, ``&`` and, ``*``, ``+``,
            ``?``, ``{2,5}``, ``.``, ``[a-c]``, and parentheses. Blanks are skipped.
        alphabet: the letters, one character each. None takes them from the pattern, whose operators
            may then be ``|``, ``&``, ``*``, ``+``, ``?`` and parentheses only.
        length: letters of the longest training word; tests may go beyond.
        min_length: letters of the shortest training word; None means ``length`` if every position
            is scored, and 1 otherwise.
        lengths: "uniform" or "log-uniform": how lengths of training words are drawn.
        labels: "all" (every position is scored) or "last" (the last one of each word alone).
        words: kind of words: "covering", "distinguishing", "uniform", "balanced" or "repeating", as
            in :class:`~statemix.tasks.automata.automaton_words.AutomatonTask`.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if the pattern cannot be read or has a letter that is not in the alphabet, or
            an option is out of range or has the wrong type.

    Example:
        >>> Regex(pattern="(ab)*").automaton().answers([0, 1, 0, 0])
        [0, 1, 0, 0]
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
    ) -> None:
        options = passed_on(locals(), AutomatonTask)
        super().__init__(_matcher(pattern, alphabet), **options)
        self.pattern, self.alphabet = pattern, alphabet
        self.title = pattern


class RandomAutomaton(AutomatonTask):
    """Tell the state of a random automaton after every letter.

    Every transition is drawn uniformly, again and again until each state can be reached.

    Args:
        num_states: number of states.
        num_letters: number of letters.
        table_seed: seed of the transitions, 0 <= table_seed < 2^64.
        length: letters of the longest training word; tests may go beyond.
        min_length: letters of the shortest training word; None means ``length`` if every position
            is scored, and 1 otherwise.
        lengths: "uniform" or "log-uniform": how lengths of training words are drawn.
        labels: "all" (every position is scored) or "last" (the last one of each word alone).
        words: kind of words: "covering", "distinguishing", "uniform", "balanced" or "repeating", as
            in :class:`~statemix.tasks.automata.automaton_words.AutomatonTask`.
        train_size: number of training examples; None means an endless stream of fresh examples.
        seed: seed of the examples, 0 <= seed < 2^64.

    Raises:
        OptionError: if an option is out of range or has the wrong type.

    Example:
        >>> RandomAutomaton(num_states=12, num_letters=4).automaton().transitions.shape
        (12, 4)
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
    ) -> None:
        options = passed_on(locals(), AutomatonTask)
        # Larger tables hardly ever reach all of their states.
        self.num_states = addressing.check_integer("num_states", num_states, minimum=2, maximum=48)
        self.num_letters = addressing.check_integer(
            "num_letters", num_letters, minimum=2, maximum=64
        )
        self.table_seed = addressing.check_seed(table_seed, "table_seed")
        table = _random_table(self.num_states, self.num_letters, self.table_seed)
        states = tuple(map(str, range(num_states)))
        super().__init__(
            NamedAutomaton(
                Automaton(0, table, table.copy()),
                states,
                tuple(map(str, range(num_letters))),
                states,
            ),
            **options,
        )
        self.title = f"random automaton of {num_states} states and {num_letters} letters"


_REPEATED = re.compile(r"\{(\d+(,\d*)?|,\d+)\}")
# Letters with repetitions written out, and states before the automaton is as small as it can be: a
# pattern of 40 characters can have millions of both.
_MOST_WRITTEN, _MOST_SUBSETS = 1000, 10_000


def _matcher(pattern: object, alphabet: object) -> NamedAutomaton:
    # No other task should wait for this library.
    from automata.base.exceptions import AutomatonException, RegexException
    from automata.fa.nfa import NFA
    from automata.regex.parser import RESERVED_CHARACTERS

    for name, value in (("pattern", pattern), ("alphabet", alphabet)):
        if not isinstance(value, str) and not (name == "alphabet" and value is None):
            raise OptionError(f"{name} must be a string, got {value!r}")
    assert isinstance(pattern, str)
    pattern = "".join(pattern.split())
    letters = sorted(set(pattern) - set("|&*+?()")) if alphabet is None else list(str(alphabet))
    if not letters and alphabet is None:
        raise OptionError(f"pattern must have a letter, got {pattern!r}")
    if alphabet is None and not all(letter.isalnum() for letter in letters):
        raise OptionError(
            "alphabet must be given where a pattern has more than letters, digits and | & * + ? "
            f"( ), got None with {pattern!r}"
        )
    if len(set(letters)) != len(letters) or not letters or RESERVED_CHARACTERS & set(letters):
        raise OptionError(
            "alphabet must have different characters that mean nothing in a pattern, got "
            f"{''.join(letters)!r}"
        )
    unknown = set(_REPEATED.sub("", pattern)).difference(letters, "|&*+?().[]-")
    if unknown:
        raise OptionError(
            f"pattern must have letters of the alphabet {''.join(letters)!r} and the operators "
            f"| & * + ? {{2,5}} . [a-c] ( ) alone, got {''.join(sorted(unknown))!r} in {pattern!r}"
        )
    for least, most in re.findall(r"\{(\d+),(\d+)\}", pattern):
        if int(least) > int(most):
            raise OptionError(f"pattern must have no {{{least},{most}}}, which nothing matches")
    if (written := _letters_written_out(pattern)) > _MOST_WRITTEN:
        raise OptionError(
            f"pattern must have at most {_MOST_WRITTEN:,} letters with its repetitions written "
            f"out, got {written:,} for {pattern!r}"
        )
    for first, last in re.findall(r"(?<=[\[^\w])(\w)-(\w)", pattern):
        if first > last:
            raise OptionError(f"pattern must have no {first}-{last}, which nothing matches")
    try:
        nfa = NFA.from_regex(pattern, input_symbols=set(letters)).eliminate_lambda()
    except (AutomatonException, RegexException) as error:
        reason = str(error).rstrip(".")
        raise OptionError(
            f"pattern must be a regular expression, got {pattern!r}: {reason}"
        ) from error
    dfa = _determined(nfa, pattern)
    if dfa.isempty():
        raise OptionError(f"pattern must match a word, got {pattern!r}, which matches none")
    numbers, waiting = {dfa.initial_state: 0}, deque([dfa.initial_state])
    rows = []
    while waiting:
        transitions_of = dfa.transitions[waiting.popleft()]
        after = [transitions_of[letter] for letter in letters]
        for state in after:
            if state not in numbers:
                numbers[state] = len(numbers)
                waiting.append(state)
        rows.append([numbers[state] for state in after])
    if len(rows) > MOST_STATES:
        raise OptionError(
            f"pattern must have an automaton of at most {MOST_STATES} states, got {len(rows):,} "
            f"for {pattern!r}"
        )
    transitions = np.array(rows, dtype=np.int64)
    accepting = np.array([state in dfa.final_states for state in numbers], dtype=np.int64)
    return NamedAutomaton(
        Automaton(0, transitions, accepting[transitions]),
        tuple(map(str, range(len(rows)))),
        tuple(letters),
        ("no", "yes"),
    )


def _letters_written_out(pattern: str) -> int:
    """Count the letters of a pattern in which ``a{3}`` is written ``aaa``."""
    open_groups, last = [0], 0
    for token in re.findall(r"\{[\d,]*\}|\[[^\]]*\]|.", pattern):
        if token == "(":
            open_groups.append(0)
        elif token == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1] += last
        elif token[0] == "{":
            times = max([1, *map(int, re.findall(r"\d+", token))])
            open_groups[-1] += last * (times - 1)
            last *= times
        elif token not in "|&*+?)":
            last = 1
            open_groups[-1] += 1
    return sum(open_groups)


def _determined(nfa: "NFA", pattern: str) -> "DFA":
    """Return the smallest deterministic automaton; the library's own way there has no limit."""
    from automata.fa.dfa import DFA

    numbers = {frozenset([nfa.initial_state]): 0}
    waiting = deque(numbers)
    transitions: dict[int, dict[str, int]] = {}
    while waiting:
        subset = waiting.popleft()
        row = transitions[numbers[subset]] = {}
        for letter in nfa.input_symbols:
            after = frozenset().union(
                *(nfa.transitions.get(state, {}).get(letter, ()) for state in subset)
            )
            if after not in numbers:
                if len(numbers) == _MOST_SUBSETS:
                    raise OptionError(
                        f"pattern must have an automaton of at most {MOST_STATES} states, got "
                        f"{pattern!r}, whose search ended at {_MOST_SUBSETS:,}"
                    )
                numbers[after] = len(numbers)
                waiting.append(after)
            row[letter] = numbers[after]
    return DFA(
        states=set(transitions),
        input_symbols=set(nfa.input_symbols),
        transitions=transitions,
        initial_state=0,
        final_states={number for subset, number in numbers.items() if subset & nfa.final_states},
        allow_partial=False,
    ).minify()


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
