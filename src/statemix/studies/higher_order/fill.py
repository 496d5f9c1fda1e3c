"""Fill a table: run what its cells need, and store a row for every run."""

from collections.abc import Callable, Sequence

from statemix.studies.higher_order.plan import Planned
from statemix.studies.runner import Ended, Job, run_all
from statemix.studies.store import Row, Store, row_of
from statemix.training import Event


def fill(
    planned: Sequence[Planned],
    store: Store,
    *,
    num_workers: int | None = None,
    ray: str | None = None,
    until: float | None = None,
    retry: bool = False,
    on_event: Callable[[Job, Event], None] | None = None,
    on_end: Callable[[Ended], None] | None = None,
    make_row: Callable[[Ended], Row] = row_of,
) -> None:
    """Train runs until all have ended or the time is up, and store a row for each that ended.

    A run that a kill left unfinished is resumed by the next call. One that was finished, but whose
    row was not yet stored, is not repeated either. Several processes may fill one store: a run that
    another one trains gets no row here, so it stays due until that one stores it.

    Args:
        planned: runs in the order in which they start.
        store: receives the rows.
        num_workers: as in :func:`statemix.studies.runner.run_all`.
        ray: as in :func:`statemix.studies.runner.run_all`.
        until: as in :func:`statemix.studies.runner.run_all`.
        retry: train runs again that diverged or failed.
        on_event: as in :func:`statemix.studies.runner.run_all`.
        on_end: called with each run that has ended, its row being stored, or was interrupted.
        make_row: returns the row of a run that is done, has diverged or has failed.

    Raises:
        RequestError: if the cluster cannot be reached.
        OSError: if the store cannot be written.
        KeyboardInterrupt: after Ctrl-C, once active runs are saved; the same call resumes.
    """

    def note(ended: Ended) -> None:
        if ended.status != "interrupted":
            store.append(make_row(ended))
        if on_end is not None and (ended.started or ended.status != "interrupted"):
            on_end(ended)

    run_all(
        [one.job for one in planned],
        num_workers=num_workers,
        ray=ray,
        until=until,
        retry=("diverged", "failed") if retry else (),
        on_event=on_event,
        on_end=note,
    )
