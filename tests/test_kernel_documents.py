"""The numbers of docs/kernels.md are those of committed rows."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "kernels.md").read_text()


def rows(name):
    lines = (ROOT / "results" / "bench" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def table(name):
    """The cells of the table behind a mark, without its head."""
    lines = TEXT.partition(f"<!-- {name} -->\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_operators_against_a_copy():
    found = {}
    for row in rows("ops-f0bf39e"):
        case = row["case"]
        if row["provider"] == "statemix" and case["direction"] == "forward_backward":
            assert row["memory_reused"]
            sizes = [case[name] for name in ("batch_size", "length", "num_blocks", "block_size")]
            key = (row["dtype"], case["gate"], "x".join(map(str, sizes)), case["recurrence"])
            found[key] = f"{row['ratios']['copy']['p50']:.1f}"
    shown = table("operators")
    del found["float32", "softmax", "2x512x192x4", "bd_lru"]  # in the table of peers
    for dtype, gate, sizes, blocks, lags in shown:
        assert blocks == found.pop((dtype, gate, sizes, "bd_lru"), "")
        assert lags == found.pop((dtype, gate, sizes, "h_lru"), "")
    assert not found


def test_operators_of_peers():
    cases = {
        (row["provider"], row["case"]["direction"]): f"{1e3 * row['time_s']['p50']:.1f}"
        for row in rows("ops-f0bf39e")
        if row["time_s"] and (row["case"]["length"], row["case"]["num_blocks"]) == (512, 192)
    }
    shown = table("peers")
    assert len(shown) == len({name for name, _ in cases}) == 7
    for operator, forward, both in shown:
        name = operator.strip("`")
        assert (forward, both) == (cases[name, "forward"], cases[name, "forward_backward"])


def test_layers_beside_their_projections():
    found = {}
    for row in rows("layers-f0bf39e"):
        part = row["ratios"].get(f"{row['provider']} projections")
        if part is not None:
            case = row["case"]
            sizes = f"{case['batch_size']}x{case['length']}x{case['hidden_size']}"
            ratios = part["p50"], row["ratios"]["lstm"]["p50"]
            found[row["provider"], sizes] = [f"{ratio:.2f}" for ratio in ratios]
    shown = table("layers")
    assert len(shown) == len(found) == 9
    for layer, sizes, *cells in shown:
        assert cells == found[layer.strip("`"), sizes]


def test_steps_beside_their_projections():
    found = {}
    for row in rows("decode-f0bf39e"):
        case = row["case"]
        if row["provider"] == "statemix":
            name = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}[case["recurrence"]]
            sizes = name, str(case["hidden_size"]), str(case["block_size"]), case["batch_size"]
            found[sizes] = f"{row['ratios']['projections']['p50']:.2f}"
    for *sizes, one, many in table("steps"):
        assert [one, many] == [found.pop((*sizes, batch)) for batch in (1, 16)]
    assert not found


@pytest.mark.parametrize("name", ["operators", "peers", "layers", "steps"])
def test_every_table_has_its_mark_once(name):
    assert TEXT.count(f"<!-- {name} -->") == 1
