"""The figure draws every point with its spread, and a legend for each comparison."""

import numpy as np
import pytest

from statemix.studies.throughput import throughput_drawing as drawing
from statemix.studies.throughput.points import read
from statemix.studies.throughput.throughput_panels import panels
from statemix.studies.throughput.throughput_text import panel_table, rate_text

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
    return drawing.draw(points[0].setting, panels(points)[0])


def drawn(figure):
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def curves(axes):
    return {line.get_label(): line for line in axes.lines}


def test_lines_are_medians_and_bands_the_spread(figure):
    axes = drawn(figure)[0]
    line = curves(axes)["BD-LRU m=4, parallel"]
    np.testing.assert_allclose(line.get_xydata(), [[16, 8 * 16], [32, 8 * 32]])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.get_xticks()) == [16, 32]
    for band in axes.collections:
        corners = band.get_paths()[0].vertices
        at_16 = corners[corners[:, 0] == 16][:, 1]
        np.testing.assert_allclose([at_16.min(), at_16.max()], [4 * 16, 16 * 16])


def test_points_without_a_time_are_not_drawn(figure):
    loop = curves(drawn(figure)[1])["BD-LRU m=4, sequential"]
    assert list(loop.get_xdata()) == [8]


def test_dashes_tell_implementations_and_colours_layers(figure):
    found = curves(drawn(figure)[0])
    dashes = {name: line._unscaled_dash_pattern for name, line in found.items()}
    assert len({str(one) for one in dashes.values()}) == 4
    assert dashes["LSTM"] == (0.0, None)
    colours = {name: line.get_color() for name, line in found.items()}
    assert len(set(colours.values())) == 2
    assert colours["LSTM"] not in [colours[name] for name in colours if name != "LSTM"]


def test_every_comparison_has_one_legend_of_its_lines(figure):
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    names = [[text.get_text() for text in legend.get_texts()] for legend in legends]
    implementations = ["autotuned", "parallel", "sequential"]
    assert names == [[*(f"BD-LRU m=4, {name}" for name in implementations), "LSTM"], ["LSTM"]]
    assert [axes.get_title(loc="left")[:3] for axes in drawn(figure)] == ["(B)", "(B)"] + [
        "(C)"
    ] * 2


def test_legends_and_names_stand_beside_the_data(figure):
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in drawn(figure)]
    boxes += [axes.get_legend().get_window_extent() for axes in figure.axes if axes.get_legend()]
    boxes.append(figure._suptitle.get_window_extent())
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_the_title_says_what_was_measured(figure):
    title = figure._suptitle.get_text()
    assert title.endswith("\nAMD EPYC, 2 threads, float32, commits abcdef0, 1234567")


def test_tables_hold_every_point(points):
    lines = panel_table(panels(points)[0][1]).as_text().splitlines()
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
