"""Gate maps before and after sharpening, in one picture."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from statemix.studies.inspection import gate_drawing as gates
from statemix.studies.inspection.layer_numbers import LayerNumbers
from statemix.studies.inspection.pictures import title_of
from statemix.studies.inspection.sharpened_gates import GateMap, Sharpening


def pictures(
    found: Sequence[Sharpening],
    layers: Sequence[LayerNumbers],
    tokens: Mapping[str, Sequence[int]],
) -> Iterator[tuple[str, Figure]]:
    """Yield a picture for each layer, by file name.

    Args:
        found: gates before and after sharpening.
        layers: numbers of the layers.
        tokens: name of each sequence -> its tokens; the first one is drawn.
    """
    numbers = {one["layer"]: one for one in layers}
    name, first = next(iter(tokens.items()))
    for one in found:
        if one["shown"]:
            drawn = draw(one, numbers[one["layer"]], name, first)
            yield f"sharpening-{one['layer']}.png", drawn


def draw(
    found: Sharpening,
    layer: LayerNumbers,
    name: str,
    tokens: Sequence[int],
) -> Figure:
    """Draw the gates of each unit twice, one above the other: before and after sharpening.

    Args:
        found: the gates; at least one unit is shown.
        layer: the layer that they belong to.
        name: name of the sequence.
        tokens: its tokens.
    """
    moments = [found["before"], found["after"]]
    units = [
        f"{layer['unit']} {unit}, {temperature(moment)}"
        for unit in found["shown"]
        for moment in moments
    ]
    rows = [moment["gates"][place] for place in range(len(found["shown"])) for moment in moments]
    labels = ["BOS"] * layer["prepended"] + [str(token) for token in tokens]
    title = f"{title_of(layer)}: gates at two gate temperatures τ"
    return gates.draw([rows], units, {name: labels}, title=title)


def temperature(found: GateMap) -> str:
    """Write the temperature of gates."""
    return f"τ = {found['temperature']:.3g}" if found["temperature"] else "τ → 0"
