"""Tools of experiments: attempts from new weights, and hooks that look at the first layer."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statemix.automaton import HasAutomaton
from statemix.errors import SettingError
from statemix.layers import Layer
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.models import ReadoutModel
from statemix.place_rules import HasPlaces
from statemix.proofs import prove_task
from statemix.tasks import IGNORED, Task, names_of
from statemix.tasks.automata.automaton_words import AutomatonTask
from statemix.tasks.groups import shares
from statemix.tasks.permutation import Permutation
from statemix.training.batches import Batch, CrossEntropy
from statemix.training.checkpoint import TensorFiles
from statemix.training.config import RunConfig, SearchConfig
from statemix.training.counterexamples import Counterexamples
from statemix.training.evaluation import RunEvaluation, accuracy
from statemix.training.loop import Hook, Loop
from statemix.training.schedules import Schedules, attributes_set

MAX_PAIRS = 5000
"""Pairs after which the search for a proof stops; networks that track have a few hundred."""

# Entries of the transitions of one token; more would slow evaluations.
_MOST_ENTRIES = 10_000
# Decay per step of the moving average of the loss.
_DECAY = 0.97


@dataclass(frozen=True)
class Attempt:
    """Training from new weights, up to the test that has passed it or failed it."""

    began: int
    """Steps done before it."""
    left: int | None = None
    """Steps done when its loss had left the plateau; None if it has not."""
    ended: int | None = None
    """Steps done when the schedules began, or when it had failed; None if it goes on."""
    accuracy: float | None = None
    """Token accuracy in its last test before the schedules; None without a test."""
    passed: bool = False
    """Whether it has passed all its tests so far."""
    confirmed: float | None = None
    """Token accuracy in the test after the schedules; None without it."""
    repairs: int = 0
    """Times that the schedules have begun again."""


class Search:
    """Attempts one after another. Steps are counted from the first attempt's beginning."""

    def __init__(self, config: SearchConfig) -> None:
        self._config = config
        self.attempts = [Attempt(0)]
        # Of this attempt's losses: the first one, and their moving average.
        self._first = self._average = 0.0

    def most_steps(self, scheduled: int) -> int:
        """Return the most steps before the last schedules, of ``scheduled`` steps, begin."""
        assert self._config.attempts is not None
        left = self._config.attempts - len(self.attempts)
        each = self._config.max_steps + self._config.every * self._config.tests
        repairs = scheduled * (self._config.repairs or 0)
        again = 0 if self._config.confirm is None else scheduled + repairs
        return self.began + each + left * (each + again) + repairs

    @property
    def began(self) -> int:
        """Steps done when the present weights were new."""
        return self.attempts[-1].began

    @property
    def on_plateau(self) -> bool:
        """Whether the attempt's loss has yet to leave its plateau."""
        return self.origin is None and self.attempts[-1].left is None

    @property
    def origin(self) -> int | None:
        """Steps done when the schedules began; None while the search goes on."""
        last = self.attempts[-1]
        return last.ended if last.passed or self._is_last else None

    @property
    def _is_last(self) -> bool:
        return len(self.attempts) == self._config.attempts

    @property
    def unconfirmed(self) -> bool:
        """Whether the attempt is to be tested when the schedules have ended."""
        last = self.attempts[-1]
        return self._config.confirm is not None and last.passed and last.confirmed is None

    def saw(self, step: int, loss: float) -> None:
        if self.origin is not None:
            return
        now = self.attempts[-1]
        if step == now.began + 1:
            self._first = self._average = loss
        self._average = _DECAY * self._average + (1 - _DECAY) * loss
        if now.left is None and self._average < self._config.plateau * self._first:
            self._change(left=step)

    def due(self, step: int) -> bool:
        """Return whether the attempt is to be tested after ``step`` steps."""
        if self.origin is not None or step == 0:
            return False
        now = self.attempts[-1]
        if now.left is None:
            return step - now.began >= self._config.max_steps
        return step > now.left and (step - now.left) % self._config.every == 0

    def _is_last_test(self, step: int) -> bool:
        left = self.attempts[-1].left
        return left is None or step - left >= self._config.every * self._config.tests

    def needed(self, step: int) -> float:
        """Return the accuracy that passes a test before the schedules."""
        return self._config.accept_last if self._is_last_test(step) else self._config.accept

    def judge(self, step: int, accuracy: float) -> None:
        """Take note of a test; the attempt that fails its last one has ended."""
        passed, last = accuracy >= self.needed(step), self._is_last_test(step)
        self._change(accuracy=accuracy, passed=passed, ended=step if last or passed else None)

    def can_repair(self, accuracy: float) -> bool:
        """Return whether an attempt of this token accuracy is repaired if it is refuted."""
        few = self.attempts[-1].repairs < (self._config.repairs or 0)
        return few and accuracy >= self._config.accept

    def repair(self, step: int) -> None:
        """Let the schedules begin again with the present weights."""
        self._change(ended=step, repairs=self.attempts[-1].repairs + 1)

    def confirm(self, step: int, accuracy: float, *, passed: bool) -> None:
        """Take note of the test after the schedules."""
        self._change(confirmed=accuracy)
        if not passed:
            # After the last attempt nothing begins anew, so its schedules stay where they are.
            self._change(passed=False, ended=self.origin if self._is_last else step)

    def gives_up(self, step: int) -> bool:
        """Return whether the attempt has failed because it diverged, and another one is left."""
        if self._is_last or (self.origin is not None and self._config.confirm is None):
            return False
        self._change(passed=False, ended=step)
        return True

    def restart(self, step: int) -> None:
        self.attempts.append(Attempt(step))

    def _change(self, **changes: Any) -> None:
        self.attempts[-1] = dataclasses.replace(self.attempts[-1], **changes)

    def to_plain(self) -> dict[str, Any]:
        attempts = [dataclasses.asdict(attempt) for attempt in self.attempts]
        return {"attempts": attempts, "first": self._first, "average": self._average}

    def restore(self, stored: dict[str, Any]) -> None:
        """Undo :meth:`to_plain`."""
        self.attempts = [Attempt(**attempt) for attempt in stored["attempts"]]
        self._first, self._average = stored["first"], stored["average"]


