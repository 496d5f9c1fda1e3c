"""Which examples a step sees: a function of the seed and the step's number alone."""

import numpy as np
import torch
from torch import Tensor

from statemix.tasks import Task
from statemix.training.config import RunConfig
from statemix.training.evaluation import draw


class Batches:
    """The batches of a run, addressed by step.

    A fixed training set is held as one tensor and permuted anew every epoch, by (seed, epoch); the
    last batch of an epoch holds what is left. Fresh examples are taken in order, each once.

    Args:
        config: the run, resolved.
        task: its task.
        device: where batches are wanted.

    Attributes:
        num_steps: steps of the whole run.
        steps_per_epoch: 1 on fresh examples.
    """

    def __init__(self, config: RunConfig, task: Task, device: torch.device) -> None:
        self._task = task
        self._seed = config.seed
        self._size = config.batch_size
        self._device = device
        self._examples: tuple[Tensor, Tensor] | None = None
        if task.train_size is None:
            assert config.num_steps is not None
            self.steps_per_epoch = 1
            self.num_steps = config.num_steps
        else:
            assert config.epochs is not None
            tokens, targets = draw(task, "train", task.train_size)
            self._examples = tokens.to(device), targets.to(device)
            self.steps_per_epoch = -(-task.train_size // config.batch_size)
            self.num_steps = config.epochs * self.steps_per_epoch
        self._order = torch.empty(0, dtype=torch.int64)
        self._order_epoch = -1

    def epoch(self, step: int) -> int | None:
        """Whole epochs made after so many steps; None on fresh examples."""
        return None if self._examples is None else step // self.steps_per_epoch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets (at most batch_size, T) of the step after ``step`` others."""
        if self._examples is None:
            start = step * self._size
            tokens, targets = map(
                torch.from_numpy, self._task.examples("train", start, start + self._size)
            )
            return tokens.to(self._device), targets.to(self._device)
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._order_epoch:
            self._order = self._permutation(epoch, len(self._examples[0])).to(self._device)
            self._order_epoch = epoch
        chosen = self._order[place * self._size : (place + 1) * self._size]
        all_tokens, all_targets = self._examples
        return all_tokens[chosen], all_targets[chosen]

    def _permutation(self, epoch: int, size: int) -> Tensor:
        # NumPy promises the raw stream of a bit generator for ever, but not what its methods make.
        stream = np.random.Philox(np.random.SeedSequence([self._seed, epoch]))
        return torch.from_numpy(np.argsort(stream.random_raw(size), kind="stable"))
