"""A figure draws every series with its spread, for every kind of page."""

import dataclasses

import numpy as np
import pytest

from statemix.studies import figures
from statemix.studies.figures import Panel, Series
from statemix.studies.style import DARK, LIGHT

SERIES = [
    Series("low", "lstm", [{1: 0.1, 2: 0.2}, {1: 0.3, 2: 0.4}]),
    Series("high", "bd_lru", [{1: 0.5, 2: 0.9}]),
]
PANEL = Panel("a title", "x", "y", SERIES, x_limits=(0, 3))


def drawn(panel, **options):
    return figures.draw([panel], **options).axes[0]


def named(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_thick_lines_are_means_and_thin_ones_runs():
    axes = drawn(PANEL)
    np.testing.assert_allclose(named(axes)["low"].get_ydata(), [0.2, 0.3])
    thin = [list(line.get_ydata()) for line in axes.lines if line.get_linewidth() < 1]
    assert thin == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.9]]


def test_bands_reach_from_the_worst_run_to_the_best():
    band = drawn(PANEL).collections[0].get_paths()[0].vertices
    at_1 = band[band[:, 0] == 1][:, 1]
    np.testing.assert_allclose([at_1.min(), at_1.max()], [0.1, 0.3])


def test_a_mean_covers_the_places_that_all_runs_have():
    series = Series("early", "lstm", [{1: 0.2, 2: 0.4, 3: 0.6}, {1: 0.4, 2: 0.6}])
    axes = drawn(dataclasses.replace(PANEL, series=[series]))
    assert list(named(axes)["early"].get_xdata()) == [1, 2]
    assert [len(line.get_xdata()) for line in axes.lines if line.get_linewidth() < 1] == [3, 2]


def test_a_series_without_runs_is_left_out_and_changes_no_other():
    styled = named(drawn(PANEL))["high"].get_color()
    axes = drawn(dataclasses.replace(PANEL, series=[Series("low", "lstm", []), SERIES[1]]))
    assert list(named(axes)) == ["high"]
    assert named(axes)["high"].get_color() == styled


def test_level_and_span_are_marked_with_their_names():
    axes = drawn(dataclasses.replace(PANEL, level=(0.25, "guessing"), span=(1, 2, "change")))
    (mark,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(mark.get_ydata()) == [0.25, 0.25]
    assert {text.get_text() for text in axes.texts} >= {"guessing", "change"}


def test_names_stand_apart_inside_the_panel():
    series = [Series(f"s{n}", "lstm", [{1: 1.0 - n / 1000}]) for n in range(10)]
    axes = drawn(dataclasses.replace(PANEL, series=series))
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert len(heights) == 10
    assert min(np.diff(heights)) > 0.05
    assert heights[-1] <= axes.get_ylim()[1]


def test_the_way_from_a_line_to_its_name_is_dotted_where_data_could_stand():
    series = [
        Series("short", "lstm", [{1: 0.2, 4: 0.3}]),
        Series("whole", "bd_lru", [{1: 0.5, 16: 0.9}]),
    ]
    # The edge is a little beyond the last place of a logarithmic axis.
    wide = dataclasses.replace(PANEL, series=series, x_limits=(1, 17), x_ticks=(1, 16))
    axes = drawn(wide)
    ways = {text.get_text(): text.arrow_patch for text in axes.texts}
    assert {name: way.get_linestyle() for name, way in ways.items()} == {
        "short": "dotted",
        "whole": "solid",
    }
    assert ways["short"].get_linewidth() < ways["whole"].get_linewidth()


@pytest.mark.parametrize(("count", "in_legend"), [(12, False), (13, True)])
def test_names_that_do_not_fit_go_into_a_legend(count, in_legend):
    series = [Series(f"s{n}", "lstm", [{1: 0.5}]) for n in range(count)]
    figure = figures.draw([dataclasses.replace(PANEL, series=series, markers=True)])
    assert bool(figure.axes[0].texts) == (not in_legend)
    legends = [[text.get_text() for text in legend.get_texts()] for legend in figure.legends]
    assert legends == ([[one.label for one in series]] if in_legend else [])


def test_panels_stand_side_by_side_or_stacked():
    wide = figures.draw([PANEL, PANEL])
    assert len(wide.axes) == 2
    width, height = wide.get_size_inches()
    assert width > height
    width, height = figures.draw([PANEL, PANEL], stacked=True).get_size_inches()
    assert height > width


def test_equal_results_give_equal_files():
    first, second = (figures.png(figures.draw([PANEL]), 40) for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_a_figure_has_the_colours_of_its_page():
    assert sum(figures.draw([PANEL], theme=DARK).get_facecolor()[:3]) < 0.5
    assert sum(figures.draw([PANEL], theme=LIGHT).get_facecolor()[:3]) == 3


def test_variants_are_drawn_for_every_page():
    asked = []

    def draw(*, theme, stacked):
        asked.append((stacked, theme))
        return figures.draw([PANEL], theme=theme, stacked=stacked)

    found = figures.variants(draw)
    assert list(found) == ["wide_light", "wide_dark", "narrow_light", "narrow_dark"]
    assert asked == [(False, LIGHT), (False, DARK), (True, LIGHT), (True, DARK)]
    assert len(set(found.values())) == 4
