"""Figure 3: rows of the benchmark of layers become points, panels, tables and a picture."""

import json

import numpy as np
import pytest

from statemix.errors import RequestError
from statemix_lab.bench.compared_layers import LOOKS
from statemix_lab.bench.harness import Spread
from statemix_lab.studies.figure import draw
from statemix_lab.studies.throughput import Setting, caption, read, speed_panels

SIZES = {"hidden_size": 8, "batch_size": 2, "length": 5}
WIDE = {"hidden_size": 768}
SCAN = "bd_lru num_blocks=192 block_size=4 backend=associative"
LOST = {"time_s": None, "status": "skipped", "reason": "needs 9 GB", "ratios": {}}


def row(layer, *, hidden_size, batch_size, length, time_s=1.0, **changes):
    """A row as ``statemix bench layers`` stores it."""
    name, *options = layer.removesuffix(" compiled").split()
    values = dict(option.split("=") for option in options)
    values = {name: int(text) if text.isdecimal() else text for name, text in values.items()}
    backend = {"backend": None} if name == "bd_lru" else {}
    return {
        "benchmark": "layers",
        "case": {"hidden_size": hidden_size, "batch_size": batch_size, "length": length},
        "dtype": "float32",
        "layer": {"name": name, **backend, **values},
        "label": f"BD-LRU m={values['block_size']}" if name == "bd_lru" else name.upper(),
        "compiled": layer.endswith(" compiled"),
        "num_parameters": 1000,
        "provider": layer,
        "status": "measured",
        "reason": "",
        "time_s": {"p20": 0.5 * time_s, "p50": time_s, "p80": 2.0 * time_s},
        "ratios": {} if name == "lstm" else {"lstm": {"p20": 1.0, "p50": 3.0, "p80": 4.0}},
        "commit": "abcdef0123",
        "tree_clean": True,
        "cpu": "AMD EPYC",
        "threads": 2,
        "device": "cpu",
        "graphs": False,
        **changes,
    }


@pytest.fixture
def points(tmp_path):
    """Return a function from rows, as many files, to points."""

    def of_rows(*files):
        paths = []
        for number, rows in enumerate(files):
            paths.append(tmp_path / f"rows{number}.jsonl")
            paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read(paths)

    return of_rows


def test_a_row_is_a_point(points):
    layer = "bd_lru num_blocks=4 block_size=2 backend=loop"
    (point,) = points([row(layer, **SIZES)])
    assert point.setting == Setting("AMD EPYC", 2, "float32", False)
    assert point.setting.title == "AMD EPYC, 2 threads, float32"
    assert point.speed == Spread(5.0, 10.0, 20.0)  # 10 tokens in 2, 1 and 0.5 seconds
    assert tuple(dict(point.ratio).values()) == (1.0, 3.0, 4.0)
    assert (point.hidden_size, point.batch_size, point.length) == (8, 2, 5)
    assert (point.provider, point.layer.name, point.label) == (layer, "bd_lru", "BD-LRU m=2")
    assert (point.num_parameters, point.version, point.missing) == (1000, "abcdef0", "")


@pytest.mark.parametrize(
    ("options", "implementation"),
    [
        (" backend=loop", "sequential"),
        (" backend=associative", "parallel"),
        (" backend=associative compiled", "autotuned"),
        (" backend=cpu", "CPU kernels"),
        ("", ""),
    ],
)
def test_implementations_are_called_as_in_the_paper(points, options, implementation):
    (point,) = points([row(f"bd_lru num_blocks=4 block_size=2{options}", **SIZES)])
    assert point.implementation == implementation


