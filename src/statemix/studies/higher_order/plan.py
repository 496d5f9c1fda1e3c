"""Which runs a table needs, in which order, and how long they will take."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from statemix.studies.higher_order.protocols import Trial
from statemix.studies.runner import Job
from statemix.studies.store import Row, key


class Cell(Protocol):
    """What runs are planned for: a cell of a table, or a condition of a suite."""

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    @property
    def parts(self) -> Mapping[str, tuple[Trial, ...]]:
        """Data set -> the settings to try."""
        ...


@dataclass(frozen=True)
class Planned:
    """A run of the plan.

    Attributes:
        job: the run.
        key: its key in the results store.
    """

    job: Job
    key: str


def plan(cells: Iterable[Cell], folder: Path) -> list[Planned]:
    """Return the distinct runs of cells in the order in which they should be done.

    The first data set of every cell comes before the second one of any, and every cell is filled
    before the next one is begun.

    Args:
        cells: cells, those first that should be filled first.
        folder: parent of the run folders.
    """
    listed = list(cells)
    jobs: dict[str, Job] = {}
    for number in range(max((len(cell.parts) for cell in listed), default=0)):
        for cell in listed:
            for data, trials in list(cell.parts.items())[number : number + 1]:
                for trial in trials:
                    for config in trial.runs:
                        name = key(config)
                        title = f"{cell.model}, {data}, {trial.setting}, seed {config.seed}"
                        jobs.setdefault(name, Job(title, config, folder / name))
    return [Planned(job, name) for name, job in jobs.items()]


def due(planned: Sequence[Planned], rows: Mapping[str, Row], *, retry: bool) -> list[Planned]:
    """Return the runs that the store has no row of.

    Args:
        planned: runs.
        rows: rows of the store.
        retry: whether runs that diverged or failed are due again.
    """
    ended = {name for name, row in rows.items() if row["status"] == "done" or not retry}
    return [one for one in planned if one.key not in ended]
