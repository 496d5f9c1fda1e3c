"""Runs of one shape that train as one batched program: replicas."""

import contextlib
import copy
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal

from statemix.errors import RequestError, SettingError
from statemix.interrupts import Interrupts
from statemix.plain import difference
from statemix.settings import checked
from statemix.training import folder as runs
from statemix.training.config import NotNegative, RunConfig
from statemix.training.devices import environment, own_random_numbers, threads
from statemix.training.events import Event
from statemix.training.life import Ask, Score
from statemix.training.outcome import Outcome, finished, load_outcome, resolved_config
from statemix.training.request import request
from statemix.training.run import CHECKPOINT_EVERY_S
from statemix.training.running import Running
from statemix.training.schedules import attributes_set
from statemix.training.size import check_run_fits
from statemix.training.stack import Stack

FREE = (
    "seed",
    "task.seed",
    "model.zero_biases",
    "model.linear_init",
    "optimizer.learning_rate",
    "optimizer.weight_decay",
    "schedules.learning_rate",
    "schedules.min_learning_rate",
    "schedules.warmup_steps",
    "evaluation.stop_at",
)
"""Fields in which replicas may differ: none changes the shape of the computation."""

USUAL: dict[Literal["cpu", "cuda"], int] = {"cpu": 1, "cuda": 15}
"""Device -> replicas to train together unless asked otherwise. A small model leaves a GPU idle; on
a CPU, stacking pays only for tiny ones (results/LOG.md)."""

_ORDER: tuple[Ask, ...] = ("evaluate", "lengths", "step")

Result = Outcome | Exception
"""How a replica ended: with its outcome, or with the error that ended it alone."""


