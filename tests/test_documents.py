"""Every code block of the documents runs, and every link target exists."""

import collections
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from statemix.cli import main
from statemix.layers import LAYERS, LayerSpec, price
from statemix.studies.demo import demo_scores as scores
from statemix.studies.exactness.exact_suites import SUITES as EXACT
from statemix.studies.exactness.tally import passed
from statemix.studies.fixed_points.fp_scores import score as fixed_point_score
from statemix.studies.fixed_points.fp_suites import SUITES as FIXED_POINTS
from statemix.studies.higher_order.cell_scores import score
from statemix.studies.higher_order.claims import CLAIMS, decide
from statemix.studies.higher_order.overview import overview
from statemix.studies.higher_order.paper_figures import FIGURES
from statemix.studies.higher_order.paper_tables import TABLES
from statemix.studies.higher_order.protocols import SIZES
from statemix.studies.higher_order.wrapper import WRAPPER
from statemix.studies.number_text import accuracy_text, published_text
from statemix.studies.store import Store, key, merged
from statemix.training import RunConfig, config_from_plain
from statemix.training.config import SCHEMA

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!#)([^)\s]+)\)")


def blocks(language):
    return [
        pytest.param(code, id=f"{path.name}-{number}")
        for path in DOCUMENTS
        for number, (kind, code) in enumerate(BLOCK.findall(path.read_text()))
        if kind == language
    ]


def commands_in_text():
    return [block for block in blocks("text") if block.values[0].startswith("statemix ")]


def trees():
    return [block for block in blocks("text") if block.values[0].startswith("src/")]


def test_every_block_has_a_language_that_is_tested():
    kinds = {kind for path in DOCUMENTS for kind, _ in BLOCK.findall(path.read_text())}
    assert kinds <= {"python", "console", "text", "toml"}


@pytest.fixture
def layers_restored():
    """Remove the layers that a block registers."""
    before = set(LAYERS)
    yield
    for name in set(LAYERS) - before:
        LAYERS.remove(name)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path, layers_restored):
    exec(compile(code, "block", "exec"), {"folder": tmp_path / "run"})


@pytest.mark.parametrize("code", blocks("toml"))
def test_configuration_files_are_right(code):
    config = config_from_plain(tomllib.loads(code))
    assert config.resolved().asked()["model"]["layers"]


@pytest.mark.parametrize("code", blocks("console"))
def test_commands_exist(code, tmp_path, monkeypatch, capsys):
    """Statemix commands run; make targets are only resolved, and installs are skipped."""
    monkeypatch.chdir(tmp_path)
    for line in code.splitlines():
        program, *arguments = shlex.split(line)
        if program == "statemix":
            assert main.main(arguments) == 0
            printed = capsys.readouterr().out
        elif program == "make":
            command = ["make", "--dry-run", "--directory", str(ROOT), *arguments]
            printed = subprocess.check_output(command, text=True, timeout=120)
        else:
            assert program == "pip"
            continue
        assert printed, f"{line} must print something"


@pytest.mark.parametrize("code", commands_in_text())
def test_commands_that_would_take_long_are_understood(code, tmp_path, monkeypatch):
    """Parse their options, next to a stored run of the name that they use."""
    monkeypatch.chdir(tmp_path)
    Path("runs/s3").mkdir(parents=True)
    stored = {"schema": SCHEMA, "asked": RunConfig(seed=3).asked(), "resolved": {}}
    Path("runs/s3/config.json").write_text(json.dumps(stored))
    for line in code.replace("\\\n", " ").splitlines():
        _, name, *arguments = shlex.split(line)
        command = main.parse(name, arguments)
        part = arguments[0].capitalize() if name == "bench" else main.COMMANDS[name][0]
        assert type(command).__name__ == part


