"""Steps of gradient descent on any model, and the state that changes with them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
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
from statemix.training.schedules import Attributes, learning_rate


class Trainer:
    """Trains any model on batches, independent of tasks and layers.

    Every step is a function of its number and of the contents of :meth:`tensors` and
    :meth:`numbers`, so a trainer restored from them continues bit-identically. Each step waits for
    the device once, to check that loss and gradient are finite before the optimiser uses them.

    Args:
        model: model to train, in place.
        batches: batches by step.
        objective: losses of a batch; their sum is minimised.
        optimizer: settings of AdamW.
        schedules: schedules of the learning rate and of attributes.
        fabric: device and precision.

    Attributes:
        step: optimiser steps done.
        num_steps: steps of the whole run.
        model: the model as it was given.

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
        fabric: Fabric,
    ) -> None:
        self.model = model
        self.batches = batches
        self.step = 0
        self.num_steps = batches.num_steps
        self._objective = objective
        self._config = optimizer
        self._schedules = schedules
        self._fabric = fabric
        self._attributes = Attributes(model, schedules.attributes)
        self._optimizer = build_optimizer(model, optimizer)
        # The wrapped pair trains; the bare pair is evaluated, saved and restored.
        self._wrapped: Any = fabric.setup(model, self._optimizer)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._reporting = {
            name: module for name, module in model.named_modules() if hasattr(module, "reports")
        }
        # Sums since the last averages. They stay on the device, for reading them would wait for it.
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

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
        set_learning_rate(self._optimizer, rate)
        self._attributes.set(self.step, self.num_steps)
        model, optimizer = self._wrapped
        model.train()
        loss = torch.zeros((), device=self._fabric.device)
        parts, reports = [], []
        for batch in self.batches.parts(self.step):
            # Fabric converts a model's outputs to the default dtype, which would round float64.
            with self._fabric.strategy.precision.tensor_init_context():
                losses = self._objective(model, batch)
            part = total(losses)
            self._fabric.backward(part)
            loss = loss + part.detach()
            parts.append(losses)
            reports.append(self._reports())
        norm = get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        value, length = torch.stack([loss.double(), norm.double()]).tolist()
        for name, number in (("loss", value), ("norm of the gradient", length)):
            self._require_finite(name, number, rate)
        if self._config.clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self._config.clip_norm, norm)
        # The averages must not include a step that failed.
        self._collect(parts, reports)
        optimizer.step()
        optimizer.zero_grad()
        self.step += 1
        return float(value)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 0."""
        return learning_rate(
            self._config.learning_rate,
            self._schedules,
            step,
            self.num_steps,
            self.batches.steps_per_epoch,
        )

    def attributes(self, step: int) -> dict[str, float]:
        """Set the scheduled attributes to their values at a step; return them by module."""
        return self._attributes.set(step, self.num_steps)

    def averages(self) -> dict[str, float]:
        """Return means since the last call: the losses, and the numbers that layers report.

        Returns:
            "loss" and "loss/HEAD" per step, "MODULE.NAME" per forward pass; empty if no step was
            done.
        """
        if not self._sums:
            return {}
        sums = torch.stack(list(self._sums.values())).tolist()
        means = {
            name: value / self._counts[name] for name, value in zip(self._sums, sums, strict=True)
        }
        self._sums, self._counts = {}, {}
        losses = [value for name, value in means.items() if name.startswith("loss/")]
        return {"loss": math.fsum(losses), **means}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights and the optimiser's state, as files of named tensors."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": optimizer_tensors(self._optimizer, self.model),
        }

    def numbers(self) -> dict[str, Any]:
        """Return everything else that changes with the steps, as plain data."""
        sums = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        return {
            "step": self.step,
            "sums": dict(zip(self._sums, sums, strict=True)),
            "counts": dict(self._counts),
        }

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Any) -> None:
        """Restore the results of :meth:`tensors` and :meth:`numbers`."""
        self.model.load_state_dict(dict(tensors["model"]))
        restore_optimizer(self._optimizer, self.model, tensors["optimizer"])
        self.step = numbers["step"]
        self._counts = dict(numbers["counts"])
        self._sums = {
            name: torch.tensor(value, dtype=torch.float64, device=self._fabric.device)
            for name, value in numbers["sums"].items()
        }

    def _reports(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": number
            for name, module in self._reporting.items()
            for key, number in module.reports().items()
        }

    def _collect(
        self, parts: Sequence[Mapping[str, Tensor]], reports: Sequence[Mapping[str, Tensor]]
    ) -> None:
        # The losses of a step's batches add up to one loss per step, so they count once.
        for name in parts[0]:
            self._add(f"loss/{name}", *(losses[name] for losses in parts))
        for numbers in reports:
            for name, number in numbers.items():
                self._add(name, number)

    def _add(self, name: str, *numbers: Tensor) -> None:
        for number in numbers:
            number = number.detach().double()
            self._sums[name] = self._sums[name] + number if name in self._sums else number
        self._counts[name] = self._counts.get(name, 0) + 1

    def _require_finite(self, name: str, value: float, rate: float) -> None:
        if not math.isfinite(value):
            self._optimizer.zero_grad()
            raise FloatingPointError(
                f"{name} must be finite, got {value} at step {self.step + 1} of {self.num_steps} "
                f"with learning rate {rate:.3g}; a smaller rate or clip_norm may help"
            )
