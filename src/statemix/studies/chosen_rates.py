"""Studies whose models choose their learning rates by the runs with seed 0."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statemix.studies.store import Store, StoredRow, key
from statemix.studies.study import Study
from statemix.studies.study_entries import Planned, due
from statemix.studies.study_runs import Runnable


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

    def due(self, planned: Sequence[Planned], results: Store, *, retry: bool) -> list[Planned]:
        rows = results.rows()
        return [
            one
            for one in due(planned, rows, retry=retry)
            if one.job.config.seed == 0 or self.is_at_chosen_rate(one.job.config, rows) is not False
        ]

    def fill(
        self, planned: Sequence[Planned], results: Store, *, retry: bool = False, **options: Any
    ) -> None:
        tried: set[str] = set()
        while True:
            rows = results.rows()
            ready = [
                one
                for one in due(planned, rows, retry=retry)
                if one.key not in tried
                and (one.job.config.seed == 0 or self.is_at_chosen_rate(one.job.config, rows))
            ]
            if not ready:
                return
            tried |= {one.key for one in ready}
            super().fill(ready, results, retry=retry, **options)
