"""The examples of each step, which depend only on the seed and the step's number; their losses."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from statemix.errors import RequestError, SettingError
from statemix.tasks import IGNORED, Examples, Task
from statemix.training.config import BatchConfig, ScheduleConfig

# Examples that show whether the beginnings of examples have labels.
_TRIED = 32


@dataclass(frozen=True)
class Batch:
    """Sequences for one forward pass, padded or packed."""

    tokens: Tensor
    """Shape (B, T), or (1, T) if packed, int64."""
    targets: dict[str, Tensor]
    """Head -> classes, like ``tokens``; ``IGNORED`` is not scored."""
    cu_seqlens: Tensor | None
    """Bounds of packed sequences, shape (N+1,), or None."""
    lengths: Tensor | None
    """Tokens of each row before its padding, shape (B,); None if no row is padded."""
    num_scored: Mapping[str, int]
    """Head -> scored positions of the whole step, which may have several batches; at least 1."""

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device, without waiting for the device."""

        def move(tensor: Any) -> Any:
            if tensor is None:
                return None
            # From pinned memory, the copy overlaps with the device's work.
            tensor = tensor.pin_memory() if device.type == "cuda" else tensor
            return tensor.to(device, non_blocking=True)

        targets = {head: move(classes) for head, classes in self.targets.items()}
        others = (move(self.cu_seqlens), move(self.lengths))
        return Batch(move(self.tokens), targets, *others, self.num_scored)


class Batches(Protocol):
    """The batches of a run by optimiser step."""

    num_steps: int
    """Steps of the whole run."""
    steps_per_epoch: int
    """Steps of one epoch; 1 on fresh examples."""

    def parts(self, step: int) -> Sequence[Any]:
        """Return the batches of step ``step``, counted from 0; their gradients are summed."""
        ...


@dataclass
class FunctionBatches:
    """Batches of a function of the step, one for each."""

    batch: Callable[[int], Any]
    num_steps: int
    steps_per_epoch: int = 1

    def parts(self, step: int) -> Sequence[Any]:
        return [self.batch(step)]


class LoaderBatches:
    """Batches of a ``DataLoader``, one for each step, which begins again when it ends.

    Everything that the loader draws, by PyTorch, NumPy or ``random``, depends on the seed, the
    epoch and the place in it alone. A run that resumes within an epoch reads the epoch again up to
    its step.
    """

    def __init__(
        self, loader: DataLoader[Any], num_steps: int, seed: int, to_device: Callable[[Any], Any]
    ) -> None:
        try:
            self.steps_per_epoch = len(loader)
        except TypeError as error:
            raise RequestError(f"batch must be a DataLoader with a length: {error}") from error
        if not self.steps_per_epoch:
            raise RequestError("batch must be a DataLoader with batches, got an empty one")
        self.num_steps = num_steps
        self._loader, self._seed, self._to_device = loader, seed, to_device
        self._batches: Iterator[Any] = iter(())
        self._epoch, self._next = -1, 0

    def parts(self, step: int) -> Sequence[Any]:
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch or place < self._next:
            self._begin(epoch)
        batch = None
        while self._next <= place:
            with self._drawing(self._next + 1):
                batch = next(self._batches, self)
            if batch is self:
                raise RequestError(
                    f"batch must have as many batches as its length, {self.steps_per_epoch}, got "
                    f"{self._next}"
                )
            self._next += 1
        return [self._to_device(batch)]

    def _begin(self, epoch: int) -> None:
        self._epoch, self._next = epoch, 0
        samplers: tuple[Any, ...] = (self._loader.sampler, self._loader.batch_sampler)
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        with self._drawing(0):
            drawn = int(torch.empty((), dtype=torch.int64).random_())
            for one in (self._loader, *samplers):
                if getattr(one, "generator", None) is not None:
                    one.generator.manual_seed(drawn)
            # Workers that outlive an epoch would go on with random numbers that no checkpoint has.
            self._loader._iterator = None
            self._batches = iter(self._loader)

    @contextlib.contextmanager
    def _drawing(self, place: int) -> Iterator[None]:
        """Let what is drawn at a place of the epoch depend on nothing before it."""
        words = np.random.SeedSequence([self._seed % 2**64, self._epoch, place]).generate_state(2)
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(words[0]))
            np.random.seed(words[1])  # noqa: NPY002
            random.seed(int(words[1]))
            try:
                yield
            finally:
                np.random.set_state(numpy_state)  # noqa: NPY002
                random.setstate(python_state)


