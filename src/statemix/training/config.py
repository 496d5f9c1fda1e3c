"""The whole configuration of a training run: one frozen model for each part."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import torch
from annotated_types import Ge, Gt, Le, Lt, MinLen

from statemix.errors import SettingError
from statemix.layers import LayerSpec
from statemix.models import MODELS, LinearInit, MixerSpec, ModelKind, ReadoutModel
from statemix.models.backbone import Norm
from statemix.tasks import TASKS, HasTokenFeatures, Task, TaskSpec
from statemix.training.settings import SPEC, Assignments, Settings, built, import_modules

Count = Annotated[int, Ge(1), Lt(2**31)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
Fraction = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]

Precision = Literal["32-true", "bf16-mixed", "64-true"]
Device = Literal["auto", "cpu", "cuda"]


def chosen_device(device: Device) -> Literal["cpu", "cuda"]:
    """Return the device itself, or what "auto" stands for: a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


SCHEMA = 1
"""Version of the stored configuration; it grows when the meaning of a stored field changes."""


class ModelConfig(Settings):
    """The network: embedding, a sequence of layers, readouts."""

    layers: Annotated[tuple[Annotated[LayerSpec, SPEC], ...], MinLen(1)] = (
        LayerSpec("bd_lru", num_blocks=32, block_size=4),
    )
    """Sequence layers, each with its options."""
    num_layers: Annotated[int, Ge(1), Le(1000)] | None = None
    """Depth: `layers` is repeated in order up to this number (each layer once if not given)."""
    hidden_size: Annotated[int, Ge(1), Le(2**20)] = 128
    """Width of the residual stream."""
    bos: bool = False
    """Prepend a learned token to every sequence and drop its output."""
    residual: bool = True
    """Add the input of each part to its output."""
    norm: Norm = "rms"
    """Normalisation before each part and before the readouts."""
    channel_mixer: Annotated[MixerSpec, SPEC] | None = None
    """Position-wise network after each sequence layer."""
    readout_sizes: tuple[Annotated[int, Ge(1), Le(2**20)], ...] = ()
    """Hidden sizes of an MLP with GELUs before the readouts (linear readouts if not given)."""
    zero_biases: bool = True
    """Ask layers and channel mixers to start with zero biases, as the synthetic benchmarks do."""
    backbone: ModelKind = "causal"
    """causal: read each output from the tokens so far. autoencoder: rebuild all outputs from the
    vector at the last token, as MAD does for compression."""
    linear_init: LinearInit | None = None
    """Initial linear maps. own: each part draws its own. normal: all are redrawn from N(0, 0.02)
    with zero biases, those of layers too (MAD's choice for the backbone if not given)."""
    embedding_init: Literal["normal", "features"] = "normal"
    """Initial embeddings. normal: drawn from N(0, 0.02). features: the task's description of its
    tokens, such as the matrix of a permutation."""

    def stack(self) -> tuple[LayerSpec, ...]:
        """Return the sequence layers of the whole depth."""
        depth = self.num_layers or len(self.layers)
        return tuple(self.layers[place % len(self.layers)] for place in range(depth))


class BatchConfig(Settings):
    """Size and layout of the batches."""

    size: Count = 128
    """Sequences per optimiser step. The last step of an epoch may have fewer."""
    accumulate: Count = 1
    """Number of parts into which each step's sequences are split, to save memory."""
    packed: bool = False
    """Lay sequences end to end instead of padding them to the longest."""


class ParameterGroup(Settings):
    """Parameters with their own learning rate or weight decay."""

    parameters: str
    """Pattern of parameter names, such as "*.gate_proj.*"; the first group that matches applies."""
    learning_rate_factor: NotNegative = 1.0
    """Factor of the learning rate."""
    weight_decay: NotNegative | None = None
    """Weight decay (the optimiser's if not given)."""


