"""The figure draws every point with its spread, and a legend for each comparison."""

import numpy as np
import pytest
from matplotlib.colors import rgb_to_hsv, to_rgb

from statemix_lab.bench.compared_layers import LOOKS
from statemix_lab.studies.figure import draw
from statemix_lab.studies.result_text import rate_text
from statemix_lab.studies.throughput import caption, speed_panels
from statemix_lab.studies.throughput_rows import read

SCAN = "bd_lru num_blocks=192 block_size=4 backend=associative"


@pytest.fixture
def points(row, write):
    lost = {"time_s": None, "status": "skipped", "reason": "needs 9 GB", "ratios": {}}
    rows = [
        row(layer, hidden_size=768, batch_size=batch_size, length=length, num_parameters=parameters)
        for layer in ("lstm", SCAN, f"{SCAN} compiled", SCAN.replace("associative", "loop"))
        for batch_size, length in ((8, 16), (8, 32), (4, 32))
        for parameters in ([33_000_000] if layer == "lstm" else [1000])
    ]
    rows[1] |= {"commit": "1234567890"}
    rows[-1] |= lost
    return read([write(rows)])


@pytest.fixture
def figure(points):
    panels = [panel.drawn() for panel in speed_panels(points)[0]]
    return draw(panels, "tokens per second", caption(points[0].setting, points))


def drawn(figure):
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def curves(figure, axes):
    """The lines of a panel by their names in the legend."""
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    colours = [handle.get_color() for handle in legend.legend_handles]
    assert len(set(colours)) == len(names)
    named = dict(zip(colours, names, strict=True))
    return {named[line.get_color()]: line for line in axes.lines if len(line.get_xdata())}


def test_lines_are_medians_and_bands_the_spread(figure):
    axes = drawn(figure)[0]
    line = curves(figure, axes)["BD-LRU m=4, parallel"]
    np.testing.assert_allclose(line.get_xydata(), [[16, 8 * 16], [32, 8 * 32]])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.get_xticks()) == [16, 32]
    for band in axes.collections:
        corners = band.get_paths()[0].vertices
        at_16 = corners[corners[:, 0] == 16][:, 1]
        np.testing.assert_allclose([at_16.min(), at_16.max()], [4 * 16, 16 * 16])


def test_points_without_a_time_are_not_drawn(figure):
    loop = curves(figure, drawn(figure)[1])["BD-LRU m=4, sequential"]
    assert list(loop.get_xdata()) == [8]


def test_dashes_tell_implementations_and_colours_layers(figure):
    found = curves(figure, drawn(figure)[0])
    dashes = {name: line._unscaled_dash_pattern for name, line in found.items()}
    assert len({str(one) for one in dashes.values()}) == 4
    assert [name for name, line in found.items() if not line.is_dashed()] == ["LSTM"]
    assert found["LSTM"].get_color() == LOOKS["lstm"].colour
    # The lines of one layer are shades of its colour.
    hues = [rgb_to_hsv(to_rgb(line.get_color()))[0] for line in found.values()]
    assert max(hues[:3]) - min(hues[:3]) < 0.05 < abs(hues[3] - hues[0])


def test_all_lines_have_one_legend(figure):
    (legend,) = figure.legends
    names = [f"BD-LRU m=4, {name}" for name in ("autotuned", "parallel", "sequential")]
    assert [text.get_text() for text in legend.get_texts()] == [*names, "LSTM"]
    assert [axes.get_title(loc="left")[:3] for axes in drawn(figure)] == ["(B)"] * 2 + ["(C)"] * 2


def test_legends_and_names_stand_beside_the_data(figure):
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in drawn(figure)]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes.append(figure._suptitle.get_window_extent())
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_the_title_says_what_was_measured(figure):
    title = figure._suptitle.get_text()
    assert title.endswith("\nAMD EPYC, 2 threads, float32, commits abcdef0, 1234567")


def test_tables_hold_every_point(points):
    lines = speed_panels(points)[0][1].table().as_text().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "layer", *["BD-LRU m=4, autotuned"] * 2, *["BD-LRU m=4, parallel"] * 2,
        *["BD-LRU m=4, sequential"] * 2, *["LSTM"] * 2,
    ]  # fmt: skip
    assert lines[0].split()[1:4] == ["parameters", "B", "tokens/s"]
    assert lines[1].split()[-7:] == ["1,000", "4", "128", "64", "-", "256", "3"]
    assert lines[5].split()[-6:] == ["4", "–", "skipped:", "needs", "9", "GB"]
    assert lines[-1].split() == ["LSTM", "33,000,000", "8", "256", "128", "-", "512"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (999.4, "999"), (999.6, "1k"), (12_345, "12.3k"), (999_600, "1M"), (5e6, "5M")],
)
def test_rates_have_three_digits(value, text):
    assert rate_text(value) == text
