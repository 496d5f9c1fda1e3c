"""AdamW, with groups of parameters that patterns name."""

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from statemix.errors import SettingError
from statemix.models import earlier_name
from statemix.training.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW over all parameters.

    As in MAD, biases, norms and embeddings decay unless a group sets their weight decay. The fused
    step is used on every device: it is one pass over the parameters instead of a dozen, which
    matters for models that need a millisecond per step.

    Raises:
        SettingError: if a group's pattern matches no parameter.
    """
    members: list[list[nn.Parameter]] = [[] for _ in (*config.groups, None)]
    for name, parameter in model.named_parameters():
        names = (name, earlier_name(name))
        matching = (
            any(fnmatchcase(one, group.parameters) for one in names) for group in config.groups
        )
        # The last list is for parameters that no group matches.
        place = next((n for n, matches in enumerate(matching) if matches), -1)
        members[place].append(parameter)
    groups: list[dict[str, Any]] = [{"params": members[-1], "rate_factor": 1.0}]
    for place, group in enumerate(config.groups):
        if not members[place]:
            condition = "must match at least one parameter that no group before it matches"
            raise SettingError(f"optimizer.groups.{place}.parameters", condition, group.parameters)
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        groups.append(
            {
                "params": members[place],
                "rate_factor": group.learning_rate_factor,
                "weight_decay": decay,
            }
        )
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )
