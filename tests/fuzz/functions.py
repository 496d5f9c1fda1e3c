"""The public functions and modules: right results, or one of the promised errors."""

import inspect
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import junk
import parts
import recurrences
import torch
from cases import COMPUTED, REFUSED, FindingError, line

from statemix import layers, ops, tasks
from statemix.models import TokenClassifier

NAME = "functions"
SHARE = 4
LIMIT_S = 20.0

PROMISED = (TypeError, ValueError, ops.BackendUnavailableError)
# Arguments of the functions that the public ones call.
_INNER_NAMES = ("state", "initial_state", "index", "stop")
# What PyTorch says of a size that no machine can hold.
_TOO_LARGE = re.compile(r"memory|Storage size|overflow|too large|INT64_MAX|exceeds", re.IGNORECASE)


def prepare(folder: Path) -> None:
    """Nothing is needed."""


def run(r: random.Random, folder: Path, prepared: Path) -> str:
    """Check one well-formed or malformed call."""
    chosen = r.choices(list(_RECIPES), list(_RECIPES.values()))[0]
    with torch.random.fork_rng():
        torch.manual_seed(r.getrandbits(32))
        return chosen(r) or COMPUTED


def malformed_operator(r: random.Random) -> str:
    """Call an operator with one or two arguments replaced."""
    problem = recurrences.draw(r)
    function = getattr(ops, problem.function)
    tensors = {k: v for k, v in problem.tensors.items() if not k.startswith("d_")}
    return refused_or_computed(function, *_spoilt(r, function, {**tensors, **problem.options}))


def malformed_normalize(r: random.Random) -> str:
    """Call ``normalize`` with replaced arguments."""
    good = {"gates": torch.randn(2, 3, 4), "gate": r.choice(list(ops.GATES)), "temperature": 0.5}
    return refused_or_computed(ops.normalize, *_spoilt(r, ops.normalize, good))


def malformed_layer(r: random.Random) -> str:
    """Construct a layer with replaced arguments."""
    kind, options = parts.layer_options(r)
    made = layers.LAYERS[kind]
    return refused_or_computed(made, *_spoilt(r, made, options))


def malformed_call(r: random.Random) -> str:
    """Call a method of a layer, or ``take_rows``, with replaced arguments."""
    layer, x, state = parts.drawn_layer(r)
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (layer.forward, {"x": x, "state": state}),
        (layer.forward, {"x": x[:1], "cu_seqlens": torch.tensor([0, x.shape[1]])}),
        (layer.step, {"x_t": x[:, 0], "state": state}),
        (layer.init_state, {"batch_size": 2, "device": None, "dtype": None}),
        (layers.take_rows, {"state": state, "rows": torch.tensor([0])}),
    ]
    if "gate_temperature" in layer.schedulable:

        def gate_temperature(gate_temperature: Any) -> None:
            # PyTorch itself refuses to set any property to an nn.Parameter.
            type(layer).gate_temperature.fset(layer, gate_temperature)

        calls.append((gate_temperature, {"gate_temperature": 1.0}))
    function, good = r.choice(calls)
    return refused_or_computed(function, *_spoilt(r, function, good))


def malformed_model(r: random.Random) -> str:
    """Construct or call the model with replaced arguments."""
    model, tokens, options = parts.drawn_model(r)
    lengths = torch.full((len(tokens),), tokens.shape[1])
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (type(model), options),
        (model.forward, {"tokens": tokens}),
        (model.forward, {"tokens": tokens[:1], "cu_seqlens": torch.tensor([0, tokens.shape[1]])}),
        (model.forward, {"tokens": tokens, "lengths": lengths}),
    ]
    if isinstance(model, TokenClassifier):
        _, state = model.extend(tokens)
        calls.append((model.extend, {"tokens": tokens, "state": state}))
    function, good = r.choice(calls)
    return refused_or_computed(function, *_spoilt(r, function, good))


def malformed_task(r: random.Random) -> str:
    """Build a task, or draw from one, with replaced arguments."""
    name, options = parts.task_options(r)
    task = tasks.TASKS[name]()
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (tasks.TASKS[name], options),
        (task.examples, {"split": "train", "start": 0, "stop": 2, "length": 4}),
        (task.describe, {"index": 0, "split": "test"}),
    ]
    function, good = r.choice(calls)
    return refused_or_computed(function, *_spoilt(r, function, good, junk.plain))


def _spoilt(
    r: random.Random,
    function: Callable[..., Any],
    good: dict[str, Any],
    draw: Callable[[random.Random, Any], Any] = junk.replacement,
) -> tuple[dict[str, Any], str]:
    """Arguments with one or two replaced, and what was replaced, in words."""
    known = [name for name in inspect.signature(function).parameters if name in good]
    others = [name for name in inspect.signature(function).parameters if name not in good]
    chosen = r.sample(known, min(len(known), r.choice([1, 1, 2])))
    if others and r.random() < 0.2:
        chosen.append(r.choice(others))
    parameters = inspect.signature(function).parameters
    new = {name: draw(r, good.get(name, parameters[name].default)) for name in chosen}
    if r.random() < 0.03 and known:
        good = {name: value for name, value in good.items() if name != r.choice(known)}
    words = ", ".join(f"{name}={junk.shown(value)}" for name, value in new.items())
    return {**good, **new}, f"{function.__qualname__}({words})"


def refused_or_computed(function: Callable[..., Any], arguments: dict[str, Any], words: str) -> str:
    """Call a function; an error must be a promised one whose message names an argument."""
    names = {*arguments, *inspect.signature(function).parameters, *_INNER_NAMES}
    try:
        function(**arguments)
    except PROMISED as error:
        if not any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in names):
            text = f"{words}: {type(error).__name__} names no argument: {line(error)}"
            raise FindingError(text) from error
        return REFUSED
    except (RuntimeError, MemoryError, OverflowError) as error:
        if _huge(arguments) and _TOO_LARGE.search(f"{type(error).__name__} {error}"):
            return REFUSED
        raise FindingError(f"{words}: {type(error).__name__}: {line(error)}") from error
    except Exception as error:
        raise FindingError(f"{words}: {type(error).__name__}: {line(error)}") from error
    return COMPUTED


def _huge(arguments: dict[str, Any]) -> bool:
    """Whether an argument is a size beyond any memory."""
    sizes = [v for v in arguments.values() if isinstance(v, int)]
    sizes += [v.numel() for v in arguments.values() if isinstance(v, torch.Tensor)]
    return any(abs(size) >= 2**20 for size in sizes)


_RECIPES: dict[Callable[[random.Random], str | None], float] = {
    recurrences.check: 6,
    recurrences.check_step_in_inference: 2,
    parts.check_layer: 3,
    parts.check_model: 1,
    parts.check_task: 1,
    parts.check_permutation: 1,
    malformed_operator: 6,
    malformed_normalize: 1,
    malformed_layer: 2,
    malformed_call: 4,
    malformed_model: 2,
    malformed_task: 1,
}
