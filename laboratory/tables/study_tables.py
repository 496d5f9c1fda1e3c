"""The tables of the studies in the documentation, from the rows of their results stores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import polars as pl
from measurement_tables import json_lines, markdown, pivot, records, study_rows, unproven

from statemix_lab.studies.exactness.exact_protocols import RECIPE, has_tuned_rate
from statemix_lab.studies.exactness.exact_table import (
    accuracy_by_length,
    interval,
    monitor_table,
    tallies,
)
from statemix_lab.studies.fixed_points.fixed_point_studies import overview as fixed_points
from statemix_lab.studies.higher_order.cell_table import overview
from statemix_lab.studies.higher_order.claims import Decision, decide
from statemix_lab.studies.higher_order.contenders import CONTENDERS, layer_price, price_texts
from statemix_lab.studies.higher_order.paper_tables import TABLES as PAPER_TABLES
from statemix_lab.studies.result_text import MARKS, accuracy_text, duration_text, published_text
from statemix_lab.studies.store import StoredRow
from statemix_lab.studies.study import find_study
from statemix_lab.studies.study_entries import ProtocolName, SizeName
from statemix_lab.studies.tidy import ENOUGH_SEEDS, FULL, NOISE, by_length

USUAL = "as in the recipe"
TABLES = ("table3", "table4", "table6")
WITH_MLP = ("table3", "table4")
AS_MAD = ("table4",)


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    rows = study_rows()
    cells = overview(rows)
    return {
        "totals": _totals(rows, cells),
        "protocols": _protocols(rows),
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
        **{f"{name}_sizes": _sizes(rows, name) for name in AS_MAD},
        "axes": _axes(rows),
        "pilots": _pilots(),
        "lowest_loss": _lowest_loss(),
        "readouts": _readouts(cells),
        "tuned": _tuned(cells),
        "claims": _claims(rows),
        "short_data": _short_data(rows),
        "wrapper": _wrapper(rows),
        "words": _lengths(rows, "fp-a5", (16, 32, 64, 128)),
        "words_of_all_elements": _lengths(rows, "fp-a5", (16, 32, 64, 128), "workstation"),
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
        ("decided claims of the H-LRU paper that hold", f"{claims} of {claims + against}"),
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
    names = ("column", "wrong", "model")
    for (column, wrong, model), group in runs.group_by(names, maintain_order=True):
        if text := unproven(rows[key] for key in group["key"]):
            lines.append((str(column), f"{wrong:.0%}", str(model), text))
    return markdown(("protocol", "wrong", "learner", "seeds that are not proven"), lines)


def _runs(
    rows: Mapping[str, StoredRow], study: str, protocol: ProtocolName = "paper"
) -> pl.DataFrame:
    found = find_study(study)
    return found.runs(found.entries(protocol, "laptop"), rows)


def _tracking(rows: Mapping[str, StoredRow], study: str) -> str:
    runs = _runs(rows, study)
    lines = []
    for one in tallies(runs).to_dicts():
        keys = runs.filter(column=one["column"], model=one["model"], status="done")["key"]
        done = [rows[key] for key in keys]
        line = {
            "task": one["column"],
            "network": _network(one["model"]).removeprefix("BD-LRU, "),
            **_proven(done),
            "attempts passed": f"{sum(one['passed'])} of {len(one['passed'])}",
            "accuracy": "",
            "mean cost": "",
            "largest cost": "",
            "seeds that are not proven": "",
        }
        if not one["passed"]:
            line["attempts passed"] = ""
        if done:
            line |= {
                "accuracy": accuracy_by_length(one),
                "mean cost": duration_text(fmean(one["seconds"])),
                "largest cost": duration_text(max(one["seconds"])),
                "seeds that are not proven": unproven(done) or "none",
            }
        lines.append(line)
    return records(lines)


def _network(model: str) -> str:
    return "recipe `exact`" if model == RECIPE else model


def _proven(done: Sequence[StoredRow]) -> dict[str, str]:
    """Write how many runs are proven, and how many of them without another readout."""
    proofs = [row["certificate"] for row in done if row["certificate"]["verdict"] == "proven"]
    trained = sum(proof["network"] != "refitted" for proof in proofs)
    return {
        "proven": f"{len(proofs)} of {len(done)}" if done else "",
        "without refit": str(trained) if proofs else "",
    }


def _protocols(rows: Mapping[str, StoredRow]) -> str:
    """Write a line for each task of other works and network, with published accuracies."""
    lines = []
    for entry in find_study("exact-protocols").entries("paper", "laptop"):
        keys = [key for _, run, key in entry.trials.runs if has_tuned_rate(run, rows)]
        done = [rows[key] for key in keys if key in rows and rows[key]["status"] == "done"]
        # Older rows have no processor time.
        seconds = [row.get("cpu_s", row["time_s"]) + row["certify_s"] for row in done]
        published = ", ".join(
            f"{published_text(number.accuracy)} at {length:,}"
            for length, number in entry.published.items()
        )
        line = {
            "task": entry.column,
            "network": _network(entry.model),
            **_proven(done),
            "accuracy as trained": ", ".join(_accuracies(done)),
            "published": f"{published} ({entry.published_for})" if published else "",
            "mean cost": duration_text(fmean(seconds)) if done else "",
            "seeds that are not proven": (unproven(done) or "none") if done else "",
        }
        if entry.model != RECIPE:
            line["published"] = ""
        lines.append(line)
    return records(lines)


def _accuracies(done: Sequence[StoredRow]) -> Iterator[str]:
    """Yield the mean accuracy at each further length, and the least of a seed where it differs."""
    for length in sorted(map(int, done[0]["test"]))[1:] if done else ():
        heads = [row["test"][str(length)] for row in done]
        values = [next(iter(head.values()))["token_accuracy"] for head in heads]
        least = f" (least {accuracy_text(min(values))})" if min(values) < max(values) else ""
        yield f"{accuracy_text(fmean(values))}{least} at {length:,}"


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
            here = [ended for place, ended in passed.items() if place[:2] == (group, change)]
            spread = " to ".join(map(accuracy_text, interval(here))) if here else ""
            texts.append(f"{sum(here)} of {len(here)} ({spread})" if here else "")
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


def _screens(rows: Mapping[str, StoredRow], table: str) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """Yield column, model and the runs of protocol "mad" that screen its sizes, smallest first."""
    runs = _runs(rows, table, "mad").filter(pl.col("seed") == 0)
    for (column, model), group in runs.group_by("column", "model", maintain_order=True):
        short = group.filter(pl.col("setting").str.ends_with(" epochs"))
        # Where all epochs are few steps, runs in full screen.
        yield str(column), str(model), group if short.is_empty() else short


def _sizes(rows: Mapping[str, StoredRow], table: str) -> str:
    """Write the accuracy of each state size in the runs that screen sizes, and its entries."""
    entries = find_study(table).entries("mad", "laptop")
    layers = {entry.model: entry.layers for entry in entries}
    of: dict[tuple[str, str], list[str]] = {}
    for column, model, runs in _screens(rows, table):
        for layer, accuracy in zip(layers[model], runs["best_test"], strict=True):
            if accuracy is not None:
                text = f"{accuracy_text(accuracy)} ({layer_price(layer).state_size:,})"
                of.setdefault((model, column), []).append(text)
    order = list(CONTENDERS)
    listed = sorted(of.items(), key=lambda item: order.index(item[0][0]))
    return pivot(
        ("model",), (((model,), f"`{column}`", ", ".join(t)) for (model, column), t in listed)
    )


def _axes(rows: Mapping[str, StoredRow]) -> str:
    """Write by how much each choice changes accuracies, a line for each column and choice."""
    moved: dict[tuple[str, str], dict[str, float]] = {}
    for axis, column, model, accuracies in _choices(rows):
        if len(accuracies) > 1:
            moved.setdefault((column, axis), {})[model] = max(accuracies) - min(accuracies)
    lines = []
    for (column, axis), changes in sorted(moved.items(), key=lambda item: item[0][0]):
        most = max(changes, key=lambda model: changes[model])
        mean = accuracy_text(fmean(changes.values()))
        lines.append(
            (f"`{column}`", axis, str(len(changes)), mean, accuracy_text(changes[most]), most)
        )
    heads = ("column", "choice", "models", "mean change", "largest change", "model of the largest")
    return markdown(heads, lines)


def _choices(rows: Mapping[str, StoredRow]) -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield a choice, a column, a model, and the accuracies of all alternatives that were run."""
    for table in AS_MAD:
        best = _runs(rows, table, "mad").filter(status="done")
        for column, model, screens in _screens(rows, table):
            ended = screens["best_test"].drop_nulls().to_list()
            if len(ended) == len(screens):
                yield "state size", column, model, ended
            here = best.filter(column=column, model=model)
            full = [
                (setting, runs)
                for (setting,), runs in here.group_by("setting", maintain_order=True)
                if len(runs) >= ENOUGH_SEEDS
            ]
            if full:
                setting, runs = max(full, key=lambda one: one[1]["best_test"].mean())
                yield "seed", column, model, runs["best_test"].to_list()
                short = screens.filter(pl.col("setting").str.starts_with(f"{setting}, "))
                both = [*short["best_test"], runs.filter(seed=0)["best_test"].item()]
                yield "all epochs or a quarter", column, model, both
    accuracies = _wrapper_accuracies(rows)
    for (column, change, model), one in accuracies.items():
        if change and (usual := accuracies.get((column, "", model))):
            yield change, column, model, [usual["best_test"], one["best_test"]]


