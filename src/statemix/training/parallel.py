"""One model trained by many processes: whole in each (DDP), or in shards (FSDP2)."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from statemix.interrupts import Interrupts
from statemix.training.ranks import Ranks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Strategy = Literal["ddp", "fsdp"]
"""How processes share a model: "ddp" keeps it whole in each, "fsdp" keeps a shard in each."""

Numbers = Mapping[str, Tensor]


class WholeModel(nn.Module):
    """Calls any function of a model, so that DDP and FSDP2 see all that a step does as one call.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Any], Any]) -> Any:
        return function(self.model)


def shard_model(whole: WholeModel, mesh: Any) -> WholeModel:
    """Shard each block of a model, and the rest of the model, with FSDP2.

    Args:
        whole: the model. Its blocks are the entries of each outermost ``nn.ModuleList``.
        mesh: the devices, with the dimension "data_parallel".

    Returns:
        The same module; its parameters are now DTensors.
    """
    from torch.distributed.fsdp import fully_shard

    for block in _blocks(whole):
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(whole, mesh=mesh["data_parallel"])
    return whole


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)


def set_up_model(
    fabric: "Fabric", model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Any, Any]:
    """Let Fabric wrap a model and its optimiser for several processes.

    Returns:
        module: the wrapped :class:`WholeModel`.
        optimizer: the wrapped optimiser.
    """
    from lightning_fabric.strategies.ddp import DDPStrategy

    names = parameter_names(model)
    whole = WholeModel(model)
    if isinstance(fabric.strategy, DDPStrategy):
        # DDP looks for unused parameters, and would warn of finding none.
        whole.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    module = fabric.setup_module(whole)
    # FSDP2 replaces the parameters.
    rebind_optimizer(optimizer, names, model)
    return module, fabric.setup_optimizers(optimizer)


def parameter_names(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return the name of each parameter."""
    return {parameter: name for name, parameter in model.named_parameters()}


def rebind_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str], model: nn.Module
) -> None:
    """Let an optimiser without state change the parameters of another model.

    Args:
        optimizer: the optimiser.
        names: names of the parameters that it has.
        model: model with parameters of these names.
    """
    parameters = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parameters[names[parameter]] for parameter in group["params"]]


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor, without importing them."""
    return hasattr(tensor, "full_tensor")


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor itself, or all of a sharded tensor; all processes must call this."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return whole


class Agreement:
    """What all processes of a run know after each step: the losses, a signal, and the time.

    Args:
        ranks: the processes.
        interrupts: signals that this process got.
        device: device of the numbers.

    Attributes:
        interrupted: whether any process had got a signal.
        clock: seconds of the first process's clock.
    """

    def __init__(self, ranks: Ranks, interrupts: Interrupts, device: torch.device) -> None:
        self._ranks, self._interrupts, self._device = ranks, interrupts, device
        self.interrupted, self.clock = False, 0.0

    def start(self) -> None:
        """Agree before the first step."""
        self.read(self._ranks.total(self._own()).tolist())

    def sums(
        self, parts: Sequence[Numbers], reports: Sequence[Numbers]
    ) -> tuple[Tensor, list[dict[str, Tensor]], list[dict[str, Tensor]], Tensor]:
        """Exchange the numbers of a step.

        Args:
            parts: losses of each of the step's batches.
            reports: reported numbers of each of the batches.

        Returns:
            loss: the sum of all losses, float64.
            parts: the losses, summed over processes.
            reports: the reported numbers, averaged over processes.
            rest: two numbers for :meth:`read`, float64, on the device.
        """
        tables = [*parts, *reports]
        own = [number.detach().double() for table in tables for number in table.values()]
        total = self._ranks.total(torch.cat([torch.stack(own), self._own()]))
        numbers = iter(total)
        summed = [{name: next(numbers) for name in table} for table in tables]
        means = [
            {name: number / self._ranks.size for name, number in table.items()}
            for table in summed[len(parts) :]
        ]
        losses = summed[: len(parts)]
        loss = torch.stack([one for table in losses for one in table.values()]).sum()
        return loss, losses, means, total[-2:]

    def read(self, numbers: Sequence[float]) -> None:
        """Take note of what the processes agree on."""
        self.interrupted, self.clock = numbers[0] > 0, numbers[1]

    def _own(self) -> Tensor:
        time_s = time.monotonic() if self._ranks.is_first else 0.0
        numbers = [float(self._interrupts.noted), time_s]
        return torch.tensor(numbers, dtype=torch.float64, device=self._device)
