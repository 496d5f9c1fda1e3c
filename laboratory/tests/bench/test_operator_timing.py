"""The cases of the operator benchmark: their results, traffic, memory and rows."""

import json
import math

import pytest
import torch

from statemix import ops as operators
from statemix.errors import RequestError, SettingError
from statemix_lab.bench import operator_timing as ops
from statemix_lab.bench.harness import COPY, Measurement, Spread

TINY = [
    ops.OperatorCase(recurrence, direction, batch_size=2, length=5, num_blocks=3, block_size=2)
    for recurrence in ("bd_lru", "h_lru")
    for direction in ("forward", "forward_backward")
]
LOW_RANK = [
    ops.OperatorCase("low_rank", direction, 2, 300, 3, 5, gate="given", rank=2)
    for direction in ("forward", "forward_backward")
]
REFLECTED = ops.OperatorCase("bd_lru", "forward_backward", 2, 5, 3, 2, gate="householder")
# So long that states of rows that nothing bounds are no numbers.
UNBOUNDED = [
    ops.OperatorCase(recurrence, "forward_backward", 2, 300, 3, 2, gate="none")
    for recurrence in ("bd_lru", "h_lru")
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, torch.float32) for case in (*TINY, REFLECTED, *UNBOUNDED, *LOW_RANK)),
        (TINY[1], torch.bfloat16),
        (UNBOUNDED[1], torch.bfloat16),
        (TINY[3], torch.float64),
        (REFLECTED, torch.float64),
        (LOW_RANK[1], torch.bfloat16),
    ],
)
def test_every_provider_gives_the_reference_result(case, dtype):
    copy, *others = ops.providers(case, dtype, compiled=False)
    names, last = [COPY, ops.OURS, ops.LOOP, ops.PAPER], ops.COMPILED
    if case.rank is not None:
        # The published scan has none.
        names, last = names[:3], ops.LOOP
    assert [copy.name, *(one.name for one in others)] == names
    assert ops.providers(case, dtype, compiled=True)[-1].name == last
    for provider in others:
        call = provider.prepare()
        try:
            results = call()
        except operators.BackendUnavailableError as error:
            pytest.skip(str(error))
        assert len(results) == (2 if case.direction == "forward" else 4)
        assert provider.error(results) <= ops.TOLERANCES[dtype]
        broken = [results[0] * 1.1, *results[1:]]
        assert provider.error(broken) > 0.05


def test_chunks_are_forced_by_the_backend_and_kept_in_the_row(monkeypatch):
    seen = []

    def scan(gates, values, *arguments, backend):
        seen.append(backend)
        return real(gates, values, *arguments, backend="loop")

    real = operators.bd_lru
    monkeypatch.setattr(operators, "bd_lru", scan)
    case = next(one for one in TINY if one.direction == "forward_backward")
    for provider in ops.providers(case, torch.float32, compiled=False, chunks=(0, 64)):
        if provider.name in (ops.OURS, ops.chunked(0), ops.chunked(64)):
            call = provider.prepare()
            assert provider.error(call()) <= 1e-5
    assert [name for name in seen if name != "reference"] == ["cpu", "triton_0", "triton_64"]
    for length in (0, 64):
        operators.BACKENDS.remove(operators.in_chunks(length))
    for name, chunk in ((ops.OURS, None), (ops.chunked(0), 0), (ops.chunked(64), 64)):
        assert ops.row(case, Measurement(name, "", "skipped"), torch.float32)["chunk"] == chunk


