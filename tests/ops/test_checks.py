"""Malformed arguments: every public function raises an error of one clear sentence."""

import numpy as np
import pytest
import torch

from statemix import ops
from statemix.ops.checks import check_cu_seqlens

B, T, H, m = 2, 4, 3, 2

SEQUENCES = {
    "bd_lru": {"gates": (B, T, H, m, m + 1), "values": (B, T, H, m)},
    "h_lru": {"gates": (B, T, H, m + 1), "values": (B, T, H)},
    "block_scan": {"transitions": (B, T, H, m, m), "inputs": (B, T, H, m)},
    "lag_scan": {"coefficients": (B, T, H, m), "inputs": (B, T, H)},
    "low_rank_scan": {"transitions": (B, T, H, 3, m), "inputs": (B, T, H, m)},
}
STEPS = {
    "bd_lru_step": {"gates": (B, H, m, m + 1), "values": (B, H, m)},
    "h_lru_step": {"gates": (B, H, m + 1), "values": (B, H)},
    "block_step": {"transitions": (B, H, m, m), "inputs": (B, H, m)},
    "lag_step": {"coefficients": (B, H, m), "inputs": (B, H)},
    "low_rank_step": {"transitions": (B, H, 3, m), "inputs": (B, H, m)},
}
FUNCTIONS = SEQUENCES | STEPS
every_function = pytest.mark.parametrize("function", FUNCTIONS)
every_sequence = pytest.mark.parametrize("function", SEQUENCES)


def good(function):
    state = {} if function in SEQUENCES else {"state": (B, H, m)}
    return {name: torch.zeros(shape) for name, shape in (FUNCTIONS[function] | state).items()}


def packed(function):
    return {name: tensor[:1] for name, tensor in good(function).items()} | {
        "cu_seqlens": torch.tensor([0, 1, T])
    }


def check_refusal(function, arguments, error, message):
    with pytest.raises(error, match=message):
        getattr(ops, function)(**arguments)


@every_function
def test_bad_tensors_are_refused(function):
    (first, shape), (second, second_shape) = FUNCTIONS[function].items()
    both = f"{first} and {second}"
    cases = [
        (first, torch.zeros(shape[:-1]), ValueError, f"{first} must have shape"),
        (first, torch.zeros(shape, dtype=torch.int64), TypeError, f"{both} must share one"),
        (first, torch.zeros(shape).double(), TypeError, "float64 and torch.float32"),
        (first, torch.zeros(shape, dtype=torch.cfloat), TypeError, "one floating dtype"),
        (first, torch.zeros(shape, device="meta"), ValueError, "must be on one device"),
        (second, torch.zeros(B + 1, *second_shape[1:]), ValueError, r"must have shape \(B=\d"),
        (second, torch.zeros(()), ValueError, f"{second} must have shape"),
        (first, shape, TypeError, f"{first} must be a tensor, got tuple"),
        (second, None, TypeError, f"{second} must be a tensor, got NoneType"),
    ]
    if second_shape[-1] == m:  # for lags, gates alone determine m
        long = torch.zeros(*shape[:-1], shape[-1] + 1)
        cases.append((first, long, ValueError, f"{first} must have shape .*m=2.*, got "))
    for name, value, error, message in cases:
        check_refusal(function, good(function) | {name: value}, error, message)


@every_function
def test_bad_initial_states_are_refused(function):
    name = "initial_state" if function in SEQUENCES else "state"
    for value, error, message in (
        (torch.zeros(B, H, m + 1), ValueError, r"state must have shape \(.=2, H=3, m=2\), got"),
        (torch.zeros(B + 1, H, m), ValueError, "state must have shape"),
        (torch.zeros(H, m), ValueError, "state must have shape"),
        (torch.zeros(B, H, m, dtype=torch.int64), TypeError, "state must be floating"),
        (torch.zeros(B, H, m).to(torch.float8_e5m2), TypeError, "state must be floating .*float8"),
        (torch.zeros(B, H, m, device="meta"), ValueError, "state must be on cpu, got meta"),
        (0.0, TypeError, "state must be a tensor, got float"),
    ):
        check_refusal(function, good(function) | {name: value}, error, message)


def bounds(*numbers, dtype=torch.int64):
    return torch.tensor(numbers, dtype=dtype)


