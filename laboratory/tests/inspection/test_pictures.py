"""The pictures of a run's layers: which there are, and that each cell is where it belongs."""

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh

from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.training.attempts import Attempt
from statemix_lab.inspection import layer_text as text
from statemix_lab.inspection.layer_numbers import inspected
from statemix_lab.inspection.layer_pictures import draw_gates, draw_mixing, draw_race, pictures
from statemix_lab.studies.figure import png


@pytest.fixture
def layers():
    specs = [
        LayerSpec("bd_lru", num_blocks=2, block_size=3),
        LayerSpec("lstm"),
        LayerSpec("mamba2", d_state=3, head_dim=4),
    ]
    model = TokenClassifier(6, {"product": 6}, 8, specs, bos=True)
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
    labels = [label.get_text() for label in strips[2].get_xticklabels()]
    assert labels == ["BOS", "4", "5", "0"]


def grids(figure):
    meshes = (part for axes in figure.axes for part in axes.collections)
    return [np.ma.filled(mesh.get_array(), np.nan) for mesh in meshes if isinstance(mesh, QuadMesh)]


def test_a_tile_is_a_transition_with_its_input_gates_on_the_right():
    tiles = [[[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]]
    figure = draw_gates([[tiles]], ["block 0"], {"s": ["1", "2"]}, title="gates")
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


def moment(temperature, gates):
    return {"temperature": temperature, "gate_entropy": 0.5, "gates": gates}


def sharpened(layers, after=0.125):
    """Of both blocks, with gates that tell block and moment apart."""
    tiles = [[[[[(10 * block + time) / 99] * 4] * 3] * 4 for block in (0, 1)] for time in (1, 2)]
    found = {"layer": 0, "shown": [0, 1], "before": moment(1.0, tiles[0])}
    return found | {"after": moment(after, tiles[1])}


def test_gates_before_and_after_sharpening_stand_one_above_the_other(layers):
    figure = dict(pictures(layers[:1], TOKENS, [sharpened(layers)]))["sharpening-0.png"]
    strips = figure.axes[:4]
    assert [axes.get_ylabel() for axes in strips] == [
        "block 0, τ = 1",
        "block 0, τ = 0.125",
        "block 1, τ = 1",
        "block 1, τ = 0.125",
    ]
    assert [np.nanmax(grid) * 99 for grid in grids(figure)[:4]] == pytest.approx([1, 2, 11, 12])
    # Gates of 0 and 1 are the limit of all temperatures.
    hard = dict(pictures(layers[:1], TOKENS, [sharpened(layers, 0.0)]))["sharpening-0.png"]
    assert hard.axes[1].get_ylabel() == "block 0, τ → 0"


def test_states_are_rows_and_inputs_columns():
    sizes = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.0], [0.1, None, 0.75]]
    figure = draw_mixing([[sizes]], ["block 0"], {"s": ["7", "8", "9"]}, title="mixing")
    axes = figure.axes[0]
    np.testing.assert_array_equal(grids(figure)[0], np.array(sizes, dtype=float))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["7", "8", "9"]
    assert axes.get_ylabel() == "state after token"
    assert axes.get_xlabel() == "input of token"
    # Time runs downwards, as in a matrix.
    assert axes.yaxis_inverted()


def test_columns_appear_where_there_is_something_to_say(layers):
    plain = text.table(layers)
    assert [line.cells[:3] for line in plain.lines] == [
        ("0", "BD-LRU", "2 blocks of 3"),
        ("2", "Mamba-2", "4 heads of 1"),
    ]
    assert plain.lines[1].cells[-1] == "–"
    assert list(text.without(layers)) == [
        "layer 1 (LSTM) has no transitions to show: it writes out no linear recurrence"
    ]
    joined = {"order": 1234, "most": 5000}
    table = text.table(layers, [sharpened(layers)], joined)
    assert table.head == (*plain.head, "unsharpened", "joint maps")
    # Mamba-2 has no gates with a temperature.
    assert [line.cells[-2:] for line in table.lines] == [("0.500", "1,234"), ("–", "1,234")]
    layers[0]["summary"] |= {"largest": None}
    assert text.table(layers[:1]).lines[0].cells[3] == "not finite"


# Two attempts: the first one is given up at step 40.
STEPS = [(10, 1), (20, 1), (40, 1), (50, 2), (60, 2)]
ROWS = [
    {"step": step, "attempt": attempt, "representations": {"1'": 0.3, "2": step / 100}}
    for step, attempt in STEPS
]
ATTEMPTS = [
    Attempt(0, left=15, ended=40, accuracy=0.2),
    Attempt(40, left=52, ended=58, accuracy=1.0, passed=True),
]


def lines(figure):
    """The points of the lines of a figure by colour, and the places of its vertical lines."""
    drawn = figure.axes[0].get_lines()
    upright = [float(line.get_xdata()[0]) for line in drawn if len(set(line.get_xdata())) == 1]
    curves = [line.get_xydata().tolist() for line in drawn if len(set(line.get_xdata())) > 1]
    return curves, upright


def test_a_line_breaks_between_two_attempts():
    figure = draw_race(ROWS, "S_3", ATTEMPTS)
    curves, _ = lines(figure)
    assert [[step, step / 100] for step, _ in STEPS[:3]] in curves
    assert [[step, step / 100] for step, _ in STEPS[3:]] in curves
    assert png(figure, 40)[1:4] == b"PNG"
