"""The comparison of layers: its prices, the checked training step, requests and rows."""

import json

import pytest
import torch

from statemix import ops
from statemix.bench import layers, memory
from statemix.bench.devices import Cpu
from statemix.bench.harness import Measurement, Spread
from statemix.layers import LAYERS, LayerSpec, price
from statemix.ops import BackendUnavailableError
from statemix.settings import RequestError

CASE = layers.Case(hidden_size=8, batch_size=2, length=70)
# The test's own layers register themselves later.
COMPARED = list(LAYERS)
F32 = torch.float32
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def entries(specs, case=CASE, dtype=torch.float32):
    return layers.entries({spec.name: spec for spec in specs}, case, dtype, Cpu())


def test_every_registered_layer_is_compared(toys):
    every = list(LAYERS)
    assert [spec.name for spec in layers.registered(8, torch.float32)] == every
    assert "solver" in LAYERS
    for entry in entries(layers.registered(8, torch.float32)):
        options = {"hidden_size": 8, "length": 70, "dtype": torch.float32}
        assert entry.price == price(entry.spec, **options)
        assert entry.label == LAYERS[entry.spec.name].label(entry.spec.options)


def test_a_layer_without_options_for_comparisons_is_left_out(monkeypatch):
    monkeypatch.setattr(LAYERS["conv"], "compared", classmethod(lambda cls, hidden_size: {}))
    monkeypatch.setattr(LAYERS["mamba2"], "compared", classmethod(lambda cls, hidden_size: {}))
    names = [spec.name for spec in layers.registered(64, torch.float32)]
    assert names == [name for name in COMPARED if name != "conv"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in COMPARED
        for dtype in DTYPES
        if not (LAYERS[name].iterative and dtype == torch.bfloat16)
    ],
)
def test_the_training_step_is_right_and_a_wrong_one_is_noticed(name, dtype):
    spec = LayerSpec(name, **LAYERS[name].compared(8))
    (provider,) = layers.providers(entries([spec], dtype=dtype), CASE, dtype)
    y, d_x = provider.prepare()()
    assert y.shape == d_x.shape == (2, 70, 8)
    assert not y.requires_grad
    limit = layers.TOLERANCES[dtype]
    assert provider.error((y, d_x)) <= limit
    for place in (0, 1):
        wrong = [y.clone(), d_x.clone()]
        wrong[place][0, -1, 0] *= 1.5
        wrong[place][0, -1, 1] += 1
        assert provider.error(tuple(wrong)) > limit


def test_layers_that_iterate_are_not_compared_in_16_bits():
    listed = {spec.name for spec in layers.registered(8, torch.bfloat16)}
    assert listed == {name for name in COMPARED if not LAYERS[name].iterative} != set(COMPARED)
    message = "^layers must not iterate in bfloat16, .*, got fp_rnn$"
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("fp_rnn")], dtype=torch.bfloat16)


