"""Rows of runs with their certificates."""

import time
from typing import Any, cast

from statemix.studies import recipes, store
from statemix.studies.runner import Ended
from statemix.studies.store import Row
from statemix.training.certificates import certify_run
from statemix.training.devices import threads


def certified_row(ended: Ended) -> Row:
    """Return the row of a run that has ended, with a certificate if it has a result.

    Raises:
        RequestError: if the task has no automaton, or the files of a finished run are damaged.
    """
    row = store.row_of(ended)
    if ended.status != "done":
        return row
    began = time.monotonic()
    # As the run itself, so that the cost is that of one core.
    with threads(ended.job.config.runtime.num_threads):
        found, _ = certify_run(ended.job.folder, max_pairs=recipes.MAX_PAIRS)
    time_s = round(time.monotonic() - began, 3)
    more = {"certificate": found.to_plain(), "certify_s": time_s}
    return cast(Row, {**cast(dict[str, Any], row), **more})
