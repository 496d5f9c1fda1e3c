"""Layers, models and tasks: random options, and what must hold for all of them."""

import copy
import random
from typing import Any

import numpy as np
import torch
from cases import REFUSED, require
from torch import Tensor

from statemix import layers, ops
from statemix.layers import LayerSpec
from statemix.models import MixerSpec, ReadoutModel, SequenceAutoencoder, TokenClassifier
from statemix.tasks import IGNORED, TASKS
from statemix.tasks.groups import NAMES

_BASELINES = ("delta_net", "delta_product", "mamba2", "conv", "attention")
# As in recurrences.py; here every weight and input is changed.
_PERTURBATIONS, _AMPLIFICATION = 3, 4
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
    backends = ops.BACKENDS.values()
    usable = [
        b.name for b in backends if b.obstacle("block", torch.device("cpu"), torch.float32) is None
    ]
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
        spread = _spread(exact, x, wide, wanted)
        _near(y, wanted, dtype, f"forward of {words}", spread)
        carried, steps = state, []
        for x_t in x.unbind(1):
            y_t, carried = layer.step(x_t, carried)
            steps.append(y_t)
        _near(torch.stack(steps, 1), wanted, dtype, f"steps of {words}", spread)
        rows = torch.tensor([r.randrange(len(x)) for _ in range(3)])
        again, _ = layer(x[rows], layers.take_rows(state, rows))
        _near(again, wanted[rows], dtype, f"chosen rows of {words}", spread)
        length = x.shape[1]
        cut = sorted(r.randint(0, len(x) * length) for _ in range(2))
        row = x.reshape(1, -1, x.shape[-1])
        bounds = torch.tensor([0, *cut, row.shape[1]])
        packed, _ = layer(row, None, bounds)
        for start, stop in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
            alone, _ = layer(row[:, start:stop])
            _near(packed[:, start:stop], alone.double(), dtype, f"packed {words}", spread)
        empty, same = layer(x[:, :0], state)
        require(empty.shape == x[:, :0].shape, f"no tokens: {words}")
        _near_states(same, state, words)


def _spread(exact: Any, x: Tensor, state: Any, wanted: Tensor) -> float:
    """By how much a result changes with the last digits of weights and inputs.

    A key that is nearly zero before it is scaled to length 1 turns them into an angle.
    """
    changes = []
    for _ in range(_PERTURBATIONS):
        other = copy.deepcopy(exact)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter *= _shaken(parameter, x.dtype)
            changed, _ = other(x.double() * _shaken(x, x.dtype), state)
            changes.append((changed - wanted).abs().max() if wanted.numel() else torch.zeros(()))
    return float(max(changes))


def _shaken(like: Tensor, dtype: torch.dtype) -> Tensor:
    noise = 2 * torch.rand(like.shape, dtype=torch.float64) - 1
    return 1 + torch.finfo(dtype).eps * noise


def _near_states(found: Any, wanted: Any, words: str) -> None:
    require(type(found) is type(wanted), f"type of the state of {words}")
    layers.map_state(
        lambda a, b: require(torch.equal(a, b), f"state without tokens of {words}") or a,
        found,
        wanted,
    )


def _near(
    found: Tensor, wanted: Tensor, dtype: torch.dtype, words: str, spread: float = 0.0
) -> None:
    require(found.shape == wanted.shape, f"shape {tuple(found.shape)}: {words}")
    if not found.numel() or not wanted.abs().max() < 1e4:
        return  # Un-normalised states may exceed the dtype.
    error = (found.double() - wanted.double()).abs().max()
    limit = _TOLERANCES[dtype] * max(1.0, float(wanted.detach().abs().max()))
    limit += _AMPLIFICATION * spread
    require(error <= limit, f"error {error:.1e} above {limit:.1e}: {words}")


def drawn_model(r: random.Random) -> tuple[ReadoutModel, Tensor, dict[str, Any]]:
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
        "linear_init": r.choice([None, "own", "normal"]),
        "seed": r.getrandbits(20),
    }
    kind = SequenceAutoencoder if hidden > 1 and r.random() < 0.3 else TokenClassifier
    model = kind(**arguments)
    shape = (r.choice([1, 2]), r.choice([1, 2, 7]))
    tokens = torch.randint(arguments["vocab_size"], shape)
    return model, tokens.to(r.choice([torch.int32, torch.int64])), arguments


def check_model(r: random.Random) -> None:
    """Compare a model on whole, continued and packed sequences."""
    model, tokens, arguments = drawn_model(r)
    cut = r.randint(0, tokens.shape[1])
    with torch.no_grad():
        whole = model(tokens)
        first, second = model.in_pieces([tokens[:, :cut], tokens[:, cut:]])
        row = tokens.reshape(1, -1)
        bounds = torch.arange(len(tokens) + 1) * tokens.shape[1]
        packed = model(row, bounds)
    for head, logits in whole.items():
        words = f"model {arguments} at {tuple(tokens.shape)} cut at {cut}"
        joined = torch.cat([first[head], second[head]], 1)
        _near(joined, logits, torch.float32, f"pieces of {words}")
        _near(packed[head].view_as(logits), logits, torch.float32, f"packed {words}")


