"""The generated tables of the documentation are those of the committed rows."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "laboratory" / "tables"


def test_generated_tables_are_those_of_the_rows(monkeypatch):
    monkeypatch.syspath_prepend(TABLES)
    tables = runpy.run_path(str(TABLES / "generate.py"))["tables"]()
    committed = {path.stem: path.read_text() for path in (ROOT / "docs" / "generated").glob("*.md")}
    assert committed == tables, "run: make docs"
