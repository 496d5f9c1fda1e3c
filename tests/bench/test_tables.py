"""The measured tables in the documentation are those of the committed rows."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_tables_are_those_of_the_rows():
    tables = runpy.run_path(ROOT / "benchmarks" / "tables.py")["tables"]()
    committed = {path.stem: path.read_text() for path in (ROOT / "docs/generated").glob("*.md")}
    for name, text in tables.items():
        assert committed.get(name) == text, "run: make tables"
