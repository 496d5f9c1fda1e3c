"""The generated tables of the documentation are those of the committed rows."""

import importlib
import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "laboratory" / "tables"


def test_generated_tables_are_those_of_the_rows(monkeypatch):
    monkeypatch.syspath_prepend(TABLES)
    tables = runpy.run_path(str(TABLES / "generate.py"))["tables"]()
    committed = {path.stem: path.read_text() for path in (ROOT / "docs" / "generated").glob("*.md")}
    assert committed == tables, "run: make docs"


def test_the_checks_are_those_of_the_newest_day(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(TABLES)
    measured = importlib.import_module("measurement_tables")
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    row = json.dumps({"caught": True, "kinds": {"kills": {"cases": 3, "findings": 0}}})
    for name in ("mutants/2026-11-22", *(f"fuzz/2026-11-{day}" for day in ("22", "23-a", "23-b"))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text(row)
    assert "| runs killed and resumed | 6 | 0 findings |" in measured._checks()


def page(name):
    return (ROOT / "docs" / "studies" / f"{name}.md").read_text()


def lines_of(name):
    """Yield the cells of each line of a generated table, without its head."""
    for line in (ROOT / "docs" / "generated" / f"{name}.md").read_text().splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_of_table_4_counts_the_cells_that_agree():
    lines = list(lines_of("table4_mad"))
    for place, words in enumerate(("for 250 examples of S_3", "for 3,000 examples of S_4"), 1):
        marks = [line[place].split()[1] for line in lines if "(" in line[place]]
        marks = [mark for mark in marks if not mark.startswith("?")]
        assert f"{marks.count('=')} of the {len(marks)} numbers {words}" in page("table4")


def test_the_page_of_choices_counts_the_cells_that_agree_under_both_rules():
    best, lowest = ([line[place] for line in lines_of("lowest_loss")] for place in (1, 2))
    counts = [sum(cell.endswith("=") for cell in cells) for cells in (best, lowest)]
    assert f"{counts[1]} of the 20 numbers of S_3 from 250 examples agree" in page("wrapper")
    assert f"Along the whole run, {counts[0]} numbers agree" in page("wrapper")


def test_the_page_of_claims_names_all_that_do_not_hold():
    against = {line[0] for line in lines_of("claims") if line[1] == "does not hold"}
    verdict = page("claims").partition("**Verdict.**")[2]
    assert {claim for claim in against if claim not in " ".join(verdict.split())} == set()


def test_the_effects_of_choices_are_ranges_over_runs():
    of = {
        model: [float(text.split()[0]) for text in re.sub(r" \([\d,]+\)", "", cell).split(", ")]
        for model, cell, *_ in lines_of("table4_sizes")
    }
    ranges = {model: max(values) - min(values) for model, values in of.items()}
    (line,) = (line for line in lines_of("axes") if line[:2] == ["`s3_250`", "state size"])
    most = max(ranges, key=ranges.get)
    assert (line[2], line[5]) == ("20", most)
    assert abs(float(line[3]) - sum(ranges.values()) / 20) < 0.001
    assert abs(float(line[4]) - ranges[most]) < 0.002
    (line,) = (line for line in lines_of("axes") if line[:2] == ["`s3_250`", "weight decay 0.1"])
    assert line[2:] == ["5", ".001", ".004", "BD-LRU m=16"]
