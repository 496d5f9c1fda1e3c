"""What a run needs of this machine: a device, CPU threads, memory."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from statemix import provenance
from statemix.errors import ABSENT, RequestError, SettingError
from statemix.memory import available_bytes, gigabytes
from statemix.tasks import TASKS, Task
from statemix.training.config import Device, Precision, RunConfig, RuntimeConfig, chosen_device
from statemix.training.parallel import Strategy, shard_model
from statemix.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_TOKEN_BYTES = 8
# Weights, gradients, AdamW's two moments, and the best weights on validation and test.
_COPIES = 6


def build_fabric(
    device: Device,
    precision: Precision,
    ranks: Ranks = ALONE,
    strategy: Strategy = "ddp",
) -> "Fabric":
    """Build Lightning Fabric for devices that are available.

    Args:
        device: kind of the devices.
        precision: precision of weights and arithmetic.
        ranks: processes of the run, connected, with a device each.
        strategy: how several processes share the model.
    """
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


def check_device(path: str, device: Device) -> None:
    """Check that a device is available.

    Args:
        path: dotted name of the setting, for the message.
        device: device to check.

    Raises:
        SettingError: if there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingError(path, "must be available (PyTorch cannot use a GPU here)", device)


# Results depend on the number of threads, so a request may exceed the number of processors, but
# many more threads would freeze the machine.
_THREADS_PER_PROCESSOR = 4


def check_threads(path: str, number: int) -> None:
    """Check that a number of CPU threads or processes is reasonable on this machine.

    Args:
        path: dotted name of the setting, for the message.
        number: number of threads or processes.

    Raises:
        SettingError: if the number is below 1 or several times the number of processors.
    """
    processors = available_processors()
    most = _THREADS_PER_PROCESSOR * processors
    if not 1 <= number <= most:
        condition = f"must be in 1..{most} (processors available: {processors})"
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


@contextlib.contextmanager
def own_random_numbers(device: Device) -> Iterator[None]:
    """Leave PyTorch's global generators as they were."""
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def environment(runtime: RuntimeConfig) -> dict[str, Any]:
    """Describe software and machine of a run, whose device and threads are chosen."""
    return {
        **provenance.describe(),
        "num_threads": runtime.num_threads,
        "device": torch.cuda.get_device_name() if runtime.device == "cuda" else "cpu",
    }


