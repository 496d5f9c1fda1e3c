"""Malformed arguments: every public function raises an error of one clear sentence."""

import inspect

import numpy as np
import pytest
import torch

from statemix import ops
from statemix.ops.checks import bind, check_cu_seqlens

B, T, H, m = 2, 4, 3, 2
N = 2  # packed sequences

SEQUENCES = {
    "bd_lru": {"gates": (B, T, H, m, m + 1), "values": (B, T, H, m)},
    "h_lru": {"gates": (B, T, H, m + 1), "values": (B, T, H)},
    "block_scan": {"transitions": (B, T, H, m, m), "inputs": (B, T, H, m)},
    "lag_scan": {"coefficients": (B, T, H, m), "inputs": (B, T, H)},
}
STEPS = {
    "bd_lru_step": {"gates": (B, H, m, m + 1), "values": (B, H, m)},
    "h_lru_step": {"gates": (B, H, m + 1), "values": (B, H)},
    "block_step": {"transitions": (B, H, m, m), "inputs": (B, H, m)},
    "lag_step": {"coefficients": (B, H, m), "inputs": (B, H)},
}


def good(function):
    shapes = SEQUENCES.get(function) or STEPS[function] | {"state": (B, H, m)}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def packed(function):
    return {name: tensor[:1] for name, tensor in good(function).items()} | {
        "cu_seqlens": torch.tensor([0, 1, T])
    }


def check_refusal(function, arguments, error, message):
    # In inference mode, steps take another way.
    for mode in (torch.enable_grad, torch.inference_mode):
        with mode(), pytest.raises(error, match=message):
            getattr(ops, function)(**arguments)


SWITCHES = [
    (function, name)
    for function in (*SEQUENCES, *STEPS)
    for name, parameter in inspect.signature(getattr(ops, function)).parameters.items()
    if parameter.annotation is bool
]


@pytest.mark.parametrize(("function", "name"), SWITCHES)
@pytest.mark.parametrize("value", ["no", 0, 1, None])
def test_a_switch_is_true_or_false(function, name, value):
    message = f"^{name} must be True or False, got {value!r}$"
    check_refusal(function, good(function) | {name: value}, TypeError, message)


def bad_tensors(function):
    """(argument, replacement, error, message) for the two tensors that every function takes."""
    shapes = SEQUENCES.get(function) or STEPS[function]
    (first, first_shape), (second, second_shape) = shapes.items()
    both = f"{first} and {second}"
    long = (*first_shape[:-1], first_shape[-1] + 1)
    if second_shape[-1] == m:  # for lags, gates alone determine m
        yield first, torch.zeros(long), ValueError, f"{first} must have shape .*m=2.*, got "
    yield first, torch.zeros(first_shape[:-1]), ValueError, f"{first} must have shape"
    yield first, torch.zeros(first_shape, dtype=torch.int64), TypeError, f"{both} must share one"
    yield first, torch.zeros(first_shape).double(), TypeError, "float64 and torch.float32"
    yield first, torch.zeros(first_shape, dtype=torch.cfloat), TypeError, "one floating dtype"
    yield first, torch.zeros(first_shape, device="meta"), ValueError, "must be on one device"
    yield second, torch.zeros(B + 1, *second_shape[1:]), ValueError, r"must have shape \(B=\d"
    yield second, torch.zeros(()), ValueError, f"{second} must have shape"
    yield first, first_shape, TypeError, f"{first} must be a tensor, got tuple"
    yield second, [1.0], TypeError, f"{second} must be a tensor, got list"
    yield second, None, TypeError, f"{second} must be a tensor, got NoneType"


CASES = [
    pytest.param(function, *case, id=f"{function}-{case[0]}-{n}")
    for function in (*SEQUENCES, *STEPS)
    for n, case in enumerate(bad_tensors(function))
]


@pytest.mark.parametrize(("function", "name", "value", "error", "message"), CASES)
def test_bad_tensors_are_refused(function, name, value, error, message):
    check_refusal(function, good(function) | {name: value}, error, message)


