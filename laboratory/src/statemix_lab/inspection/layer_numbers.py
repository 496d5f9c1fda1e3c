"""Everything worth showing of a trained model's layers, as plain numbers."""

import copy
import math
from collections.abc import Sequence
from typing import Any, TypedDict, cast

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
    Spectrum,
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


class Summary(Spectrum):
    """A layer in a few numbers; each eigenvalue and each row of gates counts once.

    A modulus that is not finite is None.
    """

    # Mean entropy of the rows of gates, from 0 (one gate is open) to 1; None without such gates.
    gate_entropy: float | None


class LayerNumbers(TypedDict):
    """A layer on some sequences. A layer without a recurrence has only the first four entries.

    A number that is not finite is None. Positions count the tokens that the model prepends.
    """

    # Number among the layers, and dotted name in the model.
    layer: int
    module: str
    # Name of its architecture as users write it, and in tables.
    name: str
    kind: str
    # What a unit is called, the number of units, and the entries m of a unit's state.
    unit: str
    units: int | None
    size: int | None
    summary: Summary | None
    # Positions that the model prepends to the tokens.
    prepended: int
    # Positions, and at each the eigenvalues [real, imaginary] of all sequences and units.
    steps: list[int]
    eigenvalues: list[list[list[float]]]
    # Units of the following entries.
    shown: list[int]
    # Sequence, unit, position, row -> gates, the input gate last; None without such gates.
    gates: list[Any] | None
    # Sequence, unit, position of the state, position of the input -> size of the contribution.
    mixing: list[Any]
    # The whole block attention matrix of the first sequence and unit; None if it is large.
    block_attention: list[list[float]] | None


def inspected(
    model: nn.Module,
    tokens: Tensor,
    lengths: Sequence[int] | None = None,
    *,
    units: Sequence[int] = (0,),
) -> list[LayerNumbers]:
    """Measure the layers of a model on some sequences.

    Args:
        model: a model whose forward pass takes tokens.
        tokens: at least one sequence, shape (B, T), integers.
        lengths: number of tokens of each sequence, at least 1; None means T.
        units: units whose gates and mixing matrices are kept; those that a layer lacks are skipped.
    """
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
        "units": None,
        "size": None,
        "summary": None,
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
    numbers["steps"] = spread(max(lengths), STEPS)
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


def _summary(recurrence: Recurrence, lengths: Sequence[int], found: Tensor) -> Summary:
    """Summarise the positions that exist."""

    def joined(per_position: Tensor) -> Tensor:
        return torch.cat([row[:n] for row, n in zip(per_position, lengths, strict=True)])

    known, gates = spectrum(joined(found)), recurrence.gates
    moduli = {name: plain(known[name]) for name in ("largest", "mean")}
    mean_entropy = None if gates is None else plain(joined(entropy(gates)).mean())
    return cast(Summary, {**known, **moduli, "gate_entropy": mean_entropy})


def spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` of the numbers 0 ... count - 1, evenly spaced, with both ends.

    Example:
        >>> spread(17, 5), spread(2, 5), spread(1, 5)
        ([0, 4, 8, 12, 16], [0, 1], [0])
    """
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def plain_eigenvalues(found: Tensor) -> list[list[float]]:
    """Return the finite ones of some eigenvalues as pairs [real, imaginary] of few digits."""
    flat = found.flatten()
    pairs: list[list[float]] = plain(torch.view_as_real(flat[flat.isfinite()]))
    return pairs


def plain(values: Any) -> Any:
    """Return a tensor as nested lists of numbers of few digits; None where it is not finite.

    Example:
        >>> plain(torch.tensor([[1 / 3, float("nan")]]))
        [[0.33333, None]]
    """
    if isinstance(values, Tensor):
        values = values.detach().double().tolist()
    if isinstance(values, list):
        return [plain(value) for value in values]
    return float(f"{values:.{_DIGITS}g}") if math.isfinite(values) else None


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
    """Measure the gates of one network, before and after a change of its gate temperatures.

    Other arguments are those of :func:`inspected`. A layer whose gates have no temperature has no
    entry.
    """
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
