"""The study fp-budget: what the iterations allowed in training are worth."""

from statemix.studies.fixed_points.movahedi import iteration_budgets
from statemix.studies.fixed_points.scales import Scale, Scales, fp_mamba, words
from statemix.studies.study_entries import ProtocolName, SizeName, StudyEntry

_GROUP = "A_5"
_LENGTH = 16
# Paper: mean of four runs.
_SCALES: Scales = {
    "laptop": Scale(64, 4, 64, 1500, 2e-3, seeds=(0, 1, 2), test_iterations=256),
    "workstation": Scale(128, 16, 128, 20_000, 1e-3, seeds=(0, 1, 2)),
    "paper": Scale(512, 16, 512, 20_000, 1e-4, seeds=(0, 1, 2, 3)),
}
# The largest and the smallest say most.
_ORDER = (16, 2, 8, 6, 12, 10, 14)


def budget_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of a size; the paper has one protocol."""
    del protocol
    numbers, scale = iteration_budgets(), _SCALES[size]
    task = words(_GROUP, _LENGTH, size)
    if size == "laptop":
        # There are too few shorter words of two generators for a test.
        numbers = {
            budget: {length: number for length, number in found.items() if length >= 15}
            for budget, found in numbers.items()
        }
    layers = {budget: fp_mamba(1, scale, d_conv=0, max_iterations=budget) for budget in _ORDER}
    return tuple(
        StudyEntry(
            task.build().title,
            f"FP-Mamba1 householder 1, at most {budget} iterations",
            scale.runs(task, layers[budget], list(numbers[budget]), bos=True),
            size=size,
            metric="sequence_accuracy",
            published=numbers[budget],
            published_for="words of all elements" if size == "laptop" else "",
            layers=(layers[budget],),
        )
        for budget in _ORDER
    )
