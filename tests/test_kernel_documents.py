"""The numbers of docs/kernels.md are those of committed rows."""

import json
from collections import Counter
from dataclasses import fields
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from statemix.bench.compiled import (
    KERNELS,
    OPERATORS,
    TARGETS,
    Compiled,
    Variant,
    families_of,
    sources,
)
from statemix.bench.configurations import spill_limit
from statemix.bench.predicted import CARRIES, predicted

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "kernels.md").read_text()
JOINED = " ".join(TEXT.split())
# The table of the kernels as they are; there is no other one.
(KERNEL_ROWS,) = (path.stem for path in (ROOT / "results" / "bench").glob("kernels-*.jsonl"))
LAYERS = {
    "target": "sm_90", "dtype": "bfloat16", "gate": "softmax", "packed": False, "ragged": False,
    "tempered": True, "width": 192, "full": False,
}  # fmt: skip
NAMES = {"block": "BD-LRU", "lag": "H-LRU"}
MAPS = ("block", "chunk_forward")
SHOWN = (1, 2, 3, 4, 5, 6, 8, 16)


@cache
def rows(name):
    lines = (ROOT / "results" / "bench" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def table(name):
    """The cells of the table behind a mark, without its head."""
    lines = TEXT.partition(f"<!-- {name} -->\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def both_directions(name):
    """The rows of our operators, forward and backward, by dtype, gates, sizes and recurrence."""
    found = {}
    for row in rows(name):
        case = row["case"]
        if row["provider"] == "statemix" and case["direction"] == "forward_backward":
            assert row["memory_reused"]
            sizes = [case[size] for size in ("batch_size", "length", "num_blocks", "block_size")]
            key = (row["dtype"], case["gate"], "x".join(map(str, sizes)), case["recurrence"])
            found[key] = row
    return found


def are_of_amd_and_intel(*machines, head):
    """Check whose rows these are, and that the head of their table says so."""
    vendors = [{row["cpu"].split()[0] for row in of_machine} for of_machine in machines]
    assert vendors == [{"AMD"}, {"Intel(R)"}]
    assert f"| {head} |\n" in TEXT


def test_operators_against_a_copy():
    machines = both_directions("ops-5f14511"), both_directions("ops-9442151")
    are_of_amd_and_intel(
        *(found.values() for found in machines),
        head="BD-LRU, AMD | H-LRU, AMD | BD-LRU, Intel | H-LRU, Intel",
    )
    for dtype, gate, sizes, *shown in table("operators"):
        cells = []
        for found in machines:
            for recurrence in ("bd_lru", "h_lru"):
                row = found.pop((dtype, gate, sizes, recurrence), None)
                cells.append(f"{row['ratios']['copy']['p50']:.1f}" if row else "")
        assert shown == cells
    assert not any(machines)


def test_operators_against_a_copy_and_the_paper():
    found = {}
    for row in rows("ops-0cfac9a"):
        case = row["case"]
        if (case["direction"], case["batch_size"]) == ("forward_backward", 8):
            key = case["recurrence"], str(case["block_size"]), row["provider"]
            found[key] = row["ratios"]
    for size, *shown in table("paper"):
        cells = []
        for recurrence in ("bd_lru", "h_lru"):
            cells.append(f"{found.pop((recurrence, size, 'statemix'))['copy']['p50']:.2f}")
            paper = found.pop((recurrence, size, "paper"))
            cells.append(f"{paper['statemix']['p50']:.0f}" if paper else "skipped")
        assert shown == cells
    assert {provider for *_, provider in found} == {"copy", "torch-loop"}


def test_a_copy_differs_more_between_two_runs_than_an_operator():
    told = []
    for name in ("ops-f0bf39e", "ops-5f14511"):
        row = both_directions(name)["bfloat16", "softmax", "8x2048x128x4", "bd_lru"]
        assert row["cpu"].startswith("AMD EPYC")
        ours = row["time_s"]["p50"]
        told.append((round(1e3 * ours / row["ratios"]["copy"]["p50"]), round(1e3 * ours)))
    (earlier, slow), (now, same) = told
    assert slow == same
    assert f"8x2048x128x4 took {earlier} ms in an earlier run on the AMD EPYC" in JOINED
    assert f"and {now} ms in this one, the operator {same} ms in both:" in JOINED


def test_gates_prefetched_in_the_order_of_memory():
    before, after = both_directions("ops-686d605"), both_directions("ops-9442151")
    ratios = [
        before[key]["ratios"]["copy"]["p50"] / after[key]["ratios"]["copy"]["p50"]
        for key in before
        if key[0] == "float32" and key[2].startswith("8x")
    ]
    assert f"takes up to {max(ratios):.1f} times as many copies on the Intel Xeon" in JOINED


def test_operators_of_peers():
    cases = {}
    for row in rows("ops-d6c4113"):
        case = row["case"]
        if case["direction"] == "forward_backward":
            sizes = [case[name] for name in ("batch_size", "length", "num_blocks", "block_size")]
            name = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}[case["recurrence"]]
            key = (name, row["dtype"], "x".join(map(str, sizes)))
            cases.setdefault(key, {})[row["provider"]] = row
    shown = table("peers")
    assert len(shown) == len(cases)
    for *key, times in ((*cells[:3], cells[3:]) for cells in shown):
        found = cases[tuple(key)].values()
        assert times == [f"{1e3 * row['time_s']['p50']:.1f}" for row in found]
    small = cases["BD-LRU", "float32", "128x16x64x5"]
    ratio = small["statemix"]["ratios"]["copy"]["p50"]
    assert f"and {ratio:.1f} in this run" in JOINED
    ours = small["statemix"]["time_s"]["p50"]
    assert all(small[name]["time_s"]["p50"] < ours for name in ("mamba2", "delta_net"))


def test_layers_beside_their_projections():
    found = {}
    machines = rows("layers-5f14511"), rows("layers-637d344")
    of_machine = "x of its projections, {0} | x of an LSTM of its width, {0}"
    head = " | ".join(of_machine.format(name) for name in ("AMD", "Intel"))
    are_of_amd_and_intel(*machines, head=head)
    for of_one in machines:
        for row in of_one:
            part = row["ratios"].get(f"{row['provider']} projections")
            if part is not None:
                case = row["case"]
                sizes = f"{case['batch_size']}x{case['length']}x{case['hidden_size']}"
                ratios = part["p50"], row["ratios"]["lstm"]["p50"]
                cells = found.setdefault((row["provider"], sizes), [])
                cells.extend(f"{ratio:.2f}" for ratio in ratios)
    shown = table("layers")
    assert len(shown) == len(found) == 10
    for layer, sizes, *cells in shown:
        assert cells == found[layer.strip("`"), sizes]
    # The sentence behind the table leaves out pieces and the smallest layer.
    plain = [cells for cells in shown if "checkpoint" not in cells[0]]
    most = [
        max(round(100 * float(cells[at]) - 100) for cells in plain if cells[1].endswith(width))
        for width, at in product(("x768", "x256"), (2, 4))
    ]
    wide, wide_intel, narrow, narrow_intel = most
    assert f"up to {wide}% longer than its projections on AMD's processor" in JOINED
    assert f"and up to {wide_intel}% on Intel's" in JOINED
    assert f"at 256 up to {narrow}% and {narrow_intel}%." in JOINED


def test_steps_beside_their_projections():
    found = {}
    machines = rows("decode-c80c6c9"), rows("decode-637d344")
    head = "batch 1, AMD | batch 16, AMD | batch 1, Intel | batch 16, Intel"
    are_of_amd_and_intel(*machines, head=head)
    for of_one in machines:
        for row in of_one:
            case = row["case"]
            if row["provider"] == "statemix":
                name = {"bd_lru": "BD-LRU", "h_lru": "H-LRU"}[case["recurrence"]]
                sizes = name, str(case["hidden_size"]), str(case["block_size"]), case["batch_size"]
                cells = found.setdefault(sizes, [])
                cells.append(f"{row['ratios']['projections']['p50']:.2f}")
    for *sizes, one, many, intel_one, intel_many in table("steps"):
        assert [one, intel_one] == found.pop((*sizes, 1))
        assert [many, intel_many] == found.pop((*sizes, 16))
    assert not found


def kernels(**choices):
    """The rows of the kernels that layers run, or of those with other choices."""
    wanted = LAYERS | choices
    return [
        row
        for row in rows(KERNEL_ROWS)
        if all(row[name] == value for name, value in wanted.items())
    ]


def test_the_table_is_of_the_present_kernels():
    """If not: `statemix bench kernels` makes the rows of a commit, which docs/kernels.md names."""
    found = rows(KERNEL_ROWS)
    assert {row["sources"] for row in found} == {sources()}
    assert all(row["tree_clean"] for row in found)
    # Some rows are later ones, because their options have changed since.
    commits = Counter(row["commit"][:7] for row in found)
    assert commits.most_common(1)[0][0] == KERNEL_ROWS.removeprefix("kernels-")
    assert f"results/bench/{KERNEL_ROWS}.jsonl" in TEXT
    assert f"results/bench/{KERNEL_ROWS}.jsonl" in (ROOT / "results" / "LOG.md").read_text()


def test_no_row_lacks_a_column():
    columns = {field.name for field in fields(Variant)} | set(Compiled._fields) | {"sources"}
    for row in rows(KERNEL_ROWS):
        empty = {name for name in columns if row[name] is None}
        amd = {"load", "store", "loads", "in_flight", "instructions"} | {
            *("functions", "issue", "special", "wait", "predicted_us")
        }
        assert empty == (amd if row["target"] == "gfx942" else set())


def test_the_table_has_every_kernel_of_layers_at_every_size_on_every_target():
    for target in TARGETS:
        found = [(row["operator"], row["kernel"], row["size"]) for row in kernels(target=target)]
        assert len(set(found)) == len(found)
        assert set(found) == set(product(OPERATORS, KERNELS, range(1, 17)))


def test_the_table_has_every_family_and_dtype():
    for operator, kernel, size in product(OPERATORS, KERNELS[:4], (1, 4, 8)):
        for choices in (
            *({"gate": gate} for gate in families_of(operator)),
            *({"dtype": dtype} for dtype in ("float16", "float32", "float64")),
            {"packed": True, "ragged": True},
            {"tempered": False},
        ):
            found = [(row["operator"], row["kernel"], row["size"]) for row in kernels(**choices)]
            assert found.count((operator, kernel, size)) == 1


def test_registers_are_spilled_only_where_it_is_said():
    for row in rows(KERNEL_ROWS):
        variant = Variant(**{field.name: row[field.name] for field in fields(Variant)})
        if variant.target == "sm_90":
            assert row["spilled"] <= spill_limit(variant)
    spilled = [row for row in rows(KERNEL_ROWS) if row["spilled"]]
    assert f"Of the table's {len(rows(KERNEL_ROWS)):,} kernels, {len(spilled)} spill" in TEXT


def test_gates_of_layers_are_read_by_loads_as_wide_as_the_lanes_of_a_thread():
    for row in kernels():
        if row["kernel"] not in CARRIES:
            assert row["load"] == 2 * row["lanes"] // 32
    for row in kernels(full=True):
        if row["size"] <= 4:
            wide = row["kernel"] == "local_forward" or row["size"] <= 2
            assert (row["load"], row["store"]) == ((16, 16) if wide else (8, 8))


def test_what_takes_longer_than_its_bytes():
    scans = [row for row in kernels() if row["kernel"] not in CARRIES]
    for row in scans:
        if row["size"] <= 8 or row["kernel"] != "chunk_forward":
            assert row["issue"] < 1
        assert row["special"] < 1 or row["size"] > 8
        limits = (1, row["issue"], row["special"], row["wait"])
        assert row["predicted_us"] == pytest.approx(row["roofline_us"] * max(limits), rel=1e-3)
    small = [row for row in scans if row["size"] <= 8]
    told = f"special functions take at most {max(row['special'] for row in small):.2f} of the time"
    assert told in JOINED
    local, chunks = (
        max(row["wait"] for row in small if row["kernel"].startswith(kind))
        for kind in ("local", "chunk")
    )
    assert f"local scans up to {local:.2f} times as long as their bytes take" in JOINED
    reflected = max(row["wait"] for row in kernels(gate="householder") if row["size"] <= 8)
    assert f"what chunks need up to {chunks:.2f} (with reflections {reflected:.2f})." in JOINED
    slow, *same = [row for row in small if row["wait"] == chunks]
    assert {row["kernel"] for row in (slow, *same)} == {"chunk_forward"}
    flying = f"{slow['in_flight']} of {slow['loads']} are in flight in the maps."
    assert f"at m = {slow['size']}, {flying}" in JOINED
    untempered = kernels(tempered=False)
    told = f"without a temperature, {max(row['issue'] for row in untempered):.3f} times as long"
    assert told in JOINED
    (largest,) = [
        row for row in scans if row["size"] == 8 and (row["operator"], row["kernel"]) == MAPS
    ]
    steps = f"maps take {largest['instructions'] * 72:,.0f} instructions for a step"
    assert f"At m = 8, {steps}" in JOINED
    assert f"the bytes of the map that is written the ratio is {largest['issue']:.3f}." in JOINED
    large = [row for row in scans if row["size"] > 8]
    maps = [row for row in large if row["kernel"] == "chunk_forward"]
    issue = sorted(row["issue"] for row in maps)
    assert f"the maps take {issue[0]:.1f} to {issue[-1]:.1f} times as long to issue" in JOINED
    assert f"and wait up to {max(row['wait'] for row in maps):.1f} times as long" in JOINED
    rest = max(row["wait"] for row in large if row not in maps)
    assert f"all else waits up to {rest:.2f} times as long as its bytes take." in JOINED
    for row in kernels(gate="householder"):
        if row["kernel"] != "chunk_forward" or row["size"] <= 3:
            assert row["issue"] < 1


def test_what_other_families_and_packed_sequences_take():
    found = {gate: kernels(gate=gate) for gate in ("sigmoid", "relu", "signed", "tanh")}
    half = kernels(gate="tanh", dtype="float16")
    for rows_of in (*found.values(), half):
        assert {row["size"] for row in rows_of} == set(range(1, 9))

    def most(column, kind, rows_of):
        return f"{max(row[column] for row in rows_of if row['kernel'].startswith(kind)):.2f}"

    def begin(column, kind, rows_of):
        of_kind = (row for row in rows_of if row["kernel"].startswith(kind))
        return min(row["size"] for row in of_kind if row[column] > 1)

    sigmoid = found["sigmoid"]
    told = (
        f"The maps of sigmoid gates take up to {most('issue', 'chunk_forward', sigmoid)} times as "
        f"long to issue as their bytes take, and more than once as long from m = "
        f"{begin('issue', 'chunk_forward', sigmoid)} on; their special functions take up to "
        f"{most('special', 'chunk_forward', sigmoid)} times as long, those of what leaves a chunk "
        f"up to {most('special', 'chunk_backward', sigmoid)}, and those of local scans forward up "
        f"to {most('special', 'local_forward', sigmoid)}, more than once from m = "
        f"{begin('special', 'local_forward', sigmoid)} on."
    )
    assert told in JOINED
    small = (most("issue", "chunk_forward", found[gate]) for gate in ("tanh", "relu", "signed"))
    told = (
        "The maps of tanh, relu and signed gates issue up to {}, {} and {} times as long,".format(
            *small
        )
    )
    others = [row for gate in ("tanh", "relu", "signed") for row in found[gate]]
    assert max(row["issue"] for row in others) < 1
    assert max(row["special"] for row in others) < 1
    every = [*sigmoid, *others]
    leaving, local = (most("issue", kind, every) for kind in ("chunk_backward", "local"))
    assert f"{told} what leaves a chunk up to {leaving}, and local scans up to {local}." in JOINED
    halves = (most("issue", kind, half) for kind in ("chunk_forward", "chunk_backward", "local"))
    told = "In float16, tanh gates take up to {}, {} and {} times as long to issue".format(*halves)
    assert (
        f"{told}, and maps more than once from m = {begin('issue', 'chunk_f', half)} on" in JOINED
    )
    waits = max(row["wait"] for row in every)
    assert f"By waiting, these families take up to {waits:.1f} times the time of their" in JOINED
    packed = kernels(packed=True, ragged=True)
    assert {row["size"] for row in packed} == {1, 4, 8}
    assert max(row["issue"] for row in packed) < 1
    waits = [max(row["wait"] for row in packed if (row["size"] > 1) == large) for large in (1, 0)]
    assert "and wait up to {:.1f} times as long, at m = 1 {:.1f}:".format(*waits) in JOINED


@pytest.mark.parametrize(
    ("mark", "column", "gate", "operators", "sizes"),
    [
        ("issue", "issue", "softmax", OPERATORS, SHOWN),
        ("wait", "wait", "softmax", OPERATORS, SHOWN),
        ("reflected", "issue", "householder", ("block",), SHOWN[:-1]),
    ],
)
def test_times_over_that_of_the_bytes(mark, column, gate, operators, sizes):
    found = {
        (row["operator"], row["kernel"], row["size"]): f"{row[column]:.2f}"
        for row in kernels(gate=gate)
    }
    assert table(mark) == [
        [f"{NAMES[operator]}, {kernel.replace('_', ' ')}"]
        + [found[operator, kernel, size] for size in sizes]
        for operator, kernel in product(operators, KERNELS[:4])
    ]


def test_predicted_times():
    lines = []
    for operator in OPERATORS:
        both = [*kernels(), *kernels(full=True)]
        found = [predicted(both, operator, size) for size in SHOWN]
        for name, cells in zip(
            ("one pass, over a copy", "chunks, over a copy", "a layer, Mtok/s"),
            zip(*found, strict=True),
            strict=True,
        ):
            lines.append([f"{NAMES[operator]}, {name}", *(f"{cell:.2f}" for cell in cells)])
    assert table("predicted") == lines


def at_every_size(operator):
    """Predictions at m = 1 to 16. One pass, which the table has not at all of them, is not used."""
    few = kernels()
    both = [*few, *({**row, "full": True} for row in few)]
    return [predicted(both, operator, size) for size in range(1, 17)]


def test_predictions_that_are_told_in_words():
    blocks, lags = (at_every_size(operator) for operator in OPERATORS)
    layers = [found.layer for found in blocks]
    assert min(layers) >= 2.2
    told = f"({min(layers):.2f} to {max(layers):.2f} for BD-LRU, {{}} and more for H-LRU)"
    assert told.format(f"{min(found.layer for found in lags):.2f}") in JOINED
    small, all_sizes = (round(100 * (1 - min(part) / max(part))) for part in (layers[:8], layers))
    assert f"spread is {small}% up to m = 8, and {all_sizes}% up to 16" in JOINED
    chunked = [found.chunked for found in blocks]
    assert max(chunked[:4]) < 1.6 < min(chunked[4:8])
    assert f"BD-LRU has {min(chunked[:4]):.2f} to {max(chunked[:4]):.2f} up to m = 4" in JOINED
    assert f"m = 5 to 8 ({min(chunked[4:8]):.2f} to {max(chunked[4:8]):.2f})" in JOINED
    few = [found.chunked for found in lags[:8]]
    assert f"H-LRU keeps it, with {min(few):.2f} to {max(few):.2f}." in JOINED
    assert max(few) < 1.6
    assert f"both ({chunked[15]:.2f} and {lags[15].chunked:.2f})" in JOINED


def test_what_following_maps_takes():
    following = {
        row["size"]: row
        for row in kernels()
        if (row["operator"], row["kernel"]) == ("block", "carries")
    }
    found = (f"{following[size]['predicted_us']:.2g}" for size in (1, 4, 8))
    told = "for BD-LRU {} microseconds forward at m = 1, {} at 4 and {} at 8".format(*found)
    assert told.replace(" 0.", " .") in JOINED
    waits = [row["wait"] for row in kernels() if row["kernel"] in CARRIES]
    assert f"waits up to {max(waits):.1f} times as long as they take" in JOINED


def test_predictions_want_every_kernel():
    some = [row for row in [*kernels(), *kernels(full=True)] if row["kernel"] != "carries"]
    with pytest.raises(ValueError, match=r"rows must have \['carries'\] of block at m = 4"):
        predicted(some, "block", 4)


@pytest.mark.parametrize(
    "name", ["operators", "peers", "layers", "steps", "issue", "wait", "reflected", "predicted"]
)
def test_every_table_has_its_mark_once(name):
    assert TEXT.count(f"<!-- {name} -->") == 1
