"""``statemix refute``: look for words that a network of any kind gets wrong."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from statemix import proofs
from statemix.automaton import IGNORED, Automaton, HasAutomaton
from statemix.cli.any_model import AnyModel, any_model
from statemix.cli.certify import counted
from statemix.cli.options import options_of
from statemix.cli.parser import Argument
from statemix.errors import RequestError, RunsFailedError
from statemix.files import check_writable, read_json, read_text, write_file
from statemix.proofs.check_certificate import Invalid, check_refutation
from statemix.tasks import TaskSpec, names_of
from statemix.tasks.automata.automaton_text import NamedAutomaton, parse_automaton
from statemix.training.config import Seed
from statemix.training.outcome import Weights
from statemix.training.settings import built, read_spec

# Letters of a word that is printed in full, and at each end of others; width of the picture.
_WHOLE, _ENDS, _WIDTH = 60, 20, 40


@dataclass(frozen=True)
class Refute:
    """Look for a word that a network gets wrong, whatever kind of network it is.

    The network is compared with an automaton on all short words, on words that cover all
    transitions, on loops that are repeated up to 100,000 letters, on random words, and on words
    along which the margin of the network shrinks fastest. A wrong word is shortened, printed, and
    written to refutation.json in the folder of the model (the working directory for other models).
    The program check_certificate.py compares the file with the automaton, and --replay runs the
    network on its word again.

    The exit code is 1 if a wrong word is found, and 0 otherwise, which proves nothing.

    statemix refute runs/s3

    statemix refute mymodels:tracker --regex "(a|b)*abb"
    """

    model: Annotated[str, Argument("MODEL", positional=True)]
    """Folder of a finished run, folder of a model of transformers, FILE.onnx, or MODULE:NAME: a
    function of tokens (B, T), a module, or an object with the method step or extend (the page
    "State tracking with proofs" describes them)."""

    automaton: Path | None = None
    """File with the automaton (the page "Automata as input" describes it)."""

    regex: str | None = None
    """Regular expression; the right answer says whether the word so far matches, yes or no."""

    task: Annotated[tuple[str, ...], Argument("NAME [OPTION=VALUE ...]")] = ()
    """Task with an automaton, and its options (the task of the run if nothing is given)."""

    replay: Path | None = None
    """File of a refutation, whose word the network reads again."""

    budget: int = 10_000_000
    """Letters that the network may read in the search; shortening a word may need as many again."""

    seconds: float | None = None
    """Time that the search may need (any if not given); shortening a word may need it again."""

    longest: int = 100_000
    """Letters of the longest words, about."""

    head: str | None = None
    """Head that answers (the first one if not given)."""

    weights: Weights = "last"
    """Weights of a run."""

    seed: Seed = 0
    """Seed of the random words."""

    output: Path | None = None
    """File for the refutation."""

    json: bool = False
    """Print JSON instead of text."""

    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers or tasks."""

    def run(self) -> None:
        """Search, write and print."""
        given = [self.automaton, self.regex, self.task or None, self.replay]
        if sum(one is not None for one in given) > 1:
            raise RequestError("only one of --automaton, --regex, --task and --replay can be given")
        if self.replay is not None and self.output is not None:
            raise RequestError("output must be absent with --replay, which writes nothing")
        with any_model(self.model, self.head, self.weights) as loaded:
            language, word = self._language(loaded)
            names: dict[str, Any] = {
                "head": self.head,
                "tokens": loaded.numbers("letter", language.letters),
                "classes": loaded.numbers("answer", language.classes),
            }
            if word is not None:
                found = proofs.check_word(loaded.model, language.automaton, word, **names)
                self._show(found, language, loaded, "")
                return
            parent = Path(self.model) if Path(self.model).is_dir() else Path()
            path = self.output or parent / "refutation.json"
            check_writable("output", path, replaced=True)
            if path.exists() and path.stat().st_size:
                is_shared = self.output is None and path == Path("refutation.json")
                _check_replaceable(path, self.model if is_shared else None)
            with counted("letters") as show:
                found = proofs.refute(
                    loaded.model,
                    language.automaton,
                    budget=self.budget,
                    seconds=self.seconds,
                    longest=min(self.longest, loaded.longest or self.longest),
                    seed=self.seed,
                    on_progress=show,
                    **names,
                )
        if found.verdict == "refuted":
            tables = {"tables": found.tables(language.automaton)}
            content = json.dumps({"model": self.model, **_plain(found, language), **tables})
            write_file(path, f"{content}\n".encode())
        self._show(found, language, loaded, f"written: {path}")

    def _language(self, loaded: AnyModel) -> tuple[NamedAutomaton, list[int] | None]:
        """Return the automaton, and the word of the file if one is replayed."""
        if self.replay is not None:
            return _stored(self.replay)
        if self.automaton is not None:
            text = read_text("automaton", self.automaton)
            return built(str(self.automaton), parse_automaton, text, has_unreached=True), None
        task = loaded.task
        if self.regex is not None:
            spec = read_spec(TaskSpec, {"name": "regex", "pattern": self.regex})
            task = built("regex", spec.build)
        elif self.task:
            name, *options = self.task
            spec = read_spec(TaskSpec, {"name": name, **options_of(options)})
            task = built(f"task {name}", spec.build)
        if not isinstance(task, HasAutomaton):
            got = "none" if task is None else f"the task {task.name}"
            choices = "--automaton FILE, --regex R or --task NAME"
            raise RequestError(f"the right answers must be given by {choices}, got {got}")
        first, *others = task.heads
        if task is loaded.task and self.head in others:
            raise RequestError(
                f"head must be {first!r}, which the automaton of the task describes, got "
                f"{self.head!r}; describe another head by --automaton FILE"
            )
        letters, classes = names_of(task, first)
        return NamedAutomaton(task.automaton(), (), tuple(letters), tuple(classes)), None

    def _show(
        self, found: proofs.Refutation, language: NamedAutomaton, loaded: AnyModel, stored: str
    ) -> None:
        """Print a result, and end with the exit code 1 if it is a refutation."""
        is_refuted = found.verdict == "refuted"
        if self.json:
            print(json.dumps(_plain(found, language)))
        else:
            print("\n".join(_lines(found, language)))
            if not is_refuted and loaded.can_be_proven:
                print(f"  proof    statemix certify {self.model} may prove this kind of network")
            if is_refuted and stored:
                print(stored)
        if is_refuted:
            raise RunsFailedError(f"{self.model} is wrong after {len(found.word):,} letters")


