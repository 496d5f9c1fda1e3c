"""Every field of a run's configuration has its effect.

A field without a row in ``ROWS`` fails: a new field needs a row that shows its effect.
"""

import math
import sys
import typing

import pytest
import torch

from statemix.errors import SettingError
from statemix.layers import LayerSpec
from statemix.models import MixerSpec, SequenceAutoencoder
from statemix.sweeps.runner import request
from statemix.tasks import TaskSpec
from statemix.training import AttributeSchedule, ParameterGroup, RunConfig, train
from statemix.training.settings import Assignments, Settings

SCHEDULE = AttributeSchedule("gate_temperature", end=0.5)
SCHEDULED = {"schedules.attributes": (SCHEDULE,)}
GROUP = ParameterGroup("*.bias", weight_decay=0.25)
GROUPED = {"optimizer.groups": (GROUP,)}
BD_LRU = LayerSpec("bd_lru", num_blocks=2, block_size=3)


class Tools:
    """The run as a row may inspect it: before its first step, or after its end."""

    def __init__(self, begun, folder):
        self._begun, self._folder = begun, folder
        self.config = None

    def run(self):
        return self._begun(self.config)

    def model(self):
        return self.run().model

    def batch(self):
        return self.run().loop.batches.parts(0)[0]

    def group(self, place=-1):
        run = self.run()
        run.step()
        return run.loop.optimizer.param_groups[place]

    def outcome(self, on_event=None):
        folder = self._folder / f"run-{len(list(self._folder.iterdir()))}"
        return train(self.config, folder, on_event=on_event)

    def last(self, on_event=None):
        return self.outcome(on_event).last

    def start(self):
        try:
            return self.last().step
        except SettingError as error:
            return error.path

    def attempts(self, quantity):
        return [getattr(one, quantity) for one in self.outcome().attempts]

    def tested(self):
        return self.run().attempts._evaluator._examples().tokens.shape

    def rows(self):
        events = []
        self.last(events.append)
        return [event.row for event in events if event.row is not None]

    def threads(self):
        seen = set()
        self.last(lambda _: seen.add(torch.get_num_threads()))
        return seen

    def device(self):
        try:
            return self.run().loop.fabric.device.type
        except SettingError as error:
            return error.value

    def clipped_norm(self):
        run = self.run()
        norms, weights = [], list(run.model.parameters())
        run.loop.optimizer.register_step_pre_hook(
            lambda *_: norms.append(math.hypot(*(float(p.grad.norm()) for p in weights)))
        )
        run.step()
        return norms[0] > 0.02


class Row(typing.NamedTuple):
    """A change of a field, how to observe it, and the expected value (None: any other)."""

    value: typing.Any
    seen: typing.Callable[[Tools], typing.Any]
    expected: typing.Any = None
    base: dict = {}  # noqa: RUF012


def temperature_at(step):
    return lambda t: t.run().schedules.attributes(step)["backbone.blocks.0.mixer.gate_temperature"]


FRESH = {"task": TaskSpec("permutation", group="S_3", length=5)}
FRESH |= {"schedules.epochs": None, "schedules.num_steps": 4}
# The first attempt leaves its plateau with its second step. All attempts fail all their tests.
SEARCH = {"search.attempts": 2, "search.max_steps": 40, "search.plateau": 1.0, "search.every": 2}
SEARCH |= {"search.tests": 2, "search.accept": 1.0, "search.accept_last": 1.0}
REPAIRED = SEARCH | {"search.attempts": 1, "search.accept": 0.0, "search.confirm": "proof"}
REPAIRED |= {"task": TaskSpec("regex", preset="tomita-4", length=6, train_size=24)}
LONGER = {"evaluation.lengths": (10, 40), "evaluation.tokens": 200}

