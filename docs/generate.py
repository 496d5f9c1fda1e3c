"""Write the measured tables of the documentation from committed rows: `python docs/generate.py`."""

from pathlib import Path
from statistics import mean

import polars as pl
from speed_tables import tables as speed_tables
from study_tables import markdown
from study_tables import tables as study_tables

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "generated"


def memory() -> str:
    """Return the table of `results/memory.jsonl`: what the option `memory` changes, by task."""
    rows = pl.read_ndjson(ROOT / "results" / "memory.jsonl", infer_schema_length=None)
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
    header = [
        "layer",
        "task",
        "default",
        *(f"`memory=({arm.replace(' to', ',')})`" for arm in arms[1:]),
    ]
    return markdown(header, lines)


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    return {"memory": memory(), **speed_tables(), **study_tables()}


if __name__ == "__main__":
    for name, text in tables().items():
        (FOLDER / f"{name}.md").write_text(text)
