"""The layers of one run as a table and as sentences."""

from collections.abc import Callable, Iterator, Sequence

from statemix.proofs.joint_action import JointAction
from statemix.studies.inspection.layer_numbers import LayerNumbers
from statemix.studies.inspection.sharpened_gates import Sharpening
from statemix.studies.table_text import Line, Table

_HEAD = (
    "layer",
    "kind",
    "units",
    "largest |λ|",
    "mean |λ|",
    "Re λ < 0",
    "not real",
    "|λ| > 1",
    "gate entropy",
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
    """Lay out a line per layer that has a recurrence.

    Args:
        layers: numbers of the layers.
        sharpened: gates before and after sharpening. Gates of 0 and 1 get no column: every trained
            network has them.
        joined: what the blocks of the only layer do together.
    """
    before = {
        one["layer"]: one["before"]["gate_entropy"]
        for one in sharpened
        if one["after"]["temperature"]
    }
    columns: list[tuple[str, Callable[[LayerNumbers], str]]] = []
    if before:
        columns.append((_UNSHARPENED, lambda one: _entropy(before.get(one["layer"]))))
    if joined is not None:
        columns.append((_JOINT, lambda _: joint_order(joined)))
    lines = (
        Line((*cells, *(cell(one) for _, cell in columns)))
        for one in layers
        if (cells := _cells(one))
    )
    return Table((*_HEAD, *(name for name, _ in columns)), tuple(lines))


def joint_order(joined: JointAction) -> str:
    """Write the number of maps that blocks generate together."""
    number = joined["order"]
    return f"more than {joined['most']:,}" if number is None else f"{number:,}"


def legend(shown: Table) -> str:
    """Explain the columns of a table."""
    return "\n".join([_LEGEND, *(words for name, words in _MORE.items() if name in shown.head)])


def _cells(one: LayerNumbers) -> tuple[str, ...]:
    summary = one["summary"]
    if summary is None:
        return ()
    return (
        str(one["layer"]),
        one["kind"],
        f"{one['units']} {one['unit']}s of {one['size']}",
        _number(summary["largest"]),
        _number(summary["mean"]),
        *(f"{summary[name]:.1%}" for name in ("negative", "complex", "outside")),
        _entropy(summary["gate_entropy"]),
    )


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