ROWS = {
    "task": Row(
        TaskSpec("permutation", length=4, train_size=20), lambda t: t.batch().tokens.shape, (8, 4)
    ),
    "model.layers": Row(
        (BD_LRU, LayerSpec("lstm")),
        lambda t: [b.mixer.name for b in t.model().backbone.blocks],
        ["bd_lru", "lstm"],
    ),
    "model.num_layers": Row(3, lambda t: len(t.model().backbone.blocks), 3),
    "model.hidden_size": Row(12, lambda t: t.model().backbone.embedding.embedding_dim, 12),
    "model.bos": Row(False, lambda t: t.model().backbone.embedding.num_embeddings, 6),
    "model.residual": Row(
        False, lambda t: [b.residual for b in t.model().backbone.blocks], [False]
    ),
    "model.norm": Row("layer", lambda t: type(t.model().backbone.final_norm).__name__, "LayerNorm"),
    "model.readout_sizes": Row(
        (5,), lambda t: [part.out_features for part in t.model().readout_mlp[::2]], [5]
    ),
    "model.channel_mixer": Row(
        MixerSpec("mlp"), lambda t: type(t.model().backbone.blocks[0].channel_mixer).__name__, "MLP"
    ),
    "model.zero_biases": Row(
        False, lambda t: bool(t.model().backbone.blocks[0].mixer.gate_proj.bias.any()), True
    ),
    "model.backbone": Row("autoencoder", lambda t: type(t.model()), SequenceAutoencoder),
    "model.linear_init": Row(
        "normal", lambda t: t.model().readouts["product"].weight.abs().max().item() < 0.1, True
    ),
    "model.embedding_init": Row(
        "features",
        lambda t: t.model().backbone.embedding.weight[:6].count_nonzero().item(),
        18,
        {"model.hidden_size": 9},
    ),
    "batches.size": Row(4, lambda t: len(t.batch().tokens), 4),
    "batches.accumulate": Row(3, lambda t: len(t.run().loop.batches.parts(0)), 3),
    "batches.packed": Row(True, lambda t: t.batch().tokens.shape, (1, 40)),
    "objective.position_power": Row(3.0, lambda t: t.run().step()),
    "objective.permutation_penalty": Row(3.0, lambda t: t.run().step()),
    "optimizer.learning_rate": Row(0.5, lambda t: t.group()["lr"], 0.5),
    "optimizer.weight_decay": Row(0.5, lambda t: t.group()["weight_decay"], 0.5),
    "optimizer.betas": Row((0.5, 0.75), lambda t: t.group()["betas"], (0.5, 0.75)),
    "optimizer.clip_norm": Row(0.01, lambda t: t.clipped_norm(), False),
    "optimizer.groups": Row((GROUP,), lambda t: t.group()["weight_decay"], 0.25),
    "optimizer.groups.*.parameters": Row(
        "*.weight", lambda t: len(t.group()["params"]), 7, GROUPED
    ),
    "optimizer.groups.*.learning_rate_factor": Row(0.5, lambda t: t.group()["lr"], 5e-4, GROUPED),
    "optimizer.groups.*.weight_decay": Row(0.5, lambda t: t.group()["weight_decay"], 0.5, GROUPED),
    "schedules.epochs": Row(2, lambda t: t.last().epoch, 2),
    "schedules.num_steps": Row(3, lambda t: t.last().step, 3, FRESH),
    "schedules.learning_rate": Row("constant", lambda t: t.run().schedules.learning_rate(11), 1e-3),
    "schedules.min_learning_rate": Row(1e-3, lambda t: t.run().schedules.learning_rate(11), 1e-3),
    "schedules.warmup_steps": Row(4, lambda t: t.run().schedules.learning_rate(0), 2.5e-4),
    "schedules.first_length": Row(2, lambda t: t.batch().tokens.shape[1], 2),
    "schedules.first_share": Row(
        0.9,
        lambda t: t.run().loop.batches.parts(6)[0].tokens.shape[1],
        2,
        {"schedules.first_length": 2},
    ),
    "schedules.attributes": Row(
        (SCHEDULE,),
        lambda t: t.run().schedules.attributes(12),
        {"backbone.blocks.0.mixer.gate_temperature": 0.5},
    ),
    "schedules.attributes.*.attribute": Row(
        "iterations",
        lambda t: list(t.run().schedules.attributes(12)),
        ["backbone.blocks.1.mixer.iterations"],
        {
            "model.layers": (BD_LRU, LayerSpec("bd_lru", num_blocks=1, block_size=1)),
            "schedules.attributes": (AttributeSchedule("gate_temperature", end=2.0),),
        },
    ),
    "schedules.attributes.*.end": Row(0.25, temperature_at(12), 0.25, SCHEDULED),
    "schedules.attributes.*.start": Row(2.0, temperature_at(0), 2.0, SCHEDULED),
    "schedules.attributes.*.begin": Row(0.5, temperature_at(6), 1.0, SCHEDULED),
    "schedules.attributes.*.finish": Row(0.5, temperature_at(6), 0.5, SCHEDULED),
    "schedules.attributes.*.curve": Row("geometric", temperature_at(6), 0.5**0.5, SCHEDULED),
    "search.attempts": Row(3, lambda t: len(t.attempts("began")), 3, SEARCH),
    "search.max_steps": Row(
        3, lambda t: t.attempts("ended"), [3, 6], SEARCH | {"search.plateau": 0.0}
    ),
    "search.plateau": Row(0.0, lambda t: t.attempts("left"), [None, None], SEARCH),
    "search.every": Row(1, lambda t: t.attempts("ended")[0], 4, SEARCH),
    "search.tests": Row(1, lambda t: t.attempts("ended")[0], 4, SEARCH),
    "search.accept": Row(0.0, lambda t: t.attempts("passed"), [True], SEARCH),
    "search.accept_last": Row(0.0, lambda t: t.attempts("ended"), [6], SEARCH),
    "search.confirm": Row(
        1.0, lambda t: t.attempts("passed"), [False, False], SEARCH | {"search.accept": 0.0}
    ),
    "search.repairs": Row(
        1,
        lambda t: t.attempts("repairs"),
        [1],
        REPAIRED,
    ),
    "search.length": Row(20, lambda t: t.tested()[:2], (64, 20), SEARCH),
    "search.size": Row(3, lambda t: t.tested()[:2], (3, 5), SEARCH),
    "search.attributes": Row(
        Assignments(gate_temperature=0.01), lambda t: t.attempts("accuracy"), None, SEARCH
    ),
    "evaluation.every": Row(3, lambda t: [row["step"] for row in t.rows()], [9, 12]),
    "evaluation.test_size": Row(7, lambda t: t.last().test[5]["product"].num_sequences, 7),
    "evaluation.validation_size": Row(7, lambda t: t.last().validation["product"].num_sequences, 7),
    "evaluation.lengths": Row((10, 40), lambda t: list(t.last().test), [5, 10, 40]),
    "evaluation.validation_lengths": Row(
        (40, 10), lambda t: list(t.rows()[-1]["validation_at"]), ["10", "40"]
    ),
    "evaluation.tokens": Row(
        80,
        lambda t: [s["product"].num_sequences for s in t.last().test.values()],
        [30, 8, 2],
        LONGER,
    ),
    "evaluation.stop_at": Row(0.01, lambda t: t.last().step, 3),
    "evaluation.attributes": Row(
        Assignments(gate_temperature=0.25), lambda t: t.last().test[5]["product"].loss
    ),
    "runtime.precision": Row(
        "64-true", lambda t: t.model().backbone.embedding.weight.dtype, torch.float64
    ),
    "runtime.device": Row("cuda", lambda t: t.device(), "cuda"),
    "runtime.num_threads": Row(2, lambda t: t.threads(), {2}),
    "seed": Row(1, lambda t: (t.model().backbone.embedding.weight.sum().item(), t.run().task.seed)),
    "start_from": Row("absent", lambda t: t.start()),
    "imports": Row(
        ("statemix_toys",),
        lambda t: bool(request(t.config)) and "statemix_toys" in sys.modules,
        True,
    ),
}


