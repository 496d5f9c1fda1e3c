"""The numbers of Movahedi et al., "Fixed-Point RNNs", as data. Accuracies are shares of 1."""

import json
from importlib import resources
from typing import Any

from statemix.studies.study_entries import Number

PAPER = "Movahedi et al."


def state_tracking() -> dict[str, dict[str, float]]:
    """Return model -> group -> accuracy at 512 tokens, after training with at most 128.

    The accuracy must be that of single answers. A model that is right up to 128 tokens and guesses
    from there has .25 of them at 512, where the share of words without a mistake would be 0, and
    the paper has .24 for a model that does not generalise.

    Example:
        >>> state_tracking()["FP-Mamba1 Kronecker"]["A_5"]
        0.9955
    """
    found: dict[str, dict[str, float]] = {}
    for group, models in _tables()["state_tracking_4x_length"]["accuracy_percent"].items():
        for model, percent in models.items():
            found.setdefault(model, {})[f"{group[0]}_{group[1:]}"] = _share(percent)
    return found


def iteration_budgets() -> dict[int, dict[int, Number]]:
    """Return the most iterations in training -> tokens of a test word -> the numbers.

    The accuracy must be the share of words without a mistake: it falls to 0 where that of single
    answers would stay above the share of answers that are right up to the training length.

    Example:
        >>> iteration_budgets()[6][10]
        Number(accuracy=0.8976, iterations=15)
    """
    found: dict[int, dict[int, Number]] = {}
    for row in _tables()["a5_iteration_budget"]["rows"]:
        for name, numbers in row.items():
            if name.startswith("l_max_"):
                number = Number(_share(numbers["accuracy_percent"]), numbers["test_iterations"])
                found.setdefault(int(name.removeprefix("l_max_")), {})[row["length"]] = number
    return found


def catbabi() -> dict[int, dict[str, float]]:
    """Return number of layers -> model -> accuracy on the questions of catbAbI.

    Example:
        >>> catbabi()[2]["Mamba"]
        0.8708
    """
    return {
        int(layers.partition("_")[0]): {model: _share(number) for model, number in models.items()}
        for layers, models in _tables()["catbabi_accuracy_percent"].items()
    }


def language() -> dict[str, float]:
    """Return model -> test perplexity on FineWeb.

    Example:
        >>> language()["Mamba"]
        27.01
    """
    return dict(_tables()["language_test_perplexity_160M_2B_tokens_FineWeb"])


def _share(percent: float) -> float:
    return round(percent / 100, 6)


def _tables() -> dict[str, Any]:
    path = resources.files("statemix.studies.fixed_points").joinpath("fixed_point_tables.json")
    tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tables
