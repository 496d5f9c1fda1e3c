"""Layers, models and tasks: random options, and what must hold for all of them."""

import copy
import random
import re
from typing import Any

import numpy as np
import torch
from cases import require
from torch import Tensor

from statemix import layers, ops
from statemix.layers import LayerSpec
from statemix.models import MixerSpec, SyntheticModel
from statemix.tasks import IGNORED, TASKS
from statemix.tasks.groups import NAMES

_BASELINES = ("delta_net", "delta_product", "mamba2", "conv", "attention")
_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.1, torch.float16: 0.02}


def layer_options(r: random.Random) -> tuple[str, dict[str, Any]]:
    """A layer's name and arguments."""
    kind = r.choice(["bd_lru", "bd_lru", "h_lru", "h_lru", "lstm", r.choice(_BASELINES)])
    hidden = r.choice([1, 2, 3, 8])
    options: dict[str, Any] = {"hidden_size": hidden}
    if kind in _BASELINES:
        # Norms magnify the errors of low precision.
        return kind, options | {"dtype": r.choice([torch.float32, torch.float64])} | _baseline(
            r, kind
        )
    if r.random() < 0.5:
        options["dtype"] = r.choice(list(_TOLERANCES))
    if kind == "lstm":
        return kind, options
    options["selective"] = r.choice([True, True, "pointwise", False])
    units = hidden if options["selective"] == "pointwise" else r.choice([1, 2, 5, 8])
    options["gate_temperature"] = r.choice([1.0, 0.125, 3, 10 ** r.uniform(-2, 2)])
    options["initial_state"] = r.choice(["zero", "learned"])
    usable = [b.name for b in ops.BACKENDS.values() if b.unavailable() is None]
    options["backend"] = r.choice([None, *usable])
    if kind == "bd_lru":
        options |= {"num_blocks": units, "block_size": r.choice([1, 2, 3, 4, 5])}
        options["gate"] = r.choice(list(ops.GATES))
    else:
        options |= {"num_channels": units, "order": r.choice([1, 2, 3, 5])}
        options["gate"] = r.choice([f.name for f in ops.GATES.values() if not f.blocks_only])
        options["realization"] = r.choice(ops.REALIZATIONS)
        options["readout"] = r.choice(["lags", "current"])
    return kind, options


def _baseline(r: random.Random, kind: str) -> dict[str, Any]:
    """Options of a baseline that fit any width."""
    if kind == "attention":
        return {"num_heads": 1}
    if kind == "conv":
        return {"kernel_size": r.choice([1, 2, 5]), "depthwise": r.random() < 0.5}
    if kind == "mamba2":
        return {"d_state": r.choice([1, 4]), "head_dim": 1, "d_conv": r.choice([0, 2, 4])}
    switches = ("allow_neg_eigval", "use_forget_gate", "use_output_gate")
    options: dict[str, Any] = {switch: r.random() < 0.5 for switch in switches}
    options |= {"num_heads": r.choice([1, 2]), "head_dim": r.choice([1, 3])}
    options |= {"conv_size": r.choice([0, 1, 4])}
    if kind == "delta_product":
        options["num_householder"] = r.choice([1, 2, 4])
    return options


def drawn_layer(r: random.Random) -> tuple[Any, Tensor, Any]:
    """A layer, an input and a state."""
    kind, options = layer_options(r)
    layer = layers.build(kind, **options)
    dtype = next(layer.parameters()).dtype
    batch, length = r.choice([1, 2, 3]), r.choice([1, 2, 5, 9])
    x = torch.randn(batch, length, options["hidden_size"], dtype=torch.float64).to(dtype)
    state = layers.map_state(lambda part: torch.randn_like(part) / 4, layer.init_state(batch))
    return layer, x, state


