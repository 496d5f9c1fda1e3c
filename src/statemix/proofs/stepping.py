"""Any module as a function of one token and of the states of its layers."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from statemix.layers import Bidirectional, CausalConv, Layer, State
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.layers.state import evaluated, placement
from statemix.models import ReadoutModel, TokenClassifier

HARDENED = ("softmax", "column_softmax")
"""Gate families that become 0 and 1 as the temperature goes to 0."""

_REMEMBERING = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, Bidirectional)
# Random words whose logits as a whole and token by token are compared.
_WORDS, _LENGTH = 4, 64

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_evaluation_mode(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Put the networks among the arguments of a function into evaluation mode until it returns."""

    @wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with ExitStack() as modes:
            for argument in (*arguments, *named.values()):
                if isinstance(argument, nn.Module):
                    modes.enter_context(evaluated(argument))
            return function(*arguments, **named)

    return call


@dataclass(frozen=True)
class Stepper:
    """A network as a function of one token and of the states of its layers.

    A module needs no argument for states: each layer of Statemix in it continues from the state
    that :meth:`step` puts in place of its own.

    Attributes:
        model: the network.
        head: head that answers; "logits" if the network returns nothing but a tensor.
        readout: name of the ``nn.Linear`` that returns the logits.
        layers: names of the layers with states, in the order in which they run.
    """

    model: nn.Module
    head: str
    readout: str
    layers: tuple[str, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module, head: str | None = None) -> Self:
        """Find the layers and the readout of a network in evaluation mode.

        Raises:
            TypeError: if a part cannot be proven, or the network does not return logits.
            ValueError: if there is no such head, or a layer does not run once for each token.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        if isinstance(model, TokenClassifier):
            head = model.main_head if head is None else head
            if head not in model.heads:
                raise ValueError(f"head must be one of {list(model.heads)}, got {head!r}")
            blocks = range(len(model.backbone.blocks))
            layers = tuple(f"backbone.blocks.{block}.mixer" for block in blocks)
            return cls(model, head, f"readouts.{head}", layers)
        _check_parts(model)
        named = dict(model.named_modules())
        parts = {name: one for name, one in named.items() if isinstance(one, Layer | nn.Linear)}
        with _calls(parts) as calls:
            first = torch.zeros(2, 1, dtype=torch.int64, device=placement(model)[0])
            head, logits = _logits(_run(model, first), head)
        read = [call.name for call in calls if isinstance(parts[call.name], Layer)]
        shapes = [call.read.shape[:2] for call in calls if call.name in read]
        every = [name for name, part in parts.items() if isinstance(part, Layer)]
        if sorted(read) != sorted(every) or shapes != [(2, 1)] * len(read):
            raise ValueError(f"model must run each of {every} once for a token, got {read}")
        linear = [call for call in calls if isinstance(parts[call.name], nn.Linear)]
        flat = logits.flatten()
        given = [one.name for one in linear if torch.equal(one.output.to(flat).flatten(), flat)]
        if not given:
            raise TypeError("model must return the output of an nn.Linear as logits, got another")
        return cls(model, head, given[-1], tuple(read))

    def on(self, model: nn.Module) -> Self:
        """Return the stepper of a copy of the network."""
        return replace(self, model=model)

    @property
    def readout_layer(self) -> nn.Linear:
        """The linear map whose outputs are the logits."""
        readout = self.model.get_submodule(self.readout)
        assert isinstance(readout, nn.Linear)
        return readout

    def step(self, tokens: Tensor, states: State | None) -> tuple[Tensor, Tensor, State]:
        """Read a token in each of B sequences, (B, 1), after states; None means their beginning.

        Returns logits (B, classes), what the readout has read (B, width), and the next states.
        """
        parts = {name: self.model.get_submodule(name) for name in (*self.layers, self.readout)}
        before = {} if states is None else dict(zip(self.layers, states, strict=True))
        with _calls(parts, before) as calls:
            if isinstance(self.model, TokenClassifier):
                # The first token follows a learned one.
                output: Any = self.model.extend(tokens, states)[0]
            else:
                output = _run(self.model, tokens)
        last = {call.name: call for call in calls}
        after = tuple(last[name].output[1] for name in self.layers)
        logits = _logits(output, self.head)[1]
        return logits[:, -1], last[self.readout].read.reshape(len(tokens), -1), after

    def whole(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, classes) of words (B, T) as the network itself reads them."""
        return _logits(_run(self.model, tokens), self.head)[1]

    @torch.no_grad()
    def check(self, num_tokens: int) -> None:
        """Refuse a module whose logits of words are not those of its steps.

        Random words of 64 tokens are read both ways. Their logits differ by more than rounding if
        another part than a layer of Statemix remembers tokens or knows positions.
        """
        if isinstance(self.model, TokenClassifier):
            return
        parts = dict(self.model.named_modules())
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(num_tokens, (_WORDS, _LENGTH), generator=generator)
        words = words.to(placement(self.model)[0])
        with _calls(parts) as whole:
            logits = self.whole(words)
        states, steps = None, []
        with _calls(parts) as single:
            for tokens in words.T:
                given, _, states = self.step(tokens.unsqueeze(1), states)
                steps.append(given.unsqueeze(1))
        if _same(steps, logits):
            return
        for number, call in enumerate(whole):
            read, output = [], []
            for of_step in single[number :: len(whole)]:
                read.append(of_step.read)
                output.append(_first(of_step.output))
            mixes = _same(read, call.read) and not _same(output, _first(call.output))
            if mixes and _first(call.output).shape == call.read.shape:
                raise _refused(call.name, parts[call.name])
        raise _refused("", self.model)


