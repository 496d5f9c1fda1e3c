"""The pictures of a run's layers: which there are, and that each cell is where it belongs."""

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh

from statemix.analysis import inspected
from statemix.layers import LayerSpec
from statemix.models import SyntheticModel
from statemix.report.figures import png
from statemix.report.inspection import gates, mixing, text
from statemix.report.inspection.heat import Heat
from statemix.report.inspection.pictures import pictures
from statemix.report.style import LIGHT


@pytest.fixture
def layers():
    specs = [
        LayerSpec("bd_lru", num_blocks=2, block_size=3),
        LayerSpec("lstm"),
        LayerSpec("mamba2", d_state=3, head_dim=4),
    ]
    model = SyntheticModel(6, {"product": 6}, 8, specs, bos=True)
    return inspected(model, torch.tensor([[1, 2, 3], [4, 5, 0]]), units=(0, 1))


TOKENS = {"sequence 0": [1, 2, 3], "sequence 1": [4, 5, 0]}


def test_each_layer_gets_the_pictures_that_suit_it(layers):
    found = dict(pictures(layers, TOKENS))
    assert list(found) == [
        "eigenvalues-0.png",
        "gates-0.png",
        "mixing-0.png",
        "block-attention-0.png",
        # Mamba-2 has transitions, but no gates that share a normalisation.
        "eigenvalues-2.png",
        "mixing-2.png",
        "block-attention-2.png",
    ]
    for figure in found.values():
        assert png(figure, 40)[1:4] == b"PNG"
    (axes,) = found["eigenvalues-0.png"].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["BOS", "1", "2", "3"]
    strips = found["gates-0.png"].axes
    assert [axes.get_ylabel() for axes in strips[:4]] == ["block 0", "block 1"] * 2
    assert [axes.get_title(loc="left") for axes in strips[:4]] == [
        "sequence 0",
        "",
        "sequence 1",
        "",
    ]
    labels = [label.get_text() for label in strips[2].get_xticklabels()]
    assert labels == ["BOS", "4", "5", "0"]


def grids(figure):
    meshes = (part for axes in figure.axes for part in axes.collections)
    return [np.ma.filled(mesh.get_array(), np.nan) for mesh in meshes if isinstance(mesh, QuadMesh)]


def test_a_tile_is_a_transition_with_its_input_gates_on_the_right():
    tiles = [[[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]]
    figure = gates.draw([[tiles]], ["block 0"], {"s": ["1", "2"]}, title="gates")
    gap = np.nan
    expected = [
        [0.1, 0.2, gap, 0.7, gap, 0.5, 0.5, gap, 0.0, gap],
        [0.3, 0.4, gap, 0.3, gap, 0.0, 0.0, gap, 1.0, gap],
    ]
    np.testing.assert_array_equal(grids(figure)[0], expected)
    axes = figure.axes[0]
    assert axes.yaxis_inverted()
    # Labels stand below the middle of their tiles: widths 1, 1, 0.2, 1, and a gap of 0.6.
    np.testing.assert_allclose(axes.get_xticks(), [1.6, 5.4])
    assert axes.get_xlim() == pytest.approx((0, 7.0))


def test_a_single_row_of_gates_stands_upright():
    rows = [[[0.1, 0.2, 0.7]], [[0.6, 0.4, 0.0]]]
    figure = gates.draw([[rows]], ["channel 0"], {"s": ["1", "2"]}, title="gates")
    gap = np.nan
    expected = [[0.1, gap, 0.6, gap], [0.2, gap, 0.4, gap], [0.7, gap, 0.0, gap]]
    np.testing.assert_array_equal(grids(figure)[0], expected)


def test_states_are_rows_and_inputs_columns():
    sizes = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.0], [0.1, None, 0.75]]
    figure = mixing.draw([[sizes]], ["block 0"], {"s": ["7", "8", "9"]}, title="mixing")
    axes = figure.axes[0]
    shown = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(shown, np.array(sizes, dtype=float))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["7", "8", "9"]
    assert axes.get_ylabel() == "state after token"
    assert axes.get_xlabel() == "input of token"
    # Time runs downwards, as in a matrix.
    assert axes.yaxis_inverted()


def test_blocks_of_a_block_attention_matrix_are_labelled_in_their_middle():
    matrix = np.tril(np.ones((6, 3))).tolist()
    figure = mixing.draw_block(matrix, ["1", "2", "3"], title="block")
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.get_yticks(), [0.5, 2.5, 4.5])
    np.testing.assert_allclose(axes.get_xticks(), [0, 1, 2])
    assert len(axes.lines) == 4


def test_zero_has_the_colour_of_the_page_whatever_the_signs():
    for values in ([0.0, 0.5], [-3.0, 0.0, 0.5], [0.0]):
        heat = Heat.of([np.array(values), np.array([np.nan, np.inf])], LIGHT)
        colour = heat.colours(heat.scale(0.0))
        np.testing.assert_allclose(colour[:3], 1.0, atol=0.02)
    assert heat.scale.vmax == 1
    signed = Heat.of([np.array([-3.0, 0.5])], LIGHT)
    assert (signed.scale.vmin, signed.scale.vmax) == (-3, 3)


def test_the_table_has_a_line_for_each_layer_with_transitions(layers):
    table = text.table(layers)
    assert [line.cells[:3] for line in table.lines] == [
        ("0", "BD-LRU", "2 blocks of 3"),
        ("2", "Mamba-2", "4 heads of 1"),
    ]
    assert table.lines[1].cells[-1] == "–"
    assert list(text.without(layers)) == [
        "layer 1 (LSTM) has no transitions to show: it writes out no linear recurrence"
    ]


def test_large_and_infinite_numbers_fit_into_the_table(layers):
    layers[0]["summary"] |= {"largest": None, "mean": 123456.0}
    assert text.table(layers[:1]).lines[0].cells[3:5] == ("not finite", "1.23e+05")
