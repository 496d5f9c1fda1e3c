"""Timed training steps of layers, and their rows."""

import json
from dataclasses import replace

import pytest
import torch

from statemix.layers import LAYERS, LayerSpec
from statemix_lab.bench import compared_layers as bench_entries
from statemix_lab.bench import layer_timing as layers
from statemix_lab.bench.compared_layers import build_layer, compared, draw_problem
from statemix_lab.bench.harness import COPY, Measurement, Spread, measure
from statemix_lab.bench.operator_timing import TOLERANCES
from statemix_lab.bench.timed_devices import Cpu

CASE = bench_entries.LayerCase(hidden_size=8, batch_size=2, length=70)
# The test's own layers register themselves later.
COMPARED = list(LAYERS)
F32 = torch.float32


def entries(specs, case=CASE, dtype=torch.float32):
    return bench_entries.entries({spec.name: spec for spec in specs}, case, dtype, Cpu())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, F32) for name in COMPARED),
        ("bd_lru", torch.bfloat16),
        ("attention", torch.bfloat16),
        ("h_lru", torch.float64),
        ("fp_rnn", torch.float64),
    ],
)
def test_the_training_step_is_right_and_a_wrong_one_is_noticed(name, dtype):
    spec = compared(8)[name]
    (provider, _) = layers.providers(entries([spec], dtype=dtype), CASE, dtype)
    y, d_x = provider.prepare()()
    assert y.shape == d_x.shape == (2, 70, 8)
    assert not y.requires_grad
    limit = TOLERANCES[dtype]
    assert provider.error((y, d_x)) <= limit
    for place in (0, 1):
        wrong = [y.clone(), d_x.clone()]
        wrong[place][0, -1, 0] *= 1.5
        wrong[place][0, -1, 1] += 1
        assert provider.error(tuple(wrong)) > limit


def test_a_row_holds_the_price_beside_the_speed_and_the_roofline():
    """Of inputs and outputs, forward reads one and writes one; backward reads two, writes one."""
    listed = entries([LayerSpec("bd_lru", num_blocks=4, block_size=2), LayerSpec("lstm")])
    entry, large = sorted(listed, key=lambda entry: entry.price.num_parameters)
    copied = layers.copied_bytes(listed, CASE, F32)
    assert copied == 4 * (3 * large.price.num_parameters + 5 * 2 * 70 * 8)
    measured = Measurement(
        "a", "", "measured", time_s=Spread(0.5, 2.0, 4.0), ratios={COPY: Spread(2.0, 4.0, 8.0)}
    )
    row = json.loads(json.dumps(layers.row(entry, CASE, measured, "float32", copied)))
    assert (row["benchmark"], row["dtype"], row["label"]) == ("layers", "float32", "BD-LRU m=2")
    assert row["case"] == {"hidden_size": 8, "batch_size": 2, "length": 70}
    assert (row["layer"]["num_blocks"], row["tokens_per_s"]) == (4, 140 / 2.0)
    assert row["saved_bytes_per_token"] == entry.saved_bytes > 0
    flops = entry.price.flops
    assert row["flops"] == {**flops._asdict(), "total": flops.total}
    fewer = large.price.num_parameters - entry.price.num_parameters
    assert row["moved_bytes"] == copied - 12 * fewer
    share = row["moved_bytes"] / copied
    assert row["roofline"] == {"p20": share / 8, "p50": share / 4, "p80": share / 2}
    alone = layers.row(replace(entry, projections=True), CASE, measured, "float32", copied)
    assert alone["roofline"] is alone["moved_bytes"] is None


@pytest.mark.parametrize("name", ["bd_lru", "h_lru"])
def test_projections_alone_are_all_of_a_layer_but_its_recurrence(name, monkeypatch):
    (entry,) = entries([compared(8)[name]])
    listed = bench_entries.with_variants([entry, *entries([LayerSpec("lstm")])], projections=True)
    assert [one.name for one in listed] == [name, f"{name} projections", "lstm"]
    _, provider, *_ = layers.providers(listed, CASE, torch.float32)
    call = provider.prepare()

    def refused(*args, **kwargs):
        raise AssertionError("the recurrence is run")

    monkeypatch.setattr(LAYERS[name], "forward", refused)
    d_x, d_states, *gradients = call()
    assert d_x.shape == (2, 70, 8)
    layer = entry.spec.build(hidden_size=8)
    assert d_states.shape == (2, 70, layer.out_proj.in_features)
    projections = [layer.gate_proj, layer.value_proj, layer.out_proj]
    expected = [part.shape for linear in projections for part in linear.parameters()]
    assert [gradient.shape for gradient in gradients] == expected
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)


class Gpu(Cpu):
    name = "cuda"


@pytest.fixture
def built(monkeypatch):
    """Layers for a GPU are built on the CPU; returns their backends and cases."""
    built = []

    def build(spec, case, dtype, device):
        built.append((spec.options.get("backend"), case))
        return build_layer(spec, case, dtype, "cpu")

    def draw(case, dtype, device):
        return draw_problem(case, dtype, "cpu")

    for module in (bench_entries, layers):
        monkeypatch.setattr(module, "build_layer", build)
        monkeypatch.setattr(module, "draw_problem", draw)
    return built


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, d_y):
        raise AssertionError("this GPU is too old")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("where", ["entry", "forward", "backward"])
@pytest.mark.parametrize("name", ["mamba2", "bd_lru"])
def test_a_layer_that_fails_on_a_gpu_ends_no_other(name, where, monkeypatch, capsys):
    monkeypatch.setattr(bench_entries.fla, "installed", lambda: True)
    forward, listed = LAYERS[name].forward, []

    def fail(self, x, *rest, **options):
        # Prices are found on "meta", where no kernel runs.
        if not x.is_meta and (where == "entry" or (where == "forward" and listed)):
            raise AssertionError("this GPU is too old")
        return forward(self, Failing.apply(x) if where == "backward" else x, *rest, **options)

    monkeypatch.setattr(LAYERS[name], "forward", fail)
    specs = {name: compared(8)[name], "lstm": LayerSpec("lstm")}
    listed += bench_entries.entries(specs, CASE, F32, Gpu())
    failed, other = measure(
        layers.providers(listed, CASE, F32, "cuda")[:-1],
        relative_to=(),
        rounds=3,
        budget_s=1,
        tolerance=TOLERANCES[F32],
        seed=0,
    )
    assert other.status == "measured"
    foreign = name == "mamba2"
    assert failed.status == ("skipped" if foreign else "failed")
    said = "flash-linear-attention cannot run mamba2 here" if foreign else "AssertionError"
    assert failed.reason == f"{said}: this GPU is too old"
    assert ("too old" in capsys.readouterr().err) != foreign
    row = layers.row(listed[0], CASE, failed, "float32", 1000)
    assert (row["reason"], row["foreign_kernels"]) == (failed.reason, foreign)
    assert (row["saved_bytes_per_token"] is None) == (where == "entry")


def test_on_a_gpu_no_kernel_is_compiled_but_those_that_are_timed(built):
    """Bytes are counted at the size that is timed, and float64 runs without kernels."""
    gated = LayerSpec("bd_lru", num_blocks=4, block_size=2, backend="loop")
    for spec in (gated, LayerSpec("delta_net", num_heads=1)):
        (entry,) = bench_entries.entries({spec.name: spec}, CASE, F32, Gpu())
        (provider, _) = layers.providers([entry], CASE, F32, "cuda")
        assert provider.error(provider.prepare()()) <= TOLERANCES[F32]
    assert built == [(one, CASE) for one in ("loop", "loop", "reference", None, None, None)]
