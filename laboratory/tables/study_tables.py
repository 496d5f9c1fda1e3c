"""The tables of the studies in the documentation, from the rows of their results stores."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from measurement_tables import RESULTS, markdown, unproven

from statemix_lab.studies.exactness.exact_table import (
    accuracy_by_length,
    interval,
    monitor_table,
    tallies,
)
from statemix_lab.studies.fixed_points.fixed_point_studies import overview as fixed_points
from statemix_lab.studies.higher_order.cell_table import overview
from statemix_lab.studies.higher_order.claims import Decision, decide
from statemix_lab.studies.higher_order.contenders import price_texts
from statemix_lab.studies.result_text import (
    MARKS,
    accuracy_text,
    duration_text,
    published_text,
)
from statemix_lab.studies.store import StoredRow, merged
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import ProtocolName, SizeName
from statemix_lab.studies.tidy import FULL, by_length

RECIPE = "BD-LRU, recipe exact"
USUAL = "as in the recipe"
TABLES = ("table3", "table4", "table6")
WITH_MLP = ("table3", "table4")
AS_MAD = ("table4",)


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    rows = merged(sorted((RESULTS / "reproduce").glob("*.jsonl")))
    cells = overview(rows)
    return {
        "totals": _totals(rows, cells),
        "tracking": _tracking(rows, "exact-groups"),
        "automata": _tracking(rows, "exact-automata"),
        "larger_groups": _tracking(rows, "larger-groups"),
        "monitors": _monitors(rows),
        "monitor_words": _monitor_words(rows),
        "factorial": _factorial(rows),
        **{name: _paper_table(cells, name, "paper") for name in TABLES},
        **{f"{name}_spread": _spreads(cells, rows, name, "paper") for name in TABLES},
        **{f"{name}_mad": _paper_table(cells, name, "mad") for name in AS_MAD},
        **{f"{name}_mad_spread": _spreads(cells, rows, name, "mad") for name in AS_MAD},
        **{f"{name}_mlp": _paper_table(cells, name, "mlp") for name in WITH_MLP},
        **{f"{name}_mlp_spread": _spreads(cells, rows, name, "mlp") for name in WITH_MLP},
        "readouts": _readouts(cells),
        "tuned": _tuned(cells),
        "claims": _claims(rows),
        "short_data": _short_data(rows),
        "wrapper": _wrapper(rows),
        "words": _lengths(rows, "fp-a5", (16, 32, 64, 128)),
        "budgets": _budgets(rows),
        "budgets_of_all_elements": _budgets_of_all_elements(rows, iterations=False),
        "iterations_of_all_elements": _budgets_of_all_elements(rows, iterations=True),
        "copies": _lengths(rows, "fp-copy", (8, 14, 26, 50)),
        "spectra": _spectra(rows),
    }


def _totals(rows: Mapping[str, StoredRow], cells: Mapping[str, Any]) -> str:
    verdicts = [decision.verdict for decision in _decisions(rows)]
    claims, against = verdicts.count("holds"), verdicts.count("does not hold")
    more = fixed_points(rows)
    agreeing = [one for one in more["cells"] if one["verdict"] == "agrees"]
    low = sum(max(one["published"], one["mean"]) < 0.05 for one in agreeing)
    lines = [
        ("accuracies in tables of the H-LRU paper", str(cells["of"])),
        ("of these, measured with three seeds", str(cells["measured"])),
        (
            "of the measured accuracies, equal to the paper within 0.05",
            f"{cells['agree']} of {cells['measured']}",
        ),
        (
            "of the accuracies measured in full, equal to the paper within 0.05",
            f"{cells['agree_in_full']} of {cells['in_full']}",
        ),
        ("claims of the H-LRU paper that hold in our runs", f"{claims} of {claims + against}"),
        ("numbers of the Fixed-Point RNN paper measured", f"{more['measured']} of {more['of']}"),
        (
            "of these, equal to the paper within 0.05",
            f"{more['agree']}; in {low} of these both are below 0.05",
        ),
        *_proofs(rows),
    ]
    return markdown(("what", "number"), lines)


def _proofs(rows: Mapping[str, StoredRow]) -> list[tuple[str, str]]:
    """Count the proven networks of the recipe, and those whose readout was fitted again."""
    lines = []
    for study, what in (
        ("exact-groups", "groups"),
        ("exact-automata", "automata"),
        ("larger-groups", "larger groups"),
        ("exact-protocols", "the tasks of other works"),
    ):
        runs = _runs(rows, study).filter(model=RECIPE, status="done")
        proofs = [rows[key]["certificate"] for key in runs["key"]]
        networks = [proof["network"] for proof in proofs if proof["verdict"] == "proven"]
        refitted = networks.count("refitted")
        lines.append(
            (
                f"networks of the recipe `exact` for {what}, proven",
                f"{len(networks)} of {len(proofs)}, {refitted} of them with a refitted readout",
            )
        )
    return lines


def _monitors(rows: Mapping[str, StoredRow]) -> str:
    table = monitor_table(_runs(rows, "monitors"))
    return markdown(table.head, [line.cells for line in table.lines])


def _monitor_words(rows: Mapping[str, StoredRow]) -> str:
    """Write the words on which learners of protocols differ from the protocol."""
    lines = []
    runs = _runs(rows, "monitors").filter(status="done")
    for (column, wrong, model), group in runs.group_by(
        "column", "wrong", "model", maintain_order=True
    ):
        text = unproven(rows[key] for key in group["key"])
        if text:
            lines.append((str(column), f"{wrong:.0%}", str(model), text))
    return markdown(("protocol", "wrong", "learner", "seeds that are not proven"), lines)


def _runs(
    rows: Mapping[str, StoredRow], study: str, protocol: ProtocolName = "paper"
) -> pl.DataFrame:
    found = find_study(study)
    return found.runs(found.entries(protocol, "laptop"), rows)


def _tracking(rows: Mapping[str, StoredRow], study: str) -> str:
    runs = _runs(rows, study)
    names = {RECIPE: "recipe `exact`"}
    lines = []
    for one in tallies(runs).to_dicts():
        name = names.get(one["model"], one["model"].removeprefix("BD-LRU, "))
        if not one["done"]:
            lines.append((one["column"], name, *["–"] * 7))
            continue
        done = runs.filter(column=one["column"], model=one["model"], status="done")
        found: list[Mapping[str, Any]] = [rows[key] for key in done["key"]]
        proofs = [row["certificate"] for row in found if row["certificate"]["verdict"] == "proven"]
        trained = sum(proof["network"] != "refitted" for proof in proofs)
        passed = f"{sum(one['passed'])} of {len(one['passed'])}" if one["passed"] else "–"
        lines.append(
            (
                one["column"],
                name,
                f"{len(proofs)} of {len(found)}",
                str(trained) if proofs else "–",
                passed,
                accuracy_by_length(one),
                duration_text(math.fsum(one["seconds"]) / one["done"]),
                duration_text(max(one["seconds"])),
                unproven(found) or "none",
            )
        )
    header = ("task", "network", "proven", "without refit", "attempts passed", "accuracy")
    return markdown((*header, "mean cost", "largest cost", "seeds that are not proven"), lines)


def _factorial(rows: Mapping[str, StoredRow]) -> str:
    runs = _runs(rows, "exact-factorial")
    passed = {
        (run["column"], run["model"], run["seed"]): any(one["passed"] for one in run["attempts"])
        for run in runs.filter(pl.col("status") == "done").to_dicts()
    }
    lines = []
    for change in runs["model"].unique(maintain_order=True):
        texts = [change]
        for group in runs["column"].unique(maintain_order=True):
            here = [ended for (g, name, _), ended in passed.items() if (g, name) == (group, change)]
            if not here:
                texts.append("–")
                continue
            low, high = interval(here)
            spread = f"{accuracy_text(low)} to {accuracy_text(high)}"
            texts.append(f"{sum(here)} of {len(here)} ({spread})")
        same = [
            ended == passed[group, USUAL, seed]
            for (group, name, seed), ended in passed.items()
            if name == change
        ]
        texts.append("" if change == USUAL or not same else f"{sum(same)} of {len(same)}")
        lines.append(texts)
    return markdown(("change", "A_5", "S_5", "same outcome as the recipe"), lines)


def _paper_table(cells: Mapping[str, Any], table: str, protocol: ProtocolName) -> str:
    """Write ours beside the paper's, at size "laptop"."""
    columns, lines = _laid_out(cells, table, protocol, _beside)
    return markdown(("model", *columns), lines)


