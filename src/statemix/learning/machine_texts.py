"""A learned machine as text: JSON, DOT, SVG and Python."""

import html
import json
import math
from collections.abc import Sequence

from statemix.automaton import NEVER
from statemix.learning.learner import LearnedMachine

RARE = 5
"""A transition that the log takes less often is too rare to trust."""

# Lines of text beside an arrow, and letters of the events in a line.
_MOST_LINES, _MOST_LETTERS = 4, 24
# States of a picture at most.
_MOST_DRAWN = 40
# Pixels between columns and rows of states, and the radius of a state.
_COLUMN, _ROW, _RADIUS = 230, 190, 26
# Where the label of an arrow is on its way, nearer to the target than to the loops of the source.
_LABEL_AT = 0.6
# Left, top, right and bottom.
_Box = tuple[float, float, float, float]


def state_names(learned: LearnedMachine) -> list[str]:
    """Return the name of each state: a shortest word that leads to it."""
    words = [" ".join(learned.events[event] for event in word) for word in learned.words()]
    # An event may be called "start", too.
    return ["(start)" if "start" in words else "start", *words[1:]]


def to_json(learned: LearnedMachine) -> str:
    """Return the machine as JSON: for each state the next state, answer and visits by event."""
    names, machine = state_names(learned), learned.machine
    states = {
        names[state]: {
            learned.events[event]: {
                "next": names[after],
                "answer": None if answer == NEVER else learned.labels[answer],
                "visits": int(learned.visits[state, event]),
            }
            for event, (after, answer) in enumerate(
                zip(
                    machine.transitions[state].tolist(),
                    machine.answers[state].tolist(),
                    strict=True,
                )
            )
            if after != NEVER
        }
        for state in range(machine.num_states)
    }
    return json.dumps({"start": names[0], "answers": learned.labels, "states": states}, indent=1)


def to_dot(learned: LearnedMachine) -> str:
    """Return the machine as a graph for Graphviz."""
    quoted = [json.dumps(name, ensure_ascii=False) for name in state_names(learned)]
    arrows = "".join(
        f"  {quoted[before]} -> {quoted[after]} "
        f"[label={json.dumps(_long_text(by_label), ensure_ascii=False)}];\n"
        for (before, after), by_label in _arrows(learned).items()
    )
    return f"digraph machine {{\n  rankdir=LR;\n  {quoted[0]} [penwidth=2];\n{arrows}}}\n"


def to_python(learned: LearnedMachine) -> str:
    """Return the machine as a Python module without dependencies."""
    lines = "\n".join(f"# {line}" for line in legend(learned).splitlines())
    return _PYTHON.format(
        legend=lines,
        events={name: number for number, name in enumerate(learned.events)},
        answers=learned.labels,
        transitions=learned.machine.transitions.tolist(),
        numbers=learned.machine.answers.tolist(),
    )


def to_svg(learned: LearnedMachine) -> str:
    """Return a picture of the machine; columns are the lengths of shortest words.

    Thin arrows are transitions that the log takes rarely.
    """
    words, names = learned.words(), state_names(learned)
    if len(words) > _MOST_DRAWN:
        text = f"A machine of {len(words)} states is too large for a picture."
        return _svg([(0, 0)], f'<text x="0" y="0">{text}</text>')
    columns: dict[int, list[int]] = {}
    for state, word in enumerate(words):
        columns.setdefault(len(word), []).append(state)
    tallest = max(map(len, columns.values()))
    places: dict[int, tuple[float, float]] = {
        state: (column * _COLUMN, _ROW * (row + (tallest - len(states)) / 2))
        for column, states in columns.items()
        for row, state in enumerate(states)
    }
    # Labels of arrows lie above circles, and circles above arrows.
    arrows, labels, points = [], [], list(places.values())
    boxes = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in points]
    # Labels of loops stay at their places, others make room.
    loops_first = sorted(_arrows(learned).items(), key=lambda arrow: len({*arrow[0]}))
    for (before, after), by_label in loops_first:
        lines = _short_lines(by_label)
        taken = learned.visits[before][learned.machine.transitions[before] == after]
        width = 0.6 if taken.sum() < RARE else 1.5
        path, x, y = _path(places[before], places[after])
        arrows.append(f'<path d="{path}" stroke-width="{width}" marker-end="url(#tip)"/>')
        top = y - 13 * (len(lines) - 1) if before == after else y - 6 * (len(lines) - 1)
        top = _free_top(x, top, lines, boxes)
        points.append((x, top))
        labels += [
            f'<text x="{x:.0f}" y="{top + 13 * row:.0f}">{html.escape(line)}</text>'
            for row, line in enumerate(lines)
        ]
    circles = [
        f'<g><title>{html.escape(names[state])}</title><circle cx="{x}" cy="{y}" r="{_RADIUS}"/>'
        f'<text class="state" x="{x}" y="{y + 5}">{state}</text></g>'
        for state, (x, y) in places.items()
    ]
    return _svg(points, "".join([*arrows, *circles, *labels]))


def legend(learned: LearnedMachine) -> str:
    """Return lines with the numbers and names of states, events and answers."""
    return "\n".join(
        f"{kind}: {', '.join(f'{number} {name}' for number, name in enumerate(names))}"
        for kind, names in (
            ("states", state_names(learned)),
            ("events", learned.events),
            ("answers", learned.labels),
        )
    )