def check_layer(r: random.Random) -> None:
    """Compare a layer with its float64 copy, with its steps, and with packed sequences."""
    layer, x, state = drawn_layer(r)
    dtype, words = x.dtype, f"{layer} {tuple(x.shape)} {x.dtype}"
    exact = copy.deepcopy(layer).double()
    if hasattr(exact, "backend"):
        exact.backend = "reference"
    with torch.set_grad_enabled(r.random() < 0.5):
        y, _ = layer(x, state)
        wide = layers.map_state(lambda part: part.double(), state)
        wanted, _ = exact(x.double(), wide)
        _near(y, wanted, dtype, f"forward of {words}")
        carried, steps = state, []
        for x_t in x.unbind(1):
            y_t, carried = layer.step(x_t, carried)
            steps.append(y_t)
        _near(torch.stack(steps, 1), wanted, dtype, f"steps of {words}")
        rows = torch.tensor([r.randrange(len(x)) for _ in range(3)])
        again, _ = layer(x[rows], layers.take_rows(state, rows))
        _near(again, wanted[rows], dtype, f"chosen rows of {words}")
        length = x.shape[1]
        cut = sorted(r.randint(0, len(x) * length) for _ in range(2))
        row = x.reshape(1, -1, x.shape[-1])
        bounds = torch.tensor([0, *cut, row.shape[1]])
        packed, _ = layer(row, None, bounds)
        for start, stop in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
            alone, _ = layer(row[:, start:stop])
            _near(packed[:, start:stop], alone.double(), dtype, f"packed {words}")
        empty, same = layer(x[:, :0], state)
        require(empty.shape == x[:, :0].shape, f"no tokens: {words}")
        _near_states(same, state, words)


def _near_states(found: Any, wanted: Any, words: str) -> None:
    require(type(found) is type(wanted), f"type of the state of {words}")
    layers.map_state(
        lambda a, b: require(torch.equal(a, b), f"state without tokens of {words}") or a,
        found,
        wanted,
    )


def _near(found: Tensor, wanted: Tensor, dtype: torch.dtype, words: str) -> None:
    require(found.shape == wanted.shape, f"shape {tuple(found.shape)}: {words}")
    if not found.numel() or not wanted.abs().max() < 1e4:
        return  # Un-normalised states may exceed the dtype.
    error = (found.double() - wanted.double()).abs().max()
    limit = _TOLERANCES[dtype] * max(1.0, float(wanted.abs().max()))
    require(error <= limit, f"error {error:.1e} above {limit:.1e}: {words}")


def drawn_model(r: random.Random) -> tuple[SyntheticModel, Tensor, dict[str, Any]]:
    """A model, tokens, and the arguments that made the model."""
    specs = []
    for _ in range(r.choice([1, 1, 2])):
        kind, options = layer_options(r)
        hidden = options.pop("hidden_size")
        options.pop("dtype", None)
        if options.get("selective") == "pointwise":
            options["selective"] = True
        specs.append(LayerSpec(kind, **options))
    mixer = r.choice([None, MixerSpec("mlp"), MixerSpec("swiglu", intermediate_size=3)])
    arguments = {
        "vocab_size": r.choice([1, 2, 6]),
        "heads": {"a": r.choice([1, 3]), **({"b": 2} if r.random() < 0.3 else {})},
        "hidden_size": hidden,
        "layers": specs,
        "bos": r.random() < 0.5,
        "residual": r.random() < 0.8,
        "norm": r.choice(["rms", "layer", "none"]),
        "channel_mixer": mixer,
        "seed": r.getrandbits(20),
    }
    model = SyntheticModel(**arguments)
    shape = (r.choice([1, 2]), r.choice([1, 2, 7]))
    tokens = torch.randint(arguments["vocab_size"], shape)
    return model, tokens.to(r.choice([torch.int32, torch.int64])), arguments


