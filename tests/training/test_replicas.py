"""Replicas: each ends as the run alone does, whatever happens to the others."""

import json
import multiprocessing
import signal

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from torch import nn

from statemix.errors import RequestError
from statemix.layers import LAYERS, Layer, LayerSpec
from statemix.models import MixerSpec
from statemix.settings import Assignments
from statemix.tasks import TaskSpec
from statemix.training import (
    AttributeSchedule,
    EvaluationConfig,
    OptimizerConfig,
    Outcome,
    ParameterGroup,
    load_model,
    load_outcome,
    train,
)
from statemix.training.folder import read_metrics, read_status
from statemix.training.replicas import FREE, check_alike, shape, train_replicas
from statemix.training.stack import Stack

EXACT = {"runtime.precision": "64-true"}
# Float64: sums of a few hundred terms in another order, after twelve steps of AdamW, which divides
# by the root of a square that may itself be of the size of the rounding, but adds 1e-8 to it.
TIGHT = {"rtol": 1e-9, "atol": 1e-10}
# Float32 rounds at 6e-8. Where a gradient is of that size, AdamW may turn rounding into a whole
# step of the learning rate; elsewhere, twelve steps leave a few roundings.
LOOSE = {"rtol": 1e-4, "atol": 1e-5}

SEEDS_AND_RATES = (
    {"seed": 0, "optimizer.learning_rate": 1e-3},
    {"seed": 3, "optimizer.learning_rate": 1e-2, "optimizer.weight_decay": 0.5},
    {"seed": 3, "optimizer.learning_rate": 5e-3, "schedules.learning_rate": "constant"},
)


def several(tiny, *changes, **common):
    return [tiny(dict(common) | change) for change in changes or SEEDS_AND_RATES]


def folders(tmp_path, configs, name="together"):
    return [tmp_path / name / str(place) for place in range(len(configs))]


def contents(folder):
    """What a run leaves, except times and hashes: rows, summary, weights by file."""
    rows = read_metrics(folder)
    summary = json.loads((folder / "summary.json").read_text())
    for record in (*rows, summary):
        del record["time_s"]
    del summary["weights"]
    return rows, summary, {path.name: load_file(path) for path in folder.glob("*.safetensors")}


