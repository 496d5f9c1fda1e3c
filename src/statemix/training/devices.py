"""What a run needs of its machines: devices, CPU threads, and the processes of torchrun.

The processes share one model, whole in each (DDP) or in shards (FSDP2).
"""

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from statemix.errors import RequestError, SettingError
from statemix.interrupts import Interrupts
from statemix.training.config import Device, Precision, RuntimeConfig, chosen_device

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Strategy = Literal["ddp", "fsdp"]
"""How processes share a model: "ddp" keeps it whole in each, "fsdp" keeps a shard in each."""

T = TypeVar("T")

# Preparing a corpus or gathering weights may keep the other processes waiting.
_PATIENCE = timedelta(minutes=30)

Numbers = Mapping[str, Tensor]


def check_device(path: str, device: Device) -> None:
    """Check that a device is available; messages name the setting ``path``."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingError(path, "must be available (PyTorch cannot use a GPU here)", device)


def check_here(runtime: RuntimeConfig) -> None:
    """Check that this machine has the device and the threads of a run."""
    check_device("runtime.device", runtime.device)
    if runtime.num_threads is not None:
        check_threads("runtime.num_threads", runtime.num_threads)


def check_threads(path: str, number: int) -> None:
    """Check a number of CPU threads or processes: many more than processors freeze the machine."""
    processors = available_processors()
    if not 1 <= number <= 4 * processors:
        condition = f"must be in 1..{4 * processors} (processors available: {processors})"
        raise SettingError(path, condition, number)


def available_processors() -> int:
    """Return the processors on which this process may run: ``taskset`` or a container limits them.

    A quota of time counts as nothing, as in PyTorch's own number of threads.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Use this many CPU threads; sums are split among them, so results depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def own_random_numbers(device: Device) -> contextlib.AbstractContextManager[None]:
    """Leave PyTorch's global generators as they were."""
    return torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else [])


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, and this process among them: here (``local``) and on all machines.

    Every method is a collective: all processes call it together, or it waits for ever. With one
    process nothing is exchanged.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and reports progress."""
        return self.rank == 0

    def on_first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process, and return its result in every process."""
        if self.size == 1:
            return function()
        sent: list[Any] = [None, None]
        error: BaseException | None = None
        if self.is_first:
            try:
                sent[0] = function()
            except KeyboardInterrupt as caught:
                error, sent[1] = caught, KeyboardInterrupt()
            except BaseException as caught:  # noqa: BLE001 - raised below, when the others know
                error, sent[1] = caught, RequestError(str(caught) or type(caught).__name__)
        dist.broadcast_object_list(sent)
        result, told = sent
        if error or told:
            raise error or told
        return cast(T, result)

    def any_of(self, *, flag: bool) -> bool:
        """Return whether the flag of any process is true."""
        if self.size == 1:
            return flag
        flags: list[Any] = [None] * self.size
        dist.all_gather_object(flags, flag)
        return any(flags)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.any_of(flag=False)

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over processes, with the same bits in each."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers


ALONE = Ranks()
"""This process, if it is the only one."""


def ranks_here() -> Ranks:
    """Return the processes of the run by the environment variables that torchrun sets."""
    names = ("RANK", "WORLD_SIZE")
    if any(name not in os.environ for name in names):
        return ALONE
    rank, size = (int(os.environ[name]) for name in names)
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return Ranks(rank, size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def join_ranks(device: Device) -> Ranks:
    """Connect the processes of the run until they end, unless they are connected already."""
    ranks = ranks_here()
    if ranks.size == 1:
        return ranks
    on_gpu = chosen_device(device) == "cuda"
    if on_gpu:
        torch.cuda.set_device(ranks.local_rank)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE)
        # Processes that have parted cannot meet again, and the next run may need them.
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    return ranks


def build_fabric(
    device: Device, precision: Precision, ranks: Ranks = ALONE, strategy: Strategy = "ddp"
) -> "Fabric":
    """Build Lightning Fabric for processes that are connected and have an available device each."""
    # It imports the compiler of PyTorch, which takes as long as everything else together.
    from lightning_fabric import Fabric

    accelerator = chosen_device(device)
    if ranks.size == 1:
        return Fabric(accelerator=accelerator, devices=1, precision=precision)
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    sharding = ModelParallelStrategy(
        shard_model, data_parallel_size=ranks.size, tensor_parallel_size=1
    )
    fabric = Fabric(
        accelerator=accelerator,
        devices=ranks.local_size,
        num_nodes=ranks.size // ranks.local_size,
        # Plain DDP changes the order of the gradients after its first step, also in a resumed run.
        # Sums over three or more processes round by that order.
        strategy="ddp_find_unused_parameters_true" if strategy == "ddp" else sharding,
        precision=precision,
        plugins=[TorchElasticEnvironment()],
    )
    fabric.launch()
    return fabric


class WholeModel(nn.Module):
    """Calls any function of a model, so that DDP and FSDP2 see all that a step does as one call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Any], Any]) -> Any:
        return function(self.model)


def shard_model(whole: WholeModel, mesh: Any) -> WholeModel:
    """Shard each entry of the outermost ``nn.ModuleList``s, and the rest of a model, with FSDP2."""
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
    """Let Fabric wrap a model, as a :class:`WholeModel`, and its optimiser for many processes."""
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
    """Let an optimiser without state change the parameters of another model of the same names."""
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
    """What all processes of a run know after each step: the losses, a signal, and the time."""

    interrupted = False
    """Whether any process had got a signal."""
    clock = 0.0
    """Seconds of the first process's clock."""

    def __init__(self, ranks: Ranks, interrupts: Interrupts, device: torch.device) -> None:
        self._ranks, self._interrupts, self._device = ranks, interrupts, device

    def start(self) -> None:
        """Agree before the first step."""
        self.read(self._ranks.total(self._own()).tolist())

    def sums(
        self, parts: Sequence[Numbers], reports: Sequence[Numbers]
    ) -> tuple[Tensor, list[dict[str, Tensor]], list[dict[str, Tensor]], Tensor]:
        """Exchange the losses and the reported numbers of each batch of a step.

        Returns the sum of all losses, the losses summed over processes, the reported numbers
        averaged over processes, and two numbers for :meth:`read`; all float64, on the device.
        """
        tables = [*parts, *reports]
        own = [number.detach().double() for table in tables for number in table.values()]
        total = self._ranks.total(torch.cat([torch.stack(own), self._own()]))
        sums = iter(total)
        losses = [{name: next(sums) for name in table} for table in parts]
        means = [{name: next(sums) / self._ranks.size for name in table} for table in reports]
        loss = total[: sum(map(len, parts))].sum()
        return loss, losses, means, total[-2:]

    def read(self, numbers: Sequence[float]) -> None:
        """Take note of what the processes agree on."""
        self.interrupted, self.clock = numbers[0] > 0, numbers[1]

    def _own(self) -> Tensor:
        time_s = time.monotonic() if self._ranks.is_first else 0.0
        numbers = [float(self._interrupts.noted), time_s]
        return torch.tensor(numbers, dtype=torch.float64, device=self._device)
