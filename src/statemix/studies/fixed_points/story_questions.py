"""The study catbabi: questions about stories."""

from statemix.layers import LayerSpec
from statemix.studies.fixed_points.movahedi import catbabi
from statemix.studies.fixed_points.scales import Scale, Scales, fp_mamba
from statemix.studies.study_entries import Number, ProtocolName, SizeName, StudyEntry
from statemix.tasks import TaskSpec

ARCHIVE = "tasks_1-20_v1-2.tar.gz"
_FOLDER = f"{ARCHIVE}/en-valid-10k"
_LENGTH = 200
_SCALES: Scales = {
    "laptop": Scale(
        32,
        4,
        16,
        500,
        2e-3,
        seeds=(0, 1, 2),
        weight_decay=0.0,
        test_iterations=256,
        num_scored=64,
    ),
    "workstation": Scale(256, 16, 64, 15_000, 1e-3, seeds=(0, 1, 2), weight_decay=0.0),
    "paper": Scale(512, 16, 256, 15_000, 1e-3, seeds=(0, 1, 2), weight_decay=0.0),
}
_MOST_IN_TRAINING: dict[SizeName, int] = {"laptop": 16, "workstation": 100, "paper": 100}


def _layer(model: str, scale: Scale, most: int) -> LayerSpec:
    """Return the layer of a model of the paper, by its name there.

    Args:
        model: the name.
        scale: gives the columns of its state.
        most: iterations in training, if it iterates.
    """
    if model == "Mamba":
        # A single iteration is Mamba with maps of length 1.
        return fp_mamba(1, scale, max_iterations=1)
    _, mixer = model.split(" ")
    if mixer == "K":
        return fp_mamba(1, scale, mixer="kronecker", max_iterations=most)
    return fp_mamba(1, scale, rank=int(mixer[1:]), max_iterations=most)


def story_entries(protocol: ProtocolName, size: SizeName) -> tuple[StudyEntry, ...]:
    """Return the entries of a size; the paper has one protocol."""
    del protocol
    scale = _SCALES[size]
    task = TaskSpec("catbabi", folder=_FOLDER, length=_LENGTH)
    most = _MOST_IN_TRAINING[size]
    models = dict.fromkeys(model for one in catbabi().values() for model in one)
    found = {model: _layer(model, scale, most) for model in models}
    return tuple(
        StudyEntry(
            f"{layers} layer" if layers == 1 else f"{layers} layers",
            model,
            scale.runs(task, found[model], (), num_layers=layers),
            size=size,
            published={_LENGTH: Number(number)},
            # Other studies train on easier words instead.
            published_for="width 512, 15,000 steps" if size == "laptop" else "",
            layers=(found[model],),
        )
        for layers, numbers in catbabi().items()
        for model, number in numbers.items()
    )