@torch.no_grad()
def token_inputs(model: nn.Module, layer: Layer, num_tokens: int) -> Tensor:
    """Return what the first layer of a model reads for every token, shape (tokens, hidden_size).

    A learned token, which only models of Statemix have, comes last.
    """
    if isinstance(model, ReadoutModel):
        x: Tensor = model.backbone.blocks[0].norm(model.backbone.embedding.weight)
        return x
    with _calls({"": layer}) as calls:
        _run(model, torch.arange(num_tokens, device=placement(model)[0]).unsqueeze(1))
    return torch.as_tensor(calls[0].read[:, 0])


class _Call(NamedTuple):
    name: str
    # First argument, and all that is returned.
    read: Any
    output: Any


@contextmanager
def _calls(
    parts: Mapping[str, nn.Module], states: Mapping[str, State] | None = None
) -> Iterator[list[_Call]]:
    """Record the calls of modules in the order in which they end; begin layers with states."""
    calls: list[_Call] = []

    def begin(state: State, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        x = given[0] if given else named["x"]
        others = {name: value for name, value in named.items() if name not in ("x", "state")}
        return (x, state, *given[2:]), others

    def end(
        name: str, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        calls.append(_Call(name, next(iter((*given, *named.values())), None), output))

    with ExitStack() as hooks:
        for name, part in parts.items():
            if states and name in states:
                hook = partial(begin, states[name])
                hooks.enter_context(part.register_forward_pre_hook(hook, with_kwargs=True))
            hook = partial(end, name)
            hooks.enter_context(part.register_forward_hook(hook, with_kwargs=True))
        yield calls


def _run(model: Any, tokens: Tensor) -> Any:
    """Return what a module returns for words (B, T)."""
    try:
        return _output(model, tokens)
    except IndexError as error:
        most = int(tokens.max())
        raise ValueError(f"model must read the tokens 0 to {most}, got: {error}") from error


def _output(model: Any, tokens: Tensor) -> Any:
    if type(model).forward is nn.Module.forward:
        if not hasattr(model, "step"):
            kind = type(model).__name__
            raise TypeError(f"model must have forward(tokens) or step(tokens_t, state), got {kind}")
        state, outputs = None, []
        for token in tokens.unbind(1):
            output, state = model.step(token, state)
            outputs.append(output)
        return torch.stack(outputs, 1)
    # The others, such as a state, begin without a value.
    _, *others = inspect.signature(model.forward).parameters.values()
    return model(tokens, *(None for one in others if one.kind <= 1 and one.default is one.empty))


def _logits(output: Any, head: str | None) -> tuple[str, Tensor]:
    """Return the name and the logits (B, T, classes) of a head; None means the first one."""
    heads = output if isinstance(output, Mapping) else {"logits": _first(output)}
    if head is None:
        head = "logits" if "logits" in heads else next(iter(heads), "")
    if head not in heads:
        raise ValueError(f"head must be one of {list(heads)}, got {head!r}")
    logits = heads[head]
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        kind = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"model must return logits (B, T, classes), got {kind}")
    return head, logits


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) and output else output


def _same(steps: list[Any], whole: Any) -> bool:
    """Return whether tensors (B, 1, d) of steps are those of a whole (B, T, d) but for rounding."""
    if not isinstance(whole, Tensor) or whole.ndim != 3 or not whole.is_floating_point():
        return False
    shape = len(whole), 1, whole.shape[2]
    if any(not isinstance(one, Tensor) or one.shape != shape for one in steps):
        return False
    close = torch.finfo(whole.dtype).eps ** 0.5 * float(whole.abs().nan_to_num(0.0, 0.0).max())
    return torch.allclose(torch.cat(steps, 1), whole, rtol=0.0, atol=close, equal_nan=True)


def _check_parts(model: nn.Module) -> None:
    """Refuse parts that are known to remember what no search can follow."""
    checked: set[nn.Module] = set()
    for name, part in model.named_modules():
        if part in checked:
            continue
        if isinstance(part, Layer):
            checked.update(part.modules())
            is_hard = isinstance(part, GatedRecurrence) and part.gate in HARDENED
            is_exact = is_hard or isinstance(part, CausalConv)
        else:
            sizes = part.kernel_size if isinstance(part, _ConvNd) else (1,)
            is_exact = max(sizes) == 1 and not isinstance(part, _REMEMBERING)
        if not is_exact:
            raise _refused(name, part)
    if not checked:
        raise ValueError(f"model must have a layer of Statemix, got {type(model).__name__}")


def _refused(name: str, part: nn.Module) -> TypeError:
    gate = getattr(part, "gate", None)
    kind = type(part).__name__ + (f" with gate={gate!r}" if isinstance(gate, str) else "")
    got = f"{name} ({kind})" if name else f"a {kind} that also depends on positions or other tokens"
    return TypeError(
        "model must consist of BD-LRUs and H-LRUs with gates of softmax or column_softmax and of "
        f"functions of one token to be proven, got {got}"
    )