class OptimizerConfig(Settings):
    """AdamW."""

    learning_rate: Positive = 1e-3
    """Learning rate at the start of the schedule."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay of every parameter: biases, norms and embeddings too."""
    betas: tuple[Annotated[float, Ge(0), Lt(1)], Annotated[float, Ge(0), Lt(1)]] = (0.9, 0.999)
    """Decay rates of the gradient's mean and of its square."""
    clip_norm: Positive | None = None
    """Largest total L2 norm of the gradient (no clipping if not given)."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters with their own settings, such as `*.gate_proj.* weight_decay=0
    learning_rate_factor=0.5`."""


class AttributeSchedule(Settings):
    """An attribute of layers that changes during training, such as the gate temperature."""

    attribute: str
    """Name of the attribute, scheduled in every layer that declares it schedulable."""
    end: float
    """Value at the end of the change, kept afterwards and in evaluation."""
    start: float | None = None
    """Value before the change (each layer's own if not given)."""
    begin: Fraction = 0.0
    """Fraction of training at which the change begins."""
    finish: Fraction = 1.0
    """Fraction of training at which the change is complete."""
    curve: Literal["linear", "reciprocal", "geometric"] = "linear"
    """Quantity that changes at a constant rate: the value, its reciprocal, or its logarithm."""

    def check(self) -> None:
        if self.begin > self.finish:
            raise SettingError("begin", f"must be at most finish={self.finish}", self.begin)
        if self.curve != "linear":
            for name in ("start", "end"):
                value = getattr(self, name)
                if value is not None and value <= 0:
                    raise SettingError(name, f"must be above 0 with curve={self.curve!r}", value)


class ScheduleConfig(Settings):
    """Length of training, learning rate, and scheduled attributes of layers."""

    epochs: Count | None = None
    """Passes over a fixed training set (200 if not given). Not for tasks with fresh examples."""
    num_steps: Count | None = None
    """Optimiser steps on fresh examples (2000 if not given). Not for tasks with a training set."""
    learning_rate: Literal["cosine", "constant"] = "cosine"
    """Schedule of the learning rate, updated once per epoch, or per step on fresh examples."""
    min_learning_rate: NotNegative = 1e-5
    """Learning rate at the end of the cosine."""
    warmup_steps: Annotated[int, Ge(0), Lt(2**31)] = 0
    """Steps over which the learning rate rises linearly to the schedule."""
    attributes: tuple[AttributeSchedule, ...] = ()
    """Attributes of layers that change during training, such as `gate_temperature end=0.125
    begin=0.5 finish=0.9 curve=reciprocal`; `start` is the layer's own value if not given."""
    first_length: Count | None = None
    """Tokens to which sequences are cut at first (no cut if not given), for tasks that label every
    position. Long sequences may teach little before short ones are learned."""
    first_share: Annotated[float, Gt(0), Lt(1)] = 0.4
    """Share of the steps with such sequences; the others have whole ones."""


class SearchConfig(Settings):
    """Attempts from new weights until one passes a test; the schedules begin then.

    With ``confirm``, the attempt is tested again when the schedules have ended. If it fails, the
    search goes on.

    During the search the learning rate is constant, after the warm-up of each attempt, and
    scheduled attributes keep their first values. An attempt that diverges has failed. When the last
    attempt fails its tests, training goes on with its weights.
    """

    attempts: Count | None = None
    """Attempts, each from new weights, at most (no search if not given)."""
    max_steps: Count = 1750
    """Steps after which an attempt has failed if it has not left its plateau."""
    plateau: Fraction = 0.75
    """An attempt leaves its plateau when the moving average of its loss falls below this fraction
    of its first loss."""
    every: Count = 100
    """Steps between the tests of an attempt that has left its plateau."""
    tests: Count = 3
    """Tests after which an attempt has failed."""
    accept: Fraction = 0.9
    """Token accuracy (mean over heads) from which a test is passed."""
    accept_last: Fraction = 0.5
    """Token accuracy from which the last test is passed."""
    confirm: Fraction | Literal["proof"] | None = None
    """Token accuracy from which the test after the schedules is passed. With "proof", the test is
    passed if ``statemix certify`` would prove the network. Without a value, there is no such
    test."""
    repairs: Count | None = None
    """Times at most that an attempt which confirm="proof" has refuted is repaired: the schedules
    begin again with its weights, and the words that it gets wrong are a further loss (never if not
    given). The task must be one of the words of an automaton."""
    length: Count | None = None
    """Length in tokens of the validation sequences of a test (the training length if not given)."""
    size: Count = 64
    """Validation sequences of a test."""
    attributes: Assignments = Assignments()
    """Values of schedulable attributes of layers that apply only in a test."""

    def check(self) -> None:
        if self.attempts is None and (others := self.asked()):
            name, value = next(iter(others.items()))
            raise SettingError(name, "must be absent without attempts", value)