def sequences_at(length: int, *, at_most: int, tokens: int) -> int:
    """Return the number of sequences of a length that fit into a token budget, at least 1."""
    return max(1, min(at_most, tokens // length))


def check_here(config: RunConfig) -> Task:
    """Check that this machine can run a configuration, without making its model or its examples.

    Args:
        config: a configuration, resolved.

    Returns:
        The task of the run.

    Raises:
        RequestError: if a part needs more memory, threads or devices than there are, or a layer
            refuses an option; the message names the setting.
    """
    if config.runtime.num_threads is not None:
        check_threads("runtime.num_threads", config.runtime.num_threads)
    check_device("runtime.device", config.runtime.device)
    task = config.build_task()
    _check_examples(config, task)
    if chosen_device(config.runtime.device) == "cpu":
        _check_training(config, task)
    return task


def _check_examples(config: RunConfig, task: Task) -> None:
    evaluation = config.evaluation
    for name in ("test_size", "validation_size"):
        count = getattr(evaluation, name)
        check_examples_fit(f"evaluation.{name}", count, task, count, task.length, scored=True)
    for split, named in (("test", "lengths"), ("validation", "validation_lengths")):
        for length in getattr(evaluation, named):
            check_scored_fit(
                task,
                length,
                at_most=getattr(evaluation, f"{split}_size"),
                tokens=evaluation.tokens,
                path="evaluation.",
                named=named,
            )
    if config.search.attempts is not None:
        size, length = config.search.size, config.search.length or task.length
        check_examples_fit("search.length", length, task, 1, length, scored=True)
        check_examples_fit("search.size", size, task, size, length, scored=True)
    if task.train_size is not None:
        option = ".train_size" if "train_size" in TASKS.options(config.task.name) else ""
        check_examples_fit(f"task{option}", task.train_size, task, task.train_size, task.length)
    sequences = _sequences(config, task)
    check_examples_fit("batches.size", config.batches.size, task, sequences, task.length)


def _check_training(config: RunConfig, task: Task) -> None:
    """Check what is certainly held at once: weights and moments, and the residual stream."""
    width = 8 if config.runtime.precision == "64-true" else 4
    parameters, states = _sizes(config, task)
    text = f"with hidden_size={config.model.hidden_size}, its layers and channel_mixer"
    _check("model", ABSENT, text, _COPIES * width * parameters)
    stream = config.model.hidden_size * (len(config.model.stack()) + 1) * task.length
    at_once = -(-_sequences(config, task) // config.batches.accumulate)
    text = f"{at_once} sequences at once"
    _check("batches.size", config.batches.size, text, at_once * 4 * (stream + states))


def _sequences(config: RunConfig, task: Task) -> int:
    size = config.batches.size
    return size if task.train_size is None else min(size, task.train_size)


_DRAWS = ("normal_", "uniform_", "exponential_", "bernoulli_", "random_")


class _WithoutDraws(TorchFunctionMode):
    """Leaves tensors undrawn: drawing shapes without data imports the compiler of PyTorch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        is_draw = getattr(func, "__module__", "") == "torch.nn.init" or func.__name__ in _DRAWS
        if is_draw:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _sizes(config: RunConfig, task: Task) -> tuple[int, int]:
    """Return the numbers of parameters, and of entries of a sequence's states; 0 if unknown."""
    # Each layer once: the others repeat them.
    short = config.replace(model=config.model.replace(num_layers=None))
    try:
        with torch.device("meta"), _WithoutDraws():
            model = short.build_model(task)
            layers: list[Any] = [block.mixer for block in model.backbone.blocks]
            states = [tree_leaves(layer.init_state(1)) for layer in layers]
    except RequestError:
        raise
    except Exception:  # noqa: BLE001  building the model with data will report it
        return 0, 0
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.backbone.blocks]
    once = sum(p.numel() for p in model.parameters()) - sum(blocks)
    places = [n % len(blocks) for n in range(len(config.model.stack()))]
    entries = [sum(t.numel() for t in leaves if isinstance(t, torch.Tensor)) for leaves in states]
    return once + sum(blocks[n] for n in places), sum(entries[n] for n in places)


def check_scored_fit(
    task: Task,
    length: int,
    *,
    at_most: int,
    tokens: int,
    path: str = "",
    named: str = "lengths",
) -> None:
    """Check that the examples scored at one length fit into memory.

    Args:
        task: source of the examples.
        length: tokens of the longest example.
        at_most: as in :func:`sequences_at`.
        tokens: as in :func:`sequences_at`.
        path: beginning of the dotted names of the settings ``named`` and ``tokens``.
        named: setting of the lengths.

    Raises:
        SettingError: if they do not fit; the message names ``named`` where one alone does not.
    """
    check_examples_fit(f"{path}{named}", length, task, 1, length, scored=True)
    count = sequences_at(length, at_most=at_most, tokens=tokens)
    check_examples_fit(f"{path}tokens", tokens, task, count, length, scored=True)


def check_examples_fit(
    path: str, value: int, task: Task, count: int, length: int, *, scored: bool = False
) -> None:
    """Check that examples fit into memory: tokens and targets and, if scored, predictions.

    Args:
        path: dotted name of the setting that determines the number of examples.
        value: value of the setting.
        task: source of the examples.
        count: number of examples.
        length: tokens of the longest example.
        scored: True if a model predicts their targets.

    Raises:
        SettingError: if they do not fit.
    """
    arrays = 1 + len(task.heads) * (2 if scored else 1)
    what = f"{count} sequence{'s' if count > 1 else ''} of length {length}"
    _check(path, value, what, _TOKEN_BYTES * arrays * count * length)


def _check(path: str, value: object, what: str, needed: int) -> None:
    available = available_bytes()
    if needed > available:
        condition = (
            f"must fit into memory ({what}: at least {gigabytes(needed)} needed, "
            f"{gigabytes(available)} available)"
        )
        raise SettingError(path, condition, value)