def agree(found, expected):
    """Plain data agree; losses are sums in float32."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            agree(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            agree(one, other)
    else:
        assert found == (pytest.approx(expected, rel=2e-6) if expected is not None else None)


def assert_same(folder, other, tolerance=TIGHT):
    """The folders hold the same run, up to rounding."""
    assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}
    rows, summary, weights = contents(folder)
    expected_rows, expected_summary, expected = contents(other)
    agree(rows, expected_rows)
    agree(summary, expected_summary)
    torch.testing.assert_close(weights, expected, **tolerance)
    stored = [json.loads((one / "config.json").read_text()) for one in (folder, other)]
    assert stored[0] == stored[1]
    assert read_status(folder) == read_status(other)


def check(configs, tmp_path, tolerance=TIGHT, **options):
    """Train together and alone, and compare."""
    results = train_replicas(configs, folders(tmp_path, configs), **options)
    for result in results:
        if isinstance(result, Exception):
            raise result
    alone = folders(tmp_path, configs, "alone")
    for config, folder, result in zip(configs, alone, results, strict=True):
        train(config, folder)
        assert_same(result.folder, folder, tolerance)
        assert load_outcome(result.folder) == result
    return results


LAYER_SPECS = {
    "bd_lru": LayerSpec("bd_lru", num_blocks=2, block_size=3, initial_state="learned"),
    "h_lru": LayerSpec("h_lru", num_channels=4, order=2),
    "mamba2": LayerSpec("mamba2", d_state=2, head_dim=4),
    "delta_net": LayerSpec("delta_net", num_heads=2),
    "delta_product": LayerSpec("delta_product", num_heads=2, num_householder=2),
    "conv": LayerSpec("conv", kernel_size=3),
}


@pytest.mark.parametrize("layer", LAYER_SPECS)
def test_every_replica_equals_its_run_alone(tiny, tmp_path, layer):
    common = {"model.layers": (LAYER_SPECS[layer],), "evaluation.lengths": (5, 9)}
    results = check(several(tiny, **EXACT, **common), tmp_path)
    # They are runs of their own: seeds, rates, data and decisions differ.
    assert len({result.last.validation["product"].loss for result in results}) == 3
    assert len({result.config.seed for result in results}) == 2


@pytest.mark.parametrize("layer", ["bd_lru", "h_lru", "delta_net"])
def test_in_float32_they_differ_by_rounding(tiny, tmp_path, layer):
    check(several(tiny, **{"model.layers": (LAYER_SPECS[layer],)}), tmp_path, LOOSE)


def test_mixed_precision_trains_as_alone_up_to_its_own_rounding(tiny, tmp_path):
    configs = several(tiny, **{"runtime.precision": "bf16-mixed"})
    results = train_replicas(configs, folders(tmp_path, configs))
    for config, result in zip(configs, results, strict=True):
        alone = train(config, tmp_path / f"alone-{result.folder.name}")
        # bfloat16 has eight bits: twelve steps stay within a few of its roundings.
        loss, other = (one.last.validation["product"].loss for one in (result, alone))
        assert loss == pytest.approx(other, rel=1e-2)
        assert load_model(result.folder).embedding.weight.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layer", LAYER_SPECS)
def test_on_a_gpu_they_equal_runs_alone(tiny, tmp_path, layer):
    common = {"model.layers": (LAYER_SPECS[layer],), "runtime.device": "cuda", **EXACT}
    check(several(tiny, **common), tmp_path)


def test_stacks_mixers_schedules_groups_and_clipping(tiny, tmp_path):
    sharpen = AttributeSchedule(
        "gate_temperature", end=1 / 8, begin=0.25, finish=0.75, curve="reciprocal"
    )
    groups = (
        ParameterGroup("embedding.*", learning_rate_factor=0.5),
        ParameterGroup("*.gate_proj.*", learning_rate_factor=2.0, weight_decay=0.0),
    )
    common = {
        "model.layers": (LAYER_SPECS["bd_lru"], LAYER_SPECS["h_lru"]),
        "model.channel_mixer": MixerSpec("mlp", intermediate_size=8),
        "schedules.attributes": (sharpen,),
        "evaluation.attributes": Assignments(gate_temperature=0.25),
        "evaluation.every": 2,
        "evaluation.lengths": (9,),
        "optimizer.clip_norm": 0.05,
        "optimizer.groups": groups,
        "optimizer.betas": (0.8, 0.95),
        "batches.accumulate": 3,
    }
    warm = ({"schedules.warmup_steps": 5}, {"seed": 1}, {"seed": 1, "optimizer.weight_decay": 1.0})
    check(several(tiny, *warm, **EXACT, **common), tmp_path)
    # The limit is met by some steps and missed by none of the paths.
    assert all(
        "blocks.0.layer.gate_temperature" in row["attributes"]
        for row in read_metrics(tmp_path / "together" / "0")
    )


@pytest.mark.parametrize("backbone", ["causal", "autoencoder"])
def test_unequal_lengths_two_heads_and_reports(toys, tiny, tmp_path, backbone, monkeypatch):
    """The longest sequence of a step differs between replicas."""
    monkeypatch.setattr("statemix.training.backbone.SPLITS", ())
    common = {
        "task": TaskSpec("ragged", train_size=19),
        "imports": ("statemix_toys",),
        "model.layers": (LayerSpec("solver", iterations=2), LAYER_SPECS["bd_lru"]),
        "model.backbone": backbone,
        "evaluation.lengths": (11,),
        "batches.size": 3,
        "schedules.attributes": (AttributeSchedule("iterations", start=1, end=5.0),),
    }
    # A mean over tokens would include the padding, of which there is more among replicas.
    monkeypatch.setattr(
        toys.Solver,
        "reports",
        lambda layer: {
            "iterations": torch.tensor(float(layer.iterations)),
            "norm": layer.proj.weight.detach().norm(),
        },
    )
    check(several(tiny, **EXACT, **common), tmp_path)
    row = read_metrics(tmp_path / "together" / "1")[0]
    assert {"blocks.0.layer.iterations", "blocks.0.layer.norm"} < row["train"].keys()


def test_fresh_examples(fresh, tmp_path):
    check(several(fresh, **EXACT), tmp_path)


def test_a_step_of_all_waits_for_the_device_once(tiny, begun, monkeypatch):
    # The kernels for the CPU read the temperature where nothing waits; this backend runs anywhere.
    loop = LayerSpec("bd_lru", num_blocks=2, block_size=3, backend="loop")
    common = {"model.layers": (loop,), "optimizer.clip_norm": 0.1, "batches.accumulate": 2}
    stack = Stack([begun(config).trainer for config in several(tiny, **common)])
    stack.train_step()
    # Only on the CPU, where nothing waits.
    monkeypatch.setattr("statemix.models.synthetic._check_values", lambda *_: None)
    waits = []
    names = ["item", "tolist", "numpy", "cpu", "nonzero"]
    names += [f"__{name}__" for name in ("bool", "float", "index")]
    for name in names:
        original = getattr(torch.Tensor, name)

        def counted(self, *arguments, name=name, original=original, **options):
            waits.append(name)
            return original(self, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)
    stack.train_step()
    monkeypatch.undo()
    assert waits == ["tolist"]


class Odd(Layer):
    """A layer with a frozen parameter, and a buffer that depends on the seed."""

    name = "odd"
    display_name = "odd"

    def __init__(self, hidden_size, *, fault: str = "none", device=None, dtype=None):
        super().__init__()
        self.hidden_size, self.fault = hidden_size, fault
        self.proj = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.frozen = nn.Parameter(torch.randn(hidden_size), requires_grad=False)
        self.register_buffer("signs", torch.randn(hidden_size).sign())
        self.register_buffer("shared", torch.ones(hidden_size))
        self.register_buffer("calls", torch.zeros(()))
        if fault == "unused":
            self.spare = nn.Parameter(torch.zeros(3))
        if fault == "dtype":
            self.wide = nn.Parameter(torch.zeros(hidden_size, dtype=torch.float64))

    def reset_parameters(self, generator=None):
        pass

    def init_state(self, batch_size, device=None, dtype=None):
        return torch.zeros((batch_size, 1), device=device, dtype=dtype)

    def forward(self, x, state=None, cu_seqlens=None):
        rows = self._check_sequence(x, state, cu_seqlens)
        y = torch.tanh(self.proj(x)) * self.signs * self.shared + self.frozen
        if self.fault == "random":
            y = y + torch.rand_like(y)
        if self.fault == "buffer":
            self.calls += 1
        if self.fault == "dtype":
            y = (y + self.wide).to(x.dtype)
        return y, self.init_state(rows) if state is None else state

    def step(self, x_t, state):
        return self.forward(x_t.unsqueeze(1), state)[0].squeeze(1), state


@pytest.fixture
def odd():
    LAYERS.register(Odd)
    yield lambda fault="none": LayerSpec("odd", fault=fault)
    LAYERS.remove("odd")


def test_frozen_parameters_and_buffers_stay_each_models_own(odd, tiny, tmp_path):
    configs = several(tiny, **EXACT, **{"model.layers": (odd(),)})
    check(configs, tmp_path)
    kept = [load_model(tmp_path / "together" / place).blocks[0].layer for place in "012"]
    assert not torch.equal(kept[0].signs, kept[1].signs)
    assert not torch.equal(kept[0].frozen, kept[1].frozen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches.size": 4}, "batches.size must be equal in all replicas, got 8 and 4"),
        ({"model.hidden_size": 4}, "model.hidden_size must be equal in all replicas, got 8 and 4"),
        ({"model.layers": (LAYER_SPECS["h_lru"],)}, r"model.layers.0.name must be equal .*h_lru"),
        ({"schedules.epochs": 5}, "schedules.epochs must be equal in all replicas, got 4 and 5"),
        ({"optimizer.betas": (0.5, 0.5)}, "optimizer.betas.0 must be equal .* got 0.9 and 0.5"),
        ({"evaluation.every": 2}, "evaluation.every must be equal in all replicas, got 1 and 2"),
        ({"runtime.precision": "64-true"}, "runtime.precision must be equal in all replicas"),
    ],
)
def test_the_field_in_which_two_do_not_match_is_named(tiny, tmp_path, changes, message):
    configs = [tiny(), tiny(seed=1), tiny(changes)]
    with pytest.raises(RequestError, match=f"^{message}"):
        train_replicas(configs, folders(tmp_path, configs))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches.packed": True}, "batches.packed must be False for replicas, got True"),
        (
            {"model.layers": (LayerSpec("lstm"),)},
            "model must be one that vmap can batch: .*aten::lstm",
        ),
        (
            {"model.layers": (LayerSpec("attention", num_heads=2),)},
            "model must be one that vmap can batch: .*_scaled_dot_product",
        ),
    ],
)
def test_what_cannot_be_stacked_is_refused_before_anything_is_written(
    tiny, tmp_path, changes, message
):
    configs = several(tiny, **changes)
    with pytest.raises(RequestError, match=f"^{message}") as raised:
        train_replicas(configs, folders(tmp_path, configs))
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("random", "model must be one that vmap can batch: .*random"),
        ("buffer", "model must not change buffers to be stacked, got blocks.0.layer.calls"),
        ("unused", "model must use every parameter in each step, got blocks.0.layer.spare"),
        ("dtype", "model must have parameters of one dtype to be stacked, got .*wide"),
    ],
)
def test_layers_that_cannot_be_stacked_are_refused(odd, tiny, tmp_path, fault, message):
    configs = several(tiny, **{"model.layers": (odd(fault),)})
    with pytest.raises(RequestError, match=f"^{message}"):
        train_replicas(configs, folders(tmp_path, configs))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {}, "configs and folders must be as many, at least 1, got 0 and 0"),
        (2, {"folders": ["one"]}, "configs and folders must be as many, at least 1, got 2 and 1"),
        (2, {"folders": ["one", "x/../one"]}, "folders must be distinct, got one twice"),
        (2, {"on_event": 3}, "on_event must be a function or None, got 3"),
        (2, {"on_end": 3}, "on_end must be a function or None, got 3"),
        (2, {"checkpoint_every_s": -1.0}, "checkpoint_every_s must be"),
    ],
)
def test_bad_arguments_are_named(tiny, tmp_path, monkeypatch, count, options, message):
    monkeypatch.chdir(tmp_path)
    configs = [tiny(seed=seed) for seed in range(count)]
    where = {"folders": folders(tmp_path, configs)} | options
    with pytest.raises(RequestError, match=f"^{message}"):
        train_replicas(configs, **where)
    assert not list(tmp_path.iterdir())


def test_replicas_need_memory_for_all(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("statemix.training.size.available_bytes", lambda: 100_000)
    train(tiny(), tmp_path / "alone")
    configs = [tiny(seed=seed) for seed in range(8)]
    with pytest.raises(RequestError, match=r"^model must fit into memory \(.*, 8 times: at least"):
        train_replicas(configs, folders(tmp_path, configs))


def test_every_free_field_exists_and_no_other_is_ignored(tiny):
    plain = tiny().resolved().to_plain()
    for name in FREE:
        table = plain
        *path, last = name.split(".")
        for part in path:
            table = table[part]
        assert last in table or name == "task.seed"
    changed = tiny({"task": TaskSpec("permutation", group="S_3", length=5, train_size=20, seed=7)})
    assert shape(changed.resolved()) == shape(tiny().resolved())
    check_alike([tiny().resolved(), changed.resolved()])
    assert shape(tiny({"evaluation.test_size": 31}).resolved()) != shape(tiny().resolved())


def test_one_that_diverges_ends_alone(tiny, tmp_path):
    hot = {"optimizer.learning_rate": 1e30}
    common = {"schedules.learning_rate": "constant", "batches.size": 4}
    configs = several(tiny, {"seed": 0}, hot, {"seed": 2}, **common)
    ended = []
    together = folders(tmp_path, configs)
    results = train_replicas(configs, together, on_end=lambda *row: ended.append(row))
    assert isinstance(results[1], FloatingPointError)
    assert ended == [(1, results[1]), (0, results[0]), (2, results[2])]
    with pytest.raises(FloatingPointError) as alone:
        train(configs[1], tmp_path / "hot")
    assert str(results[1]) == str(alone.value)
    status = read_status(together[1])
    assert (status.status, status.message) == ("diverged", str(alone.value))
    saved = [
        sorted((folder / "checkpoints").iterdir())[-1] for folder in (together[1], tmp_path / "hot")
    ]
    assert saved[0].name == saved[1].name
    for file in ("model", "optimizer"):
        found, expected = (load_file(path / f"{file}.safetensors") for path in saved)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=False)
    numbers = [json.loads((path / "state.json").read_text())["trainer"] for path in saved]
    agree(*numbers)
    for place in (0, 2):
        train(configs[place], tmp_path / str(place))
        assert_same(together[place], tmp_path / str(place), LOOSE)


def test_one_that_stops_early_leaves_the_others(tiny, tmp_path):
    early = {"seed": 1, "evaluation.stop_at": 0.01}
    configs = several(
        tiny, {"seed": 0}, early, {"seed": 2}, **EXACT, **{"evaluation.lengths": (9, 20)}
    )
    events = []
    results = check(
        configs, tmp_path, on_event=lambda place, event: events.append((place, event.kind))
    )
    assert [result.last.step for result in results] == [12, 3, 12]
    assert events.index((1, "finished")) < events.index((0, "finished"))


def test_of_many_all_but_one_may_end(tiny, tmp_path):
    early = ({"seed": seed, "evaluation.stop_at": 0.01} for seed in (1, 2))
    check(several(tiny, *early, {"seed": 0}, **EXACT), tmp_path)


def test_events_are_those_of_the_runs(tiny, tmp_path):
    configs = [tiny(seed=seed) for seed in range(2)]
    events = {0: [], 1: [], "alone": []}
    train_replicas(
        configs,
        folders(tmp_path, configs),
        on_event=lambda place, event: events[place].append(event),
        checkpoint_every_s=1000.0,
    )
    train(configs[1], tmp_path / "alone", on_event=events["alone"].append, checkpoint_every_s=1e3)
    for place in (0, 1):
        assert [(e.kind, e.step) for e in events[place]] == [
            (e.kind, e.step) for e in events["alone"]
        ]
    losses = [[e.loss for e in events[who] if e.kind == "step"] for who in (1, "alone")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_environment_says_how_many_trained_together(tiny, tmp_path):
    configs = [tiny(seed=seed) for seed in range(2)]
    train_replicas(configs, folders(tmp_path, configs))
    train_replicas(configs[:1], [tmp_path / "one"])
    train(configs[0], tmp_path / "alone")
    found = [
        json.loads((tmp_path / folder / "environment.json").read_text())
        for folder in ("together/1", "one", "alone")
    ]
    assert found[0].pop("replicas") == 2
    assert found[0] == found[1] == found[2]


def test_finished_replicas_are_returned_as_they_are(tiny, tmp_path):
    configs = [tiny(seed=seed) for seed in range(3)]
    where = folders(tmp_path, configs)
    first = train(configs[1], where[1])
    events = []
    results = train_replicas(
        configs, where, on_event=lambda place, event: events.append((place, event.kind))
    )
    assert results[1] == first
    assert [kind for place, kind in events if place == 1] == ["finished"]
    assert train_replicas(configs, where) == results


def test_a_folder_of_another_run_is_refused(tiny, tmp_path):
    configs = [tiny(seed=seed) for seed in range(3)]
    where = folders(tmp_path, configs)
    train(tiny(seed=7), where[1])
    with pytest.raises(RequestError, match="folder must hold a run of the same configuration"):
        train_replicas(configs, where)
    assert not where[0].exists()


def test_a_folder_in_use_costs_only_that_replica(tiny, tmp_path):
    configs = [tiny(seed=seed) for seed in range(3)]
    where = folders(tmp_path, configs)
    where[1].mkdir(parents=True)
    with FileLock(where[1] / ".lock"):
        results = train_replicas(configs, where)
    assert str(results[1]).startswith("folder must not be in use")
    assert [isinstance(result, Outcome) for result in results] == [True, False, True]


def test_a_replica_that_another_process_has_finished_meanwhile_is_taken_over(tiny, tmp_path):
    configs = [tiny(seed=seed) for seed in range(3)]
    where = folders(tmp_path, configs)
    done = []

    def finish_another(place, event):
        if (place, event.kind) == (0, "started"):
            done.append(train(configs[1], where[1]))

    results = train_replicas(configs, where, on_event=finish_another)
    assert results[1] == done[0]
    assert [result.last.step for result in results] == [12] * 3


def begin(config, folder, stop):
    """Train alone up to a step."""

    def interrupt(event):
        if event.kind == "step" and event.step == stop:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, on_event=interrupt, checkpoint_every_s=1000.0)


SHARPEN = {
    "schedules.attributes": (AttributeSchedule("gate_temperature", end=0.25, curve="reciprocal"),),
    "evaluation.lengths": (9,),
    **EXACT,
}


def test_runs_begun_alone_are_finished_together(tiny, tmp_path):
    """Each at a step of its own; those behind catch up first."""
    configs = several(tiny, **SHARPEN)
    where = folders(tmp_path, configs)
    begin(configs[0], where[0], 7)
    begin(configs[2], where[2], 3)
    steps = []
    train_replicas(
        configs,
        where,
        on_event=lambda place, event: (
            steps.append((place, event.step)) if event.kind == "step" else None
        ),
    )
    assert [place for place, step in steps if step <= 3] == [1, 1, 1]
    assert {place for place, step in steps if 3 < step <= 7} == {1, 2}
    assert {place for place, step in steps if step > 7} == {0, 1, 2}
    for place, config in enumerate(configs):
        train(config, tmp_path / "alone" / str(place))
        assert_same(where[place], tmp_path / "alone" / str(place))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_replicas_are_all_saved_and_finished_in_any_way(tiny, tmp_path, number):
    configs = several(tiny, **SHARPEN)
    where = folders(tmp_path, configs)

    def interrupt(place, event):
        if (place, event.kind, event.step) == (1, "step", 7):
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        train_replicas(configs, where, on_event=interrupt, checkpoint_every_s=1000.0)
    for folder in where:
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000007"]
        assert read_status(folder).status == "interrupted"
    alone = train(configs[0], where[0])
    assert alone.last.step == 12
    results = train_replicas(configs, where)
    assert results[0] == alone
    for place, config in enumerate(configs):
        train(config, tmp_path / "alone" / str(place))
        assert_same(where[place], tmp_path / "alone" / str(place))


def test_a_second_signal_ends_at_once_and_saves_nothing_half_done(tiny, tmp_path, monkeypatch):
    configs = several(tiny, **SHARPEN)
    where = folders(tmp_path, configs)
    update = "statemix.training.stacked_optimizer.StackedAdamW.update"

    def interrupt(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(update, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_replicas(configs, where)
    assert not any((folder / "checkpoints").exists() for folder in where)
    train_replicas(configs, where)
    train(configs[2], tmp_path / "alone")
    assert_same(where[2], tmp_path / "alone")


# Kills its own process at an event, as kill -9 does.
KILLED = """
import os, signal
from statemix.training.replicas import train_replicas

