"""Scans whose time is split over processes equal the scan of one process."""

import itertools
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed

from statemix import ops
from statemix.layers import BDLRU, CausalConv

B, H = 2, 3
# Operator, m, its options, dtype. Names with "channels" have values of C channels, and those with
# "autocast" run under autocast to bfloat16, which must not round the states between ranks.
C = 4
CASES = {
    "bd_lru": (ops.bd_lru, 3, {"gate": "signed", "temperature": 0.7}, torch.float64),
    "bd_lru-autocast": (ops.bd_lru, 4, {}, torch.float32),
    "bd_lru-householder": (ops.bd_lru, 3, {"gate": "householder"}, torch.float64),
    "bd_lru-channels": (ops.bd_lru, 3, {"gate": "tanh"}, torch.float64),
    "h_lru": (ops.h_lru, 3, {}, torch.float64),
    "h_lru-observer": (ops.h_lru, 2, {"realization": "observer"}, torch.float64),
    "block_scan": (ops.block_scan, 2, {}, torch.float64),
    "lag_scan": (ops.lag_scan, 4, {}, torch.float64),
    "low_rank_scan": (ops.low_rank_scan, 5, {}, torch.float64),
}
SLICES = {2: (5, 2), 4: (3, 0, 4, 1)}
# Of four ranks, in the order of a group that leaves the others out.
GROUP = [1, 3]


def problem(name, length):
    """Leaves, and cotangents of all states and of the last one."""
    operator, m, options, dtype = CASES[name]
    generator = torch.Generator().manual_seed(length)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    block = operator in (ops.bd_lru, ops.block_scan, ops.low_rank_scan)
    gated = operator in (ops.bd_lru, ops.h_lru)
    columns = (C,) if "channels" in name else ()
    values = draw(B, length, H, m, *columns) if block else draw(B, length, H)
    shape = (m, m + gated) if block else (m + gated,)  # of rank 2, if m is 5
    gates = draw(B, length, H, *shape) * (1 if gated else 0.4)
    leaves = [gates, values, draw(B, H, m, *columns)]
    cotangents = [draw(*values.shape), draw(B, H, m, *columns)]
    return operator, options, [one.requires_grad_() for one in leaves], cotangents


def whole(name, length, learned):
    """Results and gradients in one process, by the backend of choice."""
    operator, options, (gates, values, initial), (d_states, d_final) = problem(name, length)
    states, final = operator(gates, values, initial_state=initial if learned else None, **options)
    ((states * d_states).sum() + (final * d_final).sum()).backward()
    return states, final, gates.grad, values.grad, initial.grad


def part(name, slices, learned, backend, group):
    """The same on one rank of a group, which holds a slice."""
    rank = distributed.get_rank(group)
    operator, options, leaves, (d_states, d_final) = problem(name, sum(slices))
    begin = sum(slices[:rank])
    here = slice(begin, begin + slices[rank])
    gates, values = (one.detach()[:, here].requires_grad_() for one in leaves[:2])
    initial = leaves[2] if learned else None
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in name):
        states, final = ops.sequence_parallel(
            operator, gates, values, initial, group=group, backend=backend, **options
        )
    last = d_final if rank == len(slices) - 1 else torch.zeros_like(d_final)
    ((states * d_states[:, here]).sum() + (final * last).sum()).backward()
    return states, final, gates.grad, values.grad, leaves[2].grad


def layer_outputs(slices, rank=0, group=None):
    """Outputs of layers in training for one rank's slice, whose own random numbers differ."""
    torch.manual_seed(0)
    x = torch.randn(B, sum(slices), 4, dtype=torch.float64).split(slices, 1)[rank]
    layers = (
        BDLRU(4, num_blocks=3, block_size=2, block_dropout=0.5, dtype=x.dtype),
        CausalConv(4, kernel_size=1, dtype=x.dtype),
        CausalConv(4, kernel_size=3, dtype=x.dtype),
    )
    torch.manual_seed(rank)
    return [layer(x, group=group)[0].detach() for layer in layers]


