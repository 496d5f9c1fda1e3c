"""Everything worth showing of a trained model's layers, as plain numbers."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from statemix.layers import Recurrence
from statemix.layers.gated_recurrence import GatedRecurrence
from statemix.models import ReadoutModel
from statemix.proofs import can_harden, harden
from statemix.tasks import Task
from statemix.training import RunConfig, ScheduleConfig
from statemix.training.schedules import Schedules, restore_attributes
from statemix_lab.bench.compared_layers import display_name
from statemix_lab.inspection.recurrences import (
    Recorded,
    eigenvalues,
    entropy,
    mixing,
    part,
    record,
    sizes,
    spectrum,
)

STEPS = 6
"""Most steps whose eigenvalues are kept."""

WHOLE = 256
"""Most rows of a block attention matrix that is kept whole."""

_DIGITS = 5
_TEMPERATURE = "gate_temperature"
# Temperatures below it are those of hardened models.
_HARD = 1e-20


LayerNumbers = dict[str, Any]
"""A layer on some sequences; what is not finite is None, and positions count prepended tokens.

A layer without a recurrence has only its number "layer", its "module", its "name" as users write it
and its "kind" in tables. "units" of the kind "unit" have states of "size" entries. "summary" has
shares and moduli of eigenvalues, and the mean entropy of gates; "eigenvalues" stand at "steps".
Of the units "shown" there are "gates" (sequence, unit, position, row; the input gate last),
"mixing" (sequence, unit, position of the state, of the input: size of the contribution) and the
"block_attention" matrix of the first sequence and unit, unless it is large."""


def inspected(
    model: nn.Module,
    tokens: Tensor,
    lengths: Sequence[int] | None = None,
    *,
    units: Sequence[int] = (0,),
) -> list[LayerNumbers]:
    """Measure the layers of a model on some sequences."""
    counts = [tokens.shape[1]] * len(tokens) if lengths is None else lengths
    return [
        _measured(number, recorded, recorded.x.shape[1] - tokens.shape[1], counts, units)
        for number, recorded in enumerate(record(model, tokens))
    ]


def _measured(
    number: int, recorded: Recorded, prepended: int, counts: Sequence[int], units: Sequence[int]
) -> LayerNumbers:
    recurrence = recorded.recurrence()
    numbers: LayerNumbers = {
        "layer": number,
        "module": recorded.name,
        "name": recorded.layer.name,
        "kind": display_name(recorded.layer.name),
        "unit": "",
        **dict.fromkeys(("units", "size", "summary")),
        "prepended": prepended,
        "steps": [],
        "eigenvalues": [],
        "shown": [],
        "gates": None,
        "mixing": [],
        "block_attention": None,
    }
    if recurrence is None:
        return numbers
    lengths = [prepended + count for count in counts]
    numbers["unit"] = recurrence.unit
    numbers["units"], numbers["size"] = recurrence.transitions.shape[2:4]
    found = eigenvalues(recurrence.transitions)
    numbers["summary"] = _summary(recurrence, lengths, found)
    last, steps = max(lengths) - 1, min(max(lengths), STEPS)
    # Evenly spaced, with both ends.
    numbers["steps"] = [round(place * last / max(steps - 1, 1)) for place in range(steps)]
    numbers["eigenvalues"] = [
        plain_eigenvalues(
            torch.stack([row[step] for row, n in zip(found, lengths, strict=True) if step < n])
        )
        for step in numbers["steps"]
    ]
    numbers["shown"] = [unit for unit in units if unit < recurrence.transitions.shape[2]]
    shown = part(recurrence, slice(None), numbers["shown"])
    if shown.gates is not None:
        numbers["gates"] = [
            plain(row[:length].transpose(0, 1))
            for row, length in zip(shown.gates, lengths, strict=True)
        ]
    for row, length in enumerate(lengths):
        numbers["mixing"].append([])
        for place in range(len(numbers["shown"])):
            # One at a time: the matrix grows with the square of the length.
            single = part(shown, slice(row, row + 1), slice(place, place + 1))
            matrices = mixing(single)[0, :length, :length, 0]
            numbers["mixing"][row].append(plain(sizes(matrices)))
            size = matrices.shape[-2]
            if row == place == 0 and length * size <= WHOLE:
                # (t, s, m, R) becomes (t m, s R).
                block = matrices.transpose(1, 2).reshape(length * size, -1)
                numbers["block_attention"] = plain(block)
    return numbers


def _summary(recurrence: Recurrence, lengths: Sequence[int], found: Tensor) -> dict[str, Any]:
    """Summarise the positions that exist."""

    def joined(per_position: Tensor) -> Tensor:
        return torch.cat([row[:n] for row, n in zip(per_position, lengths, strict=True)])

    known, gates = spectrum(joined(found)), recurrence.gates
    moduli = {name: plain(known[name]) for name in ("largest", "mean")}
    mean_entropy = None if gates is None else plain(joined(entropy(gates)).mean())
    return {**known, **moduli, "gate_entropy": mean_entropy}


def plain_eigenvalues(found: Tensor) -> list[list[float]]:
    """Return the finite ones of some eigenvalues as pairs [real, imaginary] of few digits."""
    flat = found.flatten()
    pairs: list[list[float]] = plain(torch.view_as_real(flat[flat.isfinite()]))
    return pairs


def plain(values: Any) -> Any:
    """Return a tensor as nested lists of numbers of few digits; None where it is not finite."""
    if isinstance(values, Tensor):
        values = values.detach().double().tolist()
    if isinstance(values, list):
        return [plain(value) for value in values]
    return float(f"{values:.{_DIGITS}g}") if math.isfinite(values) else None


GateMap = dict[str, Any]
"""Gates at one temperature (0 is the limit of gates of 0 and 1), their mean entropy, and those of
the first sequence by unit, position and row."""

Sharpening = dict[str, Any]
"""A "layer", the units "shown", and its gates "before" and "after" sharpening."""


def softened(model: ReadoutModel, config: RunConfig, task: Task) -> ReadoutModel | None:
    """Return a copy of a run's model with the first gate temperatures; None without a schedule."""
    schedules = tuple(one for one in config.schedules.attributes if one.attribute == _TEMPERATURE)
    if not schedules:
        return None
    copied = copy.deepcopy(model)
    begin = ScheduleConfig(attributes=schedules)
    initial = Schedules(begin, 1.0, config.build_model(task), num_steps=1).attributes(0)
    restore_attributes(copied, initial)
    return copied


def run_sharpening(
    model: ReadoutModel,
    config: RunConfig,
    task: Task,
    tokens: Tensor,
    lengths: Sequence[int],
    *,
    units: Sequence[int],
) -> list[Sharpening]:
    """Measure the gates of a run before and after sharpening; empty if nothing sharpens them."""
    soft = softened(model, config, task)
    if soft is not None:
        return sharpening(soft, model, tokens, lengths, units=units)
    if can_harden(model):
        return sharpening(model, harden(model), tokens, lengths, units=units)
    return []


def sharpening(
    before: ReadoutModel,
    after: ReadoutModel,
    tokens: Tensor,
    lengths: Sequence[int],
    *,
    units: Sequence[int],
) -> list[Sharpening]:
    """Measure the gates of one network, before and after a change of its gate temperatures."""
    one, other = (_gate_maps(model, tokens, lengths, units) for model in (before, after))
    return [
        {"layer": number, "shown": shown, "before": soft, "after": other[number][1]}
        for number, (shown, soft) in one.items()
    ]


def _gate_maps(
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
