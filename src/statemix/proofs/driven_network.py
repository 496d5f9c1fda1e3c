"""Networks of any origin, driven along words: by steps, by a cache, or by whole sequences."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statemix.errors import RequestError

# Most tokens of a call, and most logits; most tokens of words that are read in many calls.
_TOKENS, _LOGITS, _TOGETHER = 2**16, 2**22, 2**20

Extend = Callable[[Tensor, Any], tuple[Any, Any]]


class Judged(NamedTuple):
    """Answers of a network to letters ``start``, ``start + 1``, ... of words, a row for each word.

    Attributes:
        start: number of the first letter, from 0.
        right: whether an answer is right.
        answers: the class that the network answers; the best wrong class if the answer is wrong,
            and -1 if a logit is not a number.
        margins: difference between the logit of the right class and the next largest one; None for
            a network without logits.
    """

    start: int
    right: NDArray[np.bool_]
    answers: NDArray[np.int64]
    margins: NDArray[np.float32] | None


class DrivenNetwork:
    """A network that reads letters and gives answers.

    Args:
        model: as in :func:`~statemix.proofs.refute`.
        num_letters: number of letters.
        num_answers: number of answers that the logits must have.
        head: head that answers, for a model with several.
        tokens: token of the model for each letter; None means the number of the letter.
        classes: class of the model for each answer; None means the number of the answer.

    Attributes:
        has_state: whether the network carries a state along words. It may read letters that cannot
            follow, after the end of a word.
        together: most letters of words that are read together.
    """

    def __init__(
        self,
        model: Any,
        num_letters: int,
        num_answers: int,
        *,
        head: str | None = None,
        tokens: Sequence[int] | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        heads = getattr(model, "heads", None)
        if isinstance(heads, Mapping):
            head = next(iter(heads)) if head is None else head
            if head not in heads:
                raise RequestError(f"head must be one of {list(heads)}, got {head!r}")
        self._model, self._head, self._num_answers = model, head, num_answers
        self._device = torch.device("cpu")
        if isinstance(model, nn.Module):
            self._device = next((p.device for p in model.parameters()), self._device)
        self._tokens = torch.tensor(range(num_letters) if tokens is None else tokens)
        self._classes = None if classes is None else torch.tensor(classes)
        for name, numbers, count in (
            ("tokens", self._tokens, num_letters),
            ("classes", self._classes, num_answers),
        ):
            if numbers is not None and len(numbers) < count:
                raise RequestError(f"{name} must have {count} numbers, got {len(numbers)}")
        self._extend = _extend_of(model)
        self.has_state = self._extend is not None
        self._most = _TOKENS
        with torch.no_grad():
            self._probe(self._tokens[:1, None].to(self._device))
            if isinstance(model, nn.Module):
                self._check_reads(int(self._tokens.max()))
        self.together = _TOGETHER if self.has_state else self._most

    def _check_reads(self, token: int) -> None:
        first = torch.tensor([[token]], device=self._device)
        try:
            self._extend(first, None) if self._extend else self._call(first)
        except IndexError as error:
            raise RequestError(f"model must read the token {token}, got: {error}") from error

    def _probe(self, first: Tensor) -> None:
        """Learn how many logits there are, and whether the network reads tokens in chunks."""
        logits = self._picked(self._extend(first, None)[0] if self._extend else self._call(first))
        if logits.ndim == 3:
            self._most = max(1, min(_TOKENS, _LOGITS // max(logits.shape[2], 1)))
        self._judge(logits, np.zeros((1, 1), np.int64))
        if self._extend is not None and _cache_name(self._model):
            # Some layers of transformers forget their convolution where a chunk follows a cache.
            word = self._tokens[torch.arange(8) % len(self._tokens)].unsqueeze(0).to(self._device)
            whole, single = self._in_chunks(word, 4), self._in_chunks(word, 1)
            if not torch.allclose(whole, single, rtol=1e-3, atol=1e-4, equal_nan=True):
                self._most = 1

    def _in_chunks(self, tokens: Tensor, size: int) -> Tensor:
        assert self._extend is not None
        state, parts = None, []
        for part in torch.split(tokens, size, 1):
            output, state = self._extend(part, state)
            parts.append(self._picked(output).float())
        return torch.cat(parts, 1)

    @torch.no_grad()
    def read(self, words: NDArray[np.int64], expected: NDArray[np.int64]) -> Iterator[Judged]:
        """Yield the answers to words, shape (B, T), all at once or in parts of each word.

        ``expected`` are the right answers, same shape. Answers to positions that are not scored,
        where it is negative, have no meaning.
        """
        tokens = self._tokens[torch.from_numpy(words)].to(self._device)
        count, length = words.shape
        if self._extend is None:
            yield Judged(0, *self._judge(self._picked(self._call(tokens)), expected))
            return
        size, state = max(1, self._most // count), None
        for start in range(0, length, size):
            output, state = self._extend(tokens[:, start : start + size], state)
            right = expected[:, start : start + size]
            yield Judged(start, *self._judge(self._picked(output), right))

    def _call(self, tokens: Tensor) -> Any:
        output = self._model(tokens)
        return output[0] if isinstance(output, tuple) else output

    def _picked(self, output: Any) -> Tensor:
        """Return the logits or answers of an output as a tensor."""
        if hasattr(output, "logits"):
            output = output.logits
        elif isinstance(output, Mapping):
            output = output[self._head if self._head is not None else next(iter(output))]
        try:
            return torch.as_tensor(output).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            wanted = "logits or answers in a tensor or an array"
            raise RequestError(f"model must return {wanted}, got {output!r:.80}") from error

    def _judge(
        self, output: Tensor, expected: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float32] | None]:
        wanted = f"logits {(*expected.shape, '...')} or integer answers {expected.shape}"
        got = f"{str(output.dtype).removeprefix('torch.')} {tuple(output.shape)}"
        kinds = {2: not output.is_floating_point(), 3: output.is_floating_point()}
        if tuple(output.shape[:2]) != expected.shape or not kinds.get(output.ndim, False):
            raise RequestError(f"model must return {wanted}, got {got}")
        if output.ndim == 2:
            given = output.to("cpu", torch.int64)
            if self._classes is not None:
                same = given.unsqueeze(2) == self._classes
                given = torch.where(same.any(2), same.int().argmax(2), -1)
            return given.numpy() == expected, given.numpy(), None
        least = self._num_answers if self._classes is None else int(self._classes.max()) + 1
        if output.shape[2] < least:
            raise RequestError(f"model must return logits of {least} classes or more, got {got}")
        logits = output.float()
        if self._classes is not None:
            logits = logits[..., self._classes.to(logits.device)]
        right = torch.from_numpy(np.maximum(expected, 0)).to(logits.device).unsqueeze(2)
        best, answers = logits.scatter(2, right, -torch.inf).max(2)
        margins = logits.gather(2, right).squeeze(2) - best
        answers = torch.where(margins > 0, right.squeeze(2), answers)
        answers = torch.where(margins.isnan(), -1, answers)
        return (margins > 0).cpu().numpy(), answers.cpu().numpy(), margins.cpu().numpy()


def _cache_name(model: Any) -> str | None:
    """Return the argument by which a model of transformers takes its cache; None without one."""
    known = inspect.signature(model.forward).parameters if isinstance(model, nn.Module) else ()
    names = [name for name in ("cache", "past_key_values") if name in known]
    return names[0] if names and "use_cache" in known else None


def _extend_of(model: Any) -> Extend | None:
    """Return the function that reads more tokens (B, T) after a state; None if there is none."""
    if callable(extend := getattr(model, "extend", None)):
        found: Extend = extend
        return found
    if callable(step := getattr(model, "step", None)):

        def by_steps(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            outputs = []
            for column in tokens.unbind(1):
                output, state = step(column, state)
                outputs.append(torch.as_tensor(output))
            return torch.stack(outputs, 1), state

        return by_steps
    name = _cache_name(model)
    if name is not None:

        def with_cache(tokens: Tensor, state: Any) -> tuple[Any, Any]:
            output = model(input_ids=tokens, use_cache=True, **{name: state})
            return output, output[name]

        return with_cache
    if not callable(model):
        raise RequestError(f"model must be a function or a module, got {type(model).__name__}")
    return None
