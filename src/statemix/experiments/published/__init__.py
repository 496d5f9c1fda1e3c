"""The papers' own numbers as data, and the one way to read them."""

import json
import re
from importlib import resources
from typing import Any

from statemix.experiments.summary import Published


def permutation(column: str, setting: str) -> Published:
    """Read one column of the permutation table of Dubinin et al. (their Table 4).

    Args:
        column: key of the column in ``lru_tables.json``, such as "s3_250".
        setting: what the column holds, in words, to be shown beside the numbers.

    Returns:
        One row per recurrent network of the library that the table names: BD-LRU, H-LRU and LSTM.

    Raises:
        ValueError: if the table has no such column.
    """
    tables: dict[str, Any] = json.loads(
        resources.files(__name__).joinpath("lru_tables.json").read_text(encoding="utf-8")
    )
    rows = tables["table4_permutation"]
    columns = [name for name in rows[0] if name not in ("model", "overall")]
    if column not in columns:
        raise ValueError(f"column must be one of {columns}, got {column!r}")
    published: Published = {
        "source": tables["source"],
        "metric": tables["metric"],
        "setting": setting,
        "rows": [],
    }
    for row in rows:
        match = re.fullmatch(r"(BD-LRU|H-LRU|LSTM)(?: m(\d+))?", row["model"])
        if match:
            published["rows"].append(
                {
                    "model": match[1].lower().replace("-", "_"),
                    "m": int(match[2]) if match[2] else None,
                    "accuracy": row[column],
                }
            )
    return published