_STRINGS = {"min_length": [1, 2, 9], "length": [1, 5, 40]}
_TASK_OPTIONS: dict[str, dict[str, list[Any]]] = {
    "permutation": {
        "group": list(NAMES), "length": [1, 2, 5, 16, 70], "min_length": [None, None, 1, 2, 16]
    },
    "compression": {"vocab_size": [2, 3, 16], "length": [1, 2, 5, 64]},
    "selective_copying": {
        "vocab_size": [3, 4, 16], "num_copied": [1, 2, 16], "length": [3, 5, 33, 64]
    },
    "recall": {
        "vocab_size": [2, 3, 4, 16, 17], "num_pairs": [2, 3, 32], "multi_query": [True, False]
    },
    "noisy_recall": {
        "vocab_size": [4, 8, 32], "num_pairs": [2, 3, 64], "noise": [0.0, 0.2, 0.99]
    },
    "fuzzy_recall": {
        "vocab_size": [3, 7, 16, 40], "length": [3, 11, 15, 64], "key_size": [1, 2, 3, 5],
        "value_size": [1, 3, 4],
    },
    "memorization": {"vocab_size": [3, 4, 16, 256], "length": [2, 8, 32]},
    "parity": _STRINGS,
    "cycle_navigation": _STRINGS,
    "modular_arithmetic": _STRINGS,
    "bracket_arithmetic": _STRINGS,
    "copying": {"min_length": [2, 4, 12], "length": [4, 5, 12, 42]},
}  # fmt: skip


def task_options(r: random.Random, name: str | None = None) -> tuple[str, dict[str, Any]]:
    """The name and options of a task, which need not fit together."""
    # Tasks with files of data are left out.
    name = name or r.choice(list(_TASK_OPTIONS))
    choices = _TASK_OPTIONS[name]
    options = {option: r.choice(choices[option]) for option in choices if r.random() < 0.8}
    if r.random() < 0.5:
        options["train_size"] = r.choice([1, 2, 20])
    if r.random() < 0.7:
        options["seed"] = r.choice([0, 1, 2**63, 2**64 - 1, r.getrandbits(64)])
    return name, options


def check_task(r: random.Random) -> str | None:
    """Check that examples keep the contract of tasks, each the same in every range."""
    name, options = task_options(r)
    split = r.choice(["train", "validation", "test"])
    start, length = r.choice([0, 1, 5]), r.choice([None, None, 1, 3, 12, 63, 64])
    stop = start + r.choice([0, 1, 4])
    words = f"{name} {options} {split} {start} {stop} {length}"
    try:
        task: Any = TASKS[name](**options)
        tokens, targets, lengths = task.examples(split, start, stop, length)
        task.describe(start, split)
    except ValueError as error:
        known = (*options, *TASKS.options(name), "stop", "length")
        require(any(option in str(error) for option in known), f"{words}: {error}")
        return REFUSED
    longest = length or task.length
    require(tokens.shape == (stop - start, longest), f"shape: {words}")
    require(((tokens >= 0) & (tokens < task.vocab_size)).all(), f"tokens: {words}")
    ends = np.full(len(tokens), longest) if lengths is None else lengths
    require(((ends >= 1) & (ends <= longest)).all(), f"lengths: {words}")
    ended = np.arange(longest) >= ends[:, None]
    for head, classes in targets.items():
        scored = classes != IGNORED
        known = (classes >= 0) & (classes < task.heads[head])
        require((known | ~scored).all() and not scored[ended].any(), f"targets: {words}")
        require(scored.any(1).all(), f"nothing is scored: {words}")
    for place in range(stop - start):
        alone = task.examples(split, start + place, start + place + 1, length)
        same = np.array_equal(alone.tokens[0], tokens[place])
        same &= all(np.array_equal(alone.targets[h][0], targets[h][place]) for h in targets)
        require(same, f"address: {words}")
    return None


def check_permutation(r: random.Random) -> None:
    """Check that products are right, and do not depend on the range that was asked for."""
    name, options = task_options(r, "permutation")
    try:
        task: Any = TASKS[name](**options)
    except ValueError as error:
        known = ("train_size", "min_length")
        require(any(option in str(error) for option in known), f"{options}: {error}")
        return
    length = r.choice([None, 1, 3, 65, 300])
    start = r.choice([0, 1, 5])
    split = r.choice(["train", "validation", "test"])
    stop = start + r.choice([0, 1, 4])
    try:
        examples = task.examples(split, start, stop, length)
    except ValueError as error:
        require("stop" in str(error), f"{options} {split} {start} {stop} {length}: {error}")
        return
    words = f"{options} {split} {start} {stop} {length}"
    tokens, targets = examples.tokens, examples.targets["product"]
    require(tokens.shape == (stop - start, length or task.length), f"shape: {words}")
    elements, order = task.group.elements, task.group.order
    ends = [len(row) for row in tokens] if examples.lengths is None else examples.lengths
    for row, wanted, end in zip(tokens, targets, ends, strict=True):
        product = tuple(range(1, len(elements[0]) + 1))
        require((wanted[end:] == IGNORED).all(), f"end: {words}")
        for token, target in zip(row[:end], wanted[:end], strict=True):
            require(0 <= token < order, f"token {token}: {words}")
            product = tuple(product[image - 1] for image in elements[token])
            require(elements[target] == product, f"product: {words}")
    for place in range(stop - start):
        alone = task.examples(split, start + place, start + place + 1, length)
        require(np.array_equal(alone.tokens[0], tokens[place]), f"address: {words}")
