"""The whole configuration of a training run, as one flat frozen dataclass."""

import dataclasses
import inspect
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from statemix import layers, tasks
from statemix.models.channel_mixers import ChannelMixer
from statemix.models.synthetic import Norm
from statemix.tasks import Task

Options = dict[str, bool | int | float | str | None]

Schedule = Literal["cosine", "constant"]
Precision = Literal["32-true", "bf16-mixed", "64-true"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class RunConfig:
    """What is trained, on what, and how. Equal configurations give equal weights on one machine."""

    task: str = "permutation"
    """Task by name (`statemix tasks` lists them)."""
    task_options: Options = field(default_factory=dict)
    """The task's options. Without a seed among them, the run's seed is the task's."""

    layer: str = "bd_lru"
    """Sequence layer by name."""
    layer_options: Options = field(default_factory=dict)
    """The layer's options."""
    hidden_size: int = 128
    """Width of the model."""
    num_layers: int = 1
    """Sequence layers, each with its norm, residual and channel mixer."""
    bos: bool = False
    """Prepend a learned token to every sequence and drop its output."""
    residual: bool = True
    """Add the input of each layer to its output."""
    norm: Norm = "rms"
    """Normalisation before each layer and before the readout."""
    channel_mixer: ChannelMixer = "none"
    """Position-wise network after each sequence layer."""

    learning_rate: float = 1e-3
    """AdamW's learning rate at the start of the schedule."""
    weight_decay: float = 0.01
    """AdamW's decoupled decay, on every parameter: biases, norms and embeddings too."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the gradient's mean and of its square."""
    batch_size: int = 128
    """Sequences per step. The last batch of an epoch may be smaller."""
    epochs: int | None = None
    """Passes over a fixed training set (200 if not given). Not for tasks with fresh examples."""
    num_steps: int | None = None
    """Optimiser steps, for tasks with fresh examples, where it must be given."""
    schedule: Schedule = "cosine"
    """Learning rate over training: set once per epoch, or per step on fresh examples."""
    min_learning_rate: float = 1e-5
    """Where the cosine ends."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly to the schedule."""
    clip_norm: float | None = None
    """Clip the gradient's total L2 norm to this."""

    sharpen_to: float = 1.0
    """Final inverse gate temperature: training starts at 1 and the gates are sharpened to this."""
    sharpen_start: float = 0.5
    """Fraction of training at which sharpening starts."""
    sharpen_end: float = 0.9
    """Fraction of training at which it is complete; linear in the inverse temperature."""

    eval_every: int | None = None
    """Epochs between evaluations (1 if not given); steps on fresh examples (100 if not given)."""
    test_size: int = 1280
    """Test sequences at the training length."""
    validation_size: int = 1280
    """Validation sequences at the training length, never the test's."""
    eval_lengths: tuple[int, ...] = ()
    """Further test lengths, in tokens, evaluated with the last weights when training ends."""
    eval_tokens: int = 65536
    """Test tokens at each further length: the longer the words, the fewer."""
    stop_at: float | None = None
    """Stop early once validation token accuracy is above this."""

    precision: Precision = "32-true"
    """Precision of weights and arithmetic; states of the recurrence are float32 or wider."""
    device: Device = "auto"
    """Where to train; auto takes a GPU if there is one."""
    num_threads: int | None = None
    """CPU threads (PyTorch's choice if not given). Equal weights need equal threads."""
    seed: int = 0
    """Seed of the initial weights, of the order of batches and, by default, of the task."""

    def __post_init__(self) -> None:
        for name in ("task_options", "layer_options"):
            options = getattr(self, name)
            if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
                raise TypeError(f"{name} must be a dict of options by name, got {options!r}")
        for name in ("bos", "residual"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name, choices in _CHOICES.items():
            _require(getattr(self, name) in choices, self, name, f"be one of {list(choices)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            _require(value >= least, self, name, f"be at least {least}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not _is_number(value):
                raise TypeError(f"{name} must be a number, got {value!r}")
            finite = math.isfinite(value) and value >= 0
            _require(finite, self, name, "be finite and not negative")
        _require(self.learning_rate > 0, self, "learning_rate", "be above 0")
        _require(self.sharpen_to > 0, self, "sharpen_to", "be above 0")
        if self.schedule == "cosine":
            condition = f"be at most learning_rate={self.learning_rate}"
            _require(
                self.min_learning_rate <= self.learning_rate, self, "min_learning_rate", condition
            )
        two = isinstance(self.betas, tuple) and len(self.betas) == 2
        two = two and all(_is_number(beta) and 0 <= beta < 1 for beta in self.betas)
        _require(two, self, "betas", "be two numbers in [0, 1)")
        ordered = 0 <= self.sharpen_start <= self.sharpen_end <= 1
        _require(ordered, self, "sharpen_start", f"be in [0, sharpen_end={self.sharpen_end}]")
        if self.clip_norm is not None:
            _require(self.clip_norm > 0, self, "clip_norm", "be above 0")
        if self.stop_at is not None:
            _require(0 <= self.stop_at <= 1, self, "stop_at", "be in [0, 1]")
        positive = isinstance(self.eval_lengths, tuple) and all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in self.eval_lengths
        )
        _require(positive, self, "eval_lengths", "be integers of at least 1")
        _require(self.layer in layers.names(), self, "layer", f"be one of {list(layers.names())}")
        _require(self.task in tasks.names(), self, "task", f"be one of {list(tasks.names())}")

    def build_task(self) -> Task:
        """The task, seeded with the run's seed unless its options say otherwise."""
        seeded: Options = {"seed": self.seed} if "seed" in tasks.options(self.task) else {}
        return tasks.build(self.task, **(seeded | self.task_options))

    def resolved(self) -> "RunConfig":
        """Fill in everything that was left to defaults, so that the result says the whole run.

        A task's seed that is the run's stays out of ``task_options``: were it written there, a
        repetition with another seed would train on the same examples.

        Raises:
            ValueError: if options do not fit the task or layer, or if ``epochs`` and ``num_steps``
                do not fit the task's kind of training data.
        """
        layers.check_options(self.layer, self.layer_options)
        train_size = self.build_task().train_size
        epochs, num_steps = self.epochs, self.num_steps
        if train_size is None:
            if num_steps is None:
                raise ValueError("num_steps must be given for a task with fresh examples, got None")
            _require(epochs is None, self, "epochs", "be None for a task with fresh examples")
        else:
            condition = f"be None for a task with train_size={train_size}; epochs says how long"
            _require(num_steps is None, self, "num_steps", condition)
            epochs = 200 if epochs is None else epochs
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        eval_every = self.eval_every
        if eval_every is None:
            eval_every = 100 if train_size is None else 1
        task_options = {k: v for k, v in tasks.options(self.task).items() if k != "seed"}
        return dataclasses.replace(
            self,
            task_options=_with_defaults(self.task_options, task_options),
            layer_options=_with_defaults(self.layer_options, layers.options(self.layer)),
            epochs=epochs,
            eval_every=eval_every,
            eval_lengths=tuple(sorted(set(self.eval_lengths))),
            device=device,
            num_threads=self.num_threads or torch.get_num_threads(),
        )

    def to_json(self) -> str:
        """The configuration as indented JSON, one field a line."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


_CHOICES: dict[str, tuple[str, ...]] = {
    "norm": get_args(Norm),
    "channel_mixer": get_args(ChannelMixer),
    "schedule": get_args(Schedule),
    "precision": get_args(Precision),
    "device": get_args(Device),
}
_LEAST = {
    "hidden_size": 1,
    "num_layers": 1,
    "batch_size": 1,
    "epochs": 1,
    "num_steps": 1,
    "warmup_steps": 0,
    "eval_every": 1,
    "test_size": 1,
    "validation_size": 1,
    "eval_tokens": 1,
    "num_threads": 1,
    "seed": 0,
}
_NUMBERS = (
    "learning_rate",
    "min_learning_rate",
    "weight_decay",
    "sharpen_to",
    "sharpen_start",
    "sharpen_end",
    "clip_norm",
    "stop_at",
)
_OPTIONAL = {"epochs", "num_steps", "eval_every", "num_threads", "clip_norm", "stop_at"}


def _require(condition: bool, config: RunConfig, name: str, text: str) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError(f"{name} must {text}, got {getattr(config, name)!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_defaults(given: Options, known: dict[str, tuple[Any, Any]]) -> Options:
    required = inspect.Parameter.empty
    defaults = {name: value for name, (_, value) in known.items() if value is not required}
    return defaults | given


def load_config(path: Path) -> RunConfig:
    """Read a configuration that :meth:`RunConfig.to_json` wrote.

    Raises:
        ValueError: if the file is not JSON, has fields that this version does not know, or a value
            that no configuration has; the message begins with the path.
        FileNotFoundError: if there is no such file.
    """
    try:
        stored = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be JSON, got: {error}") from error
    known = {f.name for f in dataclasses.fields(RunConfig)}
    if not isinstance(stored, dict) or not stored.keys() <= known:
        extra = sorted(stored.keys() - known) if isinstance(stored, dict) else type(stored).__name__
        raise ValueError(f"{path} must hold the fields of a run's configuration, got {extra}")
    for name in ("betas", "eval_lengths"):
        # JSON has no tuples.
        if isinstance(stored.get(name), list):
            stored[name] = tuple(stored[name])
    try:
        return RunConfig(**stored)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} must hold a run's configuration, got: {error}") from error