def _arrows(learned: LearnedMachine) -> dict[tuple[int, int], dict[str, list[str]]]:
    """Return the events on the arrow between two states, by their answer, for all arrows."""
    arrows: dict[tuple[int, int], dict[str, list[str]]] = {}
    machine = learned.machine
    for before in range(machine.num_states):
        for event, after in enumerate(machine.transitions[before].tolist()):
            if after != NEVER:
                answer = machine.answers[before, event]
                label = "" if answer == NEVER else learned.labels[answer]
                events = arrows.setdefault((before, after), {}).setdefault(label, [])
                events.append(learned.events[event])
    return arrows


def _long_text(by_label: dict[str, list[str]]) -> str:
    return "\n".join(f"{', '.join(events)} / {label}" for label, events in by_label.items())


def _short_lines(by_label: dict[str, list[str]]) -> list[str]:
    """Return the text beside an arrow of a picture, which has no room for all events."""
    lines = []
    for label, events in by_label.items():
        shown = 1
        while shown < len(events) and len(", ".join(events[: shown + 1])) <= _MOST_LETTERS:
            shown += 1
        rest = f" +{len(events) - shown}" if shown < len(events) else ""
        lines.append(f"{', '.join(events[:shown])}{rest} / {label}")
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"+{len(lines) - _MOST_LINES + 1} answers"]
    return lines


def _path(start: tuple[float, float], end: tuple[float, float]) -> tuple[str, float, float]:
    """Return an arrow between two circles, and the middle of its label."""
    (x, y), (to_x, to_y) = start, end
    if start == end:
        top = y - _RADIUS
        path = f"M{x - 10},{top + 2} C{x - 42},{top - 52} {x + 42},{top - 52} {x + 10},{top + 1}"
        return path, x, top - 46
    distance = math.hypot(to_x - x, to_y - y)
    # The arrow bends to its right, so that the way back is another curve. Long ones bend more: they
    # pass the states between.
    bend = 24 + (0.22 * distance if distance > 1.2 * _COLUMN else 0)
    right_x, right_y = (to_y - y) / distance * bend, -(to_x - x) / distance * bend
    middle_x, middle_y = (x + to_x) / 2 + 2 * right_x, (y + to_y) / 2 + 2 * right_y
    points = []
    for from_x, from_y, gap in ((x, y, _RADIUS), (to_x, to_y, _RADIUS + 6)):
        length = math.hypot(middle_x - from_x, middle_y - from_y)
        points.append(
            f"{from_x + (middle_x - from_x) / length * gap:.0f},"
            f"{from_y + (middle_y - from_y) / length * gap:.0f}"
        )
    path = f"M{points[0]} Q{middle_x:.0f},{middle_y:.0f} {points[1]}"
    weights = (1 - _LABEL_AT) ** 2, 2 * _LABEL_AT * (1 - _LABEL_AT), _LABEL_AT**2
    label_x = sum(w * at for w, at in zip(weights, (x, middle_x, to_x), strict=True))
    label_y = sum(w * at for w, at in zip(weights, (y, middle_y, to_y), strict=True))
    return path, label_x, label_y + 4


def _free_top(x: float, top: float, lines: Sequence[str], boxes: list[_Box]) -> float:
    """Return a place near ``top`` where a label covers no box, and add its own box."""
    half, height = 3.2 * max(map(len, lines)), 13 * len(lines) + 4

    def is_free(place: float) -> bool:
        return not any(
            x - half < right and left < x + half and place - 10 < high and low < place - 10 + height
            for left, low, right, high in boxes
        )

    tried = [top + 14 * rows for rows in (0, -1, -2, -3, 1, 2, 3)]
    free = next(filter(is_free, tried), top)
    boxes.append((x - half, free - 10, x + half, free - 10 + height))
    return free


def _svg(points: Sequence[tuple[float, float]], content: str) -> str:
    """Return a picture that shows these points and text of usual length beside them."""
    xs, ys = zip(*points, strict=True)
    left, width = min(xs) - 130, max(xs) - min(xs) + 260
    top, height = min(ys) - 40, max(ys) - min(ys) + 80
    return _SVG.format(
        box=f"{left:.0f} {top:.0f} {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        content=content,
    )


_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{width}" \
height="{height}" font-family="sans-serif" font-size="12" text-anchor="middle">
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L10,5 L0,10 z"/></marker></defs>
<style>svg {{ background: #fff }} path {{ fill: none; stroke: #555 }} circle {{ fill: #eef3fb; \
stroke: #24508c; stroke-width: 1.5 }} text {{ fill: #111; stroke: #fff; \
stroke-width: 4; paint-order: stroke }} \
.state {{ stroke: none; font-weight: bold; font-size: 14px }} marker path {{ stroke: none; \
fill: #555 }}</style>
{content}
</svg>
"""

_PYTHON = '''\
"""A machine that "statemix learn" has learned from a log."""

{legend}
EVENTS = {events}
ANSWERS = {answers}
# The state after each event, and the number of the answer; -1 where the log shows nothing.
TRANSITIONS = {transitions}
NUMBERS = {numbers}


class Machine:
    """Answers one event after the other."""

    def __init__(self) -> None:
        self.state = 0

    def step(self, event: str) -> str | None:
        """Return the answer to an event; None where the log has no label."""
        number = EVENTS[event]
        after, answer = TRANSITIONS[self.state][number], NUMBERS[self.state][number]
        if after < 0:
            raise ValueError(f"the log never shows {{event}} in state {{self.state}}")
        self.state = after
        return None if answer < 0 else ANSWERS[answer]
'''
