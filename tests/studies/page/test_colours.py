"""Any number of series: each is readable on its page and distinct from the others."""

import itertools
import math

import pytest

from statemix.layers import BDLRU, LAYERS
from statemix.studies import colours
from statemix.studies.colours import contrast, oklab, oklch, series_colours
from statemix.studies.style import DARK, LIGHT, series_styles

# Least visible distance in OKLab.
VISIBLE = 0.02
PAGES = {"light": LIGHT, "dark": DARK}
FAMILIES = {
    "one": ["lstm"],
    "demo": ["bd_lru"] * 3 + ["lstm"],
    "paper": ["bd_lru"] * 8 + ["h_lru"] * 8 + ["lstm"] + [f"other {n}" for n in range(8)],
    "one layer, many sizes": ["h_lru"] * 16,
    "no layer": [f"other {n}" for n in range(12)],
}


@pytest.fixture(params=list(PAGES))
def page(request):
    return PAGES[request.param]


@pytest.fixture(params=list(FAMILIES))
def families(request):
    return FAMILIES[request.param]


def test_every_series_has_enough_contrast(families, page):
    for colour in series_colours(families, page.paper):
        assert contrast(colour, page.paper) >= 3


def test_any_two_series_differ_visibly(families, page):
    found = series_colours(families, page.paper)
    assert len(found) == len(families)
    for one, other in itertools.combinations(found, 2):
        assert math.dist(oklab(one), oklab(other)) >= VISIBLE, (one, other)


def test_forty_series_differ_without_their_colours():
    styles = series_styles(["bd_lru"] * 40, LIGHT)
    assert len({(style.marker, str(style.dashes)) for style in styles}) == 40


def test_colours_are_the_same_every_time(families, page):
    assert series_colours(families, page.paper) == series_colours(families, page.paper)


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].colour])
def test_a_single_series_has_the_colour_of_its_layer(name):
    (colour,) = series_colours([name], LIGHT.paper)
    assert math.dist(oklab(colour), oklab(LAYERS[name].colour)) < VISIBLE


def test_sizes_of_one_layer_are_shades_of_its_hue(page):
    hue = oklch(LAYERS["bd_lru"].colour).hue
    found = series_colours(["bd_lru"] * 8, page.paper)
    for colour in found:
        assert abs((oklch(colour).hue - hue + 180) % 360 - 180) < 8
    contrasts = [contrast(colour, page.paper) for colour in found]
    assert contrasts == sorted(contrasts, reverse=True)


def test_a_layer_without_a_colour_gets_a_hue_of_its_own_and_keeps_it(page):
    def layer(name):
        return type("Uncoloured", (BDLRU,), {"name": name, "colour": None})

    for name in ("plain", "other"):
        LAYERS.register(layer(name))
    try:
        alone = series_colours(["plain"], page.paper)
        among = series_colours([*LAYERS, "no layer"], page.paper)
        assert alone[0] in among
        hues = sorted(oklch(colour).hue for colour in among)
        gaps = [b - a for a, b in itertools.pairwise([*hues, hues[0] + 360])]
        assert min(gaps) > 15
    finally:
        LAYERS.remove("plain")
        LAYERS.remove("other")


@pytest.mark.parametrize("colour", ["#000000", "#ffffff", "#0072b2", "#d55e00", "#12161c"])
def test_conversions_undo_each_other(colour):
    assert colours.hexadecimal(oklch(colour)) == colour


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == 21
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#ffffff", "#777777") == contrast("#777777", "#ffffff")


def test_text_of_both_pages_has_the_contrast_that_text_needs(page):
    for colour in (page.ink, page.muted, page.accent):
        assert contrast(colour, page.paper) >= 4.5
