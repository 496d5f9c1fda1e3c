"""The demo's figure shows every network on the right axes."""

import numpy as np
import pytest

from statemix.studies import figures
from statemix.studies.demo import demo_figure as figure
from statemix.studies.style import DARK

NAMES = ["BD-LRU m=3", "BD-LRU m=2", "BD-LRU m=1, diagonal", "LSTM"]


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


@pytest.fixture
def panels(summary):
    return figure.learning_figure(summary).axes


def test_both_panels_have_a_line_and_a_band_for_every_network(panels):
    for axes in panels:
        assert list(lines(axes)) == NAMES
        assert len(axes.collections) == len(NAMES)
        assert {text.get_text() for text in axes.texts} >= set(NAMES)


def test_lines_are_means_over_seeds(panels):
    left, right = panels
    assert list(lines(left)["LSTM"].get_xdata()) == [1, 50, 100]
    assert lines(left)["LSTM"].get_ydata()[-1] == pytest.approx(0.425)
    np.testing.assert_allclose(lines(right)["BD-LRU m=2"].get_ydata()[0], 0.525)


def test_length_axis_is_logarithmic_and_holds_all_lengths(panels):
    right = panels[1]
    assert right.get_xscale() == "log"
    low, high = right.get_xlim()
    assert low < 16
    assert high > 16384
    assert list(right.get_xticks()) == [16, 64, 256, 1024, 4096, 16384]


def test_axes_hold_training_time_and_all_accuracies(panels):
    assert panels[0].get_xlim() == (0, 100)
    for axes in panels:
        low, high = axes.get_ylim()
        assert low <= 0
        assert high >= 1


def test_guessing_is_marked_in_both_panels(panels):
    for axes in panels:
        marks = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert [list(mark.get_ydata()) for mark in marks] == [[1 / 6, 1 / 6]]


def test_sharpening_is_marked_only_where_gates_were_sharpened(summary):
    def marked():
        left = figure.learning_figure(summary).axes[0]
        return [text for text in left.texts if text.get_text() == "gates sharpen"]

    assert marked()
    summary["setting"]["sharpening"] = None
    assert not marked()


def test_runs_without_a_result_are_left_out(summary, lose):
    lose(summary["runs"][7], "diverged", "loss is nan")
    left, right = figure.learning_figure(summary).axes
    assert lines(left)["LSTM"].get_ydata()[-1] == 0.4
    assert lines(right)["LSTM"].get_ydata()[0] == 0.4
    lose(summary["runs"][3], "failed", "disk full")
    for axes in figure.learning_figure(summary).axes:
        assert list(lines(axes)) == NAMES[:3]


def test_colours_do_not_depend_on_how_runs_ended(summary, lose):
    def colours():
        left = figure.learning_figure(summary).axes[0]
        return {name: line.get_color() for name, line in lines(left).items()}

    before = colours()
    for run in summary["runs"][::4]:
        lose(run, "diverged", "loss is nan")
    after = colours()
    assert len(after) == 3
    assert after.items() <= before.items()


def test_a_figure_without_any_result_is_drawn(summary, lose):
    for run in summary["runs"]:
        lose(run, "failed", "disk full")
    assert figures.png(figure.learning_figure(summary, theme=DARK), 20).startswith(b"\x89PNG")
