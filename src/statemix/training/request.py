"""Requests: what identifies a run, and whether this machine can meet it."""

from statemix.tasks import Task
from statemix.training.config import SCHEMA, RunConfig
from statemix.training.devices import check_device, check_threads
from statemix.training.folder import StoredConfig
from statemix.training.reading import import_modules
from statemix.training.size import check_run_fits


def request(config: RunConfig) -> StoredConfig:
    """Return the request of a run, which identifies it, and its configuration resolved here.

    Raises:
        RequestError: if the configuration cannot be resolved.
    """
    import_modules(config.imports)
    return StoredConfig(SCHEMA, config.asked(), config.resolved().to_plain())


def check_here(config: RunConfig) -> Task:
    """Check that this machine can run a configuration, without making its model or its examples.

    Args:
        config: a configuration, resolved.

    Returns:
        The task of the run.

    Raises:
        RequestError: if a part needs more memory, threads or devices than there are, or a layer
            refuses an option.
    """
    if config.runtime.num_threads is not None:
        check_threads("runtime.num_threads", config.runtime.num_threads)
    check_device("runtime.device", config.runtime.device)
    task = config.build_task()
    check_run_fits(config, task)
    return task