class ObjectiveConfig(Settings):
    """The losses beyond the mean cross-entropy of all positions."""

    position_power: Annotated[float, Ge(-8), Le(8)] = 0.0
    """Weights of positions t = 1, 2, ... are proportional to t to this power; their mean over the
    training length is 1."""
    permutation_penalty: NotNegative = 0.0
    """Coefficient of the mean of |A A^T - I|^2 over the transitions A of the first layer, one for
    each token. It is 0 for permutations. In a search, it acts on attempts that have left their
    plateau."""


class EvaluationConfig(Settings):
    """Times, amounts of data and settings of evaluations."""

    every: Count | None = None
    """Epochs between evaluations (1 if not given); steps on fresh examples (100 if not given)."""
    test_size: Count = 1280
    """Test sequences at the training length."""
    validation_size: Count = 1280
    """Validation sequences at the training length, separate from the test sequences."""
    lengths: tuple[Count, ...] = ()
    """Further test lengths, in tokens, evaluated with the last weights when training ends."""
    validation_lengths: tuple[Count, ...] = ()
    """Further validation lengths, in tokens, evaluated every time: a network that will fail on long
    sequences shows it long before the end of training."""
    tokens: Count = 65536
    """Tokens at each further length, so longer lengths have fewer sequences."""
    stop_at: Annotated[float, Ge(0), Lt(1)] | None = None
    """Validation token accuracy (mean over heads) above which training stops early; during a
    search, it does not."""
    attributes: Assignments = Assignments()
    """Values of schedulable attributes of layers that apply only in evaluation."""


class RuntimeConfig(Settings):
    """Device, precision and CPU threads of the run."""

    precision: Precision = "32-true"
    """Precision of weights and arithmetic; states of the recurrence are float32 or wider."""
    device: Device = "auto"
    """Device to train on; auto chooses a GPU if there is one."""
    num_threads: Annotated[int, Ge(1), Le(4096)] | None = None
    """CPU threads (PyTorch's choice if not given). Identical weights need equal threads."""


