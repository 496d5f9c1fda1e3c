"""The suite fp-copy: iterations stay far below the length where no state is tracked."""

from statemix.experiments.fixed_point.scales import Scale, Scales, fp_mamba
from statemix.experiments.fixed_point.suite import FixedPointSuite, Measured
from statemix.experiments.reproduction.protocols import SizeName
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec

_NAME = "fp-copy"
_SCALES: Scales = {
    "laptop": Scale(64, 8, 64, 2000, 2e-3, seeds=(0, 1, 2), warmup_steps=100, test_iterations=256),
    "workstation": Scale(256, 32, 64, 10_000, 1e-3, seeds=(0, 1, 2), warmup_steps=300),
    "paper": Scale(1024, 32, 8, 100_000, 1e-4, seeds=(0, 1, 2), warmup_steps=300, weight_decay=0.1),
}
_LAYERS: dict[SizeName, int] = {"laptop": 1, "workstation": 2, "paper": 12}
# Letters of the strings in training.
_FEWEST, _MOST = 5, 20


def _tokens(letters: int) -> int:
    return 2 * letters + 2


def _conditions(size: SizeName) -> tuple[Measured, ...]:
    scale = _SCALES[size]
    task = TaskSpec("copying", min_length=_tokens(_FEWEST), length=_tokens(_MOST))
    lengths = [_tokens(factor * _MOST) for factor in (2, 4)]
    fixed = {"mixer_inputs": "sum"}
    layers = {
        "FP-Mamba1 householder 1": fp_mamba(1, scale, **fixed, max_iterations=_tokens(_MOST)),
        "FP-Mamba1, one iteration": fp_mamba(1, scale, **fixed, max_iterations=1),
        "LSTM": LayerSpec("lstm"),
    }
    return tuple(
        Measured(
            _NAME,
            f"{_FEWEST} to {_MOST} letters",
            model,
            scale.runs(task, layer, lengths, num_layers=_LAYERS[size]),
            size=size,
        )
        for model, layer in layers.items()
    )


COPYING = FixedPointSuite(_NAME, "copying, which tracks no state", _conditions)
