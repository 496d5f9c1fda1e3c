"""Requests: what identifies a run, and whether this machine can meet it."""

import json
from collections.abc import Iterable

from statemix.training.config import SCHEMA, RunConfig
from statemix.training.devices import check_here
from statemix.training.folder import StoredConfig
from statemix.training.plain import import_modules


def request(config: RunConfig) -> StoredConfig:
    """Return the request of a run, which identifies it, and its configuration resolved here.

    Raises:
        RequestError: if the configuration cannot be resolved.
    """
    import_modules(config.imports)
    return StoredConfig(SCHEMA, config.asked(), config.resolved().to_plain())


# Parts of a configuration that `check_here` does not read.
_UNREAD = ("seed", "optimizer", "objective")


def check_all_here(configs: Iterable[RunConfig]) -> None:
    """Check that this machine can run many configurations, as :func:`check_here` does.

    Of the many that differ in seed, optimiser and objective alone, one is checked: the others have
    the same answer if their tasks accept the seed and are of the same sizes.

    Args:
        configs: configurations, resolved or not.

    Raises:
        RequestError: at the first configuration that cannot be run.
    """
    checked = set()
    for config in configs:
        task = config.build_task()
        asked = {name: value for name, value in config.asked().items() if name not in _UNREAD}
        sizes = (task.length, task.train_size, task.vocab_size, dict(task.heads))
        question = json.dumps([asked, sizes], sort_keys=True)
        if question not in checked:
            check_here(config.resolved())
            checked.add(question)