def _check_replaceable(path: Path, model: str | None) -> None:
    """Raise a RequestError if a file holds no refutation, or that of another ``model``."""
    stored = read_json(path, "a refutation, to be replaced")
    if "tables" not in stored:
        raise RequestError(f"{path} must hold a refutation, to be replaced; choose another file")
    if model is not None and (other := stored.get("model")) != model:
        raise RequestError(f"{path} holds a refutation of {other}; choose a file by --output")


def _stored(path: Path) -> tuple[NamedAutomaton, list[int]]:
    """Return the automaton and the word of a stored refutation."""
    content = read_json(path, "a refutation")
    try:
        word = check_refutation(content.get("tables", {}))
    except Invalid as error:
        raise RequestError(f"{path} must hold a refutation, got: {error}") from error
    stored = content["tables"]["automaton"]
    outputs = np.array(stored["outputs"])
    automaton = Automaton(
        stored["start"], np.array(stored["transitions"]), np.where(outputs < 0, IGNORED, outputs)
    )
    names = []
    for kind, least in (("letters", automaton.num_tokens), ("answers", outputs.max() + 1)):
        names.append(tuple(map(str, content.get(kind, range(least)))))
        if len(names[-1]) < least:
            raise RequestError(f"{path} must name {least} {kind}, got {len(names[-1])}")
    return NamedAutomaton(automaton, (), *names), word


def _plain(found: proofs.Refutation, language: NamedAutomaton) -> dict[str, Any]:
    """Return a result as JSON data, with the names of letters and answers."""
    return {
        "verdict": found.verdict,
        "letters_read": found.letters,
        "letters": list(language.letters),
        "answers": list(language.classes),
        "word": found.compressed.named(language.letters) if found.word else None,
        "position": len(found.word) or None,
        "answer": None if found.answer is None else _answer(found.answer, language),
        "expected": None if found.expected is None else _answer(found.expected, language),
        "found_by": found.found_by or None,
        "found_length": found.found_length,
        "minimal": found.minimal,
        "margins": None if found.margins is None else list(found.margins),
        "accuracy": [part._asdict() for part in found.accuracy],
        "notes": list(found.notes),
    }


def _answer(number: int, language: NamedAutomaton) -> str:
    # A network may have more classes than the automaton has answers.
    return language.classes[number] if number < len(language.classes) else str(number)


def _lines(found: proofs.Refutation, language: NamedAutomaton) -> Iterator[str]:
    """Yield the lines of a result."""
    if found.verdict == "not refuted":
        # A word that is replayed has no accuracy.
        by = "words" if found.accuracy else "this word"
        yield f"not refuted by {by} of {found.letters:,} letters"
    else:
        yield from _refuted(found, language)
    for note in found.notes:
        yield f"  note     {note}"
    if found.accuracy:
        yield "  accuracy by position, among all words of the search"
    for first, last, right, scored in found.accuracy:
        share = right / scored
        bar = "#" * int(share * _WIDTH)
        yield f"    {f'{first:,}-{last:,}':>15}  {share:.4f}  {bar}".rstrip()


def _refuted(found: proofs.Refutation, language: NamedAutomaton) -> Iterator[str]:
    letters, word = language.letters, found.word
    blank = " " if any(len(letter) > 1 for letter in letters) else ""

    def spelled(part: Sequence[int]) -> str:
        if len(part) > _WHOLE:
            return f"{spelled(part[:_ENDS])} ... {spelled(part[-_ENDS:])}"
        return blank.join(letters[letter] for letter in part)

    count = f"{len(word):,} letters" if len(word) > 1 else "1 letter"
    yield f"refuted: wrong after {count}, and right before"
    parts = found.compressed
    if len(word) <= _WHOLE or parts.times < 2:
        yield f"  word     {spelled(word)}"
    if parts.times > 1:
        before, loop, after = map(spelled, (parts.before, parts.loop, parts.after))
        yield f"  word     {f'{before} ({loop})^{parts.times:,} {after}'.strip()}"
    expected = language.classes[found.expected or 0]
    answer = "no number" if found.answer is None else _answer(found.answer, language)
    yield f"  answer   {answer} after this word, where {expected} is right"
    if found.found_by:
        kept = "no piece can be removed" if found.minimal else "shorter words may fail, too"
        yield f"  found    among {found.found_by}, after {found.letters:,} letters; {kept}"
    if found.margins is not None:
        places = [2**k for k in range(len(word).bit_length()) if 2**k < len(word)] + [len(word)]
        shown = [(place, found.margins[place - 1]) for place in places[-6:]]
        margins = (f"{margin:.4g} at {place:,}" for place, margin in shown if margin is not None)
        yield f"  margin   {', '.join(margins)}"
