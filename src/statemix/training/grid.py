"""The same run at several learning rates and weight decays, and the choice among them."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from statemix.training.config import RunConfig
from statemix.training.rundir import CONFIG, Outcome


def grid(
    config: RunConfig,
    folder: Path,
    *,
    learning_rates: Sequence[float] = (),
    weight_decays: Sequence[float] = (),
) -> dict[Path, RunConfig]:
    """Every pair of a learning rate and a weight decay, as a run with a folder of its own.

    Args:
        config: what all runs share.
        folder: in which their folders are.
        learning_rates: those to try; none means the one of ``config``.
        weight_decays: likewise.

    Returns:
        Folder -> configuration, learning rates outermost.

    Raises:
        ValueError: if a value is out of range or given twice, or the folder holds a single run.
        TypeError: if a value is not a number.
    """
    if (folder / CONFIG).exists():
        raise ValueError(f"folder must not hold a run to hold a grid of runs, got {folder}")
    rates = learning_rates or (config.learning_rate,)
    decays = weight_decays or (config.weight_decay,)
    for name, values in (("learning_rates", rates), ("weight_decays", decays)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} must differ from each other, got {list(values)}")
    return {
        folder / f"lr{float(rate)}-wd{float(decay)}": dataclasses.replace(
            config, learning_rate=rate, weight_decay=decay
        )
        for rate in rates
        for decay in decays
    }


def best_by_validation(outcomes: Iterable[Outcome]) -> Outcome:
    """The run with the highest token accuracy on its validation split, the first of equals.

    Raises:
        ValueError: if there is none.
    """
    return max(outcomes, key=lambda o: o.test_at_best_validation.validation.token_accuracy)