class TaskBatches:
    """Batches of a task's training examples, addressed by step.

    A fixed training set is drawn once. Every epoch permutes it by (seed, epoch), and the last step
    of an epoch uses the remaining examples. Fresh examples are used in order, each once.
    """

    def __init__(
        self,
        task: Task,
        config: BatchConfig,
        schedules: ScheduleConfig,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        self.task, self._config, self._schedules = task, config, schedules
        self._seed, self._device = seed, device
        self._examples: Examples | None = None
        self.steps_per_epoch = 1
        if task.train_size is not None:
            self._examples = task.examples("train", 0, task.train_size)
            self.steps_per_epoch = -(-task.train_size // config.size)
        length = schedules.num_steps or schedules.epochs
        assert length is not None
        self.num_steps = length * self.steps_per_epoch
        first = schedules.first_length
        if first is not None:
            tried = task.examples("train", 0, min(task.train_size or _TRIED, _TRIED))
            targets = beginnings(tried, first).targets.values()
            if all((classes == IGNORED).all() for classes in targets):
                condition = f"must reach the labels of the examples ({task.name} has none before)"
                raise SettingError("schedules.first_length", condition, first)
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._order_epoch = -1

    def epoch(self, step: int) -> int | None:
        """Return the whole epochs done after ``step`` steps; None on fresh examples."""
        return None if self._examples is None else step // self.steps_per_epoch

    def parts(self, step: int) -> list[Batch]:
        """See :class:`Batches`. A step has at most one batch per sequence."""
        size, begin = self._config.size, step * self._config.size
        if self._examples is None:
            examples = self.task.examples("train", begin, begin + size)
        else:
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != self._order_epoch:
                # NumPy keeps the raw stream of a bit generator stable, but not its other methods.
                stream = np.random.Philox(np.random.SeedSequence([self._seed, epoch]))
                numbers = stream.random_raw(len(self._examples.tokens))
                self._order, self._order_epoch = np.argsort(numbers, kind="stable"), epoch
            examples = rows(self._examples, self._order[place * size : (place + 1) * size])
        if step < self._schedules.first_share * self.num_steps:
            examples = beginnings(examples, self._schedules.first_length)
        num_scored = {
            head: max(int((classes != IGNORED).sum()), 1)
            for head, classes in examples.targets.items()
        }
        form = packed if self._config.packed else padded
        count = len(examples.tokens)
        pieces = np.array_split(np.arange(count), min(self._config.accumulate, count))
        return [form(rows(examples, piece), num_scored).to(self._device) for piece in pieces]


def rows(examples: Examples, index: NDArray[np.int64]) -> Examples:
    """Select examples, in the order of ``index``."""
    targets = {head: classes[index] for head, classes in examples.targets.items()}
    lengths = None if examples.lengths is None else examples.lengths[index]
    return Examples(examples.tokens[index], targets, lengths)


def beginnings(examples: Examples, length: int | None) -> Examples:
    """Cut examples to their first tokens; None means all."""
    if length is None:
        return examples
    targets = {head: classes[:, :length] for head, classes in examples.targets.items()}
    lengths = None if examples.lengths is None else examples.lengths.clip(max=length)
    return Examples(examples.tokens[:, :length], targets, lengths)


def padded(examples: Examples, num_scored: Mapping[str, int]) -> Batch:
    """Make a batch of examples as rows, up to the end of the longest."""
    lengths = None
    if examples.lengths is not None:
        lengths = torch.from_numpy(examples.lengths)
        examples = beginnings(examples, int(examples.lengths.max(initial=0)))
    tokens, *targets = map(
        torch.from_numpy, map(np.ascontiguousarray, (examples.tokens, *examples.targets.values()))
    )
    return Batch(
        tokens, dict(zip(examples.targets, targets, strict=True)), None, lengths, num_scored
    )


def packed(examples: Examples, num_scored: Mapping[str, int]) -> Batch:
    """Make a batch of examples end to end in one row."""
    number, longest = examples.tokens.shape
    lengths = examples.lengths
    if lengths is None:
        lengths = np.full(number, longest)
    kept = np.arange(longest) < lengths[:, None]

    def joined(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array[kept]).unsqueeze(0)

    bounds = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int64))
    targets = {head: joined(classes) for head, classes in examples.targets.items()}
    return Batch(joined(examples.tokens), targets, bounds, None, num_scored)


