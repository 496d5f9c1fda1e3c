"""What there is to say of the layers of one run, and of blocks whose gates are 0 and 1."""

from collections.abc import Iterator, Sequence

from statemix.proofs.token_maps import BlockActions, JointAction
from statemix_lab.inspection.layer_numbers import LayerNumbers, Sharpening
from statemix_lab.studies.result_text import Line, Table, counted

_HEAD = (
    *("layer", "kind", "units", "largest |λ|", "mean |λ|"),
    *("Re λ < 0", "not real", "|λ| > 1", "gate entropy"),
)

_LEGEND = """\
λ: eigenvalues of the transitions at all steps of the sequences. Gate entropy: 0 if each row of
gates copies one entry of the state or its input, 1 if it averages all of them."""
# Columns that not every run has, and what they hold.
_UNSHARPENED, _JOINT = "unsharpened", "joint maps"
_MORE = {
    _UNSHARPENED: "Unsharpened: the gate entropy at the temperature at which training began.",
    _JOINT: "Joint maps: of the kept blocks together, with gates of 0 and 1.",
}


def table(
    layers: Sequence[LayerNumbers],
    sharpened: Sequence[Sharpening] = (),
    joined: JointAction | None = None,
) -> Table:
    """Lay out a line per layer that has a recurrence."""
    before = {
        one["layer"]: one["before"]["gate_entropy"]
        for one in sharpened
        if one["after"]["temperature"]
    }
    lines = []
    for one in layers:
        if one["summary"] is not None:
            cells = _cells(one)
            cells += [_entropy(before.get(one["layer"]))] if before else []
            cells += [] if joined is None else [_joint_order(joined)]
            lines.append(Line(tuple(cells)))
    more = [_UNSHARPENED] * bool(before) + [_JOINT] * (joined is not None)
    return Table((*_HEAD, *more), tuple(lines))


def _joint_order(joined: JointAction) -> str:
    number = joined["order"]
    return f"more than {joined['most']:,}" if number is None else f"{number:,}"


def legend(shown: Table) -> str:
    """Explain the columns of a table."""
    return "\n".join([_LEGEND, *(words for name, words in _MORE.items() if name in shown.head)])


def _cells(one: LayerNumbers) -> list[str]:
    summary = one["summary"]
    return [
        str(one["layer"]),
        one["kind"],
        f"{one['units']} {one['unit']}s of {one['size']}",
        _number(summary["largest"]),
        _number(summary["mean"]),
        *(f"{summary[name]:.1%}" for name in ("negative", "complex", "outside")),
        _entropy(summary["gate_entropy"]),
    ]


def _entropy(value: float | None) -> str:
    return "–" if value is None else _number(value)


def _number(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.3f}" if value < 1000 else f"{value:.3g}"


def without(layers: Sequence[LayerNumbers]) -> Iterator[str]:
    """Yield a sentence for each layer that has nothing to show."""
    for one in layers:
        if one["summary"] is None:
            yield (
                f"layer {one['layer']} ({one['kind']}) has no transitions to show: it writes out "
                "no linear recurrence"
            )


def sentences(found: Sequence[BlockActions], *, judged: bool, proven: bool = False) -> list[str]:
    """Say which blocks track the task, which repeat them, and how many do something else."""
    lines = []
    for one in found:
        if one["role"] == "tracks":
            copies = [other["block"] for other in found if other["repeats"] == one["block"]]
            repeated = f"; repeated by {_numbers(copies)}" if copies else ""
            lines.append(f"block {one['block']} tracks the task: {_maps(one)}{repeated}")
    if judged and not lines:
        some = any(one["role"] == "other" for one in found)
        proof = (
            "its blocks tell more states apart than the task has" if some else "no block matters"
        )
        lines.append(
            f"the network is proven; {proof}"
            if proven
            else "in no block does the task's state alone decide what the block holds; "
            "`statemix certify` tells whether the network is right nevertheless"
        )
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
        f"{_joint_order(found)}{related}"
    )


def _blocks(numbers: Sequence[int]) -> str:
    return f"{'block' if len(numbers) == 1 else 'blocks'} {_numbers(numbers)}"


def _numbers(numbers: Sequence[int]) -> str:
    """Write increasing numbers, and three or more in a row as a range: "0–2, 4, 5"."""
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
    verb = "copy and load" if loads else "move" if one["moves"] else "copy"
    verb = "permute" if one["permutes"] else verb
    number = "too many maps to count" if one["order"] is None else f"{one['order']:,} maps"
    return f"its tokens {verb} the entries, and their words make {number}"