def _readouts(cells: Mapping[str, Any]) -> str:
    """Write how near each readout comes to Table 4, over models with three seeds of both."""
    of = {
        (one["protocol"], one["column"], one["model"]): one
        for one in cells["cells"]
        if (one["table"], one["size"]) == ("table4", "laptop") and one["seeds"] >= 3
    }
    both: dict[str, list[str]] = {}
    for protocol, column, model in of:
        if protocol == "mlp" and ("paper", column, model) in of:
            both.setdefault(column, []).append(model)
    lines = []
    for column, models in both.items():
        texts = [f"`{column}`"]
        for protocol in ("paper", "mlp"):
            here = [of[protocol, column, model] for model in models]
            agree = sum(one["verdict"] == "agrees" for one in here)
            apart = math.fsum(abs(one["ours"] - one["published"]) for one in here) / len(here)
            texts += [f"{agree} of {len(here)}", accuracy_text(apart)]
        lines.append(texts)
    heads = ("equal, linear", "difference, linear", "equal, MLP", "difference, MLP")
    return markdown(("column", *heads), lines)


def _spreads(
    cells: Mapping[str, Any], rows: Mapping[str, StoredRow], table: str, protocol: ProtocolName
) -> str:
    """Write mean and standard deviation over seeds, and the time of all runs of a model."""
    columns, lines = _laid_out(cells, table, protocol, _spread)
    runs = _runs(rows, table, protocol).filter(status="done")
    done = runs.group_by("model").agg(pl.col("seconds").sum())
    minutes = {model: f"{seconds / 60:.0f}" for model, seconds in done.iter_rows()}
    timed = [(*line, minutes.get(line[0], "")) for line in lines]
    return markdown(("model", *columns, "minutes"), timed)