BAD_BOUNDS = [
    (bounds(0, 1, T, dtype=torch.float32), TypeError, "int32 or int64, got torch.float32"),
    (bounds(0, 1, T, dtype=torch.int16), TypeError, "int32 or int64, got torch.int16"),
    ([0, 1, T], TypeError, "cu_seqlens must be a tensor, got list"),
    (bounds(0, 1, T).to_sparse(), TypeError, "cu_seqlens must be a dense tensor"),
    (bounds(), ValueError, r"cu_seqlens must have shape \(N\+1,\), got \(0,\)"),
    (bounds(0, T).view(1, 2), ValueError, r"cu_seqlens must have shape \(N\+1,\), got \(1, 2\)"),
    (torch.tensor(T), ValueError, r"cu_seqlens must have shape \(N\+1,\), got \(\)"),
    (bounds(0, T).to("meta"), ValueError, "cu_seqlens must be on cpu, got meta"),
    *(
        (bounds(*numbers), ValueError, f"must rise from 0 to the length 4, got .{numbers[0]}")
        for numbers in ((1, 2, T), (0, 3, 1, T), (0, 1, T - 1), (0, 1, T + 1), (0, 7, T), (-1, T))
    ),
    (bounds(0), ValueError, r"must rise from 0 to the length 4, got \[0\]"),
    (bounds(T), ValueError, r"must rise from 0 to the length 4, got \[4\]"),
]


def test_bounds_of_no_sequence_are_refused_where_values_are_not_read():
    rows = torch.zeros(1, T, 2, 2, device="meta")
    with pytest.raises(ValueError, match="cu_seqlens must bound sequences of 4 steps, got none"):
        check_cu_seqlens(bounds(0).to("meta"), rows)
    check_cu_seqlens(bounds(0).to("meta"), rows[:, :0])


@pytest.mark.parametrize("function", [*SEQUENCES, "observer"])
def test_bad_bounds_are_refused(function, device, backend):
    if device != "cpu":
        pytest.skip("bounds are read only on the CPU")
    options = {"backend": backend}
    if function == "observer":
        function, options["realization"] = "h_lru", "observer"
    if function == "low_rank_scan" and "low_rank" not in ops.BACKENDS[backend].kernels:
        pytest.skip(f"backend {backend} has no kernel of it")
    for value, error, message in BAD_BOUNDS:
        arguments = packed(function) | {"cu_seqlens": value} | options
        check_refusal(function, arguments, error, message)


@every_sequence
def test_packed_sequences_need_one_row_and_a_state_each(function):
    arguments = good(function) | {"cu_seqlens": bounds(0, T)}
    check_refusal(function, arguments, ValueError, "cu_seqlens needs .* got B = 2")
    arguments = packed(function) | {"initial_state": torch.zeros(1, H, m)}
    message = r"initial_state must have shape \(N=2, H=3, m=2\), got \(1, 3, 2\)"
    check_refusal(function, arguments, ValueError, message)


@every_function
def test_unknown_names_are_refused_with_the_known_ones(function):
    cases = [("backend", name, "'cpu', .*'reference'.*") for name in ("cuda", "", 0)]
    if "lru" in function:
        cases += [("gate", name, "'softmax', .*") for name in ("Soft", None, 3)]
    if function.startswith("h_lru"):
        blocks_only = [name for name, family in ops.GATES.items() if family.blocks_only]
        cases += [("gate", name, "'softmax', .* 'tanh'") for name in blocks_only]
        cases += [("realization", name, "'controller', 'observer'") for name in ("other", None)]
        array = np.array(["softmax", "cpu"])
        cases += [(argument, array, ".*") for argument in ("gate", "realization", "backend")]
    for argument, name, known in cases:
        message = rf"{argument} must be one of \[{known}\], got"
        check_refusal(function, good(function) | {argument: name}, ValueError, message)


@pytest.mark.parametrize("rows", [0, 1, 2, 4, 18, 19])
def test_ranks_out_of_range_are_refused(rows):
    message = f"transitions must have 1 \\+ 2 r rows for a rank r from 1 to 8, got {rows} rows"
    for function in ("low_rank_scan", "low_rank_step"):
        arguments = good(function)
        arguments["transitions"] = arguments["transitions"][..., :1, :].expand(
            *FUNCTIONS[function]["transitions"][:-2], rows, m
        )
        check_refusal(function, arguments, ValueError, message)


@every_function
def test_blocks_of_size_zero_are_refused(function):
    shapes = FUNCTIONS[function] | ({} if function in SEQUENCES else {"state": (B, H, m)})
    arguments = {}
    for name, shape in shapes.items():
        inner = shape.index(H) + 1
        arguments[name] = torch.zeros(*shape[:inner], *(size - m for size in shape[inner:]))
    check_refusal(function, arguments, ValueError, "must have m of at least 1, got")


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
        (torch.zeros(3), "householder", ValueError, r"\(..., m, m\+1\) for 'householder'"),
        (torch.zeros(3, 3), "column_softmax", ValueError, r"\(..., m, m\+1\) for 'column_softmax'"),
        (torch.zeros(3), "soft", ValueError, r"gate must be one of \['softmax', .*\], got 'soft'"),
        (torch.zeros(2, 3).to_sparse(), "softmax", TypeError, "gates must be a dense tensor"),
    ],
)
def test_bad_gates_of_normalize_are_named(gates, gate, error, message):
    with pytest.raises(error, match=message):
        ops.normalize(gates, gate)
