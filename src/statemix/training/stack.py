"""Steps and scores of several trainers as one batched program."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from statemix.errors import RequestError
from statemix.models import SyntheticModel
from statemix.training.batches import Batch, stacked
from statemix.training.evaluation import Scores, SplitEvaluator, score_together
from statemix.training.optimizer import set_learning_rate
from statemix.training.stacked_optimizer import StackedAdamW
from statemix.training.sums import StackedSums
from statemix.training.trainer import Trainer

# What PyTorch says where it calls an operator once per model, which saves nothing.
_LOOP = "There is a performance drop because we have not yet implemented the batching rule"


class Stack:
    """R trainers of one model at one step, which make their steps together.

    Every operation of the model runs once for all trainers, under ``torch.vmap`` over their
    weights. Their parameters and optimisers become views of common matrices
    (:class:`StackedAdamW`), so each trainer stays whole: one that leaves a stack goes on alone or
    in another stack. Steps equal those of the trainers alone up to rounding.

    Layers must compute with operators that vmap can batch, without random numbers and without
    changing buffers; :meth:`check` finds out.

    Args:
        trainers: at least one, at the same step. They are equal up to weights, examples, learning
            rate and weight decay, and their batches are padded.

    Raises:
        RequestError: if the weights have several dtypes, or a parameter was left out of a step.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = tuple(trainers)
        first = self.trainers[0]
        self._fabric, self._objective = first.fabric, first.objective
        self._clip_norm = first.clip_norm
        # Calls replace the tensors of this model. Its attributes are scheduled as everyone's are.
        self._model = first.model
        models = [trainer.model for trainer in self.trainers]
        self._optimizer = StackedAdamW(
            models, [trainer.optimizer for trainer in self.trainers], first.step
        )
        tensors = self._optimizer.leaves | _shared_rows(models)
        self._tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
        self._sums = StackedSums([trainer.sums for trainer in self.trainers])

    def check(self) -> None:
        """Try a step and an evaluation, which change nothing.

        Raises:
            RequestError: if the model cannot train in a stack.
        """
        versions = {name: buffer._version for name, buffer in self._model.named_buffers()}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=_LOOP)
                self._gradient()
                self._answer_to_one_token()
        except RequestError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise RequestError(f"model must be one that vmap can batch: {reason}") from error
        changed = [name for name, b in self._model.named_buffers() if b._version != versions[name]]
        if changed:
            raise RequestError(f"model must not change buffers to be stacked, got {changed[0]}")

    def train_step(self) -> list[float | FloatingPointError]:
        """Make one optimiser step of every trainer.

        Returns:
            What :meth:`Trainer.train_step` returns or raises, for each trainer.
        """
        for trainer in self.trainers:
            set_learning_rate(trainer.optimizer, trainer.learning_rate(trainer.step))
            trainer.attributes(trainer.step)
        loss, parts, reports, gradient = self._gradient()
        norm = gradient.norm(dim=1)
        values, lengths = torch.stack([loss.double(), norm.double()]).tolist()
        answers: list[float | FloatingPointError] = [
            trainer.refusal(value, length) or value
            for trainer, value, length in zip(self.trainers, values, lengths, strict=True)
        ]
        failed = [n for n, answer in enumerate(answers) if isinstance(answer, FloatingPointError)]
        undo = [
            kept(failed) for kept in (self._optimizer.rows_kept, self._sums.members_kept) if failed
        ]
        if self._clip_norm is not None:
            gradient *= (self._clip_norm / (norm + 1e-6)).clamp(max=1).unsqueeze(1)
        self._sums.collect(parts, reports)
        self._optimizer.update(gradient)
        for trainer in self.trainers:
            trainer.step += 1
        for restore in undo:
            restore()
        for place in failed:
            self.trainers[place].step -= 1
        return answers

    def score(self, evaluators: Sequence[SplitEvaluator]) -> list[dict[str, Scores]]:
        """Return the scores of each trainer's model by its own evaluator: head -> scores."""
        models = cast(list[SyntheticModel], [trainer.model for trainer in self.trainers])
        return score_together(evaluators, models, self._each)

    def _gradient(
        self,
    ) -> tuple[Tensor, list[Mapping[str, Tensor]], list[Mapping[str, Tensor]], Tensor]:
        """Return losses (R,), their parts, the reports of layers, and the gradients (R, N)."""
        self._model.train()
        summed: list[Tensor] = []
        parts, reports = [], []
        pieces = [trainer.batches.on_host(trainer.step) for trainer in self.trainers]
        leaves = list(self._optimizer.leaves.values())
        for batches in zip(*pieces, strict=True):
            batch = stacked(batches).to(self._fabric.device)
            with self._fabric.strategy.precision.tensor_init_context():
                losses, reported = self._each(self._losses, _tensors_of(batch))
            part = torch.stack(list(losses.values())).sum(0)
            found = torch.autograd.grad(part.sum(), leaves, allow_unused=True)
            terms = [part.detach(), self._optimizer.flat(found)]
            # In place: the gradients of all models are large.
            summed = (
                [old.add_(new) for old, new in zip(summed, terms, strict=True)] if summed else terms
            )
            parts.append(losses)
            reports.append(reported)
        loss, gradient = summed
        return loss, parts, reports, gradient

    def _losses(
        self, model: nn.Module, tensors: dict[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of one model, and what its layers report."""
        precision = self._fabric.strategy.precision

        def call(*arguments: Any) -> Any:
            with precision.forward_context():
                return precision.convert_output(model(*arguments))

        batch = Batch(**{"cu_seqlens": None, "lengths": None, **tensors})
        return self._objective(call, batch), self.trainers[0].reports()

    def _answer_to_one_token(self) -> None:
        def answer(model: SyntheticModel, tokens: Tensor) -> list[dict[str, Tensor]]:
            return list(model.in_pieces([tokens]))

        self._model.eval()
        tokens = torch.zeros(len(self.trainers), 1, 1, dtype=torch.int64)
        with torch.inference_mode(), self._fabric.autocast():
            self._each(answer, tokens.to(self._fabric.device))

    def _each(self, function: Callable[..., Any], arguments: Any) -> Any:
        """Call a function of a model and its arguments for every trainer.

        Args:
            function: (model, arguments) -> a tree of tensors.
            arguments: a tree of tensors, each with an axis of trainers in front.

        Returns:
            The tree of results, with an axis of trainers in front.
        """
        call = _Call(self._model, function)

        def one(tensors: dict[str, Tensor], own: Any) -> Any:
            return functional_call(call, tensors, (own,))

        return torch.vmap(one)(self._tensors, arguments)


class _Call(nn.Module):
    """A function of a model as a module, so that ``functional_call`` can replace its tensors."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, arguments: Any) -> Any:
        return self.function(self.model, arguments)


def _tensors_of(batch: Batch) -> dict[str, Any]:
    """Return a stacked batch as a tree of tensors, without what it lacks."""
    tensors = {"tokens": batch.tokens, "targets": batch.targets, "num_scored": batch.num_scored}
    return tensors if batch.lengths is None else tensors | {"lengths": batch.lengths}


def _shared_rows(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Stack the tensors that are not trained, and let each model's be a row of the stack.

    Buffers that are equal in all models, such as a gate temperature, are left out: one for all
    lets the kernels apply it themselves.
    """
    found = {}
    listed = [_untrained(model) for model in models]
    for name, (tensor, is_buffer) in listed[0].items():
        those = [one[name][0] for one in listed]
        if is_buffer and all(torch.equal(tensor, other) for other in those[1:]):
            continue
        found[name] = torch.stack([one.detach() for one in those])
        for one, row in zip(those, found[name], strict=True):
            one.data = row
    return found


def _untrained(model: nn.Module) -> dict[str, tuple[Tensor, bool]]:
    """Return name -> frozen parameter or buffer, and whether it is a buffer."""
    frozen = {name: (p, False) for name, p in model.named_parameters() if not p.requires_grad}
    return frozen | {name: (buffer, True) for name, buffer in model.named_buffers()}
