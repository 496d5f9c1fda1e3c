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


_NAMES = {
    "Deltanet[-1,1]": "DeltaNet [-1,1]",
    "Deltaproduct ₄ [-1,1]": "DeltaProduct_4 [-1,1]",
}


def table(name: str) -> dict[str, dict[str, float]]:
    """Read a table of Dubinin et al.

    Args:
        name: key of the table in ``lru_tables.json``: "table3_mad", "table4_permutation" or
            "table6_chomsky".

    Returns:
        Network -> column -> accuracy, without the column of means. The paper's "BD-LRU m3" is our
        "BD-LRU m=3".

    Raises:
        ValueError: if there is no such table.

    Example:
        >>> table("table4_permutation")["BD-LRU m=3"]["s4_3k"]
        0.43
    """
    tables = _tables()
    names = [key for key in tables if key.startswith("table")]
    if name not in names:
        raise ValueError(f"name must be one of {names}, got {name!r}")
    return {
        _label(row["model"]): {
            column: number for column, number in row.items() if column not in ("model", "overall")
        }
        for row in tables[name]
    }


def _tables() -> dict[str, Any]:
    path = resources.files("statemix.studies.higher_order").joinpath("lru_tables.json")
    tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tables


def _label(model: str) -> str:
    return _NAMES.get(model, re.sub(r" m(\d+)$", r" m=\1", model))


def permutation(column: str, setting: str) -> Published:
    """Read one column of the permutation table of Dubinin et al. (their Table 4).

    Args:
        column: key of the column in ``lru_tables.json``, such as "s3_250".
        setting: description of the column, shown beside the numbers.

    Returns:
        One row per network, as in :func:`table`.

    Raises:
        ValueError: if the table has no such column.
    """
    tables, rows = _tables(), table("table4_permutation")
    columns = list(next(iter(rows.values())))
    if column not in columns:
        raise ValueError(f"column must be one of {columns}, got {column!r}")
    return {
        "source": tables["source"],
        "metric": tables["metric"],
        "setting": setting,
        "rows": [
            {"network": network, "accuracy": numbers[column]} for network, numbers in rows.items()
        ],
    }