def _laid_out(
    cells: Mapping[str, Any],
    table: str,
    protocol: ProtocolName,
    text: Callable[[Mapping[str, Any] | None], str],
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the columns of a table that have results, and a line for each model with results."""
    here = [
        one
        for one in cells["cells"]
        if (one["table"], one["protocol"], one["size"]) == (table, protocol, "laptop")
    ]
    columns = list(dict.fromkeys(one["column"] for one in here))
    of = {(one["model"], one["column"]): one for one in here}
    # A column without results says nothing.
    kept = [name for name in columns if any(_ours(of[key]) for key in of if key[1] == name)]
    lines = []
    for model in dict.fromkeys(one["model"] for one in here):
        texts = [text(of.get((model, column))) for column in kept]
        if any(texts):
            lines.append((model, *texts))
    return [f"`{name}`" for name in kept], lines


def _spread(cell: Mapping[str, Any] | None) -> str:
    """Return mean and standard deviation; of some of the data sets, their mean in italics."""
    parts = [] if cell is None else [one["mean"] for one in cell["data"].values() if one["seeds"]]
    if cell is None or not parts:
        return ""
    if cell["mean"] is None:
        return f"*{accuracy_text(math.fsum(parts) / len(parts))}*"
    spread = "" if cell["deviation"] is None else f" ± {accuracy_text(cell['deviation'])}"
    few = "" if cell["seeds"] >= 3 else " ?"
    return f"{accuracy_text(cell['mean'])}{spread}{few}"


def _beside(cell: Mapping[str, Any] | None) -> str:
    """Return our number with its mark, and the paper's in parentheses."""
    ours = "" if cell is None else _ours(cell)
    return f"{ours} ({published_text(cell['published'])})" if cell and ours else ""


def _ours(cell: Mapping[str, Any]) -> str:
    """Return our number with its mark; a mean over some of the data sets is in italics."""
    if cell["ours"] is not None:
        mark = MARKS[cell["verdict"]] if cell["seeds"] >= 3 else "?"
        short = "" if (cell["share"] or 0.0) >= FULL else "°"
        return f"{accuracy_text(cell['ours'])} {mark}{short}".rstrip()
    parts = [one["ours"] for one in cell["data"].values() if one["ours"] is not None]
    if len(cell["data"]) > 1 and parts:
        return f"*{accuracy_text(math.fsum(parts) / len(parts))}*"
    return ""


def _tuned(cells: Mapping[str, Any]) -> str:
    lines = []
    for one in cells["cells"]:
        if one["protocol"] == "tuned" and one["verdict"] != "partial":
            spread = f"{accuracy_text(one['mean'])} ± {accuracy_text(one['deviation'])}"
            name = f"`{one['column']}`"
            lines.append((one["model"], name, spread, published_text(one["published"])))
    return markdown(("model", "column", "protocol tuned", "paper"), lines)


def _claims(rows: Mapping[str, StoredRow]) -> str:
    lines = []
    for decision in _decisions(rows):
        truths = [finding.true for finding in decision.findings]
        support = f"{truths.count(True)} of {len(truths)}"
        as_published = "yes" if decision.as_published else "no"
        lines.append(
            (decision.claim.statement, decision.verdict, support, decision.protocol, as_published)
        )
    heads = (
        "claim",
        "verdict",
        "comparisons that support it",
        "protocol",
        "tested as in the paper",
    )
    return markdown(heads, lines)


def _decisions(rows: Mapping[str, StoredRow]) -> list[Decision]:
    """Return a decision for each claim: that of the first protocol that decides it."""
    listed = (decide(rows, protocol) for protocol in ("mad", "paper"))
    return [
        next((one for one in of_claim if one.verdict != "open"), of_claim[-1])
        for of_claim in zip(*listed, strict=True)
    ]


def _short_data(rows: Mapping[str, StoredRow]) -> str:
    """Write the accuracies on short sequences, which decide claims on compression and copying."""
    entries = find_study("claims").entries("paper", "laptop")
    layers = {one.model: one.layers for one in entries}
    best = (
        _runs(rows, "claims")
        .filter(pl.col("status") == "done", pl.col("data").str.contains("tokens"))
        .group_by("data", "model", maintain_order=True)
        .agg(pl.col("best_test").max())
        .sort("data", "best_test", descending=[False, True])
    )
    lines = [
        (
            one["data"],
            one["model"],
            price_texts(layers[one["model"]])[0],
            accuracy_text(one["best_test"]),
        )
        for one in best.to_dicts()
    ]
    return markdown(("task", "model", "parameters", "best accuracy"), lines)


def _wrapper(rows: Mapping[str, StoredRow]) -> str:
    runs = _runs(rows, "wrapper")
    best = {
        (*one["column"].partition(", ")[::2], one["model"]): one
        for one in runs.filter(pl.col("status") == "done")
        .group_by("column", "model", maintain_order=True)
        .agg(pl.col("best_test").max(), pl.col("published").first())
        .to_dicts()
    }
    changes = list(dict.fromkeys(change for _, change, _ in best))
    lines = []
    for column, model in dict.fromkeys((column, model) for column, _, model in best):
        here = [best.get((column, change, model)) for change in changes]
        texts = [accuracy_text(one["best_test"]) if one else "" for one in here]
        published = next((one["published"] for one in here if one), None)
        lines.append((f"`{column}`", model, *texts, published_text(published)))
    heads = [change or "protocol paper" for change in changes]
    return markdown(("column", "model", *heads, "paper"), lines)


def _lengths(rows: Mapping[str, StoredRow], study: str, lengths: Sequence[int]) -> str:
    """Write mean accuracies by length, with the iterations of the tests where a layer iterates."""
    lines = []
    numbers = _by_length(rows, study)
    for column, model in dict.fromkeys((column, model) for column, model, _ in numbers):
        texts = [_accuracy(numbers[column, model, length]) for length in lengths]
        lines.append((column, model, *texts))
    return markdown(("task", "model", *map(str, lengths)), lines)


def _by_length(
    rows: Mapping[str, StoredRow], study: str, size: SizeName = "laptop"
) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = find_study(study)
    entries = found.entries("paper", size)
    numbers = by_length(found.runs(entries, rows), entries).filter(pl.col("seeds") > 0)
    return {(one["column"], one["model"], one["length"]): one for one in numbers.to_dicts()}


def _accuracy(one: Mapping[str, Any]) -> str:
    text = accuracy_text(one["mean"])
    return text if one["iterations"] is None else f"{text} @{one['iterations']:.0f}"


def _budgets(rows: Mapping[str, StoredRow]) -> str:
    """Write the share of right answers at each length, and the iterations of the tests."""
    done = _runs(rows, "fp-budget").filter(pl.col("status") == "done")
    lines: dict[int, dict[str, list[float]]] = {}
    for key in done["key"]:
        row: Mapping[str, Any] = rows[key]
        of_budget = lines.setdefault(row["layers"][0]["max_iterations"], {})
        for length in ("16", "30", "60"):
            accuracy = row["test"][length]["product"]["token_accuracy"]
            of_budget.setdefault(f"at {length}", []).append(accuracy)
        for length in ("15", "30", "60"):
            iterations = row["iterated"][length]["iterations"]
            of_budget.setdefault(f"iterations at {length}", []).append(iterations)
    heads = list(next(iter(lines.values())))
    texts = []
    for budget, numbers in sorted(lines.items()):
        means = [math.fsum(numbers[head]) / len(numbers[head]) for head in heads]
        cells = [accuracy_text(mean) for mean in means[:3]] + [f"{mean:.0f}" for mean in means[3:]]
        texts.append((str(budget), *cells))
    return markdown(("most iterations in training", *heads), texts)


def _budgets_of_all_elements(rows: Mapping[str, StoredRow], *, iterations: bool) -> str:
    """Write the share of words without a mistake, or the iterations, beside the paper's numbers."""
    found = _by_length(rows, "fp-budget", "workstation")
    texts: dict[int, dict[int, str]] = {}
    for (_, model, length), one in found.items():
        if one["published"] is None:
            continue
        if iterations:
            text = f"{one['iterations']:.0f} ({one['published_iterations']})"
        else:
            ours = accuracy_text(one["mean"])
            if one["high"] > one["mean"]:
                ours += f", {accuracy_text(one['high'])}"
            text = f"{ours} ({accuracy_text(one['published'])})"
        texts.setdefault(length, {})[model] = text
    models = sorted(
        {model for of in texts.values() for model in of},
        key=lambda model: [int(word) for word in model.split() if word.isdigit()],
    )
    lines = [(str(length), *(of.get(one, "") for one in models)) for length, of in texts.items()]
    heads = [model.rpartition(", ")[2].removesuffix(" iterations") for model in models]
    return markdown(("length", *heads), lines)


def _spectra(rows: Mapping[str, StoredRow]) -> str:
    found: dict[str, dict[str, str]] = {}
    for key in _runs(rows, "fig7").filter(pl.col("status") == "done")["key"]:
        row: Mapping[str, Any] = rows[key]
        layer = row["layers"][0]
        names = {"bd_lru": ("BD-LRU", "block_size"), "h_lru": ("H-LRU", "order")}
        name, size = names[layer["name"]]
        accuracy = accuracy_text(row["best_test"]["product"]["token_accuracy"])
        found.setdefault(f"{name} m={layer[size]}", {})[layer.get("gate", "softmax")] = accuracy
    lines = [(model, of.get("softmax", ""), of.get("none", "")) for model, of in found.items()]
    return markdown(("model", "softmax gates", "gates without normalisation"), sorted(lines))