def test_settings_and_versions_of_other_machines_and_older_rows(points):
    old = row("lstm", **SIZES)
    for name in ("device", "graphs", "compiled"):
        del old[name]
    gpu = row("lstm", **SIZES, device="NVIDIA H200", graphs=True, tree_clean=False)
    unknown = row("lstm", **SIZES, threads=1, commit=None, tree_clean=None)
    first, second, third = points([old, gpu, unknown, {"benchmark": "ops"}])
    assert first.setting == Setting("AMD EPYC", 2, "float32", False)
    assert second.setting == Setting("NVIDIA H200", None, "float32", True)
    assert second.setting.title == "NVIDIA H200, float32, CUDA graphs"
    assert third.setting.title == "AMD EPYC, 1 thread, float32"
    assert [one.version for one in (first, second, third)] == ["abcdef0", "abcdef0+", "unknown"]


def test_the_last_of_repeated_rows_counts_if_it_has_a_time(points):
    first, second = (row("lstm", **SIZES, num_parameters=number) for number in (1, 2))
    lost = row("lstm", **SIZES) | LOST
    (found,) = points([lost, first], [second, lost])
    assert found.num_parameters == 2
    (point,) = points([lost])
    assert (point.speed, point.missing) == (None, "skipped: needs 9 GB")
    others = [row("lstm", **SIZES | {name: 9}) for name in SIZES]
    others += [row("lstm", **SIZES, threads=1), row("lstm", **SIZES, dtype="bfloat16")]
    others += [row(SCAN, **SIZES), row(f"{SCAN} compiled", **SIZES)]
    assert len(points(others, others)) == len(others)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"case": None}, "case.hidden_size .*, got nothing$"),
        ({"case": SIZES | {"length": 0}}, "case.length must be greater than 0, got 0$"),
        ({"time_s": {"p20": 1.0, "p50": -1.0, "p80": 1}}, "time_s.p50 must be greater than 0, "),
        ({"threads": None}, "threads must be given on a CPU, got "),
        ({"layer": {"name": "bd_lru", "num_blocks": "x"}}, "layer.num_blocks must be a valid int"),
    ],
)
def test_a_bad_field_is_named_with_its_file_and_line(points, change, message):
    rows = [row("lstm", **SIZES), row("lstm", **SIZES) | change]
    with pytest.raises(RequestError, match=f"rows0.jsonl:2: {message}"):
        points(rows)


def test_a_line_or_a_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    for line in ("{", "3", "", "[" * 100_000):
        path.write_text(f'{{"benchmark": "ops"}}\n{line}\n')
        with pytest.raises(RequestError, match=r"bad\.jsonl:2 must be a row of a benchmark, got "):
            read([path])
    with pytest.raises(RequestError, match=r"files must be readable, got '.*' \(No such file"):
        read([tmp_path / "none"])


def test_blocks_are_compared_by_their_size(points):
    found, missing = speed_panels(
        points(
            [
                row(f"bd_lru num_blocks={blocks} block_size={m} backend={backend}", **SIZES)
                for blocks in (128, 64)
                for m in (4, 1)
                for backend in ("loop", "associative", "associative compiled")
            ]
        )
    )
    (panel,) = found
    assert panel.title == "(A) BD-LRU of 128 blocks\nT = 5, B = 2, width = 8"
    assert list(panel.lines) == ["BD-LRU, autotuned", "BD-LRU, parallel", "BD-LRU, sequential"]
    for line in panel.lines.values():
        labels = [(m, point.label) for m, point in line.items()]
        assert labels == [(1, "BD-LRU m=1"), (4, "BD-LRU m=4")]
    assert len(missing) == 4
    text = "(B) hidden size 768, against length T: fewer than two places were measured"
    assert missing[0] == text


def test_lengths_and_batches_are_two_panels(points):
    rows = [
        row(layer, **WIDE, batch_size=batch_size, length=length)
        for layer in ("lstm", SCAN)
        for batch_size, length in ((8, 32), (8, 64), (8, 16), (4, 64), (2, 16), (2, 32))
    ]
    # The most places count, then the most points, then the largest sizes.
    rows += [row("conv", **WIDE, batch_size=2, length=length) for length in (16, 32)]
    found, missing = speed_panels(points(rows))
    titles = ["(B) hidden size 768\nB = 8", "(B) hidden size 768\nT = 32"]
    assert [panel.title for panel in found] == titles
    places = [[list(line) for line in panel.lines.values()] for panel in found]
    assert places == [[[16, 32, 64]] * 2, [[2, 8], [2], [2, 8]]]
    assert list(found[0].lines) == ["BD-LRU m=4, parallel", "LSTM"]
    assert len(missing) == 3


