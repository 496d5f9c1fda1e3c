"""The papers' own numbers as data, and the function that reads them."""

import json
import re
from importlib import resources
from typing import Any, TypedDict


class PublishedRow(TypedDict):
    """A paper's number for one network, under this library's label of the network."""

    network: str
    accuracy: float


class Published(TypedDict):
    """A paper's numbers for one setting, and their source."""

    source: str
    metric: str
    setting: str
    rows: list[PublishedRow]


def permutation(column: str, setting: str) -> Published:
    """Read one column of the permutation table of Dubinin et al. (their Table 4).

    Args:
        column: key of the column in ``lru_tables.json``, such as "s3_250".
        setting: description of the column, shown beside the numbers.

    Returns:
        One row per network of the table. The paper's "BD-LRU m3" is our "BD-LRU m=3".

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
    return {
        "source": tables["source"],
        "metric": tables["metric"],
        "setting": setting,
        "rows": [
            {"network": re.sub(r" m(\d+)$", r" m=\1", row["model"]), "accuracy": row[column]}
            for row in rows
        ],
    }
