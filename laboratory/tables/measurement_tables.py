"""The tables of single measurements in the documentation, each from a file of rows."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl

from statemix_lab.studies.result_text import accuracy_text
from statemix_lab.studies.store import StoredRow, merged
from statemix_lab.studies.tidy import failing_word

RESULTS = Path(__file__).parents[1] / "results"
LENGTHS = ("16", "64", "1024", "16384")
_LENGTH_TEXTS = tuple(f"{int(length):,}" for length in LENGTHS)
# The configurations in `laboratory/conform`.
_CONFORMING = {
    "mamba2": "Mamba-2",
    "mamba": "Mamba",
    "qwen3_next": "Qwen3-Next",
    "lfm2": "LFM2",
    "bd_lru": "BD-LRU",
    "h_lru_conv": "H-LRU, convolution",
    "gated_delta_net": "Gated DeltaNet",
    "bd_lru_attention": "BD-LRU, attention",
}
# Table 4 of the H-LRU paper, S_3 from 250 examples.
_PUBLISHED_S_3 = {"BD-LRU m=3": "1.00", "BD-LRU m=2": ".49", "BD-LRU m=1": ".38", "LSTM": ".32"}


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    return {
        "memory": _memory(),
        "races": _races(),
        "tracking_costs": _tracking_costs(),
        "layer_costs": _layer_costs(),
        "fixed_point_costs": _fixed_point_costs(),
        "compiled": _compiled(),
        "learners": _learners(),
        "large_log": _large_log(),
        "demo": _demo("S_3", _PUBLISHED_S_3),
        "demo_s5": _demo("S_5", {}),
        "demo_a5": _demo("A_5", {}),
        "demo_lstm": _demo_lstm(),
        "threads": _threads(),
        "anderson": _anderson(),
        "checks": _checks(),
        "conform": _conform(),
        "chess": _tracked("chess", 2000, "games", "plies", "positions"),
        "chess_boards": _boards(),
        "chess_original": _original_chess(),
        "cube": _tracked("cube", 18, "scrambles", "turns", "cubes"),
    }


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a dash stands in an empty cell."""
    lines = [header, ["---"] * len(header), *([cell or "–" for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def records(lines: Sequence[Mapping[str, str]]) -> str:
    """Return a Markdown table of lines that map the same headings to texts."""
    return markdown(list(lines[0]), [list(line.values()) for line in lines])


def pivot(head: Sequence[str], cells: Iterable[tuple[tuple[str, ...], str, str]]) -> str:
    """Return a Markdown table of cells: key of the line, heading of the column, and text."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for key, heading, text in cells:
        lines.setdefault(key, {})[heading] = text
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    texts = ([*key, *(line.get(name, "") for name in headings)] for key, line in lines.items())
    return markdown([*head, *headings], texts)


@cache
def study_rows() -> dict[str, StoredRow]:
    """Return the rows of all studies by key."""
    return merged(sorted((RESULTS / "reproduce").glob("*.jsonl")))


def unproven(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write the seeds that are not proven, each with a shortest word that is answered wrongly."""
    texts = []
    for row in sorted(rows, key=lambda row: row["seed"]):
        verdict = row["certificate"]["verdict"]
        if verdict != "proven":
            word = failing_word(row)
            texts.append(f"{row['seed']}: {f'`{word}`' if word else verdict}")
    return "<br>".join(texts)


def json_lines(*path: str) -> list[dict[str, Any]]:
    """Return the rows of a file in the folder of results."""
    return [json.loads(line) for line in RESULTS.joinpath(*path).read_text().splitlines()]


def _tracked(name: str, num_tokens: int, words: str, tokens: str, contents: str) -> str:
    """Return the table of a file in `results/demo`: one run of `statemix demo NAME` a line."""
    lines = []
    for row in json_lines("demo", f"{name}.jsonl"):
        trained, hard, proof = row["as_trained"], row["hardened"], row["certificate"]
        line = {
            "seed": str(row["seed"]),
            f"tokens right, of {num_tokens:,}": str(round(row["alike"] * num_tokens)),
            "verdict": proof["verdict"],
            "margin": "" if proof["margin"] is None else f"{proof['margin']:.1f}",
            f"{contents} exact, as trained": _exact(trained, tokens),
            f"{words} exact, as trained": _exact(trained, words),
            f"{contents} exact, long {words}": _exact(hard, tokens),
            "training": f"{row['training_s']:.0f} s",
        }
        lines.append(line)
    return records(lines)


def _exact(counts: Mapping[str, int], what: str) -> str:
    return f"{counts[f'exact_{what}']:,} of {counts[what]:,}"


def _boards() -> str:
    """Return what `statemix demo chess` prints of one long game."""
    return f"```text\n{(RESULTS / 'demo' / 'chess-boards.txt').read_text()}```\n"


def _original_chess() -> str:
    """Return the table of `results/demo/chess-original.jsonl`: one run of the demo a line."""
    return records(
        [
            {
                "seed": str(row["seed"]),
                "first tracker": row["certificates"]["first"]["verdict"],
                "second tracker": row["certificates"]["second"]["verdict"],
                "wrong kinds": str(row["wrong_kinds"]),
                "positions exact, as trained": _exact(row["as_trained"], "plies"),
                "games exact, as trained": _exact(row["as_trained"], "games"),
                "positions exact, gates of 0 and 1": _exact(row["hardened"], "plies"),
                "games exact, gates of 0 and 1": _exact(row["hardened"], "games"),
                "training": f"{row['training_s']:.0f} s",
            }
            for row in json_lines("demo", "chess-original.jsonl")
        ]
    )


def _memory() -> str:
    """Return the table of `results/memory.jsonl`: what the option `memory` changes, by task."""
    rows = pl.read_ndjson(RESULTS / "memory.jsonl", infer_schema_length=None)
    scores = {
        "recall": ("first of 200 tokens, accuracy", "accuracy"),
        "copying": ("selective copying, accuracy", "accuracy"),
        "s3": ("S_3 at four times the training length, accuracy", "accuracy_at_128"),
        "text": ("text, bits per byte (lower is better)", "bits_per_byte"),
    }
    arms = rows["memory"].unique(maintain_order=True).to_list()
    names = {"bd_lru": "BDLRU", "h_lru": "HLRU"}
    lines = []
    for layer in rows["layer"].unique(maintain_order=True):
        for task, (title, score) in scores.items():
            chosen = [
                rows.filter(layer=layer, task=task, memory=arm)[score].drop_nulls().to_list()
                for arm in arms
            ]
            if all(len(values) == 3 for values in chosen):
                cells = [f"{mean(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in chosen]
                lines.append([names[layer], title, *cells])
    options = (f"`memory=({arm.replace(' to', ',')})`" for arm in arms[1:])
    return markdown(["layer", "task", "default", *options], lines)


def _races() -> str:
    rows = [row for row in json_lines("certify", "races.jsonl") if "blocks of" not in row["change"]]
    lines = []
    for group, outcome in itertools.product(("A_5", "S_5"), ("passed", "failed")):
        parts = [
            {name: share for name, share in row["shares"][-1].items() if name != "step"}
            for row in rows
            if (row["group"], row["passed"]) == (group, outcome == "passed")
        ]
        ahead = sum(max(shares, key=shares.__getitem__) == "4" for shares in parts)
        lines.append((group, outcome, str(len(parts)), str(ahead), str(len(parts) - ahead)))
    head = ("group", "attempt", "number", "point part is largest", "another part is largest")
    return markdown(head, lines)


def _tracking_costs() -> str:
    works = {"train": "training", "answer": "words of 16", "answer long": "words of 128"}
    rows = json_lines("fixed_point", "costs.jsonl")
    counts = Counter(row["model"] for row in rows)
    cells = []
    for row in (row for row in rows if counts[row["model"]] == len(works)):
        speed = float(f"{row['tokens_per_s']:.2g}")
        cells.append(((row["model"],), works[row["work"]], f"{speed:,.0f}"))
        if row["work"] == "train":
            cells.append(((row["model"],), "memory", f"{row['memory_bytes'] / 1e6:.0f} MB"))
    return pivot(["model"], cells)


def _compiled() -> str:
    """Write what a million tokens take, for each form of a proven network."""
    rows = json_lines("compiled.jsonl")
    ms = [float(f"{1e9 * row['time_s']['p50'] / row['tokens']:.2g}") for row in rows]
    cells = (
        ((row["run"], row["size"]), row["form"], f"{time:,.0f} ms")
        for row, time in zip(rows, ms, strict=True)
    )
    return pivot(("run", "compiled to"), cells)


def _learners() -> str:
    """Write which learner has found each machine at each noise, and the accuracy on long words."""
    # Rounded down, and never 1: what is not exact is wrong on some word.
    said = {
        "proven": lambda _: "exact",
        "refuted": lambda row: f"{min(math.floor(1000 * row['accuracy']), 999) / 1000:.3f}",
        "no result": lambda _: "no result",
    }
    rows = sorted(json_lines("learners.jsonl"), key=lambda row: row["noise"])
    cells = (
        ((row["machine"],), f"{row['learner']}, {row['noise']:.0%}", said[row["verdict"]](row))
        for row in rows
    )
    return pivot(("machine",), cells)


def _large_log() -> str:
    """Write what a large log costs."""
    exact = {"proven": "yes", "refuted": "no"}
    lines = [
        {
            "events": f"{row['events']:,}",
            "exact": exact[row["verdict"]],
            "elapsed time": f"{row['wall_s']:.0f} s",
            "processor time": f"{row['cpu_s']:.0f} s",
            "memory": f"{row['memory_mb']} MB",
        }
        for row in json_lines("large_log.jsonl")
    ]
    return records(lines)


def _layer_costs() -> str:
    lines = [
        {
            "layer": row["label"],
            "parameters": f"{row['num_parameters']:,}",
            "state entries": f"{row['state_size']:,}",
            "tokens per second": f"{float(f'{tokens:.3g}'):,.0f}",
        }
        for row in json_lines("bench", "layers-269de82.jsonl")
        if (tokens := row["tokens_per_s"])
    ]
    return records(lines)


def _fixed_point_costs() -> str:
    """Write the time of training over that of an LSTM, for each layer and shape."""
    cells = (
        (
            (row["provider"], f"{row['num_parameters']:,}"),
            "{batch_size} x {length}".format(**row["case"]),
            f"{row['ratios']['lstm']['p50']:.2f}",
        )
        for row in json_lines("bench", "fixed-points-269de82.jsonl")
        if "lstm" in row["ratios"]
    )
    return pivot(("layer", "parameters"), cells)


def _demo(group: str, published: Mapping[str, str]) -> str:
    runs = json.loads((RESULTS / "demo" / f"{group}.json").read_text())["runs"]
    lines = []
    for network in dict.fromkeys(run["network"] for run in runs):
        here = [run for run in runs if run["network"] == network]
        texts = []
        for length in LENGTHS:
            values = [run["test"][length]["product"]["token_accuracy"] for run in here]
            texts.append(accuracy_text(mean(values)))
        verdicts = [run["certificate"]["verdict"] for run in here if run["certificate"]]
        proven = f"{verdicts.count('proven')} of {len(here)}"
        paper = [published[network]] if published else []
        lines.append((network, *paper, *texts, proven))
    paper = ["paper, at 16"] if published else []
    return markdown(("network", *paper, *_LENGTH_TEXTS, "proven"), lines)


def _demo_lstm() -> str:
    rows = json_lines("demo", "S_3-lstm.jsonl")
    lines = []
    for bos in (False, True):
        here = [row["accuracy"] for row in rows if row["bos"] == bos]
        texts = [accuracy_text(mean(one[length] for one in here)) for length in LENGTHS]
        lines.append(("yes" if bos else "no", *texts))
    return markdown(("start token", *_LENGTH_TEXTS), lines)


def _threads() -> str:
    """Write the time of two threads over that of one, as the range over recurrences and sizes."""
    times: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in json_lines("bench", "threads-62941dd.jsonl"):
        case = row["case"]
        # A call that another process disturbs lasts milliseconds.
        if row["time_s"] and row["undisturbed_calls"] >= 10:
            power = round(math.log2(row["gates"]))
            size = (case["recurrence"], case["block_size"])
            key = (case["direction"], row["idle_before_s"] == 0, power, *size)
            times.setdefault(key, {})[row["threads"]] = row["time_s"]["p50"]
    ratios: dict[tuple[str, bool], dict[int, list[float]]] = {}
    for (direction, warm, power, *_), of in times.items():
        if len(of) == 2:
            ratios.setdefault((direction, warm), {}).setdefault(power, []).append(of[2] / of[1])
    powers = sorted({power for found in ratios.values() for power in found})
    lines = []
    for (direction, warm), found in sorted(ratios.items(), key=lambda one: (not one[0][1], one[0])):
        texts = [
            f"{min(found[power]):.2f} to {max(found[power]):.2f}" if power in found else ""
            for power in powers
        ]
        name = direction.replace("_", " and ")
        lines.append((name, "working" if warm else "sleeping", *texts))
    return markdown(("direction", "threads were", *(f"{2**one:,}" for one in powers)), lines)


def _anderson() -> str:
    lines = []
    for row in json_lines("fixed_point", "anderson.jsonl"):
        if row["dtype"] == "float64" and row["tokens"] == 16:
            texts = []
            for tolerance in ("0.1", "0.001", "1e-06"):
                of = row["iterations_by_tolerance"][tolerance]
                texts.append(f"{of['plain']} / {of['anderson']}")
            factor = "none" if row["contraction"] is None else str(row["contraction"])
            inputs = {"both": "token and state", "token": "token"}[row["mixer_inputs"]]
            lines.append((row["layer"], row["mixer"], inputs, factor, *texts))
    head = ("layer", "mixer", "mixer reads", "contraction")
    return markdown((*head, "to 0.1", "to 0.001", "to 1e-6"), lines)


def _checks() -> str:
    (file,) = sorted((RESULTS / "mutants").glob("*.jsonl"))[-1:]
    mutants = json_lines("mutants", file.name)
    caught = sum(row["caught"] for row in mutants)
    lines = [
        ("random changes of the code", f"{len(mutants):,}", f"{len(mutants) - caught} survive")
    ]
    totals: dict[str, list[int]] = {}
    paths = sorted((RESULTS / "fuzz").glob("*.jsonl"))
    for path in (path for path in paths if path.name[:10] == paths[-1].name[:10]):
        for row in json_lines("fuzz", path.name):
            for kind, numbers in row["kinds"].items():
                total = totals.setdefault(kind, [0, 0])
                total[0] += numbers["cases"]
                total[1] += numbers["findings"]
    names = {
        "functions": "random calls of operators, against float64",
        "commands": "random command lines",
        "folders": "damaged folders of runs",
        "kills": "runs killed and resumed",
    }
    lines += [(names[kind], f"{n:,}", f"{bad} findings") for kind, (n, bad) in totals.items()]
    return markdown(("check", "cases", "outcome"), lines)


def _conform() -> str:
    """Return the table of the checks of `statemix conform` by model."""
    found = json.loads((RESULTS / "conform.json").read_text())
    cells = []
    for row in found["results"]:
        text = row["outcome"]
        if text == "error":
            text = row["reason"].partition(":")[0]
        elif text == "wrong" and row["difference"] is not None:
            text = f"wrong, {row['difference']:.2g}"
        cells.append(((f"`{row['check']}`",), _CONFORMING[Path(row["model"]).stem], text))
    return pivot([f"transformers {found['transformers']}"], cells)
