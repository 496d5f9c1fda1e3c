"""Steps of gradient descent on any model, and the state that changes with them."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from statemix.training.batches import Batches
from statemix.training.config import OptimizerConfig, ScheduleConfig
from statemix.training.objective import Objective, total
from statemix.training.optimizer import (
    build_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)
from statemix.training.schedules import Attributes, learning_rate, warmup
from statemix.training.sums import Sums

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Trainer:
    """Trains any model on batches, independent of tasks and layers.

    Every step is a function of its number and of the contents of :meth:`tensors` and
    :meth:`numbers`, so a trainer restored from them continues bit-identically. Each step waits for
    the device once, to check that loss and gradient are finite before the optimiser uses them. It
    also seeds PyTorch's global generators.

    Args:
        model: model to train, in place.
        batches: batches by step.
        objective: losses of a batch; their sum is minimised.
        optimizer: settings of AdamW.
        schedules: schedules of the learning rate and of attributes.
        fabric: device and precision.
        seed: seed of what layers draw, such as noise.

    Attributes:
        step: optimiser steps done.
        began: steps done when the present weights were new; the warm-up begins there.
        origin: steps done when the schedules begin; None while they wait.
        waiting: steps for which the schedules wait, at most.
        model: the model as it was given.
        batches: as given.
        objective: as given.
        fabric: as given.
        optimizer: AdamW over the model's parameters.
        clip_norm: largest norm of the gradient, or None.
        sums: losses and reported numbers since the last averages.

    Raises:
        SettingError: if a schedule or a parameter group does not fit the model.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        objective: Objective,
        *,
        optimizer: OptimizerConfig,
        schedules: ScheduleConfig,
        fabric: "Fabric",
        seed: int = 0,
    ) -> None:
        self.model = model
        self.batches = batches
        self.step = 0
        self.began = 0
        self.origin: int | None = 0
        self.waiting = 0
        self.objective = objective
        self.fabric = fabric
        self.clip_norm = optimizer.clip_norm
        self._seed = seed
        self._base_rate = optimizer.learning_rate
        self._schedules = schedules
        self._attributes = Attributes(model, schedules.attributes)
        self.optimizer = build_optimizer(model, optimizer)
        # The wrapped pair trains; the bare pair is evaluated, saved and restored.
        self._wrapped: Any = fabric.setup(model, self.optimizer)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._reporting = {
            name: module for name, module in model.named_modules() if hasattr(module, "reports")
        }
        self.sums = Sums()

    @property
    def num_steps(self) -> int:
        """Steps of the whole run; while the schedules wait, at most."""
        return self.batches.num_steps + (self.waiting if self.origin is None else self.origin)

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self._parameters)

    def train_step(self) -> float:
        """Make one optimiser step.

        Returns:
            The loss before the step.

        Raises:
            FloatingPointError: if the loss or the norm of the gradient is not finite; the weights
                are then unchanged.
        """
        rate = self.learning_rate(self.step)
        set_learning_rate(self.optimizer, rate)
        self.attributes(self.step)
        model, optimizer = self._wrapped
        model.train()
        self._seed_generators()
        loss = torch.zeros((), device=self.fabric.device)
        parts, reports = [], []
        for batch in self.batches.parts(self.step):
            # Fabric converts a model's outputs to the default dtype, which would round float64.
            with self.fabric.strategy.precision.tensor_init_context():
                losses = self.objective(model, batch)
            part = total(losses)
            self.fabric.backward(part)
            loss = loss + part.detach()
            parts.append(losses)
            reports.append(self.reports())
        norm = get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        value, length = torch.stack([loss.double(), norm.double()]).tolist()
        error = self.refusal(value, length)
        if error is not None:
            optimizer.zero_grad()
            raise error
        if self.clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self.clip_norm, norm)
        # The averages must not include a step that failed.
        self.sums.collect(parts, reports)
        optimizer.step()
        optimizer.zero_grad()
        self.step += 1
        return float(value)

    def _seed_generators(self) -> None:
        """Let nothing that layers draw depend on the steps before."""
        seed = _mixed(self._seed, self.step)
        # torch.manual_seed looks at every kind of device, which takes a hundred times as long.
        torch.default_generator.manual_seed(seed)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 0."""
        rate = learning_rate(
            self._base_rate,
            self._schedules,
            self._scheduled(step),
            self.batches.num_steps,
            self.batches.steps_per_epoch,
        )
        return rate * warmup(self._schedules, step - self.began)

    def _scheduled(self, step: int) -> int:
        """Return the steps of the schedules that are done before step ``step``."""
        return 0 if self.origin is None else max(step - self.origin, 0)

    def attributes(self, step: int) -> dict[str, float]:
        """Set the scheduled attributes to their values at a step; return them by module."""
        return self._attributes.set(self._scheduled(step), self.batches.num_steps)

    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with new weights and a new optimiser state, but with the next batches."""
        self.model.load_state_dict(dict(weights))
        self.optimizer.state.clear()
        self.sums = Sums()

    def averages(self) -> dict[str, float]:
        """Return means since the last call: the losses, and the numbers that layers report.

        Returns:
            "loss" and "loss/HEAD" per step, "MODULE.NAME" per forward pass; empty if no step was
            done.
        """
        return self.sums.means()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights and the optimiser's state, as files of named tensors."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
        }

    def numbers(self) -> dict[str, Any]:
        """Return everything else that changes with the steps, as plain data."""
        return {"step": self.step, **self.sums.to_plain()}

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Any) -> None:
        """Restore the results of :meth:`tensors` and :meth:`numbers`."""
        self.model.load_state_dict(dict(tensors["model"]))
        restore_optimizer(self.optimizer, self.model, tensors["optimizer"])
        self.step = numbers["step"]
        self.sums.restore(numbers, self.fabric.device)

    def refusal(self, loss: float, norm: float) -> FloatingPointError | None:
        """Return why the next step must not be made; None if loss and gradient are finite."""
        for name, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                rate = self.learning_rate(self.step)
                return FloatingPointError(
                    f"{name} must be finite, got {value} at step {self.step + 1} of "
                    f"{self.num_steps} with learning rate {rate:.3g}; a smaller rate or clip_norm "
                    "may help"
                )
        return None

    def reports(self) -> dict[str, Tensor]:
        """Return what the layers report about their last forward pass: "MODULE.NAME" -> number."""
        return {
            f"{name}.{key}": number
            for name, module in self._reporting.items()
            for key, number in module.reports().items()
        }


def _mixed(seed: int, step: int) -> int:
    """Return a seed for a step. An odd multiplier keeps the sequences of two seeds apart."""
    return (seed * 0x9E3779B97F4A7C15 + step) % 2**64