def check_model(r: random.Random) -> None:
    """Compare a model on whole, continued and packed sequences."""
    model, tokens, arguments = drawn_model(r)
    cut = r.randint(0, tokens.shape[1])
    with torch.no_grad():
        whole = model(tokens)
        first, state = model.extend(tokens[:, :cut])
        second, _ = model.extend(tokens[:, cut:], state)
        row = tokens.reshape(1, -1)
        bounds = torch.arange(len(tokens) + 1) * tokens.shape[1]
        packed = model(row, bounds)
    for head, logits in whole.items():
        words = f"model {arguments} at {tuple(tokens.shape)} cut at {cut}"
        joined = torch.cat([first[head], second[head]], 1)
        _near(joined, logits, torch.float32, f"pieces of {words}")
        _near(packed[head].view_as(logits), logits, torch.float32, f"packed {words}")


_OPTIONS: dict[str, tuple[Any, ...]] = {
    "group": NAMES,
    "length": (1, 2, 5, 16, 70),
    "min_length": (1, 2, 3, 9),
    "vocab_size": (1, 2, 3, 6, 16, 41),
    "num_pairs": (1, 2, 7),
    "num_copied": (1, 2, 5),
    "noise": (0.0, 0.2, 1.0),
    "train_size": (None, 1, 2, 20),
    "seed": (0, 1, 2**63, 2**64 - 1),
}


def task_options(r: random.Random) -> tuple[str, dict[str, Any]]:
    """The name and options of a task."""
    name = r.choice(list(TASKS))
    chosen = [option for option in TASKS.options(name) if r.random() < 0.6]
    return name, {option: r.choice(_OPTIONS[option]) for option in chosen}


def check_task(r: random.Random) -> None:
    """Check that examples are right, and do not depend on the range that was asked for."""
    name, options = task_options(r)
    try:
        task: Any = TASKS[name](**options)
    except ValueError as error:
        named = any(option in str(error) for option in TASKS.options(name))
        require(named, f"{name} {options}: {error}")
        return
    length = r.choice([None, 1, 3, 65, 300])
    start = r.choice([0, 1, 5])
    split = r.choice(["train", "validation", "test"])
    stop = start + r.choice([0, 1, 4])
    try:
        examples = task.examples(split, start, stop, length)
    except ValueError as error:
        words = f"{name} {options} {split} {start} {stop} {length}"
        require(re.search("stop|length", str(error)) is not None, f"{words}: {error}")
        return
    words = f"{name} {options} {split} {start} {stop} {length}"
    tokens, lengths = examples.tokens, examples.lengths
    require(tokens.shape == (stop - start, length or task.length), f"shape: {words}")
    require(((tokens >= 0) & (tokens < task.vocab_size)).all(), f"token: {words}")
    require(examples.targets.keys() == task.heads.keys(), f"heads: {words}")
    for head, targets in examples.targets.items():
        require(targets.shape == tokens.shape, f"shape of targets: {words}")
        scored = targets != IGNORED
        known = (targets >= 0) & (targets < task.heads[head])
        require((known | ~scored).all() and scored.any(1).all(), f"targets: {words}")
        if lengths is not None:
            beyond = np.arange(tokens.shape[1]) >= lengths[:, None]
            require(not (scored & beyond).any(), f"target beyond the end: {words}")
    if name == "permutation":
        _check_products(task, tokens, examples.targets["product"], words)
    for place in range(stop - start):
        alone = task.examples(split, start + place, start + place + 1, length)
        same = np.array_equal(alone.tokens[0], tokens[place]) and all(
            np.array_equal(alone.targets[head][0], targets[place])
            for head, targets in examples.targets.items()
        )
        require(same, f"address: {words}")


def _check_products(task: Any, tokens: Any, targets: Any, words: str) -> None:
    elements = task.group.elements
    for row, wanted in zip(tokens, targets, strict=True):
        product = tuple(range(1, len(elements[0]) + 1))
        for token, target in zip(row, wanted, strict=True):
            product = tuple(product[image - 1] for image in elements[token])
            require(elements[target] == product, f"product: {words}")