def work(rank, world_size, folder, backend):
    """Run all cases as one rank, and store what they give."""
    rank, world_size, backend = int(rank), int(world_size), backend or None
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    groups = [None]
    if world_size > len(GROUP):
        # All ranks must take part.
        group = distributed.new_group(GROUP)
        groups += [group] if rank in GROUP else []
    found = {}
    # The interpreter of Triton is slow.
    names = ["bd_lru", "h_lru"] if backend == "triton" else CASES
    for name, learned, group in itertools.product(names, (True, False), groups):
        slices = SLICES[distributed.get_world_size(group)]
        results = part(name, slices, learned, backend, group)
        found[name, learned, group is not None] = [x if x is None else x.detach() for x in results]
    outputs = layer_outputs(SLICES[world_size], rank, distributed.group.WORLD)
    torch.save((found, outputs), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.parametrize(("world_size", "backend"), [(4, None), (2, "triton")])
def test_ranks_together_are_one_process(world_size, device, backend, tmp_path):
    if device != "cpu":
        pytest.skip("gloo gathers tensors on the CPU")
    arguments = [str(world_size), str(tmp_path), backend or ""]
    workers = [
        subprocess.Popen([sys.executable, __file__, str(rank), *arguments])
        for rank in range(world_size)
    ]
    try:
        assert [worker.wait(timeout=300) for worker in workers] == [0] * world_size
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    stored = (torch.load(tmp_path / f"{rank}.pt") for rank in range(world_size))
    found, outputs = zip(*stored, strict=True)
    for expected, *slices in zip(layer_outputs((sum(SLICES[world_size]),)), *outputs, strict=True):
        torch.testing.assert_close(torch.cat(slices, 1), expected, rtol=0, atol=1e-10)
    check_parts(found, SLICES[world_size], grouped=False)
    if world_size > len(GROUP):
        check_parts([found[rank] for rank in GROUP], SLICES[len(GROUP)], grouped=True)


def check_parts(found, slices, *, grouped):
    """What ranks have found, in the order of their slices, is what one process finds."""
    for name in dict.fromkeys(name for name, *_ in found[0]):
        tolerance = 1e-10 if CASES[name][-1] == torch.float64 else 1e-5
        for learned in (True, False):
            parts = [one[name, learned, grouped] for one in found]
            states, final, d_gates, d_values, d_initial = whole(name, sum(slices), learned)
            for place, expected in ((0, states), (2, d_gates), (3, d_values)):
                together = torch.cat([one[place] for one in parts], 1)
                assert together.dtype == expected.dtype
                torch.testing.assert_close(together, expected, rtol=0, atol=tolerance)
            torch.testing.assert_close(parts[-1][1], final, rtol=0, atol=tolerance)
            if learned:
                torch.testing.assert_close(parts[0][4], d_initial, rtol=0, atol=tolerance)
                assert all((one[4] == 0).all() for one in parts[1:])


def test_what_cannot_be_split_is_named():
    _, _, (gates, values, _), _ = problem("bd_lru", 3)
    with pytest.raises(ValueError, match="cu_seqlens cannot be split over ranks"):
        ops.sequence_parallel(ops.bd_lru, gates, values, cu_seqlens=torch.tensor([0, 3]))
    learned = torch.ones((), requires_grad=True)
    with pytest.raises(ValueError, match="temperature must not want a gradient across ranks"):
        ops.sequence_parallel(ops.bd_lru, gates, values, temperature=learned)
    with pytest.raises(ValueError, match="process group has not been initialized"):
        ops.sequence_parallel(ops.bd_lru, gates, values)


def test_the_state_before_the_sequence_is_checked_and_may_have_another_dtype():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        _, _, (gates, values, initial), _ = problem("bd_lru", 3)
        with pytest.raises(ValueError, match="initial_state"):
            ops.sequence_parallel(ops.bd_lru, gates, values, initial[:1])
        low = initial.detach().to(torch.float32).requires_grad_()
        states, _ = ops.sequence_parallel(ops.bd_lru, gates, values, low, cu_seqlens=None)
        states.sum().backward()
        expected, _ = ops.bd_lru(gates, values, initial_state=low)
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-10)
        assert low.grad.dtype == torch.float32
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    work(*sys.argv[1:])
