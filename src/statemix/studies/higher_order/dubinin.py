"""The numbers of Dubinin et al. as data."""

import json
import re
from importlib import resources
from typing import Any

PAPER = "Dubinin et al."

_NAMES = {
    "Deltanet[-1,1]": "DeltaNet [-1,1]",
    "Deltaproduct ₄ [-1,1]": "DeltaProduct_4 [-1,1]",
}


def published_table(name: str) -> dict[str, dict[str, float]]:
    """Read a table of the paper.

    Args:
        name: key of the table in ``lru_tables.json``: "table3_mad", "table4_permutation" or
            "table6_chomsky".

    Returns:
        Model -> column -> accuracy, without the column of means. The paper's "BD-LRU m3" is our
        "BD-LRU m=3".

    Raises:
        ValueError: if there is no such table.

    Example:
        >>> published_table("table4_permutation")["BD-LRU m=3"]["s4_3k"]
        0.43
    """
    path = resources.files("statemix.studies.higher_order").joinpath("lru_tables.json")
    tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names = [key for key in tables if key.startswith("table")]
    if name not in names:
        raise ValueError(f"name must be one of {names}, got {name!r}")
    return {
        _label(row["model"]): {
            column: number for column, number in row.items() if column not in ("model", "overall")
        }
        for row in tables[name]
    }


def _label(model: str) -> str:
    return _NAMES.get(model, re.sub(r" m(\d+)$", r" m=\1", model))