class Attempts(Hook):
    """Lets the schedules wait until an attempt has passed, and begins the next one if it fails."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        schedules: Schedules,
        evaluation: RunEvaluation,
        losses: CrossEntropy,
    ) -> None:
        provable = isinstance(task, HasAutomaton | HasPlaces) and config.model.backbone == "causal"
        if config.search.confirm == "proof" and not provable:
            condition = "must be a number unless the task has an automaton or places"
            raise SettingError("search.confirm", condition, "proof")
        size, length = config.search.size, config.search.length
        setting = "search.size" if length is None else "search.length"
        self.search = Search(config.search)
        self._wrong: Counterexamples | None = None
        if config.search.repairs is not None:
            if config.search.confirm != "proof" or not isinstance(task, AutomatonTask):
                condition = "must be None without confirm=proof and the words of an automaton"
                raise SettingError("search.repairs", condition, config.search.repairs)
            self._wrong = Counterexamples(task)
        self._config, self._task = config, task
        self._schedules, self._evaluation, self._losses = schedules, evaluation, losses
        self._evaluator = evaluation.on_split("validation", size, setting, length)

    def on_start(self, loop: Loop) -> None:
        """Let the schedules wait for the end of the search."""
        origin, scheduled = self.search.origin, loop.batches.num_steps
        self._schedules.origin, self._schedules.began = origin, self.search.began
        waiting = self.search.most_steps(scheduled) if origin is None else origin
        loop.num_steps = scheduled + waiting

    def before_step(self, loop: Loop) -> None:
        # The last attempt of a run that has got more attempts has failed.
        if self.search.origin is None and self.search.attempts[-1].ended is not None:
            self._go_on(loop, "now not the last")
        # Accuracy at the training length says nothing about an attempt.
        loop.stopped &= self.search.origin is not None
        if self.search.due(loop.step):
            self._test(loop)
        # A test that has passed at the last step begins the schedules.
        if (loop.stopped or loop.step >= loop.num_steps) and self.search.unconfirmed:
            self._test(loop)
        # The loss of the next step alone.
        self._losses.unweighted = [] if self.search.origin is None else None

    def after_step(self, loop: Loop, loss: float) -> None:  # noqa: ARG002
        if self._losses.unweighted is not None:
            self.search.saw(loop.step, torch.stack(self._losses.unweighted).sum().item())

    def on_divergence(self, loop: Loop, error: FloatingPointError) -> bool:
        if not self.search.gives_up(loop.step):
            return False
        self._go_on(loop, str(error))
        self._losses.unweighted = []
        return True

    def _test(self, loop: Loop) -> None:
        model: Any = loop.model
        with attributes_set(model, self._config.search.attributes, "search.attributes"):
            reached = accuracy(self._evaluation.score(loop, self._evaluator))
        text = f"accuracy {reached:.4f} on validation sequences"
        confirm = self._config.search.confirm
        if not self.search.unconfirmed or confirm is None:
            text += f" ({self.search.needed(loop.step):g} needed)"
            self.search.judge(loop.step, reached)
        elif confirm == "proof":
            text += f" after the schedules, {self._prove(loop, reached)}"
        else:
            text += f" after the schedules ({confirm:g} needed)"
            self.search.confirm(loop.step, reached, passed=reached >= confirm)
        self._go_on(loop, text)

    def _prove(self, loop: Loop, reached: float) -> str:
        """Take note of whether ``certify`` would prove the network; return it in words."""
        assert isinstance(self._task, HasAutomaton | HasPlaces)
        model: Any = loop.model
        network = copy.deepcopy(model).cpu()
        with attributes_set(network, self._config.evaluation.attributes):
            proof = prove_task(network, self._task, max_pairs=MAX_PAIRS)
            result, (letters, _) = proof.result, names_of(self._task, proof.head)
            if result.verdict == "refuted" and self._wrong and self.search.can_repair(reached):
                self._wrong.add(network, result.word)
                self.search.repair(loop.step)
            else:
                passed = result.verdict == "proven"
                self.search.confirm(loop.step, reached, passed=passed)
        word = " ".join(letters[token] for token in result.word)
        reasons = {"proven": "", "refuted": f": wrong after {word}", "open": f": {result.reason}"}
        return result.verdict + reasons[result.verdict]

    def _go_on(self, loop: Loop, text: str) -> None:
        """Begin another attempt, or the schedules, if the attempt has ended."""
        step, number = loop.step, len(self.search.attempts)
        now = self.search.attempts[-1]
        if now.confirmed is not None and self.search.origin is not None:
            text += ": passed" if now.passed else ": failed; no attempts are left"
        elif now.passed and now.repairs and self._wrong is not None:
            text += f": repair {now.repairs} begins, with {len(self._wrong.words)} wrong words"
            loop.restart(loop.model.state_dict())
            loop.stopped = False
        elif now.passed:
            text += ": passed, the schedules begin"
        elif self.search.origin is not None:
            text += ": failed; no attempts are left, so the schedules begin with these weights"
        elif now.ended is not None:
            self.search.restart(step)
            new_model = self._config.build_model(self._task, seed_of(self._config.seed, number))
            loop.restart(new_model.state_dict())
            if self._wrong is not None:
                self._wrong.words = []
            # The next row is about the new weights after their first steps.
            self._evaluation.forget(step)
            loop.stopped = False
            text += ": failed, the next attempt begins"
        self.on_start(loop)
        self._schedules.before_step(loop)
        loop.emit(
            "message", f"step {step}: attempt {number} of {self._config.search.attempts}, {text}"
        )

    def losses(self, loop: Loop, batch: Any) -> dict[str, Tensor]:
        if self._wrong is None or not self._wrong.words:
            return {}
        model: Any = loop.model
        return {"counterexamples": share_of(batch) * self._wrong.loss(model)}

    def row(self, loop: Loop) -> dict[str, Any]:  # noqa: ARG002
        return {"attempt": len(self.search.attempts)}

    def summary(self, loop: Loop) -> dict[str, Any]:  # noqa: ARG002
        return {"attempts": self.search.to_plain()["attempts"]}

    def state_dict(self) -> dict[str, Any]:
        wrong = {} if self._wrong is None else {"counterexamples": self._wrong.words}
        return {"search": self.search.to_plain(), **wrong}

    def load_state_dict(self, state: Mapping[str, Any], tensors: TensorFiles) -> None:  # noqa: ARG002
        self.search.restore(state["search"])
        if self._wrong is not None:
            self._wrong.words = [tuple(word) for word in state["counterexamples"]]


def seed_of(seed: int, attempt: int) -> int:
    """Return the seed of an attempt's weights: the run's own for the first one."""
    if attempt == 0:
        return seed
    return int(np.random.SeedSequence([seed, attempt]).generate_state(1, np.uint64)[0] >> 1)


class PermutationPenalty(Hook):
    """Adds the penalty to the loss; an attempt has it when it has left its plateau."""

    def __init__(self, coefficient: float, model: ReadoutModel, attempts: Attempts | None) -> None:
        self._coefficient, self._model, self._attempts = coefficient, model, attempts
        if token_transitions(model, 1) is None:
            condition = "must be 0 with a first layer that has no transitions"
            raise SettingError("objective.permutation_penalty", condition, coefficient)

    def losses(self, loop: Loop, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        if self._attempts is not None and self._attempts.search.on_plateau:
            return {}
        penalty = self._coefficient * share_of(batch) * permutation_penalty(self._model)
        return {"permutation_penalty": penalty}


def share_of(batch: Batch) -> Tensor:
    """Return the share of a batch in its step: splitting a step into several changes no loss."""
    head, classes = next(iter(batch.targets.items()))
    return (classes != IGNORED).sum() / batch.num_scored[head]


def permutation_penalty(model: ReadoutModel) -> Tensor:
    r"""Return how far the transitions of a model's first layer are from permutations.

    .. math:: \mathrm{mean}_{x, k} \, \lVert A_x^k (A_x^k)^\top - I \rVert_F^2

    over tokens x and units k, such as blocks. A matrix that is not negative and whose rows sum to 1
    has penalty 0 if and only if it permutes.
    """
    transitions = token_transitions(model, model.backbone.vocab_size)
    assert transitions is not None
    products = transitions @ transitions.mT
    eye = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
    return (products - eye).square().sum((-1, -2)).mean()


def token_transitions(model: ReadoutModel, num_tokens: int) -> Tensor | None:
    """Return the first layer's transitions at the beginning of a sequence for each first token.

    The shape is (num_tokens, units, m, m); None means that the layer runs no linear recurrence.
    """
    layer = model.backbone.blocks[0].mixer
    if not isinstance(layer, Layer):
        return None
    x = model.backbone.blocks[0].norm(model.backbone.embedding.weight[:num_tokens])
    recurrence = layer.recurrence(x.unsqueeze(1))
    return None if recurrence is None else recurrence.transitions[:, 0]


@torch.no_grad()
def representations(model: ReadoutModel, task: Task) -> dict[str, float]:
    r"""Split the transitions of a model's first layer by irreducible representation of the group.

    The table of transitions :math:`A(g)`, one for each token g, is a function on the group. The
    part that belongs to the group's action on its points can be sharpened into permutations of the
    entries; a network whose gates hold another part tracks short words alone, or a quotient.

    Returns name of each representation but the constant one -> its share of the table's energy. It
    is empty without all elements of a group, or without gates of the first layer, or with too many.
    """
    layer = model.backbone.blocks[0].mixer
    if not isinstance(task, Permutation) or task.vocab_size < task.group.order:
        return {}
    if not isinstance(layer, GatedRecurrence):
        return {}
    first = token_transitions(model, 1)
    assert first is not None
    if first.numel() > _MOST_ENTRIES:
        return {}
    table = token_transitions(model, task.group.order)
    assert table is not None
    return shares(table.flatten(1).double().cpu().numpy(), task.group.name)


class Representations(Hook):
    """Adds the shares of the representations to every row of the metrics."""

    def row(self, loop: Loop) -> dict[str, Any]:
        model: Any = loop.model
        batches: Any = loop.batches
        return {"representations": representations(model, batches.task)}
