"""A readout fitted to the states that a pruned model can be in."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from statemix.automaton import IGNORED, Automaton
from statemix.models import ReadoutModel
from statemix.proofs.hardening import walk

# A network of S_4 had nearly equal initial values: 200 were too few for it and 1,000 enough.
_ITERATIONS = 2000


def refit(model: ReadoutModel, automaton: Automaton, head: str) -> ReadoutModel:
    """Return a copy of a pruned model whose readout is fitted again.

    While it was trained, the readout also leaned on blocks that do not track, and they are gone.
    The state of what is left is a function of the automaton's, so the readout has finitely many
    inputs: one for each state and token. Logistic regression on all of them, from the trained
    readout, by L-BFGS. Nothing but the readout changes.

    Args:
        model: the model, as :func:`prune` returns it.
        automaton: the automaton, with the model's tokens.
        head: head to fit.
    """
    copied = copy.deepcopy(model)
    readout = copied.readouts.get_submodule(head)
    assert isinstance(readout, nn.Linear)
    inputs, answers = _pairs(copied, automaton)
    fit = nn.Linear(readout.in_features, readout.out_features, dtype=torch.float64)
    fit.load_state_dict({name: one.double() for name, one in readout.state_dict().items()})
    optimizer = torch.optim.LBFGS(
        fit.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy(fit(inputs), answers, ignore_index=IGNORED)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    readout.load_state_dict(fit.state_dict())
    return copied


@torch.no_grad()
def _pairs(model: ReadoutModel, automaton: Automaton) -> tuple[Tensor, Tensor]:
    """Return what the readout gets in every state at every token, and the right answers."""
    outputs = torch.tensor(automaton.outputs)
    steps = list(walk(model, automaton))
    answers = [outputs[step.place, step.tokens.cpu()] for step in steps]
    return torch.cat([step.hidden for step in steps]).cpu().double(), torch.cat(answers)
