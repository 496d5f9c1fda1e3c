"""The panels, lines and places of the paper's figures."""

import pytest

from statemix_lab.studies.higher_order.paper_figures import FIGURES
from statemix_lab.studies.higher_order.paper_tables import TABLES
from statemix_lab.studies.study_entries import plan

ORDERS = [1, 2, 3, 4, 5, 6, 8, 16]
TAPS = [2, 4, 8, 16, 32, 64]
ENTRIES = [48, 96, 192, 384, 768, 1536]
MODELS = ("BD-LRU", "H-LRU")
# What a laptop has of each line of figures 2, 5 and 6.
FEW = {tuple(ORDERS): [1, 4, 16], tuple(TAPS): [2, 8, 64], tuple(ENTRIES): [48, 192, 1536]}
# Those beside softmax.
GATES = ("sigmoid", "relu", "none", "tanh", "signed")

PARAMETERS = {
    "BD-LRU, constant gates": [49536, 49728, 49780, 49920, 50112, 50496, 50880, 52416],
    "H-LRU, constant gates": [26316, 27864, 28896, 29412, 30960, 33024, 37152, 49536],
    "convolution, dense": [128 * 128 * taps + 128 for taps in TAPS],
    "convolution, depthwise": [128 * taps + 128 for taps in TAPS],
}
FEW |= {
    tuple(PARAMETERS["BD-LRU, constant gates"]): [49536, 50112, 52416],
    tuple(PARAMETERS["H-LRU, constant gates"]): [26316, 30960, 49536],
    tuple(PARAMETERS["convolution, dense"]): [32896, 131200, 1048704],
    tuple(PARAMETERS["convolution, depthwise"]): [384, 1152, 8320],
}


def parameterisations(model):
    kinds = ("constant gates", "pointwise gates", "selective")
    names = [*kinds, *(f"constant gates, {gate}" for gate in GATES)]
    return {f"{model}, {name}": ORDERS for name in names}


def by_state_size(size):
    """The delta rules and Mamba-2 have as much state as their heads and channels make."""
    if size == "laptop":
        entries, fixed = ENTRIES, {"Mamba2, 4 taps": [2864]}
        fixed |= {"DeltaNet [-1,1]": [5248], "DeltaProduct_4 [-1,1]": [7552]}
    else:
        entries = [*ENTRIES, 3072, 6144]
        fixed = {"Mamba2, 2 taps": [772, 1288, 2320], "Mamba2, 4 taps": [1292, 1816, 2864]}
        fixed["DeltaNet [-1,1]"] = [3200, 5248, 9344]
        fixed["DeltaProduct_4 [-1,1]"] = [5504, 7552, 11648]
    orders = {"BD-LRU": (1, 2, 4), "H-LRU": (1, 4, 16)}
    return fixed | {f"{model} m={m}": entries for model in MODELS for m in orders[model]}


def views(figure, size):
    """Title of a view, which its panels have after their data -> line -> places."""
    return {
        "fig1c": {
            "": {
                "LSTM": [134272],
                "Mamba2": [10240],
                "DeltaNet [-1,1]": [24576],
                "DeltaProduct_4 [-1,1]": [73728],
                "BD-LRU": [768, 1152, 1536, 1920, 2280, 2688, 3456, 6528],
                "H-LRU": [408, 432, 448, 456, 480, 512, 576, 768],
            }
        },
        "fig1d": {"": dict.fromkeys(MODELS, ORDERS)},
        "fig2": {"": {f"{m}, {gate}": ORDERS for m in MODELS for gate in ("softmax", *GATES)}},
        "fig5": {"": by_state_size(size)},
        "fig6": {
            ", by m": {
                **{f"{model}, constant gates": ORDERS for model in MODELS},
                **{f"convolution, {kind}": TAPS for kind in ("dense", "depthwise")},
            },
            ", by size": PARAMETERS,
            ", H-LRU": parameterisations("H-LRU"),
            ", BD-LRU": parameterisations("BD-LRU"),
        },
    }[figure]


def data(figure, size):
    """The data of its panels."""
    copying, compression = {
        "laptop": ("copying 6 of 32 tokens", "compression of 16 tokens"),
        "paper": ("selective_copying baseline", "compression baseline"),
    }[size]
    five = ["S3-250", "S4-3k", "recall baseline", copying, compression]
    if figure in ("fig1c", "fig1d"):
        return [*five, "mean over the five"]
    return [compression, copying] if figure == "fig5" else [compression]


@pytest.mark.parametrize("size", ["laptop", "paper"])
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_its_panels_lines_and_places(name, size):
    found = {}
    for entry in FIGURES[name].entries("paper", size):
        panel, line, x = (entry.labels[label] for label in ("panel", "line", "x"))
        # A panel of several data sets has an entry for each.
        found.setdefault(panel, {}).setdefault(line, set()).add((x, entry.model))
    shown = {
        panel: {line: sorted(x for x, _ in places) for line, places in lines.items()}
        for panel, lines in found.items()
    }
    few = FEW if size == "laptop" and name not in ("fig1c", "fig1d") else {}
    assert shown == {
        one + title: {line: few.get(tuple(places), places) for line, places in lines.items()}
        for title, lines in views(name, size).items()
        for one in data(name, size)
    }


@pytest.mark.parametrize("name", FIGURES)
def test_points_have_layers_that_can_be_built_and_runs_with_names_of_their_own(name, tmp_path):
    entries = list(FIGURES[name].entries("paper", "laptop"))
    for layer in {layer for entry in entries for layer in entry.layers}:
        assert layer.build(hidden_size=128, device="meta").hidden_size == 128
    assert not any(entry.published for entry in entries)
    planned = plan(entries, tmp_path)
    assert len({one.job.name for one in planned}) == len(planned)


def test_figures_begin_with_the_ends_of_all_lines_and_share_runs_with_the_tables():
    entries = list(FIGURES["fig2"].entries("paper", "workstation"))
    lines = list(dict.fromkeys(entry.labels["line"] for entry in entries))
    assert len(lines) == 12
    places = [(entry.labels["line"], entry.labels["x"]) for entry in entries[:24]]
    assert places == [(line, m) for m in (1, 16) for line in lines]
    table = {
        name
        for entry in TABLES["table3"].entries("paper", "workstation")
        for _, _, name in entry.trials.runs
    }
    shared = {
        entry.labels["line"]
        for entry in entries
        if {name for _, _, name in entry.trials.runs} <= table
    }
    # Softmax is the default, as in the tables.
    assert shared == {"BD-LRU, softmax", "H-LRU, softmax"}
