"""Make the runs of this schema that are stored here; run once, when a schema is new.

Stored runs are never made again: what later versions must read is what earlier ones wrote.
"""

import sys
from pathlib import Path

from statemix.layers import LayerSpec
from statemix.models import MixerSpec
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    BatchConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    ParameterGroup,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    train,
)
from statemix.training.settings import Assignments

CONFIG = RunConfig(
    task=TaskSpec("permutation", group="S_2", length=4, train_size=10),
    model=ModelConfig(
        layers=(LayerSpec("bd_lru", num_blocks=2, block_size=2), LayerSpec("lstm")),
        hidden_size=4,
        bos=True,
        channel_mixer=MixerSpec("mlp", intermediate_size=3),
    ),
    batches=BatchConfig(size=4, accumulate=2, packed=True),
    optimizer=OptimizerConfig(
        learning_rate=0.01, groups=(ParameterGroup("*.bias", weight_decay=0.0),)
    ),
    schedules=ScheduleConfig(
        epochs=2,
        warmup_steps=2,
        attributes=(AttributeSchedule("gate_temperature", end=0.5, curve="geometric"),),
    ),
    evaluation=EvaluationConfig(
        test_size=2,
        validation_size=2,
        lengths=(9,),
        tokens=18,
        attributes=Assignments(gate_temperature=0.5),
    ),
    runtime=RuntimeConfig(device="cpu", num_threads=1),
)


def stop(event):
    """Interrupt the run after its fourth step."""
    if event.kind == "step" and event.step == 4:
        raise KeyboardInterrupt


folder = Path(__file__).parent
train(CONFIG, folder / "schema-1-finished", checkpoint_every_s=1000.0)
try:
    train(CONFIG, folder / "schema-1-unfinished", on_event=stop, checkpoint_every_s=1000.0)
except KeyboardInterrupt:
    sys.exit()