class RunConfig(Settings):
    """One training run. Equal configurations give identical weights on one machine."""

    task: Annotated[TaskSpec, SPEC] = TaskSpec("permutation")
    """Task with its options (`statemix tasks` lists them). The task's seed is the run's unless it
    is given."""
    model: ModelConfig = ModelConfig()
    batches: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    schedules: ScheduleConfig = ScheduleConfig()
    search: SearchConfig = SearchConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    seed: Seed = 0
    """Seed of the initial weights, the order of batches and, by default, the task."""
    imports: tuple[str, ...] = ()
    """Python modules to import first, which register your own layers or tasks."""
    start_from: str | None = None
    """Folder of a finished run whose last weights are the initial ones (new weights if not
    given)."""

    def check(self) -> None:
        rate, least = self.optimizer.learning_rate, self.schedules.min_learning_rate
        if self.schedules.learning_rate == "cosine" and least > rate:
            condition = f"must be at most optimizer.learning_rate={rate}"
            raise SettingError("schedules.min_learning_rate", condition, least)
        first, begin = ("schedules.first_length", self.schedules.first_length), self.start_from
        searches, power = self.search.attempts is not None, bool(self.objective.position_power)
        for (name, value), is_set, reason in (
            (("start_from", begin), searches, "search.attempts, which begin with new weights"),
            (first, searches, "search.attempts, which do not know their last step"),
            (first, power, "objective.position_power, whose weights are for all positions"),
        ):
            if is_set and value is not None:
                raise SettingError(name, f"must be absent with {reason}", value)

    def build_task(self) -> Task:
        """Build the task, with the run's seed unless the task's options hold one."""
        is_open = "seed" in TASKS.options(self.task.name) and "seed" not in self.task.options
        seeded = {"seed": self.seed} if is_open else {}
        return cast(Task, built("task", self.task.build, **seeded))

    def build_model(self, task: Task, seed: int | None = None) -> ReadoutModel:
        """Build the network of the run, with initial weights of a seed: the run's if None."""
        model = self.model
        same = ("bos", "residual", "norm", "channel_mixer", "zero_biases", "linear_init")
        options = {name: getattr(model, name) for name in (*same, "readout_sizes")}
        if model.embedding_init == "features":
            if not isinstance(task, HasTokenFeatures):
                condition = f"must be 'normal' for the task {self.task.name}"
                raise SettingError("model.embedding_init", condition, model.embedding_init)
            options["token_features"] = torch.from_numpy(task.token_features())
        options["seed"] = self.seed if seed is None else seed
        sizes = (task.vocab_size, task.heads, model.hidden_size, model.stack())
        return built("model", MODELS[model.backbone], *sizes, **options)

    def completed(self) -> "RunConfig":
        """Return the same configuration with every option of its specifications written out."""
        mixer = self.model.channel_mixer
        model = self.model.replace(
            layers=tuple(layer.complete() for layer in self.model.layers),
            channel_mixer=mixer and mixer.complete(),
        )
        # The run's seed is the task's unless the task has its own.
        left = {"seed"} - self.task.options.keys()
        options = {k: v for k, v in self.task.complete().options.items() if k not in left}
        return self.replace(model=model, task=TaskSpec(self.task.name, **options))

    def resolved(self, task: Task | None = None) -> "RunConfig":
        """Return the configuration with every default written out; its task, if built, spares time.

        If the task uses the run's seed, its options do not hold a seed.
        """
        task = task or self.build_task()
        epochs, num_steps = self.schedules.epochs, self.schedules.num_steps
        fresh = task.train_size is None
        if fresh and epochs is not None:
            condition = "must not be given for a task with fresh examples"
            raise SettingError("schedules.epochs", condition, epochs)
        if not fresh and num_steps is not None:
            sized = f"for a task with train_size={task.train_size}"
            condition = f"must not be given {sized}, where schedules.epochs sets the length"
            raise SettingError("schedules.num_steps", condition, num_steps)
        length = {} if epochs or num_steps else {"num_steps": 2000} if fresh else {"epochs": 200}
        whole = self.completed()
        return whole.replace(
            model=whole.model.replace(
                num_layers=len(self.model.stack()),
                linear_init=self.model.linear_init or MODELS[self.model.backbone].usual_linear_init,
            ),
            schedules=self.schedules.replace(**length),
            evaluation=self.evaluation.replace(
                every=self.evaluation.every or (100 if fresh else 1),
                lengths=tuple(sorted(set(self.evaluation.lengths))),
                validation_lengths=tuple(sorted(set(self.evaluation.validation_lengths))),
            ),
            runtime=self.runtime.replace(
                device=chosen_device(self.runtime.device),
                num_threads=self.runtime.num_threads or torch.get_num_threads(),
            ),
        )

    def __reduce__(self) -> Any:
        # Another process must import the user's modules before it reads the names they register.
        return config_from_plain, (self.to_plain(),)


def config_from_plain(tree: Any) -> RunConfig:
    """Build a configuration from nested plain tables; absent fields have their defaults."""
    if not isinstance(tree, Mapping):
        raise SettingError("configuration", "must be a table", tree)
    import_modules(tree.get("imports", ()))
    return RunConfig(**tree)
