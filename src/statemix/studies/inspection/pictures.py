"""The pictures of one run's layers, from stored numbers."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from statemix.studies import complex_plane as spectra
from statemix.studies.inspection import gate_drawing as gates
from statemix.studies.inspection import mixing_drawing as mixing
from statemix.studies.inspection.layer_numbers import LayerNumbers


def pictures(
    layers: Sequence[LayerNumbers], tokens: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, Figure]]:
    """Yield the pictures that suit the layers, by file name.

    Args:
        layers: numbers of the layers; those without a recurrence are skipped.
        tokens: name of each sequence -> its tokens.
    """
    shown = [one for one in layers if one["summary"] is not None]
    for one in shown:
        yield f"eigenvalues-{one['layer']}.png", spectra.draw([_spectra(one)])
        labels = {
            name: ["BOS"] * one["prepended"] + [str(token) for token in row]
            for name, row in tokens.items()
        }
        units = [f"{one['unit']} {unit}" for unit in one["shown"]]
        if not units:
            continue
        if one["gates"] is not None:
            title = f"{title_of(one)}: gates over time, input gates last"
            drawn = gates.draw(one["gates"], units, labels, title=title)
            yield f"gates-{one['layer']}.png", drawn
        title = f"{title_of(one)}: largest change of a state by an input of size 1"
        yield f"mixing-{one['layer']}.png", mixing.draw(one["mixing"], units, labels, title=title)
        if one["block_attention"] is not None:
            title = f"{title_of(one)}: block attention matrix of {units[0]}"
            first = next(iter(labels.values()))
            drawn = mixing.draw_block(one["block_attention"], first, title=title)
            yield f"block-attention-{one['layer']}.png", drawn


def title_of(one: LayerNumbers) -> str:
    """Name a layer in titles."""
    return f"layer {one['layer']}, {one['kind']} m={one['size']}"


def _spectra(one: LayerNumbers) -> spectra.Spectra:
    steps = [step + 1 - one["prepended"] for step in one["steps"]]
    return spectra.Spectra(
        title=f"{title_of(one)}: eigenvalues",
        family=one["name"],
        row_title="",
        column_title="time step",
        columns=["BOS" if step < 1 else str(step) for step in steps],
        rows={"": one["eigenvalues"]},
    )