def _pilots() -> str:
    """Write accuracies of single runs of protocol "mad" with other choices."""
    cells = []
    for row in json_lines("higher_order", "pilots.jsonl"):
        change = f"{row['change'] or 'none'}, {row['epochs']} epochs"
        cells.append(((change,), row["model"], accuracy_text(row["best_test"])))
    return pivot(("change",), sorted(cells, key=lambda cell: cell[1]))


def _lowest_loss() -> str:
    """Write the best accuracy of three seeds, along the run and at the lowest test loss."""
    of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in json_lines("higher_order", "lowest-loss.jsonl"):
        of.setdefault((row["column"], row["model"]), []).append(row)
    cells = []
    for (column, model), runs in of.items():
        published = PAPER_TABLES["table4"].published[model][column]
        values = [max(run[name] for run in runs) for name in ("best_test", "at_lowest_loss")]
        for head, value in zip(("best of the run", "lowest loss"), values, strict=True):
            mark = "=" if abs(value - published) <= NOISE else "<" if value < published else ">"
            cells.append(((model,), f"`{column}`, {head}", f"{accuracy_text(value)} {mark}"))
        cells.append(((model,), f"`{column}`, paper", published_text(published)))
    return pivot(("model",), cells)


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
            apart = fmean(abs(one["ours"] - one["published"]) for one in here)
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
    of = {
        (one["model"], one["column"]): one
        for one in cells["cells"]
        if (one["table"], one["protocol"], one["size"]) == (table, protocol, "laptop")
    }
    # A column without results says nothing.
    kept = list(dict.fromkeys(column for (_, column), one in of.items() if _ours(one)))
    lines = [
        (model, *(text(of.get((model, column))) for column in kept))
        for model in dict.fromkeys(model for model, _ in of)
    ]
    return [f"`{name}`" for name in kept], [line for line in lines if any(line[1:])]