class CrossEntropy:
    r"""Each head's mean cross-entropy over the scored positions of the whole step, in nats.

    .. math:: \frac1N \sum_t w_t \, \mathrm{CE}_t, \qquad
        w_t = t^p \Big/ \tfrac1T \textstyle\sum_{s=1}^T s^p
    """

    def __init__(self, power: float = 0.0, length: int = 1) -> None:
        self._power, self._length = power, length
        self.unweighted: list[Tensor] | None = None
        """List to which each call appends the sum over heads without weights, if there is one."""

    def __call__(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Return head -> loss of a model that returns head -> logits (B, T, classes)."""
        logits = model(batch.tokens, batch.cu_seqlens, batch.lengths)
        losses, unweighted = {}, {}
        for head, classes in batch.targets.items():
            # Without weights, the sum needs no tensor of losses.
            each = functional.cross_entropy(
                logits[head].flatten(0, 1),
                classes.flatten(),
                ignore_index=IGNORED,
                reduction="none" if self._power else "sum",
            )
            losses[head] = unweighted[head] = each.sum() / batch.num_scored[head]
            if self._power:
                places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
                if batch.cu_seqlens is not None:
                    ends = batch.cu_seqlens[1:].contiguous()
                    sequence = torch.searchsorted(ends, places, right=True)
                    places = places - batch.cu_seqlens[sequence]
                all_places = torch.arange(1, self._length + 1, dtype=torch.float64)
                mean = all_places.pow(self._power).mean().item()
                weights = (places + 1).double() ** self._power / mean
                each = each.view_as(classes) * weights.to(each)
                losses[head] = each.sum() / batch.num_scored[head]
        if self.unweighted is not None:
            self.unweighted.append(torch.stack(list(unweighted.values())).sum().detach())
        return losses


class Averages:
    """Means of numbers between two evaluations, kept on the device: reading would wait for it."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def collect(
        self, parts: Sequence[Mapping[str, Tensor]], reports: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Add the losses of a step's batches, which add up, and what layers reported in each."""
        losses = [{f"loss/{name}": loss for name, loss in table.items()} for table in parts]
        for table in (*losses, *reports):
            for name, number in table.items():
                number = number.detach().double()
                self._totals[name] = self._totals[name] + number if name in self._totals else number
        for name in ("loss", *losses[0], *(name for table in reports for name in table)):
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        """Return and forget the means; {} if empty.

        "loss" is that of the whole loss. Means of its parts are over the steps that have them.
        """
        if not self._totals:
            return {}
        values, steps = self._values(), self._counts["loss"]
        parts = (value / steps for name, value in values.items() if name.startswith("loss/"))
        means = {name: value / self._counts[name] for name, value in values.items()}
        self._totals, self._counts = {}, {}
        return {"loss": math.fsum(parts), **means}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._values(), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        # Checkpoints of older versions do not count the steps.
        steps = (count for name, count in state["counts"].items() if name.startswith("loss/"))
        self._counts = {"loss": max(steps, default=0), **state["counts"]}
        self._totals = {
            name: torch.tensor(value, dtype=torch.float64, device=device)
            for name, value in state["sums"].items()
        }

    def _values(self) -> dict[str, float]:
        values = torch.stack(list(self._totals.values())).tolist() if self._totals else []
        return dict(zip(self._totals, values, strict=True))
