"""The interface of tasks: labelled token sequences, addressed by (seed, split, index, length)."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from statemix.automaton import IGNORED
from statemix.errors import RequestError, SettingError, suggestion
from statemix.registry import Spec
from statemix.tasks.addressing import Split


class TaskSpec(Spec):
    """A task by name, with its options.

    The option ``preset`` stands for the options of a published data set of the task. Options that
    are given beside it replace those of the data set.
    """

    kind = "task"

    @classmethod
    def with_contents(cls, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return options that hold those of a preset, and the contents of files."""
        if "preset" in options:
            presets = cls.registry().find(name).presets
            preset = options["preset"]
            if not isinstance(preset, str) or preset not in presets:
                condition = f"must be one of {list(presets)}" if presets else "must be absent"
                advice = suggestion(preset, presets)
                raise SettingError("preset", condition, preset, advice=advice)
            others = {option: value for option, value in options.items() if option != "preset"}
            options = {**presets[preset], **others}
        return super().with_contents(name, options)


class Examples(NamedTuple):
    """Examples as rows, padded to the longest.

    Attributes:
        tokens: shape (N, T), int64; any token of the vocabulary where an example has ended.
        targets: head -> class of each position, same shape and dtype; ``IGNORED`` where a position
            is not scored, and always where the example has ended.
        lengths: number of tokens of each example, shape (N,), int64. None means that all have T.
    """

    tokens: NDArray[np.int64]
    targets: dict[str, NDArray[np.int64]]
    lengths: NDArray[np.int64] | None = None


class Task(Protocol):
    """A generator of labelled sequences.

    The first line of a task's docstring describes the task in listings. The constructor has only
    keyword options, each with a default if a sensible one exists (the folder of the data has none).
    An option ``seed`` gets the run's seed unless it is given.

    Attributes:
        name: name in the registry.
        presets: published data sets, name -> options.
        length: tokens of the longest training example.
        train_size: number of training examples; None means an endless stream of fresh examples.
        vocab_size: number of tokens.
        heads: labels to predict at each position: name -> number of classes. The first is the main
            one.
        chance: head -> token accuracy of guessing.
        title: short name of the subject, for figures.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, object]]]
    length: int
    train_size: int | None

    @property
    def vocab_size(self) -> int: ...

    @property
    def heads(self) -> Mapping[str, int]: ...

    @property
    def chance(self) -> Mapping[str, float]: ...

    @property
    def title(self) -> str: ...

    def examples(self, split: Split, start: int, stop: int, length: int | None = None) -> Examples:
        """Make the examples ``start`` ... ``stop - 1`` of a split.

        Args:
            split: "train", "validation" or "test".
            start: first index.
            stop: one beyond the last index.
            length: tokens of the longest example; None means the training length.

        Raises:
            OptionError: if the split has too few examples, or none of this length.
        """
        ...

    def describe(self, index: int, split: Split = "train") -> str:
        """Return one example as text."""
        ...


@runtime_checkable
class HasTokenFeatures(Protocol):
    """A task whose tokens stand for objects that numbers describe."""

    def token_features(self) -> NDArray[np.float32]:
        """Return the numbers of each token, shape (vocab_size, F)."""
        ...


def check_examples(task: Task, examples: Examples, length: int | None) -> None:
    """Check examples against the attributes of their task, which may be a user's own."""
    tokens, targets, _ = examples
    subject = f"task {task.name!r}: examples must have"
    if tokens.ndim != 2:
        raise RequestError(f"{subject} tokens of shape (N, T), got {tokens.shape}")
    if length is not None and tokens.shape[1] > length:
        raise RequestError(f"{subject} at most {length} tokens, got {tokens.shape[1]}")
    for name, values, limit in (
        ("tokens", tokens, task.vocab_size),
        *((f"targets of head {head!r}", targets.get(head), n) for head, n in task.heads.items()),
    ):
        if values is None or values.shape != tokens.shape:
            got = "none" if values is None else f"shape {values.shape}"
            raise RequestError(f"{subject} {name} of shape {tokens.shape}, got {got}")
        if not np.issubdtype(values.dtype, np.integer):
            raise RequestError(f"{subject} integer {name}, got {values.dtype}")
        known = values[values != IGNORED] if name != "tokens" else values
        if known.size and not 0 <= known.min() <= known.max() < limit:
            raise RequestError(
                f"{subject} {name} in 0..{limit - 1}, got {known.min()}..{known.max()}"
            )