def test_the_gradients_are_those_of_the_whole_sequence():
    """Only the last tokens are checked, against gradients that reach only so far."""
    (entry,) = entries([LayerSpec("bd_lru", num_blocks=4, block_size=2)], dtype=torch.float64)
    (provider,) = layers.providers([entry], CASE, torch.float64)
    y, d_x = provider.prepare()()
    layer = layers._layer(entry.spec, CASE, torch.float64, "cpu")
    x, d_y = layers._problem(CASE, torch.float64, "cpu")
    expected, _ = layer(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(d_x, torch.autograd.grad(expected, x, d_y)[0])
    assert provider.error((y, d_x)) < 1e-12


def test_a_call_computes_the_gradient_of_every_parameter(monkeypatch):
    asked = []
    original = torch.autograd.grad

    def grad(outputs, inputs, *rest, **more):
        asked.append(len(inputs))
        return original(outputs, inputs, *rest, **more)

    (provider,) = layers.providers(entries([LayerSpec("lstm")]), CASE, torch.float32)
    call = provider.prepare()
    monkeypatch.setattr(torch.autograd, "grad", grad)
    call()
    assert asked == [1 + 4]


def test_a_parameter_that_nothing_uses_does_not_stop_the_comparison(monkeypatch):
    original = layers._layer

    def with_a_spare(*arguments):
        layer = original(*arguments)
        layer.spare = torch.nn.Parameter(torch.zeros(1))
        return layer

    monkeypatch.setattr(layers, "_layer", with_a_spare)
    (provider,) = layers.providers(entries([LayerSpec("lstm")]), CASE, torch.float32)
    assert provider.error(provider.prepare()()) <= layers.TOLERANCES[torch.float32]


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("case", [layers.Case(16, 4, 64), layers.Case(16, 1, 200)])
def test_required_bytes_exceed_the_measured_peak(name, case):
    spec = LayerSpec(name, **LAYERS[name].compared(16))
    (provider,) = layers.providers(entries([spec], case), case, torch.float32)
    call = provider.prepare()
    call()
    assert memory.peak_bytes(call) < provider.required_bytes


def test_saved_bytes_are_those_of_a_token():
    (conv,) = entries([LayerSpec("conv", kernel_size=3)])
    # The input, with two tokens of padding.
    assert conv.saved_bytes == 4 * 8 * (70 + 2) / 70
    short, long = (
        entries([LayerSpec("lstm")], layers.Case(8, 2, length))[0].saved_bytes
        for length in (512, 100_000)
    )
    # Longer sequences are not needed to measure it.
    assert short == long


def test_a_layer_that_asks_for_a_missing_backend_says_what_is_missing():
    kernels = dict(ops.BACKENDS["loop"].kernels)
    ops.BACKENDS.register(ops.Backend("broken", kernels, unavailable=lambda: "no such machine"))
    try:
        spec = LayerSpec("bd_lru", num_blocks=2, block_size=2, backend="broken")
        with pytest.raises(BackendUnavailableError, match="no such machine"):
            entries([spec])
    finally:
        ops.BACKENDS.remove("broken")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (layers.Case(0, 1, 1), r"hidden_size must be in 1\.\.2\^31 - 1, got 0"),
        (layers.Case(1, -1, 1), r"batch_size must be in 1\.\.2\^31 - 1, got -1"),
        (layers.Case(1, 2**31, 1), r"batch_size must be in 1\.\.2\^31 - 1, got 2147483648"),
        (layers.Case(1, 1, 2**20), r"length must be in 1\.\.2\^20 - 1, got 1048576"),
        (
            layers.Case(256, 10**6, 10**5),
            r"batch_size x length x hidden_size must fit into memory \(.* GB\), got "
            r"1000000 x 100000 x 256, which needs",
        ),
    ],
)
def test_sizes_are_refused(case, message):
    with pytest.raises(RequestError, match=message):
        layers.check_case(case, torch.float32)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LayerSpec("bd_lru", num_blocks=0, block_size=2), "layers: num_blocks must be at least 1"),
        (LayerSpec("attention", num_heads=3), "layers: num_heads must divide hidden_size, got 3"),
        (
            LayerSpec("conv", kernel_size=2**31 - 1),
            r"layers must fit into memory \(.*\), got conv of width 8, which needs",
        ),
        # Few weights, but the updates of a token form one matrix.
        (
            LayerSpec("delta_product", num_heads=1, num_householder=200_000, head_dim=1),
            r"layers must fit into memory \(.*\), got delta_product of width 8, which needs 10,24",
        ),
        # Not even "meta" can hold the shape of its weights.
        (LayerSpec("delta_net", num_heads=2**30, head_dim=2**30), "layers must fit into memory"),
    ],
)
def test_layers_are_refused_before_anything_is_allocated(spec, message, monkeypatch):
    monkeypatch.setattr(layers, "_saved_bytes", lambda *arguments: pytest.fail("allocated"))
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("lstm"), spec])


