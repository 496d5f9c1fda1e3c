"""Frames of eigenvalues: their places, their scale, and the texts of empty rows."""

import numpy as np
import pytest

from statemix_lab.studies.complex_plane import Spectra, draw, reach


def panel(rows, columns=("1", "4"), title="(a) BD-LRU"):
    return Spectra(title, "bd_lru", "m", "time step", columns, rows)


def points_of(axes):
    from matplotlib.collections import PathCollection

    return [
        np.asarray(part.get_offsets())
        for part in axes.collections
        if isinstance(part, PathCollection)
    ]


def test_eigenvalues_lie_in_the_frame_of_their_row_and_column():
    rows = {"2": [[[0.5, 0.0]], [[0.0, 1.0]]], "5": [[[-1.0, 0.0], [1.0, 0.0]], []]}
    (axes,) = draw([panel(rows)]).axes
    first, second, third = points_of(axes)
    scale = 0.92 / 2 / 1.15
    np.testing.assert_allclose(first, [[0.5 * scale, 0.0]])
    # Imaginary parts point upwards, though rows run downwards.
    np.testing.assert_allclose(second, [[1.0, -scale]])
    np.testing.assert_allclose(third, [[-scale, 1.0], [scale, 1.0]])
    assert axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "5"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    assert axes.get_title(loc="left") == "(a) BD-LRU"


def test_a_row_without_eigenvalues_says_why():
    (axes,) = draw([panel({"2": [[[0.5, 0.0]], []], "16": "diverged"})]).axes
    (text,) = axes.texts
    assert (text.get_text(), text.get_position()) == ("diverged", (0.5, 1))


@pytest.mark.parametrize(
    ("largest", "half"), [(0.0, 1.15), (1.0, 1.15), (2.0, 2.1), (10.0, 3.0), (1e30, 3.0)]
)
def test_frames_reach_as_far_as_the_eigenvalues_within_bounds(largest, half):
    rows = {"2": [[[0.1, 0.1], [0.0, -largest]]], "3": "diverged"}
    assert reach(rows) == pytest.approx(half)
    (axes,) = draw([panel(rows, columns=("1",))]).axes
    points = points_of(axes)[0]
    # Beyond the frame means on its edge.
    assert np.abs(points).max() <= 0.46 + 1e-9
    assert ("frames to" in axes.get_title(loc="left")) == (half > 1.15)


def test_panels_stand_side_by_side():
    four = [panel({"2": "diverged"}, title=name) for name in "abcd"]
    wide = draw(four)
    assert [axes.get_title(loc="left") for axes in wide.axes] == list("abcd")
    assert wide.get_figwidth() > wide.get_figheight()
    assert len(draw(four[:3]).axes) == 3
    assert len(draw([panel({})]).axes) == 1
