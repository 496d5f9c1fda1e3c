"""Studies whose models choose their learning rates by the runs with seed 0."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from statemix.studies.store import Store, StoredRow
from statemix.studies.study import Study
from statemix.studies.study_entries import Planned, due
from statemix.studies.study_runs import Runnable


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