def test_a_layer_that_needs_more_than_estimated_is_refused_by_name(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(memory, "saved_bytes", fail)
    with pytest.raises(RequestError, match=r"layers must fit into memory .*, got lstm of width"):
        entries([LayerSpec("lstm")])


def test_a_call_that_would_take_hours_is_refused():
    long = layers.Case(hidden_size=256, batch_size=1, length=300_000)
    entries([LayerSpec("conv", kernel_size=2)], long)
    message = r"layers must need at most 1e14 FLOPs .* 1 x 300000 tokens, got attention, .* 1.4e"
    with pytest.raises(RequestError, match=message):
        entries([LayerSpec("attention", num_heads=4)], long)


def test_a_row_holds_the_price_beside_the_speed():
    (entry,) = entries([LayerSpec("bd_lru", num_blocks=4, block_size=2)])
    measured = Measurement("a", "", "measured", rounds=3, time_s=Spread(0.5, 2.0, 4.0))
    row = json.loads(json.dumps(layers.row(entry, CASE, measured, "float32")))
    assert (row["benchmark"], row["dtype"], row["label"]) == ("layers", "float32", "BD-LRU m=2")
    assert row["case"] == {"hidden_size": 8, "batch_size": 2, "length": 70}
    assert row["layer"]["gate"] == "softmax"
    assert row["layer"]["num_blocks"] == 4
    assert row["tokens_per_s"] == 140 / 2.0
    assert row["time_s"] == {"p20": 0.5, "p50": 2.0, "p80": 4.0}
    assert row["saved_bytes_per_token"] == entry.saved_bytes
    flops = entry.price.flops
    assert row["flops"] == {
        "projections": flops.projections,
        "transition": flops.transition,
        "other": flops.other,
        "total": flops.total,
    }
    for name in ("num_parameters", "state_size", "state_bytes", "decode_bytes"):
        assert row[name] == getattr(entry.price, name)


def test_a_row_without_a_time_keeps_the_price(toys):
    (entry,) = entries([LayerSpec("solver")])
    measured = Measurement("a", "", "wrong", "reason", relative_error=float("nan"))
    row = json.loads(json.dumps(layers.row(entry, CASE, measured, "float32"), allow_nan=False))
    assert row["flops"] is row["time_s"] is row["tokens_per_s"] is row["relative_error"] is None
    assert row["num_parameters"] == 72


def scanned(*sizes):
    return [LayerSpec("bd_lru", num_blocks=2, block_size=m, backend="associative") for m in sizes]


def named_entries(specs):
    return layers.entries({f"m{one.options['block_size']}": one for one in specs}, CASE, F32, Cpu())


def test_layers_of_the_papers_scan_are_compiled_beside_the_others():
    loop = LayerSpec("bd_lru", num_blocks=2, block_size=3, backend="loop")
    found = layers.with_compiled(named_entries([*scanned(2), loop]))
    assert [(one.name, one.compiled, one.title) for one in found] == [
        ("m2", False, "BD-LRU m=2, associative"),
        ("m2 compiled", True, "BD-LRU m=2, compiled"),
        ("m3", False, "BD-LRU m=3, loop"),
    ]


@pytest.mark.parametrize(("sizes", "count"), [((), 0), (range(1, 10), 9)])
def test_a_number_of_layers_that_cannot_be_compiled_is_refused(sizes, count):
    listed = named_entries(scanned(*sizes))
    with pytest.raises(RequestError, match=f"^compiled must be used with 1 to 8 .*, got {count}$"):
        layers.with_compiled(listed)
    if count:
        assert len(layers.with_compiled(listed[:-1])) == 16


def test_compiled_layers_alone_go_through_the_compiler(monkeypatch):
    compiled = []

    def autotuned(layer):
        compiled.append(layer)
        return lambda x: (2 * layer(x)[0], None)

    monkeypatch.setattr(layers, "autotuned", autotuned)
    entries = layers.with_compiled(named_entries(scanned(2)))
    plain, twice = (one.prepare() for one in layers.providers(entries, CASE, F32))
    torch.testing.assert_close(twice()[0], 2 * plain()[0])
    assert len(compiled) == 1


def test_a_row_of_a_compiled_layer_states_no_saved_bytes():
    measured = Measurement("a", "", "measured", rounds=3, time_s=Spread(0.5, 2.0, 4.0))
    entries = layers.with_compiled(named_entries(scanned(2)))
    plain, compiled = (layers.row(one, CASE, measured, "float32") for one in entries)
    assert (plain["compiled"], compiled["compiled"]) == (False, True)
    assert plain["saved_bytes_per_token"] > 0
    assert compiled["saved_bytes_per_token"] is None


@pytest.mark.parametrize("name", ["bd_lru", "h_lru"])
def test_projections_alone_are_all_of_a_layer_but_its_recurrence(name, monkeypatch):
    (entry,) = entries([LayerSpec(name, **LAYERS[name].compared(8))])
    listed = layers.with_projections([entry, *entries([LayerSpec("lstm")])])
    assert [one.name for one in listed] == [name, f"{name} projections", "lstm"]
    _, provider, _ = layers.providers(listed, CASE, torch.float32)
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


def test_projections_need_a_layer_that_has_them():
    with pytest.raises(RequestError, match="projections must be used with a layer bd_lru or h_lru"):
        layers.with_projections(entries([LayerSpec("lstm")]))
