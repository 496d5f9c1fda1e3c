"""The suite catbabi: questions about stories."""

from statemix.layers import LayerSpec
from statemix.studies.fixed_points.fp_suite import FixedPointSuite, Measured
from statemix.studies.fixed_points.movahedi import Number, catbabi
from statemix.studies.fixed_points.scales import Scale, Scales, fp_mamba
from statemix.studies.higher_order.protocols import SizeName
from statemix.tasks import TaskSpec

_NAME = "catbabi"
_ARCHIVE = "tasks_1-20_v1-2.tar.gz"
_FOLDER = f"{_ARCHIVE}/en-valid-10k"
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


def _conditions(size: SizeName) -> tuple[Measured, ...]:
    scale = _SCALES[size]
    task = TaskSpec("catbabi", folder=_FOLDER, length=_LENGTH)
    return tuple(
        Measured(
            _NAME,
            f"{layers} layer" if layers == 1 else f"{layers} layers",
            model,
            scale.runs(task, _layer(model, scale, _MOST_IN_TRAINING[size]), (), num_layers=layers),
            size=size,
            published={_LENGTH: Number(number)},
            # Other suites train on easier words instead.
            published_for="width 512, 15,000 steps" if size == "laptop" else "",
        )
        for layers, models in catbabi().items()
        for model, number in models.items()
    )


STORIES = FixedPointSuite(
    _NAME,
    "questions about the stories of bAbI",
    _conditions,
    archive=_ARCHIVE,
    source="http://www.thespermwhale.com/jaseweston/babi",
)
