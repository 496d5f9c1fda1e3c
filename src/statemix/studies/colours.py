"""Colours of series: hue by layer, lightness by order, readable on light and dark pages.

The arithmetic is in OKLCH, where equal steps look equal. Source: B. Ottosson, "A perceptual color
space for image processing" (2020); contrast as in WCAG 2.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from statemix.layers import LAYERS

LEAST_CONTRAST = 3.0
"""Least contrast between a line and the page, as WCAG requires for graphical objects."""

# Chroma of layers that declare no colour: strong, and inside sRGB for most hues.
_CHROMA = 0.13
# Step of the searches over lightness and chroma.
_STEP = 0.005
# Range of lightness: below it hues look black on a light page, above it white on a dark one.
_RANGE = (0.28, 0.93)
# Difference in lightness between neighbouring shades, if there is room.
_SHADE = 0.12
# How much lighter a colour is on a dark page.
_BRIGHTER = 0.10


class Oklch(NamedTuple):
    """A colour by lightness (0 to 1), chroma and hue (degrees)."""

    lightness: float
    chroma: float
    hue: float


def contrast(one: str, other: str) -> float:
    """WCAG contrast of two colours "#rrggbb", from 1 to 21.

    Example:
        >>> contrast("#000000", "#ffffff")
        21.0
    """
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _decoded(red), _decoded(green), _decoded(blue)


def _decoded(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def _encoded(value: float) -> float:
    return value * 12.92 if value <= 0.0031308 else float(1.055 * value ** (1 / 2.4) - 0.055)


def oklab(colour: str) -> tuple[float, float, float]:
    """OKLab coordinates of a colour "#rrggbb"; their distance measures perceived difference.

    The eye distinguishes distances from about 0.02.
    """
    red, green, blue = _linear(colour)
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def oklch(colour: str) -> Oklch:
    """Lightness, chroma and hue of a colour "#rrggbb"."""
    lightness, a, b = oklab(colour)
    return Oklch(lightness, math.hypot(a, b), math.degrees(math.atan2(b, a)) % 360)


def hexadecimal(colour: Oklch) -> str:
    """The colour as "#rrggbb", with its chroma reduced until it lies inside sRGB.

    Example:
        >>> hexadecimal(oklch("#0072b2"))
        '#0072b2'
    """
    chroma = colour.chroma
    while True:
        channels = _channels(Oklch(colour.lightness, chroma, colour.hue))
        if all(-0.002 <= value <= 1.002 for value in channels) or chroma <= 0:
            break
        chroma = max(0.0, chroma - _STEP)
    clipped = (round(255 * _encoded(min(max(value, 0.0), 1.0))) for value in channels)
    return "#" + "".join(f"{value:02x}" for value in clipped)


def _channels(colour: Oklch) -> tuple[float, float, float]:
    a = colour.chroma * math.cos(math.radians(colour.hue))
    b = colour.chroma * math.sin(math.radians(colour.hue))
    long = (colour.lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (colour.lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (colour.lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def graded(base: Oklch, count: int, paper: str) -> list[str]:
    """Shades of one hue, in order of falling contrast with the page.

    Args:
        base: colour of the layer on a light page. The shades surround it as far as contrast with
            the page allows.
        count: number of shades.
        paper: colour of the page.
    """
    strongest, weakest = _readable(base, paper)
    low, high = sorted((strongest, weakest))
    centre = base.lightness + (0.0 if weakest > strongest else _BRIGHTER)
    half = min(high - low, _SHADE * (count - 1)) / 2
    centre = min(max(centre, low + half), high - half)
    if count == 1:
        return [hexadecimal(base._replace(lightness=centre))]
    half = math.copysign(half, weakest - strongest)
    return [
        hexadecimal(base._replace(lightness=centre + half * (2 * place / (count - 1) - 1)))
        for place in range(count)
    ]


def _readable(base: Oklch, paper: str) -> tuple[float, float]:
    """Lightness of the shade with the most contrast, and of that with the least allowed."""
    darkest, lightest = _RANGE
    on_light = oklab(paper)[0] > 0.5
    lightness, end = (darkest, lightest) if on_light else (lightest, darkest)
    first, step = lightness, math.copysign(_STEP, end - lightness)
    while (lightness - end) * step < 0:
        if contrast(hexadecimal(base._replace(lightness=lightness + step)), paper) < LEAST_CONTRAST:
            break
        lightness += step
    return first, lightness


def base_colours(families: Sequence[str]) -> dict[str, Oklch]:
    """Return the colour of each family of series; a family is a layer's name or any other name.

    A layer has the colour that it declares. Each other family gets a hue in the middle of the
    widest gap left. Registered layers come first, so that a layer has the same colour in all
    figures.
    """
    names = list(dict.fromkeys([*LAYERS, *families]))
    declared = {name: LAYERS[name].colour for name in names if name in LAYERS}
    found = {name: oklch(colour) for name, colour in declared.items() if colour is not None}
    for name in names:
        if name not in found:
            found[name] = Oklch(0.6, _CHROMA, _free_hue([colour.hue for colour in found.values()]))
    return {name: found[name] for name in families}


def _free_hue(taken: list[float]) -> float:
    if not taken:
        return 0.0
    ordered = sorted(taken)
    gaps = [
        ((following - hue) % 360 or 360.0, hue)
        for hue, following in zip(ordered, [*ordered[1:], ordered[0]], strict=True)
    ]
    width, hue = max(gaps)
    return (hue + width / 2) % 360


def series_colours(families: Sequence[str], paper: str) -> list[str]:
    """Colours "#rrggbb" for the series of a figure.

    Args:
        families: family of each series, usually the name of its layer. Series of one family are
            shades of one hue, the first with the most contrast.
        paper: colour of the page.
    """
    bases = base_colours(families)
    shades = {
        family: iter(graded(base, families.count(family), paper)) for family, base in bases.items()
    }
    return [next(shades[family]) for family in families]
