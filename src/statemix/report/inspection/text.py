"""The layers of one run as a table and as sentences."""

from collections.abc import Iterator, Sequence

from statemix.analysis import LayerNumbers
from statemix.report.tables import Line, Table

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

LEGEND = """\
λ: eigenvalues of the transitions at all steps of the sequences. Gate entropy: 0 if each row of
gates copies one entry of the state or its input, 1 if it averages all of them."""


def table(layers: Sequence[LayerNumbers]) -> Table:
    """Lay out a line per layer that has a recurrence."""
    return Table(_HEAD, tuple(Line(cells) for cells in map(_cells, layers) if cells))


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
        "–" if summary["gate_entropy"] is None else _number(summary["gate_entropy"]),
    )


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