BAD_STATES = [
    (torch.zeros(B, H, m + 1), ValueError, r"state must have shape \(.=2, H=3, m=2\), got"),
    (torch.zeros(B + 1, H, m), ValueError, "state must have shape"),
    (torch.zeros(H, m), ValueError, "state must have shape"),
    (torch.zeros(B, H, m, dtype=torch.int64), TypeError, "state must be floating"),
    (torch.zeros(B, H, m, device="meta"), ValueError, "state must be on cpu, got meta"),
    (0.0, TypeError, "state must be a tensor, got float"),
]


@pytest.mark.parametrize("function", [*SEQUENCES, *STEPS])
@pytest.mark.parametrize(("value", "error", "message"), BAD_STATES)
def test_bad_initial_states_are_refused(function, value, error, message):
    name = "initial_state" if function in SEQUENCES else "state"
    check_refusal(function, good(function) | {name: value}, error, message)


def bounds(*numbers, dtype=torch.int64):
    return torch.tensor(numbers, dtype=dtype)


BAD_BOUNDS = [
    (bounds(0, 1, T, dtype=torch.float32), TypeError, "int32 or int64, got torch.float32"),
    (bounds(0, 1, T, dtype=torch.int16), TypeError, "int32 or int64, got torch.int16"),
    ([0, 1, T], TypeError, "cu_seqlens must be a tensor, got list"),
    (bounds(), ValueError, r"cu_seqlens must have shape \(N\+1,\), got \(0,\)"),
    (bounds(0, T).view(1, 2), ValueError, r"cu_seqlens must have shape \(N\+1,\), got \(1, 2\)"),
    (torch.tensor(T), ValueError, r"cu_seqlens must have shape \(N\+1,\), got \(\)"),
    (bounds(0, T).to("meta"), ValueError, "cu_seqlens must be on cpu, got meta"),
    (bounds(1, 2, T), ValueError, r"must rise from 0 to the length 4, got \[1, 2, 4\]"),
    (bounds(0, 3, 1, T), ValueError, r"must rise from 0 to the length 4, got \[0, 3, 1, 4\]"),
    (bounds(0, 1, T - 1), ValueError, r"must rise from 0 to the length 4, got \[0, 1, 3\]"),
    (bounds(0, 1, T + 1), ValueError, r"must rise from 0 to the length 4, got \[0, 1, 5\]"),
    (bounds(0, 7, T), ValueError, r"must rise from 0 to the length 4, got \[0, 7, 4\]"),
    (bounds(-1, T), ValueError, r"must rise from 0 to the length 4, got \[-1, 4\]"),
    (bounds(0), ValueError, r"must rise from 0 to the length 4, got \[0\]"),
    (bounds(T), ValueError, r"must rise from 0 to the length 4, got \[4\]"),
]


def test_bounds_of_no_sequence_are_refused_where_values_are_not_read():
    rows = torch.zeros(1, T, 2, 2, device="meta")
    with pytest.raises(ValueError, match="cu_seqlens must bound sequences of 4 steps, got none"):
        check_cu_seqlens(bounds(0).to("meta"), rows)
    check_cu_seqlens(bounds(0).to("meta"), rows[:, :0])


@pytest.mark.parametrize("realization", [None, "observer"])
@pytest.mark.parametrize("function", SEQUENCES)
@pytest.mark.parametrize(("value", "error", "message"), BAD_BOUNDS)
def test_bad_bounds_are_refused(function, realization, device, backend, value, error, message):
    if device != "cpu":
        pytest.skip("bounds are read only on the CPU")
    arguments = packed(function) | {"cu_seqlens": value, "backend": backend}
    if realization is not None:
        if function != "h_lru":
            return
        arguments["realization"] = realization
    check_refusal(function, arguments, error, message)


@pytest.mark.parametrize("function", SEQUENCES)
def test_packed_sequences_need_one_row_and_a_state_each(function):
    arguments = good(function) | {"cu_seqlens": bounds(0, T)}
    check_refusal(function, arguments, ValueError, "cu_seqlens needs .* got B = 2")
    arguments = packed(function) | {"initial_state": torch.zeros(1, H, m)}
    message = r"initial_state must have shape \(N=2, H=3, m=2\), got \(1, 3, 2\)"
    check_refusal(function, arguments, ValueError, message)


GATED = ["bd_lru", "h_lru", "bd_lru_step", "h_lru_step"]