def train_replicas(
    configs: Sequence[RunConfig],
    folders: Sequence[Path | str],
    *,
    on_event: Callable[[int, Event], None] | None = None,
    on_end: Callable[[int, Result], None] | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> list[Result]:
    """Train and evaluate several models as one program, or resume an interrupted call.

    Every replica is a run: it has its own data, weights, optimiser, schedule, evaluations and early
    stop, and its folder is that of a run which :func:`statemix.training.train` has trained alone.
    Either function resumes what the other has begun. The result equals that of the run alone up to
    rounding, because sums are split differently.

    Replicas make their steps together; one that was resumed further ahead waits for the others. One
    that stops early or diverges leaves the others to go on.

    Args:
        configs: configurations that differ in :data:`FREE` only.
        folders: folder of each replica, as in :func:`statemix.training.train`.
        on_event: function called with the replica's place in ``configs`` and each of its events.
        on_end: function called with the place and the result of each replica as soon as it ends.
        checkpoint_every_s: as in :func:`statemix.training.train`.

    Returns:
        For each replica its outcome, or the error that :func:`statemix.training.train` would raise.
        An error that no single replica has caused is that of all.

    Raises:
        RequestError: if two configurations differ in another field, naming it; if the model cannot
            train in a stack (:class:`statemix.training.stack.Stack`), such as an LSTM; or as in
            :func:`statemix.training.train`. Nothing is then written.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once every replica has saved a checkpoint.
    """
    places = [Path(folder) for folder in folders]
    if not configs or len(configs) != len(places):
        raise RequestError(
            f"configs and folders must be as many, at least 1, got {len(configs)} and {len(places)}"
        )
    if len({folder.resolve() for folder in places}) < len(places):
        raise RequestError("folders must be distinct, got one twice")
    for name, function in (("on_event", on_event), ("on_end", on_end)):
        if function is not None and not callable(function):
            raise RequestError(f"{name} must be a function or None, got {function!r}")
    checkpoint_every_s = checked(NotNegative, checkpoint_every_s, "checkpoint_every_s")
    group = _Group(on_event, on_end)
    stored = [
        runs.settled(folder, request(config))
        for config, folder in zip(configs, places, strict=True)
    ]
    ended = [place for place, folder in enumerate(places) if (folder / runs.SUMMARY).exists()]
    whole = {
        place: resolved_config(places[place], settled)
        for place, settled in enumerate(stored)
        if place not in ended
    }
    if whole:
        check_alike(list(whole.values()))
    for place, config in whole.items():
        emit = group.emitter(place)
        group.runs[place] = Running(
            config, places[place], emit, checkpoint_every_s, group.interrupts
        )
    group.check()
    for place in ended:
        group.end(place, finished(places[place], group.emitter(place)))
    if whole:
        group.to_the_end({place: stored[place] for place in whole})
    return [group.results[place] for place in range(len(places))]


def check_alike(configs: Sequence[RunConfig]) -> None:
    """Check that resolved configurations differ only where replicas may, and can be stacked.

    Raises:
        RequestError: otherwise; the message names the field.
    """
    if configs[0].batches.packed:
        raise SettingError("batches.packed", "must be False for replicas", value=True)
    if configs[0].search.attempts is not None:
        attempts = configs[0].search.attempts
        raise SettingError("search.attempts", "must be absent for replicas", attempts)
    first = shape(configs[0])
    for config in configs[1:]:
        found = difference(first, shape(config))
        if found is not None:
            name, ours, theirs = found
            raise RequestError(f"{name} must be equal in all replicas, got {ours!r} and {theirs!r}")


def shape(config: RunConfig) -> dict[str, Any]:
    """Return what replicas share: a resolved configuration as plain data, without :data:`FREE`."""
    plain = copy.deepcopy(config.to_plain())
    for name in FREE:
        *path, last = name.split(".")
        table = plain
        for part in path:
            table = table[part]
        table.pop(last, None)
    return plain


class _Group:
    """Replicas under way.

    Each is a generator (:meth:`Running.life`) that waits for a step or for scores; the group
    computes them for all replicas that wait for the same at the same step.
    """

    def __init__(
        self,
        on_event: Callable[[int, Event], None] | None,
        on_end: Callable[[int, Result], None] | None,
    ) -> None:
        self.results: dict[int, Result] = {}
        self.runs: dict[int, Running] = {}
        self.interrupts = Interrupts()
        self._on_event, self._on_end = on_event, on_end
        self._lives: dict[int, Generator[Ask, Any, Outcome]] = {}
        self._asks: dict[int, Ask] = {}
        # What ends the whole group: Ctrl-C, for instance.
        self._stop: BaseException | None = None
        self._stack: Stack | None = None

    def emitter(self, place: int) -> Callable[[Event], None]:
        """Return the function that a replica tells its events."""
        on_event = self._on_event

        def emit(event: Event) -> None:
            if on_event is not None:
                on_event(place, event)

        return emit

    def end(self, place: int, result: Result) -> None:
        """Note how a replica has ended."""
        self.results[place] = result
        self.runs.pop(place, None)
        if self._on_end is not None:
            self._on_end(place, result)

    def check(self) -> None:
        """Check that the replicas can train together here, before anything is written.

        Raises:
            RequestError: if they cannot.
        """
        if len(self.runs) > 1:
            first = next(iter(self.runs.values()))
            check_run_fits(first.config, first.task, replicas=len(self.runs))
            Stack([run.trainer for run in self.runs.values()]).check()

    def to_the_end(self, stored: dict[int, runs.StoredConfig]) -> None:
        """Lead all replicas to their ends.

        Args:
            stored: place of a replica -> what its folder is to hold.
        """
        runtime = next(iter(self.runs.values())).config.runtime
        described = environment(runtime)
        if len(self.runs) > 1:
            described["replicas"] = len(self.runs)
        with (
            threads(runtime.num_threads),
            own_random_numbers(runtime.device),
            self.interrupts,
        ):
            self._lives = {
                place: self._whole(run, stored[place], described)
                for place, run in self.runs.items()
            }
            for place in self._lives:
                if self._stop is None:
                    self._tell(place, None)
            while self._asks and self._stop is None:
                self._serve()
            for place in list(self._asks):
                self._tell(place, KeyboardInterrupt())
        if self._stop is not None:
            raise self._stop
        self.interrupts.check()

    def _whole(
        self, run: Running, stored: runs.StoredConfig, described: dict[str, Any]
    ) -> Generator[Ask, Any, Outcome]:
        """Claim a replica's folder, and train."""
        with runs.claimed(run.folder, stored, described):
            # Another process may have finished the run meanwhile.
            if (run.folder / runs.SUMMARY).exists():
                return finished(run.folder, run.emit)
            with runs.noted(run.folder):
                yield from run.life()
            return load_outcome(run.folder)

    def _tell(self, place: int, answer: Any) -> None:
        """Send a replica what it waits for, or an error, and let it go on until it asks again."""
        life = self._lives[place]
        self._asks.pop(place, None)
        try:
            failed = isinstance(answer, BaseException)
            self._asks[place] = life.throw(answer) if failed else life.send(answer)
            return
        except StopIteration as end:
            result = end.value
        except Exception as error:  # noqa: BLE001  the others go on
            result = error
        except BaseException as error:  # noqa: BLE001  the others save a checkpoint first
            self._stop = self._stop or error
            return
        try:
            self.end(place, result)
        except BaseException as error:  # noqa: BLE001  an error of on_end is no replica's
            self._stop = self._stop or error

    def _serve(self) -> None:
        """Give replicas what they wait for: of those furthest behind, all that ask for the same."""
        least = min(self.runs[place].trainer.step for place in self._asks)
        behind = [place for place in self._asks if self.runs[place].trainer.step == least]
        # Scores before steps: a step would take the others further.
        ask = min((self._asks[place] for place in behind), key=_ORDER.index)
        served = sorted(place for place in behind if self._asks[place] == ask)
        answers: Sequence[Any]
        try:
            answers = self._answers(ask, [self.runs[place] for place in served])
        except BaseException as error:  # noqa: BLE001  each replica decides how it ends
            answers = [error] * len(served)
        for place, answer in zip(served, answers, strict=True):
            self._tell(place, answer)

    def _answers(self, ask: Ask, those: Sequence[Running]) -> Sequence[Any]:
        """Return a loss, a score or an error for each of these runs."""
        if len(those) == 1 or (ask != "step" and not those[0].evaluators(ask)):
            self._stack = None
            return [run.answer(ask) for run in those]
        stack = self._stack_of(those)
        if ask == "step":
            return stack.train_step()
        return _scores(stack, ask, those)

    def _stack_of(self, those: Sequence[Running]) -> Stack:
        trainers = tuple(run.trainer for run in those)
        if self._stack is None or self._stack.trainers != trainers:
            self._stack = Stack(trainers)
        return self._stack


def _scores(stack: Stack, ask: Ask, those: Sequence[Running]) -> list[Score]:
    """Score all models of a stack; return for each run a function that looks its scores up."""
    listed = [run.evaluators(ask) for run in those]
    with contextlib.ExitStack() as attributes:
        for run in those:
            run.trainer.attributes(run.trainer.step)
            values = run.config.evaluation.attributes
            attributes.enter_context(attributes_set(run.model, values))
        found = [stack.score(evaluators) for evaluators in zip(*listed, strict=True)]
    # One list of scores per evaluator becomes one table per run.
    tables = [
        dict(zip(own, scores, strict=True))
        for own, scores in zip(listed, zip(*found, strict=True), strict=True)
    ]
    return [table.__getitem__ for table in tables]
