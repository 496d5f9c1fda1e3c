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


def test_the_page_of_table_4_counts_the_cells_that_agree():
    table = (ROOT / "docs" / "generated" / "table4_mad.md").read_text()
    marks = re.findall(r"\| \d?\.\d+ ([=<>?]) \(", table)
    page = (ROOT / "docs" / "studies" / "table4.md").read_text()
    assert f"{marks.count('=')} of the {len(marks)} numbers for 250 examples" in page


def test_the_effect_of_the_state_size_is_the_range_over_sizes():
    generated = ROOT / "docs" / "generated"
    lines = (generated / "table4_sizes.md").read_text().splitlines()[2:]
    models = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ranges = {}
    for model, *accuracies in models:
        values = [float(text) for text in accuracies[:4]]
        ranges[model] = max(values) - min(values)
    most = max(ranges, key=ranges.get)
    cells = (len(ranges), f".{sum(ranges.values()) / len(ranges) * 1000:.0f}", most)
    (line,) = re.findall(r"\| `s3_250` \| state size \| .*", (generated / "axes.md").read_text())
    texts = [cell.strip() for cell in line.strip("|").split("|")[2:]]
    assert (int(texts[0]), texts[1], texts[3]) == cells
    assert abs(float(texts[2]) - ranges[most]) < 0.002
