"""The study fp-copy: iterations stay far below the length where no state is tracked."""

from statemix.layers import LayerSpec
from statemix.studies.fixed_points.scales import Scale, Scales, fp_mamba
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry
from statemix.tasks import TaskSpec

_SCALES: Scales = {
    "laptop": Scale(64, 16, 64, 1000, 3e-3, seeds=(0, 1, 2), warmup_steps=100, test_iterations=256),
    "workstation": Scale(256, 32, 64, 10_000, 1e-3, seeds=(0, 1, 2), warmup_steps=300),
    "paper": Scale(1024, 32, 8, 100_000, 1e-4, seeds=(0, 1, 2), warmup_steps=300, weight_decay=0.1),
}
_LAYERS: dict[SizeName, int] = {"laptop": 1, "workstation": 2, "paper": 12}
# Letters of the strings in training, fewest and most. No fixed-point RNN learned those of the paper
# on a laptop, nor up to 12 (results/LOG.md, 2026-11-23).
_LETTERS: dict[SizeName, tuple[int, int]] = {
    "laptop": (3, 6),
    "workstation": (5, 20),
    "paper": (5, 20),
}


def _tokens(letters: int) -> int:
    return 2 * letters + 2


def copying_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of a size; the paper has one protocol."""
    del protocol
    scale = _SCALES[size]
    fewest, most = _LETTERS[size]
    task = TaskSpec("copying", min_length=_tokens(fewest), length=_tokens(most))
    lengths = [_tokens(letters) for letters in (fewest, 2 * most, 4 * most)]
    fixed = {"mixer_inputs": "sum"}
    layers = {
        "FP-Mamba1 householder 1": fp_mamba(1, scale, **fixed, max_iterations=_tokens(most)),
        "FP-Mamba1, one iteration": fp_mamba(1, scale, **fixed, max_iterations=1),
        "LSTM": LayerSpec("lstm"),
    }
    return tuple(
        StudyEntry(
            f"{fewest} to {most} letters",
            model,
            scale.runs(task, layer, lengths, num_layers=_LAYERS[size]),
            size=size,
            published_for="strings of 5 to 20 letters" if size == "laptop" else "",
            layers=(layer,),
        )
        for model, layer in layers.items()
    )
