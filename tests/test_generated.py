"""The generated tables of the documentation are those of the committed rows."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_generated_tables_are_those_of_the_rows(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    tables = runpy.run_path(str(DOCS / "generate.py"))["tables"]()
    committed = {path.stem: path.read_text() for path in (DOCS / "generated").glob("*.md")}
    assert committed == tables, "run: make docs"
