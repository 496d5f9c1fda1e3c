"""``statemix reproduce`` and ``statemix report``: plan, progress, table, and the store between."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from statemix.cli.main import main
from statemix.layers import LayerSpec
from statemix.sweeps.runner import Ended, run_all
from statemix.tasks import TaskSpec
from statemix.training import EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig
from statemix_lab.studies import forecast
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.exactness import exact_studies
from statemix_lab.studies.exactness.exact_studies import ProofStudy
from statemix_lab.studies.higher_order import (
    cell_table,
    claims,
    higher_order_studies,
    protocols,
    run_spectra,
)
from statemix_lab.studies.higher_order.contenders import CONTENDERS, bd_lru
from statemix_lab.studies.higher_order.higher_order_studies import (
    ClaimsStudy,
    FigureStudy,
    SpectraStudy,
    TableStudy,
    _study,
)
from statemix_lab.studies.higher_order.paper_claims import Claim, Comparison
from statemix_lab.studies.higher_order.paper_figures import PaperFigure, View
from statemix_lab.studies.higher_order.paper_tables import PaperTable
from statemix_lab.studies.higher_order.protocols import Column, Data
from statemix_lab.studies.study_entries import SIZES, StudyEntry, Trials

PAPER = ("--protocol", "paper", "--workers", "1")

(WRAPPER,) = (one for one in higher_order_studies.STUDIES if one.name == "wrapper")


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path, tiny_models):
    """Tables and figures with one column, two models and runs of a fraction of a second."""
    task = TaskSpec("permutation", group="S_3", length=6, train_size=10)
    column = Column("s3", (Data("S_3", task, dict.fromkeys(SIZES, 2)),))
    numbers = {"LSTM": {"s3": 0.0}, "BD-LRU m=2": {"s3": 1.0}}
    table = PaperTable("tiny", (column,), numbers)
    monkeypatch.setattr("statemix_lab.studies.higher_order.cell_table.TABLES", {"table4": table})
    lines = {"BD-LRU": [(m, CONTENDERS[f"BD-LRU m={m}"]) for m in (1, 2)]}
    figure = PaperFigure("tiny", (View("", "m", lambda _: lines, lambda _: (column,)),))
    gates = {
        "BD-LRU, softmax": [(2, CONTENDERS["BD-LRU m=2"])],
        "BD-LRU, none": [(2, bd_lru(2, gate="none"))],
    }
    monkeypatch.setattr(run_spectra, "_LINES", gates)
    monkeypatch.setattr(run_spectra, "column", lambda *_: column)
    tiny = (
        _study(TableStudy, "table4", "tiny", table.entries),
        _study(ClaimsStudy, "claims", "tiny", lambda *some: claims.claim_entries(*some)),
        _study(FigureStudy, "fig2", "tiny", figure.entries),
        _study(SpectraStudy, "fig7", "tiny", run_spectra.spectra_entries),
    )
    whole = {one.name: one for one in (*exact_studies.STUDIES, WRAPPER)}
    monkeypatch.setattr(catalogue, "_own", lambda: {**{one.name: one for one in tiny}, **whole})
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_lists_the_plan_and_its_time_and_runs_nothing(printed_by, tmp_path):
    lines = printed_by(["reproduce", "table4", *PAPER, "--dry-run"]).splitlines()
    assert lines[0] == (
        "table4, protocol paper, size laptop: 2 cells, 6 runs, of which 0 are in "
        "reproduce/runs.jsonl"
    )
    assert lines[1].startswith("6 runs to do, 1 at a time; predicted for all: ")
    assert [line.split("  ")[-1] for line in lines[2:]] == [
        f"{model}, S_3, learning rate 0.001, seed {seed}"
        for model in ("LSTM", "BD-LRU m=2")
        for seed in range(3)
    ]
    assert not list(tmp_path.iterdir())


def test_the_table_shows_our_numbers_above_the_papers_and_nothing_is_repeated(printed_by, tmp_path):
    first = printed_by(["reproduce", "table4", *PAPER])
    rows = list(map(json.loads, (tmp_path / "reproduce/runs.jsonl").read_text().splitlines()))
    assert len(rows) == len({row["key"] for row in rows}) == 6
    best = max(
        row["best_test"]["product"]["token_accuracy"]
        for row in rows
        if row["layers"][0]["name"] == "lstm"
    )
    (line,) = (text for text in first.splitlines() if text.startswith("LSTM   "))
    assert f"{best:.3f}".removeprefix("0") in line
    assert re.search("[>=] +132,096 +265,344$", line)
    assert "6 runs finished" in first
    assert first.endswith("\na page of all results: statemix report --results reproduce\n")

    again = printed_by(["reproduce", "table4", *PAPER])
    assert "6 runs, of which 6 are in" in again
    assert "to do" not in again
    assert line in again
    assert len((tmp_path / "reproduce/runs.jsonl").read_text().splitlines()) == 6

    found = json.loads(printed_by(["report", "cells", "--results", "reproduce", "--json"]))
    assert (found["measured"], found["of"]) == (2, 2)
    assert [cell["seeds"] for cell in found["cells"]] == [3, 3]
    text = printed_by(["report", "cells", "--results", "reproduce"])
    assert text.startswith("2 of 2 cells measured")
    assert re.search(r"^table4 +s3 +BD-LRU m=2 +123,456 +248,640 +paper +laptop +3 ", text, re.M)


def test_a_store_elsewhere_names_the_command_of_its_page(capsys, printed_by, tmp_path):
    options = ["--models", "LSTM", "--output", "new/folder"]
    assert main(["reproduce", "table4", *PAPER, *options, "--store", "my rows/all.jsonl"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "a page of all results: statemix report --results 'my rows'"
    # In JSON alone, cells without results are listed.
    found = json.loads(printed_by(["report", "cells", "--results", "my rows", "--json"]))
    assert [(cell["model"], cell["ours"] is None) for cell in found["cells"]] == [
        ("LSTM", False),
        ("BD-LRU m=2", True),
    ]
    text = printed_by(["report", "cells", "--results", "my rows"])
    assert text.startswith("1 of 2 cells measured")
    assert "BD-LRU m=2" not in text


@pytest.mark.parametrize("column", ["s3", "S_3"])
def test_columns_and_models_choose_cells(printed_by, monkeypatch, column):
    monkeypatch.setattr(forecast.Forecast, "seconds", lambda *_: 60.0)
    options = ["--models", "BD-LRU m=2", "--columns", column, "--store", "other.jsonl"]
    text = printed_by(["reproduce", "table4", *PAPER[:2], "--dry-run", "--workers", "2", *options])
    assert "1 cell, 3 runs, of which 0 are in other.jsonl" in text
    # Runs side by side divide the time.
    assert "; predicted for all: 1 min 30 s\n" in text


def test_a_figure_is_printed_and_drawn_with_the_runs_that_a_table_made(printed_by, tmp_path):
    printed_by(["reproduce", "table4", *PAPER, "--models", "BD-LRU m=2"])
    text = printed_by(["reproduce", "fig2", *PAPER])
    assert "fig2, protocol paper, size laptop: 2 cells, 6 runs, of which 3 are in" in text
    picture = tmp_path / "reproduce" / "fig2-paper-laptop.png"
    assert picture.read_bytes()[1:4] == b"PNG"
    lines = [line.split() for line in text.splitlines() if line.startswith("S_3")]
    assert [line[:2] for line in lines] == [["S_3", "1"], ["S_3", "2"]]
    assert all(line[2].startswith(".") for line in lines)
    prices = [line.split() for line in text.splitlines() if line.startswith("BD-LRU")]
    assert [line[1:] for line in prices] == [
        ["m=1", "98,688", "198,528"],
        ["m=2", "123,456", "248,640"],
    ]


def test_a_screened_plan_counts_the_rows_of_the_store(printed_by):
    command = ["reproduce", "table4", "--workers", "1", "--models", "LSTM"]
    assert "at most 12 runs to do" in printed_by([*command, "--dry-run"])
    printed_by(command)
    text = printed_by([*command, "--dry-run"])
    assert "12 runs, of which 6 are in" in text
    assert "runs to do" not in text


def test_eigenvalues_are_kept_and_drawn_without_the_runs(capsys, printed_by, tmp_path, monkeypatch):
    printed_by(["reproduce", "table4", *PAPER, "--models", "BD-LRU m=2"])
    text = printed_by(["reproduce", "fig7", *PAPER])
    # One seed is enough, and the table has made the normalised run.
    assert "fig7, protocol paper, size laptop: 2 cells, 2 runs, of which 1 are in" in text
    assert "1 runs finished" in text
    picture = tmp_path / "reproduce" / "fig7-paper-laptop.png"
    assert picture.read_bytes()[1:4] == b"PNG"
    files = sorted((tmp_path / "reproduce" / "spectra").iterdir())
    assert len(files) == 2
    # The page and the figure need the numbers only.
    shutil.rmtree(tmp_path / "reproduce" / "runs")
    picture.unlink()
    assert "2 runs, of which 2 are in" in printed_by(["reproduce", "fig7", *PAPER])
    assert picture.exists()
    # Without numbers and runs, the run is trained once more.
    files[0].unlink()
    assert main(["reproduce", "fig7", *PAPER, "--dry-run"]) == 0
    assert "2 runs, of which 1 are in" in capsys.readouterr().out
    files[1].write_text("{")
    assert main(["report", "--results", "reproduce", "--output", "page.html"]) == 2
    assert "must hold a run's eigenvalues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        # LSTM has one layer at every size, BD-LRU one for each state size.
        (["table4", "--protocol", "tuned"], "protocol tuned, size laptop: 2 cells, 42 runs"),
        (["fig2", "--size", "workstation"], "protocol mad, size workstation: 2 cells, 60 runs"),
    ],
)
def test_protocol_and_size_choose_runs(printed_by, arguments, plan):
    text = printed_by(["reproduce", *arguments, "--dry-run"])
    assert f"{arguments[0]}, {plan}, of which 0 are in" in text
    # A setting that only this protocol or this size tries.
    assert ("bos True" if "tuned" in arguments else "learning rate 0.0005") in text


def test_a_run_begins_whatever_planning_took_and_the_end_of_the_time_is_said(
    capsys, monkeypatch, tmp_path
):
    now = [1000.0]
    until = []

    def seconds(*_):
        now[0] += 10
        return 1.0

    def fill(self, planned, store, *, on_end, **options):
        until.append(options["until"])
        on_end(Ended(planned[0].job, "interrupted", "the time was up"))
        now[0] = options["until"]

    monkeypatch.setattr(
        "statemix_lab.cli.reproduce.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    monkeypatch.setattr(forecast.Forecast, "seconds", seconds)
    monkeypatch.setattr("statemix_lab.studies.study.Study.fill", fill)
    assert main(["reproduce", "table4", *PAPER, "--minutes", "0.5"]) == 0
    # The prediction is later than the time that was asked for, which begins with the command.
    assert until == [1060 + 15]
    said = capsys.readouterr().out
    assert "the time was up: 6 runs are left; the same command continues\n" in said


def test_a_run_without_a_result_is_named_and_the_exit_code_says_so(
    capsys, printed_by, tmp_path, monkeypatch
):
    whole = protocols._config

    def wild(layer, data, size):
        config = whole(layer, data, size)
        if layer.name == "lstm":
            return config
        return config.replace(optimizer=config.optimizer.replace(weight_decay=1e300))

    monkeypatch.setattr(protocols, "_config", wild)
    assert main(["reproduce", "table4", *PAPER]) == 1
    said = capsys.readouterr()
    lost = "3 of 6 ended runs have no result; --retry repeats them\n"
    assert said.err == f"statemix: {lost}"
    assert "3 without result" in said.out
    # They are repeated only on request.
    said = printed_by(["reproduce", "table4", *PAPER, "--dry-run"])
    assert "to do" not in said
    assert said.endswith(lost)
    # The others are not lost.
    assert main(["reproduce", "table4", *PAPER, "--models", "LSTM"]) == 0
    asked = []

    def noting(*arguments, **options):
        asked.append(options["retry"])
        return run_all(*arguments, **options)

    monkeypatch.setattr("statemix_lab.studies.study.run_all", noting)
    assert main(["reproduce", "table4", *PAPER, "--retry"]) == 1
    assert asked == [("diverged", "failed")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table4", "--columns", "s9"], "columns must be among ['s3', 'S_3'], got 's9'"),
        (["table4", "--models", "GRU"], "models must be among ['LSTM', 'BD-LRU m=2'], got 'GRU'"),
        (["table4", "--minutes", "0"], "minutes must be above 0 and below 1e6, got 0.0"),
        (["table4", "--workers", "5"], "workers must be in 1..4 (processors available: 1)"),
        (["table4", "--output", "/dev/null"], "output must be a writable folder, got '/dev/null'"),
        (["table4", "--store", "."], "a results store must be a regular file, got '.'"),
        (["wrapper", "--protocol", "tuned"], "protocol must be paper with wrapper, got 'tuned'"),
        (["exact-groups", "--size", "paper"], "size must be laptop with exact-groups, got 'paper'"),
        (["exact-groups", "--columns", "S_9"], "columns must be among ["),
    ],
)
def test_a_bad_request_is_one_line(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr("statemix.training.devices.available_processors", lambda: 1)
    refused(["reproduce", *arguments], message)
    assert not list(tmp_path.iterdir())


def test_a_report_needs_a_folder_of_stores(refused, tmp_path):
    refused(["report", "cells"], "results must be a folder of results stores")
    (tmp_path / "runs.jsonl").write_text("{\n")
    refused(["report", "cells", "--results", "."], "runs.jsonl:1 must be a row of a results store")


def test_claims_are_run_and_printed_with_what_decides_them(printed_by, monkeypatch):
    column = cell_table.TABLES["table4"].columns[0]
    two, lstm = CONTENDERS["BD-LRU m=2"], CONTENDERS["LSTM"]
    conditions = (
        Comparison(column, two, "fails"),
        Comparison(column, two, "is smaller than", lstm),
        Comparison(column, lstm, "fails"),
    )
    monkeypatch.setattr(claims, "CLAIMS", (Claim("tiny", "small models fail", conditions),))
    out = printed_by(["reproduce", "claims", *PAPER, "--models", "BD-LRU m=2"])
    assert "claims, protocol paper, size laptop: 1 cell, 3 runs" in out
    lines = out.splitlines()
    head = "open, not tested at the paper's setting: small models fail (protocol {})"
    start = lines.index(head.format("paper"))
    assert re.fullmatch(r"  yes: BD-LRU m=2 \(\..*\) fails on S_3", lines[start + 1])
    assert lines[start + 3].startswith("  undecided: 1 of 3 comparisons (not yet measured, or ")

    report = printed_by(["report", "claims", "--results", "reproduce"]).splitlines()
    assert head.format("paper") in report
    assert "open: small models fail (protocol tuned)" in report
    rows = json.loads(printed_by(["report", "claims", "--results", "reproduce", "--json"]))
    verdicts = [(row["claim"], row["protocol"], row["verdict"]) for row in rows]
    assert verdicts == [("tiny", name, "open") for name in ("mad", "paper", "mlp", "tuned")]


@pytest.fixture
def tiny_suite(monkeypatch):
    """The suite of exactness with two groups and LSTMs, which learn nothing in two steps."""
    config = RunConfig(
        model=ModelConfig(layers=(LayerSpec("lstm"),), hidden_size=4),
        schedules=ScheduleConfig(num_steps=2),
        evaluation=EvaluationConfig(test_size=8, validation_size=8, lengths=(9,)),
    )
    tasks = {group: TaskSpec("permutation", group=group, length=4) for group in ("S_3", "S_4")}
    entries = [
        StudyEntry(group, "LSTM", Trials.seeded(config.replace(task=task), (0, 1)))
        for group, task in tasks.items()
    ]

    study = ProofStudy("exact-groups", "tiny", lambda *_: entries)
    monkeypatch.setattr(catalogue, "_own", lambda: {study.name: study})


def test_a_suite_is_certified_and_nothing_is_repeated(printed_by, tmp_path, tiny_suite):
    command = ["reproduce", "exact-groups", "--workers", "1"]
    printed_by([*command, "--columns", "S_4"])
    out = printed_by(command)
    assert "2 cells, 4 runs, of which 2 are in reproduce/runs.jsonl" in out
    store = (tmp_path / "reproduce/runs.jsonl").read_text()
    rows = [json.loads(line) for line in store.splitlines()]
    assert [row["task"]["group"] for row in rows] == ["S_4", "S_4", "S_3", "S_3"]
    assert {row["certificate"]["network"] for row in rows} == {"as trained"}
    (line,) = (text for text in out.splitlines() if text.startswith("S_4 "))
    assert line.split()[1:5] == ["LSTM", "0", "of", "2"]
    assert (tmp_path / "reproduce/exact-groups.png").exists()
