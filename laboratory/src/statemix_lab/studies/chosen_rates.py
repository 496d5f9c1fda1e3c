"""Studies whose models choose their learning rates by the runs with seed 0."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping

from statemix.sweeps.study_runs import Runnable
from statemix_lab.studies.store import StoredRow, key
from statemix_lab.studies.study import Study
from statemix_lab.studies.study_entries import Planned


def chosen_rate(
    tries: Mapping[float, Runnable],
    rows: Mapping[str, StoredRow],
    loss: Callable[[StoredRow], float],
) -> float | None:
    """Return the learning rate whose run has the least loss; None if a run has not ended yet.

    Args:
        tries: learning rate -> run.
        rows: rows of a results store by key.
        loss: function of the row of a run that is done. The others lose.
    """
    losses = {}
    for rate, run in tries.items():
        row = rows.get(key(run))
        if row is None:
            return None
        losses[rate] = loss(row) if row["status"] == "done" else math.inf
    return min(losses, key=losses.__getitem__)


class ChosenRates(Study):
    """Every model chooses its learning rate by one seed; further seeds train at that rate."""

    @abstractmethod
    def is_at_chosen_rate(self, run: Runnable, rows: Mapping[str, StoredRow]) -> bool | None:
        """Return whether a run has the learning rate that its model has chosen.

        None means that a run with seed 0 has not ended yet.
        """

    def is_wanted(self, one: Planned, rows: Mapping[str, StoredRow]) -> bool | None:
        return one.job.config.seed == 0 or self.is_at_chosen_rate(one.job.config, rows)