NAMES = [
    *((function, "gate", gate, "'softmax', .*") for function in GATED
      for gate in ("Soft", None, 3)),
    *((function, "gate", gate, "'softmax', .* 'tanh'") for function in ("h_lru", "h_lru_step")
      for gate in ("householder", "column_softmax")),
    *((function, "realization", name, "'controller', 'observer'")
      for function in ("h_lru", "h_lru_step") for name in ("companion", None)),
    *((function, "backend", name, "'cpu', .*'reference'.*") for function in (*SEQUENCES, *STEPS)
      for name in ("cuda", "", 0)),
    *(("h_lru", name, np.array(["softmax", "cpu"]), ".*")
      for name in ("gate", "realization", "backend")),
]  # fmt: skip


@pytest.mark.parametrize(("function", "argument", "name", "known"), NAMES)
def test_unknown_names_are_refused_with_the_known_ones(function, argument, name, known):
    message = rf"{argument} must be one of \[{known}\], got"
    check_refusal(function, good(function) | {argument: name}, ValueError, message)


@pytest.mark.parametrize("function", SEQUENCES)
def test_kernels_of_the_cpu_are_refused_elsewhere(function):
    arguments = {name: tensor.to("meta") for name, tensor in good(function).items()}
    message = "backend 'cpu' needs tensors on cpu, got torch.float32 on meta"
    check_refusal(function, arguments | {"backend": "cpu"}, ValueError, message)


@pytest.mark.parametrize("function", SEQUENCES)
@pytest.mark.parametrize("number", [float("nan"), -float("inf")])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_check_finite_detects_entries_that_are_not_finite(function, number, which):
    arguments = good(function) | {"initial_state": torch.zeros(B, H, m)}
    name = list(arguments)[which]
    place = tuple(size - 1 for size in arguments[name].shape)
    arguments[name][place] = number
    listed = ", ".join(map(str, place))
    message = rf"{name} must be finite, got 1 NaN or infinite entries, .* index \({listed}\)"
    for options in [{}, {"realization": "observer"}] if function == "h_lru" else [{}]:
        check_refusal(function, arguments | {"check_finite": True} | options, ValueError, message)
    getattr(ops, function)(**arguments)  # no check by default


@pytest.mark.parametrize("function", [*SEQUENCES, *STEPS])
def test_blocks_of_size_zero_are_refused(function, device, backend):
    shapes = {
        "bd_lru": {"gates": (B, T, H, 0, 1), "values": (B, T, H, 0)},
        "h_lru": {"gates": (B, T, H, 1), "values": (B, T, H)},
        "block_scan": {"transitions": (B, T, H, 0, 0), "inputs": (B, T, H, 0)},
        "lag_scan": {"coefficients": (B, T, H, 0), "inputs": (B, T, H)},
        "bd_lru_step": {"gates": (B, H, 0, 1), "values": (B, H, 0), "state": (B, H, 0)},
        "h_lru_step": {"gates": (B, H, 1), "values": (B, H), "state": (B, H, 0)},
        "block_step": {"transitions": (B, H, 0, 0), "inputs": (B, H, 0), "state": (B, H, 0)},
        "lag_step": {"coefficients": (B, H, 0), "inputs": (B, H), "state": (B, H, 0)},
    }[function]
    arguments = {name: torch.zeros(shape, device=device) for name, shape in shapes.items()}
    message = "must have m of at least 1, got"
    check_refusal(function, arguments | {"backend": backend}, ValueError, message)


def test_gates_without_an_input_gate_are_refused():
    arguments = {"gates": torch.zeros(B, T, H, 0), "values": torch.zeros(B, T, H)}
    check_refusal("h_lru", arguments, ValueError, "gates must have m of at least 1, got")


@pytest.mark.parametrize(
    ("gates", "gate", "error", "message"),
    [
        ([1.0, 2.0], "softmax", TypeError, "gates must be a floating tensor, got list"),
        (torch.zeros(3, dtype=torch.int64), "relu", TypeError, "gates must be .*, got torch.int64"),
        (torch.zeros(3).to(torch.float8_e5m2), "relu", TypeError, "gates must be .*float8_e5m2"),
        (torch.tensor(1.0), "softmax", ValueError, r"gates must have shape \(..., m\+1\)"),
        (torch.zeros(2, 1), "softmax", ValueError, r"m of at least 1, got \(2, 1\)"),
        (torch.zeros(3, 3), "householder", ValueError, r"\(..., m, m\+1\) for 'householder'"),
        (torch.zeros(3), "householder", ValueError, r"\(..., m, m\+1\) for 'householder'"),
        (torch.zeros(3, 3), "column_softmax", ValueError, r"\(..., m, m\+1\) for 'column_softmax'"),
        (torch.zeros(3), "soft", ValueError, r"gate must be one of \['softmax', .*\], got 'soft'"),
        (torch.zeros(2, 3).to_sparse(), "softmax", TypeError, "gates must be a dense tensor"),
    ],
)
def test_bad_gates_of_normalize_are_named(gates, gate, error, message):
    with pytest.raises(error, match=message):
        ops.normalize(gates, gate)


