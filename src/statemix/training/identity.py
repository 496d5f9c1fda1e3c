"""What decides the result of :func:`statemix.training.fit`, as JSON data that two calls compare."""

import functools
import hashlib
import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from statemix.errors import RequestError
from statemix.training import folder as runs
from statemix.training.devices import parameter_names
from statemix.training.loop import Hook
from statemix.training.settings import plain_number

# Version of what `fit` stores; runs of `train` have versions of their own.
_SCHEMA = 1
# Options of PyTorch's optimisers that choose an implementation of the same step.
_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
_PLAIN = (type(None), bool, int, float, str, bytes)
_REFERRED = (*_PLAIN, tuple, types.FunctionType, Tensor, np.ndarray)
# Larger tensors are known by their shape alone.
_MOST_BYTES = 2**26
# Attributes that change no result: how a ``DataLoader`` moves its batches, and the number of steps,
# which identifies a run by itself and grows when the run is extended.
_NEUTRAL = ("num_steps", "pin_memory", "pin_memory_device", "prefetch_factor", "timeout")


def describe_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the kind of an optimiser, and the options and parameters (None: all) of its groups.

    A schedule of PyTorch changes the rate when it is made: the rate before it counts.
    """
    names = parameter_names(model)
    trained = {name for parameter, name in names.items() if parameter.requires_grad}
    groups = []
    for group in optimizer.param_groups:
        options = {**group, "lr": group["initial_lr"]} if "initial_lr" in group else group
        described = {
            name: _number(number)
            for name, value in options.items()
            if name not in ("params", "initial_lr", *_IMPLEMENTATION)
            and _is_plain(number := plain_number(value))
        }
        members = [names.get(parameter, "") for parameter in group["params"]]
        described["parameters"] = None if set(members) == trained else members
        groups.append(described)
    return {"name": type(optimizer).__qualname__, "groups": groups}


def describe_schedule(schedule: Any) -> str:
    """Return a fingerprint of a schedule of PyTorch, its functions and the schedules in it."""
    if schedule is None:
        return fingerprint(None)
    functions = map(fingerprint, getattr(schedule, "lr_lambdas", ()))
    inner = map(describe_schedule, getattr(schedule, "_schedulers", ()))
    return _digest((fingerprint(schedule), schedule.state_dict(), *functions, *inner))


def request_of(
    settings: Mapping[str, Any],
    seed: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    options: Mapping[str, Any],
    num_steps: int,
) -> runs.StoredConfig:
    """Return what identifies a call of ``fit``."""
    tensors = model.state_dict()
    dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
    identity = {
        "seed": seed,
        "model": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "dtypes": {name: dtype for name, dtype in dtypes.items() if dtype != "float32"},
        "fixed": [name for name, p in model.named_parameters() if not p.requires_grad],
        "optimizer": describe_optimizer(optimizer, model),
        **options,
    }
    try:
        fit = {"settings": dict(settings), **identity}
        plain = {"fit": fit, "schedules": {"num_steps": num_steps}}
        plain = json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RequestError(f"settings must be JSON data, got {settings!r} ({error})") from error
    return runs.StoredConfig(_SCHEMA, plain, plain)


def comparable(request: runs.StoredConfig, folder: Path) -> runs.StoredConfig:
    """Return a request of ``fit`` without options of the optimiser that a newer PyTorch added."""
    stored = runs.stored_config(folder, request.schema)
    if stored is None or "fit" not in stored.asked:
        return request
    fit = request.asked["fit"]
    groups = list(fit["optimizer"]["groups"])
    before = stored.asked["fit"].get("optimizer", {}).get("groups", [])
    for place, theirs in enumerate(before[: len(groups)]):
        groups[place] = {name: v for name, v in groups[place].items() if name in theirs}
    plain = {**request.asked, "fit": {**fit, "optimizer": {**fit["optimizer"], "groups": groups}}}
    return runs.StoredConfig(request.schema, plain, plain)


def describe_code(
    batch: Any, loss: Any, evaluate: Any, hooks: Sequence[Hook], scheduler: Any, model: nn.Module
) -> dict[str, Any]:
    """Return fingerprints of what a call of ``fit`` is given."""
    # Tensors do not show the kinds of modules, nor the code of the user's own ones.
    modules = [(name, type(m).__qualname__, m.extra_repr()) for name, m in model.named_modules()]
    methods = [
        (f"{kind.__qualname__}.{name}", fingerprint(member))
        for kind in {type(module) for module in model.modules()}
        if kind.__module__.split(".")[0] not in ("torch", "statemix", "transformers")
        for name, member in vars(kind).items()
        if isinstance(member, types.FunctionType)
    ]
    return {
        "batch": fingerprint(batch),
        "loss": fingerprint(loss),
        "evaluate": fingerprint(evaluate),
        "hooks": [fingerprint(hook) for hook in hooks if hook.changes_results],
        "scheduler": describe_schedule(scheduler),
        "modules of the model": _digest(modules),
        "methods of the model": _digest(sorted(methods)),
    }


def fingerprint(value: Any) -> str:
    """Return a fingerprint of a function or an object, the same in every process.

    It covers the byte code, and what the code refers to in its own module and closure: plain
    values, tuples, arrays and functions. Of other objects it covers the type, its methods and
    public attributes of these kinds. Functions of other modules are known by their names.
    """
    home = getattr(value, "__module__", None) or ""
    return _digest(_traits(value, None if home.startswith("statemix.") else home, set()))


def _digest(traits: Any) -> str:
    return hashlib.sha256(repr(traits).encode()).hexdigest()[:16]


def _traits(value: Any, home: str | None, seen: set[int]) -> Any:
    """Return what distinguishes a value of a module, as nested tuples; ``seen`` is around it."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _PLAIN):
        return value
    if id(value) in seen:
        return kind
    seen = seen | {id(value)}
    if isinstance(value, tuple):
        return tuple(_traits(item, home, seen) for item in value)
    if isinstance(value, frozenset):
        return sorted(repr(_traits(item, home, seen)) for item in value)
    if isinstance(value, functools.partial):
        return _traits((value.func, value.args, *value.keywords.items()), home, seen)
    if isinstance(value, types.MethodType):
        return _traits((value.__func__, value.__self__), home, seen)
    if isinstance(value, types.FunctionType):
        name = f"{value.__module__}.{value.__qualname__}"
        if value.__module__ != home:
            return name
        shared, names = value.__globals__, sorted(_names(value.__code__))
        # Tables and other objects may change while the code runs.
        used = [(n, shared[n]) for n in names if isinstance(shared.get(n, shared), _REFERRED)]
        defaults = (value.__defaults__, *(value.__kwdefaults__ or {}).items())
        cells = tuple(map(_inside, value.__closure__ or ()))
        return name, _traits((value.__code__, defaults, tuple(used), cells), home, seen)
    if isinstance(value, types.CodeType):
        parts = (value.co_code, value.co_names, value.co_varnames, value.co_consts)
        return _traits(parts, home, seen)
    if isinstance(value, Tensor | np.ndarray):
        return (kind, str(value.dtype), tuple(value.shape), _content(value))
    if isinstance(value, type | nn.Module | types.ModuleType) or not hasattr(value, "__dict__"):
        return getattr(value, "__qualname__", kind)
    own = vars(type(value)).values() if type(value).__module__ == home else ()
    methods = [member for member in own if isinstance(member, types.FunctionType)]
    public = {k: v for k, v in vars(value).items() if k[:1] != "_" and k not in _NEUTRAL}
    attributes = ((k, v) for k, v in public.items() if isinstance(v, (*_REFERRED, Dataset)))
    return (kind, _traits((*methods, *attributes), home, seen))


def _names(code: types.CodeType) -> set[str]:
    inner = (item for item in code.co_consts if isinstance(item, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _inside(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # A name that is not bound yet.


def _content(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Return a hash of data; weights change, and much data takes too long."""
    if isinstance(value, Tensor):
        if value.requires_grad or value.layout != torch.strided or value.nbytes > _MOST_BYTES:
            return ""
        value = value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if value.dtype.hasobject or value.nbytes > _MOST_BYTES:
        return ""
    return hashlib.sha256(value.tobytes()).hexdigest()


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN) and not isinstance(value, bytes)


def _number(value: Any) -> Any:
    """Return an integer as float: a rate of 1 equals a rate of 1.0."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