@pytest.mark.parametrize(
    ("layer", "width", "parameters", "letters"),
    [
        ("lstm", 768, 1000, "B"),
        ("lstm", 1024, 31_350_000, "C"),
        ("lstm", 1024, 31_349_999, ""),
        ("lstm", 768, 33_000_000, "BC"),
        ("bd_lru num_blocks=192 block_size=4", 768, 1000, "B"),
        ("bd_lru num_blocks=193 block_size=4", 768, 1000, ""),
        ("h_lru num_channels=768 order=4", 768, 1000, "B"),
        ("h_lru num_channels=192 order=4", 768, 1000, ""),
    ],
)
def test_layers_belong_to_comparisons_by_their_sizes(points, layer, width, parameters, letters):
    rows = [
        row(layer, hidden_size=width, batch_size=1, length=length, num_parameters=parameters)
        for length in (4, 8)
    ]
    found, _ = speed_panels(points(rows))
    assert "".join(panel.letter for panel in found) == letters


def test_layers_of_one_label_go_by_their_options(points):
    twins = [SCAN, f"{SCAN} gate=tanh"]
    rows = [row(one, **WIDE, batch_size=1, length=length) for one in twins for length in (4, 8)]
    (panel,), _ = speed_panels(points(rows))
    assert list(panel.lines) == twins


def test_the_figure_and_its_tables_show_every_point(points):
    rows = [
        row(layer, **WIDE, batch_size=batch_size, length=length)
        for layer in ("lstm", SCAN, f"{SCAN} compiled", SCAN.replace("associative", "loop"))
        for batch_size, length in ((8, 16), (8, 32), (4, 32))
    ]
    rows[1] |= {"commit": "1234567890"}
    rows[-1] |= LOST
    measured = points(rows)
    panels, _ = speed_panels(measured)
    lines = panels[1].table().as_text().splitlines()
    assert lines[0].split()[1:4] == ["parameters", "B", "tokens/s"]
    assert lines[1].split()[-7:] == ["1,000", "4", "128", "64", "-", "256", "3"]
    assert lines[5].split()[-6:] == ["4", "–", "skipped:", "needs", "9", "GB"]
    title = caption(measured[0].setting, measured)
    assert title.endswith("\nAMD EPYC, 2 threads, float32, commits abcdef0, 1234567")
    figure = draw([panel.drawn() for panel in panels], "tokens per second", title)
    assert figure._suptitle.get_text() == title
    (legend,) = figure.legends
    names = [f"BD-LRU m=4, {name}" for name in ("autotuned", "parallel", "sequential")]
    assert [text.get_text() for text in legend.get_texts()] == [*names, "LSTM"]
    colours = [handle.get_color() for handle in legend.legend_handles]
    assert colours[-1] == LOOKS["lstm"].colour
    assert len(set(colours)) == 4
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.get_xticks()) == [16, 32]
    drawn = {one.get_color(): one for one in axes.lines if len(one.get_xdata())}
    np.testing.assert_allclose(drawn[colours[1]].get_xydata(), [[16, 8 * 16], [32, 8 * 32]])
    assert [drawn[colour].is_dashed() for colour in colours] == [True, True, True, False]
    # Bands span the 20th to the 80th percentile.
    for band in axes.collections:
        corners = band.get_paths()[0].vertices
        at_16 = corners[corners[:, 0] == 16][:, 1]
        np.testing.assert_allclose([at_16.min(), at_16.max()], [4 * 16, 16 * 16])
