"""The gates of one network at two gate temperatures: before and after sharpening."""

import copy
from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.models import ReadoutModel
from statemix.studies.inspection.gate_entropy import entropy
from statemix.studies.inspection.layer_numbers import plain
from statemix.studies.inspection.recording import record
from statemix.tasks import Task
from statemix.training import RunConfig
from statemix.training.schedules import Attributes, restore_attributes

_ATTRIBUTE = "gate_temperature"
# Temperatures below it are those of hardened models.
_HARD = 1e-20


class GateMap(TypedDict):
    """The gates of a layer at one temperature."""

    # 0 stands for the limit, in which the gates are 0 and 1.
    temperature: float
    # Mean entropy of the rows of gates of all sequences, as in Summary; None if it is not finite.
    gate_entropy: float | None
    # Of the first sequence: unit, position, row -> gates, the input gate last.
    gates: list[Any]


class Sharpening(TypedDict):
    """The gates of a layer before and after sharpening, on the same sequences."""

    # Number among the layers, as in LayerNumbers.
    layer: int
    # Units whose gates are kept.
    shown: list[int]
    before: GateMap
    after: GateMap


def softened(model: ReadoutModel, config: RunConfig, task: Task) -> ReadoutModel | None:
    """Return a copy of a trained model with the gate temperatures at which training began.

    Args:
        model: the model of a run.
        config: configuration of the run.
        task: its task.

    Returns:
        None if the run has no schedule of the gate temperature.
    """
    schedules = tuple(one for one in config.schedules.attributes if one.attribute == _ATTRIBUTE)
    if not schedules:
        return None
    copied = copy.deepcopy(model)
    restore_attributes(copied, Attributes(config.build_model(task), schedules).set(0, 1))
    return copied


def sharpening(
    before: ReadoutModel,
    after: ReadoutModel,
    tokens: Tensor,
    lengths: Sequence[int],
    *,
    units: Sequence[int],
) -> list[Sharpening]:
    """Measure the gates of one network at two temperatures.

    Args:
        before: the network.
        after: the same network at other gate temperatures.
        tokens: at least one sequence, shape (B, T), integers.
        lengths: number of tokens of each sequence, at least 1.
        units: units whose gates are kept; those that a layer lacks are skipped.

    Returns:
        An entry for each layer whose gates have a temperature.
    """
    one, other = (_measured(model, tokens, lengths, units) for model in (before, after))
    return [
        {"layer": number, "shown": shown, "before": soft, "after": other[number][1]}
        for number, (shown, soft) in one.items()
    ]


def _measured(
    model: ReadoutModel, tokens: Tensor, lengths: Sequence[int], units: Sequence[int]
) -> dict[int, tuple[list[int], GateMap]]:
    """Return number of a layer -> units shown, and its gates."""
    found = {}
    for number, one in enumerate(record(model, tokens)):
        recurrence = one.recurrence()
        if not isinstance(one.layer, GatedRecurrence) or recurrence is None:
            continue
        assert recurrence.gates is not None
        prepended = one.x.shape[1] - tokens.shape[1]
        rows = [
            gates[: prepended + length]
            for gates, length in zip(recurrence.gates, lengths, strict=True)
        ]
        shown = [unit for unit in units if unit < rows[0].shape[1]]
        temperature = one.layer.gate_temperature
        measured: GateMap = {
            "temperature": temperature if temperature > _HARD else 0.0,
            "gate_entropy": plain(torch.cat([entropy(gates) for gates in rows]).mean()),
            "gates": plain(rows[0][:, shown].transpose(0, 1)),
        }
        found[number] = shown, measured
    return found