def test_the_versions_are_those_of_the_project():
    readme = " ".join((ROOT / "README.md").read_text().split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = project["requires-python"].removeprefix(">=")
    (torch,) = [one for one in project["dependencies"] if one.startswith("torch>=")]
    stated = f"Python {least} or newer and PyTorch {torch.removeprefix('torch>=')} or newer"
    assert stated in readme

    prefix = "Programming Language :: Python :: 3."
    (python,) = [one for one in project["classifiers"] if one.startswith(prefix)]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    tested = f"Python {python.split()[-1]}, PyTorch {pins['torch']} and NumPy {pins['numpy']}"
    assert f"The tests run with {tested} (" in readme


def test_the_counts_of_measured_cells_are_those_of_the_results():
    stores = merged(sorted((ROOT / "results" / "reproduce").glob("*.jsonl")))
    found = overview(stores)
    text = " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
    stated = dict.fromkeys(TABLES, (0, 0))
    for number, measured, of, agree in re.findall(
        r"Table (\d): (\d+) of (\d+) cells are measured, and (\d+) agree", text
    ):
        table = TABLES[f"table{number}"]
        assert int(of) == len(table.columns) * len(table.published)
        stated[table.name] = int(measured), int(agree)
    for name, counts in stated.items():
        cells = {
            (cell["column"], cell["model"]): cell["verdict"]
            for cell in found["cells"]
            if (cell["table"], cell["protocol"], cell["size"]) == (name, "paper", "laptop")
            and cell["verdict"] not in ("empty", "partial")
        }
        assert counts == (len(cells), list(cells.values()).count("agrees"))


@pytest.mark.parametrize("name", FIGURES)
def test_the_shorter_sequences_of_a_figure_at_size_laptop_are_stated(name):
    text = (ROOT / "docs" / "reproduction.md").read_text()
    rows = dict(re.findall(r"^\| `(fig\d\w?)` \|.*\| (.*) \|$", text, re.M))
    shown = rows["fig1c"] if rows[name] == "the same" else rows[name]
    columns = set(FIGURES[name].columns("laptop")) - set(FIGURES[name].columns("paper"))
    lengths = sorted({c.data[0].task.build().length for c in columns if len(c.data) == 1})
    assert f"at size laptop of {' and '.join(map(str, lengths))} tokens)" in shown


def test_the_verdicts_on_claims_are_those_of_the_results():
    stores = merged(sorted((ROOT / "results" / "reproduce").glob("*.jsonl")))
    text = " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
    (said,) = re.findall(r"decides seven claims of the paper by these runs: ([^.]*)\.", text)
    words = ["no", "one", "two", "three", "four", "five", "six", "seven"]
    stated = {
        verdict: words.index(word)
        for word, verdict in re.findall(r"(\w+) (hold|do not|does not|are open|is open)", said)
    }
    verdicts = collections.Counter(one.verdict for one in decide(stores, "paper"))
    holding, failing = (verdicts[name] for name in ("holds", "does not hold"))
    assert sum(stated.values()) == len(CLAIMS)
    assert (stated["hold"], stated.get("do not", stated.get("does not", 0))) == (holding, failing)


def test_the_table_of_what_the_paper_leaves_open_is_that_of_the_results():
    stores = merged(sorted((ROOT / "results" / "reproduce").glob("*.jsonl")))
    text = (ROOT / "docs" / "reproduction.md").read_text()
    lines = text.partition("| cell | as above |")[2].partition("\n\n")[0].splitlines()[2:]
    names = {"S_3 from 250": "s3_250", "cycle navigation": "cycle_navigation"}
    names["recall"] = "in_context_recall"
    found = {
        (one.column.name.partition(",")[0], one.model, one.change): score(one, stores)
        for one in WRAPPER.cells("paper", "laptop")
    }
    assert len(lines) == 9
    for line in lines:
        name, *shown, paper = (cell.strip() for cell in line.strip("|").split("|"))
        task, _, model = name.rpartition(", ")
        cells = [
            found[names[task], model, change]
            for change in ("", "constant rate", "start token", "SwiGLU")
        ]
        assert shown == [accuracy_text(cell.best) for cell in cells]
        assert {cell.seeds for cell in cells} == {3}
        published = cells[1].cell.published
        assert paper == ("" if published is None else published_text(published))


def test_the_table_of_the_factorial_is_that_of_the_results():
    rows = Store(ROOT / "results" / "reproduce" / "exact-factorial.jsonl").rows()
    text = (ROOT / "docs" / "state_tracking.md").read_text()
    lines = text.partition("| end as without it |")[2].partition("\n\n")[0].splitlines()[2:]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ended = collections.defaultdict(dict)
    for condition in EXACT["exact-factorial"].conditions:
        for run in condition.runs:
            row = rows[key(run)]
            assert row["status"] == "done"
            ended[condition.model][condition.column, run.seed] = passed(row)
    usual, alike = ended["as in the recipe"], collections.Counter()
    for (change, *cells), name in zip(shown, ended, strict=True):
        found = ended[name]
        assert change == name
        for cell, column in zip(cells, ("A_5", "S_5"), strict=False):
            these = [one for (group, _), one in found.items() if group == column]
            assert cell == f"{sum(these)} of {len(these)}"
        alike[name] = sum(found[place] == usual[place] for place in found)
        if name != "as in the recipe":
            assert cells[2] == f"{alike[name]} of {len(found)}"
    same_weights = [name for name in ended if name.startswith(("gate noise", "learning rate"))]
    same_weights += ["positions weighted by 1/t", "20,000 words, repeated", "temperature 1/2"]
    same_weights += ["penalty 0.02 from the exit", "6 tests", "other words"]
    told = f"{sum(alike[name] for name in same_weights)} of {20 * len(same_weights)} attempts end"
    assert told in " ".join(text.split())


def test_the_readme_counts_what_the_documents_count():
    found = overview(merged(sorted((ROOT / "results" / "reproduce").glob("*.jsonl"))))
    readme = " ".join((ROOT / "README.md").read_text().split())
    documented = " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
    assert (
        f"Of the {found['of']} accuracies in the paper's tables, {found['measured']} have" in readme
    )
    assert f"and {found['agree']} agree within" in readme
    for agree, measured, number in re.findall(r"(\d+) of (\d+) in Table (\d)", readme):
        told = rf"Table {number}: {measured} of \d+ cells are measured, and {agree} agree"
        assert re.search(told, documented)


@pytest.mark.parametrize("code", trees())
def test_the_printed_tree_is_the_tree(code):
    """The README's tree lists exactly the folders that exist."""
    top, *lines = code.splitlines()
    package = ROOT / top.strip()
    listed = {line.split()[0] for line in lines}
    present = {f"{p.parent.name}/" for p in package.glob("*/__init__.py")} | {"tests/", "results/"}
    assert listed == present


def test_the_prices_of_the_demos_layers_are_stated():
    runs = json.loads((ROOT / "results" / "demo" / "S_3.json").read_text())["runs"]
    layers = {json.dumps(run["layers"]): run["layers"][0] for run in runs}
    width = RunConfig().model.hidden_size
    paid = [
        price(LayerSpec(layer.pop("name"), **layer), hidden_size=width, length=1)
        for layer in sorted(layers.values(), key=lambda one: -one.get("block_size", 0))
    ]

    def listed(texts):
        return f"{', '.join(texts[:-1])} and {texts[-1]}"

    readme = " ".join((ROOT / "README.md").read_text().split())
    parameters = listed([f"{one.num_parameters:,}" for one in paid])
    flops = listed([f"{one.flops.total / 1000:.0f}k" for one in paid])
    assert f"layers have {parameters} parameters, and take {flops} FLOPs per token" in readme


def test_the_demo_table_is_that_of_the_committed_results():
    summary = json.loads((ROOT / "results" / "demo" / "S_3.json").read_text())
    readme = (ROOT / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.startswith("| ")]
    cells, known = scores.pivot(summary), scores.published(summary)
    expected = [
        "| "
        + " | ".join(
            [
                name,
                published_text(known[name]),
                *(cells[name, str(length)].text for length in (16, 64, 1024, 16384)),
            ]
        )
        + " |"
        for name in cells.lines
    ]
    assert shown[1:] == expected  # after the header


def in_words(numbers):
    """Numbers as the table of sizes has them: one if all are equal, the ends of many."""
    words = [f"{number:,}" for number in numbers]
    if len(set(words)) == 1:
        return words[0]
    return f"{numbers[0]} to {numbers[-1]}" if len(words) > 5 else ", ".join(words)


def durations(table, size):
    return [data.durations[size] for column in TABLES[table].columns for data in column.data]


def test_the_table_of_sizes_is_that_of_the_code():
    text = (ROOT / "docs" / "reproduction.md").read_text().partition("\n## Sizes\n")[2]
    text = text.partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    (_, *names), _, *rows = ([cell.strip() for cell in line] for line in lines)
    assert names == list(SIZES)
    data = ", ".join(data.name for column in TABLES["table4"].columns for data in column.data)
    expected = {
        "seeds": lambda _, size: str(len(size.seeds)),
        'learning rates (protocol "paper")': lambda _, size: ", ".join(
            f"{rate:.0e}".replace("e-0", "e-") for rate in size.learning_rates
        ),
        'settings (protocol "tuned")': lambda _, size: str(size.num_settings),
        "state sizes": lambda _, size: in_words(size.state_sizes),
        "kernels and heads of the baselines": lambda _, size: (
            "all" if size.all_variants else "one choice"
        ),
        f"epochs on {data}": lambda name, _: in_words(durations("table4", name)),
        "epochs on MAD": lambda name, _: in_words(durations("table3", name)),
        "steps on the Chomsky tasks": lambda name, _: " or ".join(
            f"{steps:,}" for steps in dict.fromkeys(durations("table6", name))
        ),
    }
    assert rows == [
        [row, *(cell(name, size) for name, size in SIZES.items())] for row, cell in expected.items()
    ]


def fixed_point_scores(suite):
    stores = merged(sorted((ROOT / "results" / "reproduce").glob("fp-*.jsonl")))
    every = (fixed_point_score(one, stores) for one in FIXED_POINTS[suite].conditions("laptop"))
    return [found for found in every if found.rows]


def test_the_accuracies_of_layers_to_choose_are_those_of_the_results():
    models = {}
    for found in fixed_point_scores("fp-a5"):
        assert len(found.rows) == 3
        means = [accuracy_text(found.at(n).mean) for n in (16, 32, 64, 128)]
        models.setdefault(found.condition.model, []).extend(means)
    text = (ROOT / "docs" / "choosing.md").read_text()
    assert len(models) == 8
    for model, means in models.items():
        assert len(means) == 8
        assert f"| {model} | {' | '.join(means)} |\n" in text


def test_what_layers_cost_is_what_was_measured():
    path = ROOT / "results" / "fixed_point" / "costs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(row["model"], row["work"]): row for row in rows}
    table = re.findall(
        r"^\| (.+) \| ([\d,]+) \| (\d+) MB \| ([\d,]+) \| ([\d,]+) \|$",
        (ROOT / "docs" / "choosing.md").read_text(),
        re.MULTILINE,
    )
    assert len(table) == 8
    for model, training, memory, short, long in table:
        works = {"train": training, "answer": short, "answer long": long}
        for work, stated in works.items():
            measured = found[model, work]["tokens_per_s"]
            assert int(stated.replace(",", "")) == float(f"{measured:.2g}")
        assert int(memory) == round(found[model, "train"]["memory_bytes"] / 1e6)


def test_what_budgets_and_copies_took_is_that_of_the_results():
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for found in fixed_point_scores("fp-budget"):
        (layer,) = found.condition.runs[0].model.layers
        means = [
            sum(next(iter(row["test"][n].values()))["token_accuracy"] for row in found.rows) / 3
            for n in ("16", "30", "60")
        ]
        taken = [
            sum(row["iterated"][n]["iterations"] for row in found.rows) / 3
            for n in ("15", "30", "60")
        ]
        cells = [*map(accuracy_text, means), *(f"{number:.0f}" for number in taken)]
        assert f"| {layer.options['max_iterations']} | {' | '.join(cells)} |\n" in text
    for found in fixed_point_scores("fp-copy"):
        cells = []
        for n in (8, 14, 26, 50):
            one = found.at(n)
            taken = f" @{sum(one.iterations) / 3:.0f}" if one.iterations else ""
            cells.append(accuracy_text(one.mean) + taken)
        assert f"| {found.condition.model} | {' | '.join(cells)} |\n" in text