def _spread(cell: Mapping[str, Any] | None) -> str:
    """Return mean and standard deviation; of some of the data sets, their mean in italics."""
    parts = [] if cell is None else [one["mean"] for one in cell["data"].values() if one["seeds"]]
    if cell is None or not parts:
        return ""
    if cell["mean"] is None:
        return f"*{accuracy_text(fmean(parts))}*"
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
        return f"*{accuracy_text(fmean(parts))}*"
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
        support = f"{truths.count(True)} of {len(truths) - truths.count(None)}"
        if left := truths.count(None):
            support += f", {left} undecided"
        as_published = "yes" if decision.as_published else "no"
        lines.append(
            (decision.claim.statement, decision.verdict, support, decision.protocol, as_published)
        )
    head = ("claim", "verdict", "comparisons that support it", "protocol")
    return markdown((*head, "tested as in the paper"), lines)


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
        {
            "task": one["data"],
            "model": one["model"],
            "parameters": price_texts(layers[one["model"]])[0],
            "best accuracy": accuracy_text(one["best_test"]),
        }
        for one in best.to_dicts()
    ]
    return records(lines)


def _wrapper_accuracies(
    rows: Mapping[str, StoredRow],
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the best accuracy and the published one by column, change and model."""
    return {
        (*one["column"].partition(", ")[::2], one["model"]): one
        for one in _runs(rows, "wrapper")
        .filter(pl.col("status") == "done")
        .group_by("column", "model", maintain_order=True)
        .agg(pl.col("best_test").max(), pl.col("published").first())
        .to_dicts()
    }


def _wrapper(rows: Mapping[str, StoredRow]) -> str:
    best = _wrapper_accuracies(rows)
    changes = list(dict.fromkeys(change for _, change, _ in best))
    lines = []
    for column, model in dict.fromkeys((column, model) for column, _, model in best):
        here = [best.get((column, change, model)) for change in changes]
        texts = [accuracy_text(one["best_test"]) if one else "" for one in here]
        published = next((one["published"] for one in here if one), None)
        lines.append((f"`{column}`", model, *texts, published_text(published)))
    heads = [change or "protocol paper" for change in changes]
    return markdown(("column", "model", *heads, "paper"), lines)


def _lengths(
    rows: Mapping[str, StoredRow], study: str, lengths: Sequence[int], size: SizeName = "laptop"
) -> str:
    """Write mean accuracies by length, with the iterations of the tests where a layer iterates."""
    cells = []
    for (column, model, length), one in _by_length(rows, study, size).items():
        if length in lengths:
            iterations = "" if one["iterations"] is None else f" @{one['iterations']:.0f}"
            text = accuracy_text(one["mean"]) + iterations
            cells.append(((column, model), str(length), text))
    return pivot(("task", "model"), cells)


def _by_length(
    rows: Mapping[str, StoredRow], study: str, size: SizeName = "laptop"
) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = find_study(study)
    entries = found.entries("paper", size)
    numbers = by_length(found.runs(entries, rows), entries).filter(pl.col("seeds") > 0)
    return {(one["column"], one["model"], one["length"]): one for one in numbers.to_dicts()}


def _budgets(rows: Mapping[str, StoredRow]) -> str:
    """Write the share of right answers at each length, and the iterations of the tests."""
    of_budget: dict[int, list[StoredRow]] = {}
    for key in _runs(rows, "fp-budget").filter(pl.col("status") == "done")["key"]:
        of_budget.setdefault(rows[key]["layers"][0]["max_iterations"], []).append(rows[key])
    lines = []
    for budget, done in sorted(of_budget.items()):
        line = {"most iterations in training": str(budget)}
        for n in ("16", "30", "60"):
            mean = fmean(row["test"][n]["product"]["token_accuracy"] for row in done)
            line[f"at {n}"] = accuracy_text(mean)
        for n in ("15", "30", "60"):
            mean = fmean(row["iterated"][n]["iterations"] for row in done)
            line[f"iterations at {n}"] = f"{mean:.0f}"
        lines.append(line)
    return records(lines)


def _budgets_of_all_elements(rows: Mapping[str, StoredRow], *, iterations: bool) -> str:
    """Write the share of words without a mistake, or the iterations, beside the paper's numbers."""
    cells = []
    for (_, model, length), one in _by_length(rows, "fp-budget", "workstation").items():
        if one["published"] is None:
            continue
        if iterations:
            text = f"{one['iterations']:.0f} ({one['published_iterations']})"
        else:
            ours = accuracy_text(one["mean"])
            if one["high"] > one["mean"]:
                ours += f", {accuracy_text(one['high'])}"
            text = f"{ours} ({accuracy_text(one['published'])})"
        most = int(model.split()[-2])
        cells.append((length, most, text))
    return pivot(
        ["length"],
        [((str(length),), f"at most {most}", text) for length, most, text in sorted(cells)],
    )


def _spectra(rows: Mapping[str, StoredRow]) -> str:
    cells = []
    names = {"bd_lru": ("BD-LRU", "block_size"), "h_lru": ("H-LRU", "order")}
    heads = {"softmax": "softmax gates", "none": "gates without normalisation"}
    for key in _runs(rows, "fig7").filter(pl.col("status") == "done")["key"]:
        layer = rows[key]["layers"][0]
        name, size = names[layer["name"]]
        accuracy = accuracy_text(rows[key]["best_test"]["product"]["token_accuracy"])
        cells.append(((f"{name} m={layer[size]}",), heads[layer.get("gate", "softmax")], accuracy))
    return pivot(["model"], sorted(cells, key=lambda cell: cell[0]))
