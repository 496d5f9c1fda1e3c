"""Models of any origin for the command line: runs, transformers, ONNX files, and Python objects."""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statemix import proofs
from statemix.errors import RequestError, SettingError
from statemix.files import read_json
from statemix.models import TokenClassifier
from statemix.tasks import Task, names_of
from statemix.training import load_model, load_outcome
from statemix.training.outcome import Weights
from statemix.training.schedules import attributes_set
from statemix.training.settings import import_modules

# Takes the name of a letter or an answer, and returns its number in the model, or None.
NumberOfName = Callable[[str], int | None]


@dataclass(frozen=True)
class AnyModel:
    """A model as :func:`~statemix.proofs.refute` accepts it, and what its file says about it.

    Attributes:
        model: the model.
        tokens: number of a letter's token by its name; None if letters are numbered as they are.
        classes: number of an answer's class by its name; None if answers are numbered as they are.
        longest: most tokens that it can read; None means any number.
        task: task of a run.
        can_be_proven: whether ``statemix certify`` can prove the network.
    """

    model: Any
    tokens: NumberOfName | None = None
    classes: NumberOfName | None = None
    longest: int | None = None
    task: Task | None = None
    can_be_proven: bool = False

    def numbers(self, kind: str, names: Sequence[str]) -> list[int] | None:
        """Return the model's numbers of letters or answers with these names."""
        find = self.tokens if kind == "letter" else self.classes
        if find is None:
            return None
        numbers = []
        for name in names:
            number = find(name)
            if number is None:
                raise RequestError(f"the model must know each {kind}, got the {kind} {name!r}")
            numbers.append(number)
        return numbers


@contextlib.contextmanager
def any_model(name: str, head: str | None, weights: Weights) -> Iterator[AnyModel]:
    """Load a model: a run, a folder of transformers, FILE.onnx or MODULE:NAME."""
    path = Path(name)
    if path.is_dir():
        config = read_json(path / "config.json", "a run or a model of transformers")
        if "model_type" in config:
            yield _of_transformers(path)
            return
        outcome = load_outcome(path)
        task, model = outcome.config.build_task(), load_model(path, weights)
        letters, answers = names_of(task, head if head in model.heads else model.main_head)
        with attributes_set(model, outcome.config.evaluation.attributes):
            yield AnyModel(
                model,
                _place_in(letters),
                _place_in(answers),
                task=task,
                can_be_proven=isinstance(model, TokenClassifier) and proofs.can_harden(model),
            )
    elif path.suffix == ".onnx":
        yield AnyModel(_of_onnx(path))
    else:
        yield AnyModel(_of_python(name))


def _place_in(names: Sequence[str]) -> NumberOfName:
    return {name: number for number, name in enumerate(names)}.get


def _of_transformers(folder: Path) -> AnyModel:
    import transformers

    from statemix.lm import prepared

    tokens: NumberOfName | None = None
    with prepared.errors_of_strangers(folder):
        config = transformers.AutoConfig.from_pretrained(folder)
        if (folder / "tokenizer_config.json").exists():
            tokens = transformers.AutoTokenizer.from_pretrained(folder).get_vocab().get
    is_labelled = "TokenClassification" in (config.architectures or [""])[0]
    kind = "AutoModelForTokenClassification" if is_labelled else "AutoModelForCausalLM"
    model = prepared.load_weights(folder, getattr(transformers, kind))
    classes = config.label2id.get if is_labelled else tokens
    if is_labelled and all(str(label).startswith("LABEL_") for label in config.label2id):
        # Names that nobody has chosen.
        classes = None
    longest = getattr(config, "max_position_embeddings", None)
    return AnyModel(model, tokens, classes, longest)


def _of_onnx(path: Path) -> Any:
    """Return a step, an extension or a function of whole words, by the inputs of the graph."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path))
    except Exception as error:
        raise RequestError(f"{path} must be an ONNX file, got: {error}") from error
    tokens, *states = session.get_inputs()
    is_free = len(tokens.shape) in (1, 2) and not any(isinstance(n, int) for n in tokens.shape)
    if tokens.type not in ("tensor(int64)", "tensor(int32)") or not is_free:
        raise RequestError(
            f"{path} must have tokens as first input, of shape (B) or (B, T) with free B and T, "
            f"got {tokens.type} {tokens.shape}"
        )
    if len(session.get_outputs()) != 1 + len(states):
        wanted = f"logits and {len(states)} states, as its inputs"
        raise RequestError(f"{path} must return {wanted}, got {len(session.get_outputs())} outputs")
    dtypes = {"tensor(float)": "float32", "tensor(double)": "float64"}

    def first(state: Any, count: int) -> Any:
        # The batch has its own axis; the axes of other names grow.
        named = tokens.shape[0] if tokens.shape[0] in state.shape else None
        shape = [n if isinstance(n, int) else count if n == named else 0 for n in state.shape]
        dtype = dtypes.get(state.type, state.type.removeprefix("tensor(").rstrip(")"))
        return np.zeros(shape, dtype)

    def run(given: Tensor, state: list[Any] | None) -> tuple[Tensor, list[Any]]:
        read = given.numpy().astype(tokens.type[7:-1])
        before = [first(one, len(read)) for one in states] if state is None else state
        feeds = {one.name: x for one, x in zip((tokens, *states), (read, *before), strict=True)}
        logits, *after = session.run(None, feeds)
        return torch.from_numpy(logits), after

    if len(tokens.shape) == 1:
        return SimpleNamespace(step=run)
    return SimpleNamespace(extend=run) if states else lambda given: run(given, None)[0]


def _of_python(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not attribute:
        forms = "a folder of a run or of transformers, FILE.onnx or MODULE:NAME"
        raise RequestError(f"MODEL must be {forms}, got {name!r}")
    try:
        import_modules([module])
        found = getattr(importlib.import_module(module), attribute)
    except (SettingError, AttributeError) as error:
        raise RequestError(
            f"MODEL must name an object of a module, got {name!r}: {error}"
        ) from error
    if inspect.isclass(found) or (inspect.isfunction(found) and not _takes_tokens(found)):
        got = "a class" if inspect.isclass(found) else f"{attribute}{_signature(found)}"
        raise RequestError(
            f"MODEL must name a module, or a function of tokens alone, got {name!r}, which is {got}"
        )
    return found


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    # A decorator may give arguments of the function that it wraps.
    return inspect.signature(function, follow_wrapped=False)


def _takes_tokens(function: Callable[..., Any]) -> bool:
    try:
        _signature(function).bind(None)
    except TypeError:
        return False
    return True
