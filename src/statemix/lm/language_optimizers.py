"""Optimisers of language models, and the schedule of their rate."""

import math
import re
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import nn

from statemix.errors import RequestError
from statemix.lm.presets import LanguageSettings, OptimizerName
from statemix.training.loop import Hook, Loop

_BETAS = (0.9, 0.95)
# Matrices of a layer that Muon changes. It would treat a fused projection (qkv_proj, in_proj) as a
# single matrix, and the gates of a recurrence would all turn at the same rate.
_FOR_MUON = re.compile(r"\.mlp\.\w+\.weight$|\.mixer\.layer\.(value_proj|out_proj)\.weight$")


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024) for some matrices and AdamW for all other parameters.

    Muon's steps have the size of AdamW's, so both have the same learning rate (Liu et al., 2025).
    """

    def __init__(
        self,
        for_muon: Sequence[dict[str, Any]],
        for_adamw: Sequence[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
    ) -> None:
        self._parts: dict[str, torch.optim.Optimizer] = {
            "muon": torch.optim.Muon(for_muon, lr=lr, adjust_lr_fn="match_rms_adamw"),
            "adamw": torch.optim.AdamW(for_adamw, lr=lr, betas=betas),
        }
        parts = self._parts.items()
        groups = [{**group, "kind": kind} for kind, part in parts for group in part.param_groups]
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Change all parameters that have a gradient."""
        for kind, part in self._parts.items():
            # The state and the groups are those of this optimiser, which checkpoints restore.
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if group["kind"] == kind]
            part.step()


def optimizer_of(model: nn.Module, settings: LanguageSettings) -> torch.optim.Optimizer:
    """Return the optimiser of a language model, which decays matrices but no vectors."""
    if settings.optimizer not in get_args(OptimizerName):
        known = " or ".join(map(repr, get_args(OptimizerName)))
        raise RequestError(f"optimizer must be {known}, got {settings.optimizer!r}")
    named = dict(model.named_parameters())
    turned = set()
    if settings.optimizer == "muon":
        turned = {name for name, p in named.items() if p.ndim == 2 and _FOR_MUON.search(name)}
    matrices = [p for name, p in named.items() if p.ndim > 1 and name not in turned]
    vectors = [p for p in named.values() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=_BETAS)
    decay = settings.weight_decay
    for_muon = [{"params": [named[name] for name in sorted(turned)], "weight_decay": decay}]
    return MuonAdamW(for_muon, groups, lr=settings.learning_rate, betas=_BETAS)


class CosineRate(Hook):
    """Sets the learning rate: a linear warm-up, then a cosine down to the least rate."""

    def __init__(self, settings: LanguageSettings) -> None:
        if settings.min_learning_rate > settings.learning_rate:
            raise RequestError(
                f"min_learning_rate must be at most learning_rate={settings.learning_rate}, got "
                f"{settings.min_learning_rate}"
            )
        self._settings = settings

    def before_step(self, loop: Loop) -> None:
        for group in loop.optimizer.param_groups:
            group["lr"] = self.rate(loop.step)

    def rate(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        settings = self._settings
        warmup = settings.warmup_share * settings.steps
        if step < warmup:
            return settings.learning_rate * (step + 1) / math.ceil(warmup)
        done = (step - warmup) / max(settings.steps - warmup, 1)
        low = settings.min_learning_rate
        return low + (settings.learning_rate - low) * (1 + math.cos(math.pi * done)) / 2

    def row(self, loop: Loop) -> dict[str, Any]:
        return {"learning_rate": self.rate(max(loop.step - 1, 0))}