def test_providers_receive_their_memory_order(monkeypatch):
    seen = {}

    def spy(gates, values, gate, *, backend):
        assert gate == "softmax"
        seen[backend] = (gates, values)
        return values, values

    monkeypatch.setattr(operators, "bd_lru", spy)
    for provider in ops.providers(TINY[0], torch.float32, compiled=False):
        provider.prepare()()
    assert seen["cpu"][0].stride() == (5 * 18, 18, 1, 9, 3)
    assert seen["associative"][0].is_contiguous()
    torch.testing.assert_close(seen["cpu"], seen["associative"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("recurrence", "direction", "entries"),
    [
        # G = 3 * 2 * 5 at rank 2, N = 3 * 2.
        ("low_rank", "forward", 10 * (30 + 12)),
        ("low_rank", "forward_backward", 30 * (30 + 12)),
        # Per token G + 2N, times 3 with the backward: G = 3 * 2 * 3, N = 3 * 2 for blocks.
        ("bd_lru", "forward", 10 * (18 + 12)),
        ("bd_lru", "forward_backward", 30 * (18 + 12)),
        # G = 3 * 3, N = 3 for channels of order 2.
        ("h_lru", "forward", 10 * (9 + 6)),
        ("h_lru", "forward_backward", 30 * (9 + 6)),
    ],
)
def test_copy_moves_what_the_operator_must(recurrence, direction, entries, copied):
    case = ops.OperatorCase(
        *(recurrence, direction, 2, 5, 3, 2), rank=2 if recurrence == "low_rank" else None
    )
    assert case.moved_bytes(torch.float32) == 4 * entries
    assert 2 * sum(copied(ops.providers(case, torch.float32, compiled=False)[0])) == entries


def test_shapes_with_a_block_size_have_only_that_one():
    shapes = [ops.parse_shape("8x16x4"), ops.parse_shape("2x3x4x5")]
    listed = ops.cases(("bd_lru", "h_lru"), shapes, block_sizes=(1, 2), orders=(3,))
    sizes = [(c.recurrence, c.batch_size, c.block_size) for c in listed if c.direction == "forward"]
    assert sizes == [
        ("bd_lru", 8, 1),
        ("bd_lru", 8, 2),
        ("bd_lru", 2, 5),
        ("h_lru", 8, 3),
        ("h_lru", 2, 5),
    ]
    assert len(listed) == 10


def test_rows_are_whole_and_valid_json():
    ratios, time_s = {"copy": Spread(4.0, 5.0, 6.0)}, Spread(1.0, 2.0, 3.0)
    timed = Measurement("paper", "contiguous", "measured", time_s=time_s, ratios=ratios)
    row = json.loads(json.dumps(ops.row(TINY[0], timed, torch.float32), allow_nan=False))
    assert row["ratios"] == {"copy": {"p20": 4.0, "p50": 5.0, "p80": 6.0}}
    # As many bytes as the copy has, in five times the time.
    assert row["moved_bytes"] == TINY[0].moved_bytes(torch.float32)
    assert row["roofline"] == {"p20": 1 / 6, "p50": 1 / 5, "p80": 1 / 4}
    # A tenth of the bytes in five times the time.
    row = ops.row(TINY[0], timed, torch.float32, row["moved_bytes"] / 10)
    assert row["roofline"]["p50"] == pytest.approx(1 / 50)

    wrong = Measurement("paper", "", "wrong", "relative error nan", relative_error=math.nan)
    row = json.loads(json.dumps(ops.row(TINY[0], wrong, torch.float32), allow_nan=False))
    assert row["time_s"] is row["relative_error"] is row["roofline"] is None
    assert row["reason"] == "relative error nan"


def test_the_gate_family_reaches_every_provider_and_must_fit():
    (forward, backward) = ops.cases(["bd_lru"], [ops.CaseShape(1, 2, 3, 2)], (), (), "householder")
    assert (forward.gate, backward.gate) == ("householder", "householder")
    assert ops.row(forward, Measurement("a", "", "skipped"), torch.float32)["case"]["gate"] == (
        "householder"
    )
    with pytest.raises(SettingError, match=r"gate must be one of .* got 'householder'"):
        ops.cases(["h_lru"], [ops.CaseShape(1, 2, 3, 2)], (), (), "householder")


def test_ranks_are_those_of_the_low_rank_scan_and_in_range():
    shapes = [ops.CaseShape(1, 2, 3, 4)]
    listed = ops.cases(["bd_lru", "low_rank"], shapes, (), (), ranks=(1, 8))
    found = [(one.gate, one.rank) for one in listed if one.direction == "forward"]
    assert found == [("softmax", None), ("given", 1), ("given", 8)]
    for ranks, message in (((0,), "ranks must be at least 1"), ((1, 9), "ranks must be at most 8")):
        with pytest.raises(RequestError, match=message):
            ops.cases(["low_rank"], shapes, (), (), ranks=ranks)
