"""The memory that a request needs at least, estimated before anything is made or written.

The estimates count only what is certainly held at once, so that no possible request is refused.
"""

import dataclasses
from functools import cache

import torch
from torch import nn

from statemix.errors import ABSENT, RequestError, SettingError
from statemix.layers import LAYERS, LayerSpec
from statemix.memory import available_bytes, gigabytes
from statemix.tasks import TASKS, Task
from statemix.training.config import RunConfig
from statemix.training.evaluation import sequences_at
from statemix.training.parts import build_model

_TOKEN_BYTES = 8
# Weights, gradients, AdamW's two moments, and the best weights on validation and test; all but the
# gradients once more as the bytes of a checkpoint.
_COPIES = 6 + 5


def check_run_fits(config: RunConfig, task: Task) -> None:
    """Check that a run fits into memory: its examples, its model and one of its batches.

    Args:
        config: the run.
        task: its task.

    Raises:
        RequestError: if a part needs more memory than is available, or a layer refuses an option;
            the message names the setting.
    """
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
    if config.runtime.device != "cuda":
        _check_model_fits(config, task)
    _check_batch_fits(config, task)


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


def _check_model_fits(config: RunConfig, task: Task) -> None:
    width = 8 if config.runtime.precision == "64-true" else 4
    needed = _COPIES * width * _num_parameters(config, task)
    what = f"with hidden_size={config.model.hidden_size}, its layers and channel_mixer"
    _check("model", ABSENT, what, needed)


def _num_parameters(config: RunConfig, task: Task) -> int:
    """Return the number of parameters; 0 if a layer cannot be built without data."""
    # Each layer once: the others repeat them.
    short = dataclasses.replace(config.model, num_layers=None)
    try:
        with torch.device("meta"):
            model = build_model(dataclasses.replace(config, model=short), task)
    except RequestError:
        raise
    except Exception:  # noqa: BLE001  building the model with data will report it
        return 0
    of_blocks = [_count(block) for block in model.backbone.blocks]
    repeated = sum(of_blocks[n % len(of_blocks)] for n in range(len(config.model.stack())))
    return _count(model) - sum(of_blocks) + repeated


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _check_batch_fits(config: RunConfig, task: Task) -> None:
    sequences = config.batches.size
    if task.train_size is not None:
        sequences = min(sequences, task.train_size)
    examples = _TOKEN_BYTES * (1 + len(task.heads)) * sequences * task.length
    what = f"{sequences} sequences in a step"
    activations = 0
    if config.runtime.device != "cuda":
        # Of all activations, the residual stream before each layer and the readouts.
        stream = 4 * config.model.hidden_size * (len(config.model.stack()) + 1) * task.length
        largest, layer = max(_largest_tensor(one, config, task) for one in set(config.model.layers))
        where = f"one sequence in {layer}"
        _check("model.layers", ABSENT, where, largest)
        at_once = -(-sequences // config.batches.accumulate)
        activations = at_once * max(stream, largest)
    _check("batches.size", config.batches.size, what, examples + activations)


def _largest_tensor(spec: LayerSpec, config: RunConfig, task: Task) -> tuple[int, str]:
    """Return the bytes of a layer's largest tensor for one sequence, and the layer in words."""
    precision = config.runtime.precision
    found = _largest_of_one(
        spec,
        LAYERS[spec.name],
        config.model.hidden_size,
        task.length,
        torch.float64 if precision == "64-true" else torch.float32,
    )
    words = [f"{name}={value}" for name, value in spec.asked().items() if name != "name"]
    # Autocast halves some tensors.
    return found // 2 if precision == "bf16-mixed" else found, " ".join([spec.name, *words])


@cache
def _largest_of_one(
    spec: LayerSpec, kind: object, hidden_size: int, length: int, dtype: torch.dtype
) -> int:
    """Find it once for all runs of a process; ``kind`` is what the layer's name means now."""
    del kind
    # It needs modules of PyTorch that are not public.
    from statemix.layers.largest import largest_tensor

    return largest_tensor(spec, hidden_size=hidden_size, batch_size=1, length=length, dtype=dtype)


def _check(path: str, value: object, what: str, needed: int) -> None:
    available = available_bytes()
    if needed > available:
        condition = (
            f"must fit into memory ({what}: at least {gigabytes(needed)} needed, "
            f"{gigabytes(available)} available)"
        )
        raise SettingError(path, condition, value)
