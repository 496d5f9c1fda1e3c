"""The report about a learned machine: a page of HTML, and its properties."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statemix.automaton import NEVER, Automaton
from statemix.errors import OptionError, RequestError
from statemix.files import read_text
from statemix.learning.learner import LearnedMachine
from statemix.learning.logs import Log
from statemix.learning.machine_texts import RARE, state_names, to_svg
from statemix.proofs import SafetyProperty, StateMachine, parse_property
from statemix.proofs.safety import check_safety

# Lines of a table of the page at most.
_MOST_LINES = 200


@dataclass(frozen=True)
class PropertyVerdict:
    """The verdict about a property, "proven" or "refuted", in a file of a name, and in words."""

    name: str
    verdict: str
    sentence: str


def read_property(file: Path, log: Log) -> SafetyProperty:
    """Read a safety property of the events and labels of a log from a file.

    :func:`statemix.proofs.parse_property` describes the text.
    """
    text = read_text("property", file)
    try:
        return parse_property(text, log.events, log.labels, has_nameless=True)
    except OptionError as error:
        raise RequestError(f"{file}: {error}") from error


def check_property(learned: LearnedMachine, name: str, watched: SafetyProperty) -> PropertyVerdict:
    """Prove a safety property of a machine, or return a shortest word that breaks it.

    Words with an event that the log never shows in a state are left out. An event without a label
    has the nameless answer.
    """
    transitions, answers = learned.machine.transitions, learned.machine.answers
    words = Automaton(0, transitions.astype(np.int64), np.zeros(transitions.shape, np.int64))
    labels = (*learned.labels, "no label")
    # What stands where no word leads does not matter.
    whole = StateMachine(
        np.maximum(transitions, 0), np.where(answers < 0, len(labels) - 1, answers)
    )
    result = check_safety(whole, watched.within(words))
    steps = ", ".join(
        f"{learned.events[event]} / {labels[answer]}"
        for event, answer in zip(result.word, result.answers, strict=True)
    )
    found = f"refuted by {steps or 'the empty word'}"
    if result.verdict == "proven":
        found = "proven on words of every length"
    return PropertyVerdict(name, result.verdict, f"{name}: {found}")


def contradictions(learned: LearnedMachine, log: Log) -> list[dict[str, object]]:
    """Return the steps of a log whose label is not the machine's answer, for JSON."""
    lengths = np.diff(log.starts)
    positions = np.arange(len(log.tokens)) - np.repeat(log.starts[:-1], lengths) + 1
    return [
        {
            "row": int(log.rows[step]),
            "position": int(positions[step]),
            "event": log.events[log.tokens[step]],
            "label": log.labels[log.targets[step]],
            "answer": None if answer == NEVER else log.labels[answer],
        }
        for step, answer in zip(
            learned.contradictions.tolist(), learned.given.tolist(), strict=True
        )
    ]


def rare_transitions(learned: LearnedMachine) -> list[tuple[str, str, int]]:
    """Return state, event and visits of transitions that the log takes too rarely to trust."""
    names = state_names(learned)
    return [
        (names[state], learned.events[event], int(learned.visits[state, event]))
        for state, event in np.argwhere(learned.visits < RARE).tolist()
    ]


def to_html(
    learned: LearnedMachine,
    log: Log,
    wrong: Sequence[dict[str, object]],
    verdicts: Sequence[PropertyVerdict],
) -> str:
    """Return the page about a machine, its log, its contradictions and its properties."""
    rare = rare_transitions(learned)
    facts = [
        ("traces", f"{log.num_traces:,} with {len(log.tokens):,} events"),
        ("states", learned.machine.num_states),
        ("held-out traces", f"{learned.accuracy:.4f} of the labels are the machine's answers"),
        ("contradictions", f"{len(wrong):,} labels, {learned.noise:.2%} of all"),
    ]
    names = state_names(learned)
    parts = [
        _table(("", ""), facts),
        *(f"<p class={each.verdict}>{html.escape(each.sentence)}</p>" for each in verdicts),
        f"<div class=picture>{to_svg(learned)}</div>",
        "<h2>States</h2>",
        _table(("state", "shortest word"), enumerate(names)),
        f"<h2>Labels that contradict the machine</h2>{_some(len(wrong))}",
        _table(("row", "position", "event", "label", "answer"), [each.values() for each in wrong]),
        f"<h2>Transitions seen less than {RARE} times</h2>{_some(len(rare))}",
        _table(("state", "event", "times"), rare),
    ]
    return _PAGE.format(content="\n".join(parts))


def _some(count: int) -> str:
    if not count:
        return "<p>None.</p>"
    return f"<p>The first {_MOST_LINES} of {count:,}.</p>" if count > _MOST_LINES else ""


def _table(head: Sequence[str], lines: Iterable[Iterable[object]]) -> str:
    rows = [
        "".join(f"<td>{html.escape(str(cell))}</td>" for cell in line)
        for line in list(lines)[:_MOST_LINES]
    ]
    if not rows:
        return ""
    titles = "".join(f"<th>{title}</th>" for title in head)
    top = f"<tr>{titles}</tr>" if any(head) else ""
    return f"<table>{top}{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>A machine from a log</title>
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #111; \
background: #fff }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em .2em 0; text-align: left }}
tr {{ border-bottom: 1px solid #ddd }} .picture svg {{ max-width: 100%; height: auto }}
.proven {{ color: #17692c }} .refuted {{ color: #a11 }}
</style></head><body>
<h1>A machine from a log</h1>
{content}
</body></html>
"""