def fields(kind=RunConfig, path=""):
    for field, info in kind.model_fields.items():
        name, hint = f"{path}{field}", info.annotation
        if isinstance(hint, type) and issubclass(hint, Settings):
            yield from fields(hint, f"{name}.")
            continue
        yield name
        for member in typing.get_args(hint):
            if isinstance(member, type) and issubclass(member, Settings):
                yield from fields(member, f"{name}.*.")


def with_value(tiny, base, name, value):
    outer, _, inner = name.partition(".*.")
    if not inner:
        return tiny(base | {name: value})
    one = base[outer][0]
    return tiny(base | {outer: (one.replace(**{inner: value}),)})


def test_every_field_has_a_row():
    assert set(fields()) == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_the_field_reaches_the_run(tiny, begun, tmp_path, request, monkeypatch, name):
    row = ROWS[name]
    tools = Tools(begun, tmp_path)
    if name in ("imports", "schedules.attributes.*.attribute"):
        toys = request.getfixturevalue("toys")
        if name == "imports":
            # As in a process that has not met it yet. (Patched, it would come back afterwards.)
            del sys.modules["statemix_toys"]
            monkeypatch.setattr("statemix.training.settings.importlib.import_module",
                                lambda name: sys.modules.setdefault(name, toys))  # fmt: skip
        else:
            row = row._replace(base=row.base | {"model.layers": (BD_LRU, LayerSpec("solver"))})
    tools.config = tiny(row.base)
    before = row.seen(tools)
    tools.config = with_value(tiny, row.base, name, row.value)
    after = row.seen(tools)
    assert before != after
    if row.expected is not None:
        matches = pytest.approx(row.expected) if isinstance(row.expected, float) else row.expected
        assert after == matches
