"""Colours of matrices: from the colour of the page at zero, with two hues if there are signs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from statemix.studies.figure import LIGHT

_NEGATIVE = "#b2182b"


@dataclass(frozen=True)
class Heat:
    """One scale of colours for all matrices of a picture."""

    colours: Colormap
    scale: Normalize

    @classmethod
    def of(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Choose the scale that fits all finite entries."""
        finite = np.concatenate([values[np.isfinite(values)] for values in arrays])
        largest = float(np.abs(finite).max(initial=0.0)) or 1.0
        signed = float(finite.min(initial=0.0)) < 0
        colours = [LIGHT.paper, LIGHT.accent, LIGHT.ink]
        if signed:
            colours = [_NEGATIVE, LIGHT.paper, LIGHT.accent]
        mapped = LinearSegmentedColormap.from_list("statemix", colours)
        return cls(mapped, Normalize(-largest if signed else 0.0, largest))

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``pcolormesh`` and ``imshow``."""
        return {"cmap": self.colours, "norm": self.scale}

    def ink(self, value: float) -> str:
        """Return black or white, whichever is easier to read on a cell."""
        red, green, blue, _ = self.colours(self.scale(value))
        return LIGHT.ink if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.4 else LIGHT.paper

    def add_bar(self, figure: Figure, beside: Sequence[Axes]) -> None:
        """Draw the scale beside some axes."""
        bar = figure.colorbar(
            ScalarMappable(self.scale, self.colours),
            ax=list(beside),
            fraction=0.02,
            pad=0.01,
            aspect=25,
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