def count(place, event):
    global events
    events -= 1
    if events == 0:
        os.kill(os.getpid(), signal.SIGKILL)

train_replicas(configs, folders, on_event=count, checkpoint_every_s=0.0)
"""
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["statemix.training", "lightning_fabric", "statemix.layers.largest"]
)


def killed(configs, where, events):
    """Whether the group was killed before its end."""
    process = processes.Process(
        target=exec, args=(KILLED, {"configs": configs, "folders": where, "events": events})
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_killed_again_and_again(tiny, tmp_path):
    configs = several(tiny, **SHARPEN)
    where = folders(tmp_path, configs)
    kills = 0
    # Every third of an event more than a step, so that replicas are killed between each other.
    for events in (2, 11, 23, 37, 31):
        kills += killed(configs, where, events)
    assert kills == 5
    steps = [len(list((folder / "checkpoints").iterdir())) for folder in where]
    assert max(steps) == 2
    train_replicas(configs, where)
    for place, config in enumerate(configs):
        train(config, tmp_path / "alone" / str(place))
        assert_same(where[place], tmp_path / "alone" / str(place))


def test_checkpoints_have_the_form_of_a_run_alone(tiny, tmp_path):
    configs = several(tiny, **EXACT)
    where = folders(tmp_path, configs)

    def interrupt(place, event):
        if (place, event.kind, event.step) == (0, "step", 4):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_replicas(configs, where, on_event=interrupt, checkpoint_every_s=1000.0)
    begin(configs[1], tmp_path / "alone", 4)
    found, expected = (
        folder / "checkpoints" / "step-000000004" for folder in (where[1], tmp_path / "alone")
    )
    names = {path.name for path in expected.iterdir()}
    assert {path.name for path in found.iterdir()} == names
    for name in names:
        if name.endswith(".safetensors"):
            tensors, others = load_file(found / name), load_file(expected / name)
            torch.testing.assert_close(tensors, others, **TIGHT)
    states = [json.loads((path / "state.json").read_text()) for path in (found, expected)]
    assert states[0].keys() == states[1].keys()
    assert states[0]["files"] == states[1]["files"]
    agree(states[0]["trainer"], states[1]["trainer"])


def test_an_error_of_a_step_is_that_of_all_and_nothing_hangs(toys, tiny, tmp_path):
    common = {"model.layers": (LayerSpec("raising", at=5),), "imports": ("statemix_toys",)}
    configs = several(tiny, **common)
    where = folders(tmp_path, configs)
    results = train_replicas(configs, where)
    assert all(isinstance(result, LookupError) for result in results)
    assert {read_status(folder).status for folder in where} == {"failed"}


def test_an_error_of_a_callback_stops_all_with_their_state_saved(tiny, tmp_path):
    configs = several(tiny, {"evaluation.stop_at": 0.01}, {"seed": 1}, {"seed": 2})
    where = folders(tmp_path, configs)

    def full(place, result):
        raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"):
        train_replicas(configs, where, on_end=full)
    assert [read_status(folder).status for folder in where] == ["done"] + ["interrupted"] * 2
    assert all(list((folder / "checkpoints").glob("step-*")) for folder in where[1:])


def test_an_error_of_on_event_ends_that_replica(tiny, tmp_path):
    configs = several(tiny, {"seed": 0}, {"seed": 1})

    def odd(place, event):
        if place == 0 and event.kind == "step" and event.step == 2:
            raise LookupError("odd")

    results = train_replicas(configs, folders(tmp_path, configs), on_event=odd)
    assert isinstance(results[0], LookupError)
    assert isinstance(results[1], Outcome)


def test_evaluations_far_apart_and_a_last_one(tiny, tmp_path):
    evaluation = EvaluationConfig(test_size=300, validation_size=20, every=3, lengths=(40,))
    configs = several(
        tiny, {"optimizer": OptimizerConfig(learning_rate=0.01)}, {"seed": 4}, **EXACT
    )
    configs = [tiny({"evaluation": evaluation, "seed": c.seed} | EXACT) for c in configs]
    results = check(configs, tmp_path)
    assert [row["epoch"] for row in read_metrics(results[0].folder)] == [3, 4]
