"""AdamW for several models at once: their weights are the rows of one matrix."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from statemix.errors import RequestError
from statemix.training.batches import mover


class StackedAdamW:
    r"""The weights and the optimisers of R models as matrices with a row for each.

    .. math::
        M \leftarrow \beta_1 M + (1 - \beta_1) G, \qquad
        V \leftarrow \beta_2 V + (1 - \beta_2) G^2, \qquad
        W \leftarrow (1 - \eta \lambda) W - \frac{\eta}{1 - \beta_1^t} \,
            \frac{M}{\sqrt{V / (1 - \beta_2^t)} + \epsilon}

    with weights W, gradients G and moments M and V of shape (R, N), at step t. Rate :math:`\eta`
    and decay :math:`\lambda` are those of the optimisers' parameter groups, and differ between rows
    and columns. PyTorch's optimisers need one call for every rate; this is one call for all.

    The trained parameters of each model, and the state of its optimiser, become views of the
    matrices. So a model can be evaluated, saved, restored and stepped by its own optimiser at any
    time.

    Args:
        models: models of one structure.
        optimizers: AdamW of each model; equal up to learning rate and weight decay.
        step: steps that each optimiser has made.

    Attributes:
        leaves: name of a parameter -> its values in all models (R, ...), which require a gradient.

    Raises:
        RequestError: if the weights have several dtypes, or a parameter was left out of a step.
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.AdamW], step: int
    ) -> None:
        self._optimizers = tuple(optimizers)
        self._step = step
        named = [
            {name: p for name, p in model.named_parameters() if p.requires_grad} for model in models
        ]
        self._check_dtypes(named[0])
        self._names = list(named[0])
        sizes = [parameter.numel() for parameter in named[0].values()]
        ends = list(itertools.accumulate(sizes))
        self._bounds = list(zip([0, *ends], ends, strict=False))
        self._weights = torch.stack(
            [torch.cat([p.detach().flatten() for p in one.values()]) for one in named]
        )
        self._mean, self._square = (torch.zeros_like(self._weights) for _ in range(2))
        self._steps = self._weights.new_full((len(named), len(sizes)), step, dtype=torch.float32)
        for row, (one, optimizer) in enumerate(zip(named, self._optimizers, strict=True)):
            self._adopt(row, one, optimizer)
        self.leaves = {
            name: self._weights[:, start:stop]
            .view(len(named), *parameter.shape)
            .detach()
            .requires_grad_()
            for (name, parameter), (start, stop) in zip(named[0].items(), self._bounds, strict=True)
        }
        self._group_of = self._groups(named[0])
        self._known: list[list[tuple[float, float]]] = []
        self._rates = self._kept = self._weights

    @staticmethod
    def _check_dtypes(parameters: dict[str, nn.Parameter]) -> None:
        dtypes = {parameter.dtype: name for name, parameter in parameters.items()}
        if len(dtypes) > 1:
            names = " and ".join(dtypes.values())
            raise RequestError(
                f"model must have parameters of one dtype to be stacked, got {names}"
            )

    def _adopt(
        self, row: int, parameters: dict[str, nn.Parameter], optimizer: torch.optim.AdamW
    ) -> None:
        """Copy the state of a model's optimiser into its row, and let everything view the row."""
        for place, (name, parameter) in enumerate(parameters.items()):
            start, stop = self._bounds[place]
            mean, square = (m[row, start:stop].view_as(parameter) for m in self._moments)
            state = optimizer.state.get(parameter, {})
            if (self._step != 0 or state) and int(state.get("step", 0)) != self._step:
                raise RequestError(f"model must use every parameter in each step, got {name}")
            if state:
                mean.copy_(state["exp_avg"])
                square.copy_(state["exp_avg_sq"])
            parameter.data = self._weights[row, start:stop].view_as(parameter)
            optimizer.state[parameter] = {
                "step": self._steps[row, place],
                "exp_avg": mean,
                "exp_avg_sq": square,
            }

    @property
    def _moments(self) -> tuple[Tensor, Tensor]:
        return self._mean, self._square

    def _groups(self, parameters: dict[str, nn.Parameter]) -> Tensor | None:
        """Return the parameter group of each column, or None if there is one for all."""
        groups = self._optimizers[0].param_groups
        if len(groups) == 1:
            return None
        place = {id(p): n for n, group in enumerate(groups) for p in group["params"]}
        columns = [
            torch.full((parameter.numel(),), place[id(parameter)])
            for parameter in parameters.values()
        ]
        return torch.cat(columns).to(self._weights.device)

    def flat(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Return gradients of the leaves, in their order, as a matrix (R, N).

        Raises:
            RequestError: if a parameter has none.
        """
        for name, gradient in zip(self._names, gradients, strict=True):
            if gradient is None:
                raise RequestError(f"model must use every parameter in each step, got {name}")
        return torch.cat([g.flatten(1) for g in gradients if g is not None], dim=1)

    @torch.no_grad()
    def update(self, gradient: Tensor) -> None:
        """Make one step with the present rates of the optimisers' groups."""
        self._read_rates()
        group = self._optimizers[0].param_groups[0]
        beta_1, beta_2 = group["betas"]
        self._step += 1
        self._mean.lerp_(gradient, 1 - beta_1)
        self._square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        root = self._square.sqrt().div_(math.sqrt(1 - beta_2**self._step)).add_(group["eps"])
        self._weights.mul_(self._kept)
        move = self._mean * self._rates
        self._weights.addcdiv_(move, root, value=-1 / (1 - beta_1**self._step))
        self._steps += 1

    def _read_rates(self) -> None:
        """Copy rates and decays to the device if they have changed."""
        found = [
            [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]
        if found == self._known:
            return
        self._known = found
        rates = [[rate for rate, _ in row] for row in found]
        kept = [[1 - rate * decay for rate, decay in row] for row in found]
        both = mover(self._weights.device)(torch.tensor([rates, kept], dtype=self._weights.dtype))
        if self._group_of is not None:
            both = both[:, :, self._group_of]
        self._rates, self._kept = both

    def rows_kept(self, places: Sequence[int]) -> Callable[[], None]:
        """Return a function that undoes what happens to these rows from now on."""
        matrices = (self._weights, self._mean, self._square, self._steps)
        kept = [matrix[list(places)] for matrix in matrices]

        @torch.no_grad()
        def restore() -> None:
            for matrix, rows in zip(matrices, kept, strict=True):
                matrix[list(places)] = rows

        return restore
