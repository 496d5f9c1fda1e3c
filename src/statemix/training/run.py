"""One run from its configuration to its outcome, resumable at any time."""

from collections.abc import Callable
from pathlib import Path

from statemix.errors import RequestError
from statemix.training import folder as runs
from statemix.training.config import NotNegative, RunConfig
from statemix.training.devices import environment, own_random_numbers, threads
from statemix.training.events import Event
from statemix.training.outcome import (
    Outcome,
    finished,
    load_outcome,
    resolved_config,
)
from statemix.training.request import request
from statemix.training.running import Running
from statemix.training.settings import checked

CHECKPOINT_EVERY_S = 10.0
"""Seconds between the checkpoints of a run, unless asked otherwise."""


def train(
    config: RunConfig,
    folder: Path | str,
    *,
    on_event: Callable[[Event], None] | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> Outcome:
    """Train and evaluate a model, or resume an interrupted call.

    After Ctrl-C, SIGTERM, ``kill -9`` or a power cut at any moment, the same call ends with weights
    that are bit-identical to those of an uninterrupted run on the same machine.

    Args:
        config: configuration of the run. The fields that differ from their defaults identify the
            run. Open choices are made when the run begins, and stored.
        folder: folder of the run, made if absent. A finished run of the same request is returned
            unchanged.
        on_event: function called with each event, in this thread.
        checkpoint_every_s: seconds between checkpoints. Results do not depend on it.

    Returns:
        The scores at the end, at the best test and at the best validation accuracy.

    Raises:
        RequestError: if the configuration cannot be run, or if the folder holds another run, is in
            use, holds other files or cannot be written.
        OSError: if a file cannot be written later, for instance because the disk is full.
        FloatingPointError: if the loss or the gradient is not finite; the state before that step
            is saved, and the message names the last checkpoint before it.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is saved.
    """
    folder = Path(folder)
    emit = _say_nothing if on_event is None else on_event
    if not callable(emit):
        raise RequestError(f"on_event must be a function or None, got {on_event!r}")
    checkpoint_every_s = checked(NotNegative, checkpoint_every_s, "checkpoint_every_s")
    # Invalid requests fail here, before anything is written.
    settled = runs.settled(folder, request(config))
    if (folder / runs.SUMMARY).exists():
        return finished(folder, emit)
    config = resolved_config(folder, settled)
    run = Running(config, folder, emit, checkpoint_every_s)
    with (
        runs.claimed(folder, settled, environment(config.runtime)),
        threads(config.runtime.num_threads),
        own_random_numbers(config.runtime.device),
    ):
        # Another process may have finished the run meanwhile.
        if (folder / runs.SUMMARY).exists():
            return finished(folder, emit)
        with runs.noted(folder):
            run.to_the_end()
        return load_outcome(folder)


def _say_nothing(event: Event) -> None:
    del event