def test_bind_records_sizes_and_reports_them():
    sizes = {}
    bind(sizes, "values", torch.zeros(2, 5, 3), "B T m")
    assert sizes == {"B": 2, "T": 5, "m": 3}
    bind(sizes, "gates", torch.zeros(2, 5, 3, 4), "B T m m+1")
    with pytest.raises(ValueError, match=r"\(B=2, T=5, m=3, m\+1=4\), got \(2, 5, 3, 3\)"):
        bind(sizes, "gates", torch.zeros(2, 5, 3, 3), "B T m m+1")
    with pytest.raises(ValueError, match=r"\(B=2, K, m=3\), got \(2, 7\)"):
        bind(sizes, "others", torch.zeros(2, 7), "B K m")
    # A refused tensor records no sizes.
    assert "K" not in sizes


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantized.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantize.*:DeprecationWarning")
@pytest.mark.parametrize("function", [*SEQUENCES, *STEPS])
@pytest.mark.parametrize("which", [0, 1])
def test_tensors_that_are_not_dense_are_named(function, which):
    arguments = good(function)
    name = list(arguments)[which]
    dense = arguments[name]
    for tensor, form in [
        (dense.to_sparse(), "sparse_coo"),
        (torch.nested.nested_tensor([dense[0], dense[1]]), "nested"),
        (torch.nested.nested_tensor([dense[0], dense[1]], layout=torch.jagged), "nested"),
    ]:
        message = f"{name} must be a dense tensor, got one that is {form}"
        check_refusal(function, arguments | {name: tensor}, TypeError, message)
    both = {key: tensor.to(torch.float8_e5m2) for key, tensor in arguments.items()}
    message = "must share one floating dtype of float32, .*float8_e5m2"
    check_refusal(
        function, both | {k: v for k, v in arguments.items() if k == "state"}, TypeError, message
    )


@pytest.mark.parametrize("function", SEQUENCES)
def test_a_state_of_eight_bits_is_refused(function):
    state = torch.zeros(B, H, m).to(torch.float8_e5m2)
    message = "initial_state must be floating .*got torch.float8_e5m2"
    check_refusal(function, good(function) | {"initial_state": state}, TypeError, message)


@pytest.mark.parametrize("function", SEQUENCES)
def test_entries_that_vmap_hides_are_not_checked(function):
    arguments = good(function)
    first, second = (torch.stack([tensor, tensor]) for tensor in arguments.values())
    names = list(arguments)

    def run(a, b):
        return getattr(ops, function)(**dict(zip(names, (a, b), strict=True)), check_finite=True)[0]

    with pytest.raises(ValueError, match=f"the values of {names[0]} cannot be read"):
        torch.func.vmap(run)(first, second)


@pytest.mark.parametrize("function", SEQUENCES)
@pytest.mark.parametrize("state", [0.0, object, torch.zeros(2, 3, 2).to_sparse()])
def test_check_finite_names_an_initial_state_that_is_no_dense_tensor(function, state):
    arguments = good(function) | {"initial_state": state, "check_finite": True}
    check_refusal(function, arguments, TypeError, "initial_state must be a (dense )?tensor, got")


def test_sparse_tensors_are_named_everywhere():
    with pytest.raises(TypeError, match="temperature must be a dense tensor"):
        ops.normalize(torch.zeros(3), "softmax", temperature=torch.tensor(1.0).to_sparse())
    bounds = packed("bd_lru")["cu_seqlens"].to_sparse()
    arguments = packed("bd_lru") | {"cu_seqlens": bounds}
    check_refusal("bd_lru", arguments, TypeError, "cu_seqlens must be a dense tensor")
