"""What the picture shows: every network, on the right axes."""

import numpy as np
import pytest

from statemix.report import figures


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


@pytest.fixture
def panels(summary):
    return figures.learning_figure(summary).axes


def test_both_panels_have_a_line_and_a_band_for_every_network(panels):
    names = ["BD-LRU m=3", "BD-LRU m=2", "BD-LRU m=1, diagonal", "LSTM"]
    for axes in panels:
        assert list(lines(axes)) == names
        assert len(axes.collections) == len(names)
        assert {text.get_text() for text in axes.texts} >= set(names)


def test_lines_are_means_over_seeds(panels):
    left, right = panels
    assert lines(left)["LSTM"].get_ydata()[-1] == pytest.approx(0.425)
    np.testing.assert_allclose(lines(right)["BD-LRU m=2"].get_ydata()[0], 0.525)


def test_bands_reach_from_the_worst_seed_to_the_best(panels):
    band = panels[1].collections[1].get_paths()[0].vertices
    at_16 = band[band[:, 0] == 16][:, 1]
    np.testing.assert_allclose([at_16.min(), at_16.max()], [0.5, 0.55])


def test_length_axis_is_logarithmic_and_holds_all_lengths(panels):
    right = panels[1]
    assert right.get_xscale() == "log"
    low, high = right.get_xlim()
    assert low < 16
    assert high > 16384
    assert list(right.get_xticks()) == [16, 64, 256, 1024, 4096, 16384]


def test_axes_hold_training_time_and_all_accuracies(panels):
    left, right = panels
    assert left.get_xlim() == (0, 100)
    for axes in (left, right):
        low, high = axes.get_ylim()
        assert low <= 0
        assert high >= 1


def test_every_seed_has_a_thin_line(panels):
    for axes in panels:
        thin = [line for line in axes.lines if line.get_linewidth() < 1]
        ends = sorted(line.get_ydata()[0 if axes is panels[1] else -1] for line in thin)
        np.testing.assert_allclose(ends, [0.25, 0.3, 0.4, 0.45, 0.5, 0.55, 1, 1])


def test_guessing_is_marked_in_both_panels(panels):
    for axes in panels:
        marks = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert [list(mark.get_ydata()) for mark in marks] == [[1 / 6, 1 / 6]]


def test_sharpening_is_marked_only_where_gates_were_sharpened(summary):
    def marked():
        left = figures.learning_figure(summary).axes[0]
        return [text for text in left.texts if text.get_text() == "gates sharpen"]

    assert marked()
    summary["setting"]["sharpen"] = (50, 90, 1.0)
    assert not marked()


def test_stacked_figure_is_taller_than_wide(summary):
    width, height = figures.learning_figure(summary, stacked=True).get_size_inches()
    assert height > width


def test_equal_results_give_equal_files(summary):
    first, second = (figures.png(figures.learning_figure(summary), 40) for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_dark_figure_is_dark(summary):
    assert sum(figures.learning_figure(summary, dark=True).get_facecolor()[:3]) < 0.5
