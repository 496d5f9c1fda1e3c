"""What tokens do to blocks whose gates are 0 and 1: sentences, and a picture of the maps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from statemix.proofs.joint_action import JointAction
from statemix.proofs.token_maps import BlockActions
from statemix.studies.figure import drawing
from statemix.studies.inspection.heat import Heat
from statemix.studies.inspection.inspection_text import joint_order
from statemix.studies.number_text import counted

# Blocks in a picture, and columns up to which the sources are written as numbers.
_SHOWN, _WRITTEN = 4, 30
_COLUMN, _WIDEST = 0.24, 14.0
_ORDER = {"tracks": 0, "repeats": 1, "other": 2, "constant": 3, "idles": 4}
# Pictures of larger blocks are unreadable.
_TALLEST = 32


def sentences(found: Sequence[BlockActions], *, judged: bool) -> list[str]:
    """Say which blocks track the task, which repeat them, and how many do something else.

    Args:
        found: all blocks.
        judged: whether there was an automaton of the task.
    """
    lines = []
    for one in found:
        if one["role"] == "tracks":
            copies = [other["block"] for other in found if other["repeats"] == one["block"]]
            repeated = f"; repeated by {_numbers(copies)}" if copies else ""
            lines.append(f"block {one['block']} tracks the task: {_maps(one)}{repeated}")
    if judged and not lines:
        lines.append("no block tracks the task")
    idle = [one["block"] for one in found if one["role"] == "idles"]
    if idle:
        lines.append(f"idle (no token changes it): {_blocks(idle)}")
    constant = [one["block"] for one in found if one["role"] == "constant"]
    if constant:
        lines.append(f"idle (the same in every state of the task): {_blocks(constant)}")
    redundant = [one for one in found if one["repeats"] is not None and one["role"] != "repeats"]
    if redundant:
        pairs = ", ".join(f"{one['block']} (as {one['repeats']})" for one in redundant)
        lines.append(f"redundant (the maps of an earlier block): {pairs}")
    others = sum(one["role"] == "other" for one in found)
    if others:
        lines.append(f"of another kind: {counted(others, 'block')}")
    return [f"with gates of 0 and 1: {line}" for line in lines]


def together(found: JointAction) -> str:
    """Say what the blocks that are kept generate together, and how that is related to the task."""
    kind = "group" if found["group"] else "semigroup"
    related = {
        "isomorphic": f", isomorphic to {found['task']} by its tokens",
        "quotient": f", a quotient of {found['task']} (order {found['task_order']}) by its tokens",
        "cover": f", of which {found['task']} is a quotient by its tokens",
        None: f"; by its tokens neither {found['task']} nor a quotient of it"
        if found["task"]
        else "",
    }[found["relation"]]
    verb = "generates" if len(found["blocks"]) == 1 else "together generate"
    return (
        f"with gates of 0 and 1: {_blocks(found['blocks'])} {verb} a {kind} of order "
        f"{joint_order(found)}{related}"
    )


def _blocks(numbers: Sequence[int]) -> str:
    return f"{'block' if len(numbers) == 1 else 'blocks'} {_numbers(numbers)}"


def _numbers(numbers: Sequence[int]) -> str:
    """Write increasing numbers, and three or more in a row as a range.

    Example:
        >>> _numbers([0, 1, 2, 4, 5])
        '0–2, 4, 5'
    """
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    parts = [f"{row[0]}–{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows]
    return ", ".join(parts)


def _maps(one: BlockActions) -> str:
    loads = any(source < 0 for row in one["sources"] for source in row)
    verb = "permute" if one["permutes"] else "copy and load" if loads else "copy"
    number = "too many maps to count" if one["order"] is None else f"{one['order']:,} maps"
    return f"its tokens {verb} the entries, and their words make {number}"


def by_role(found: Sequence[BlockActions]) -> list[BlockActions]:
    """Return blocks that track first, then those that repeat them, and idle ones last."""
    return sorted(found, key=lambda one: _ORDER[one["role"]])


def drawable(found: Sequence[BlockActions]) -> bool:
    """Return whether there are blocks of a size that a picture can show."""
    return bool(found) and len(found[0]["sources"][0]) <= _TALLEST


def draw(found: Sequence[BlockActions], *, title: str) -> Figure:
    """Draw the maps of a few blocks, those that track first: a column per token, a row per entry.

    A cell holds the entry that is copied; an empty one is loaded.

    Args:
        found: all blocks.
        title: text above the picture.
    """
    shown = by_role(found)[:_SHOWN]
    tables = [np.array(one["sources"]).T for one in shown]
    heat = Heat.of([np.array([[0.0, tables[0].shape[0]]])])
    size, tokens = tables[0].shape
    width = min(max(tokens * _COLUMN + 1.9, 5.5), _WIDEST)
    with drawing():
        height = (size * _COLUMN + 0.55) * len(shown) + 0.6
        figure = Figure(figsize=(width, height), layout="constrained")
        every = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, one, table in zip(every, shown, tables, strict=True):
            axes.imshow(table + 1, aspect="auto", **heat.options)
            axes.set_title(f"block {one['block']}: {one['role']}", loc="left", fontsize=10)
            axes.set_xticks(range(0, tokens, -(-tokens // _WRITTEN)))
            axes.set_yticks(range(size))
            axes.set_ylabel("entry", fontsize=9)
            if tokens <= _WRITTEN:
                for (entry, token), source in np.ndenumerate(table):
                    if source >= 0:
                        colour = heat.ink(source + 1)
                        axes.text(token, entry, str(source), ha="center", va="center", color=colour)
        every[-1].set_xlabel("token", fontsize=9)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5)
    return figure
