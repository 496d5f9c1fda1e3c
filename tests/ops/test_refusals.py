"""Kernels refuse what they cannot read or write, such as what hooks of saved tensors changed."""

import pytest
import torch

from statemix import ops
from statemix.ops.cpu import loader


@pytest.mark.kernels
def test_a_refusal_of_the_cpu_kernels_is_raised():
    with pytest.raises(RuntimeError, match="the CPU kernels refused"):
        loader.check(1, loader._Problem())
    with pytest.raises(MemoryError, match="scratch space of a scan of length=0"):
        loader.check(2, loader._Problem())


@pytest.mark.kernels
@pytest.mark.parametrize("change", [torch.Tensor.bfloat16, lambda s: s[:, :3], lambda s: s.tile(9)])
def test_saved_states_that_hooks_changed_are_refused(change):
    gates = torch.zeros(1, 5, 2, 1, 2, dtype=torch.bfloat16, requires_grad=True)
    values = torch.ones(1, 5, 2, 1, dtype=torch.bfloat16)

    def unpack(saved):
        return change(saved) if saved.dtype == torch.float32 and saved.ndim == 4 else saved

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        states, _ = ops.bd_lru(gates, values, backend="cpu")
    with pytest.raises(RuntimeError, match="saved states must have shape"):
        states.sum().backward()


def test_maps_that_hooks_changed_are_refused():
    pytest.importorskip("triton", reason="Triton is not installed")
    from statemix.ops.triton import launch

    gates, values, state = torch.zeros(1, 5, 2, 1, 2), torch.zeros(1, 5, 2, 1), torch.zeros(1, 2, 1)
    scan = ops.Scan(gates, values, state, None, None, "block", "triton", "softmax", True)
    # Too few, of another shape, and in another order.
    for maps in (
        torch.zeros(1, 2, 1, 2),
        torch.zeros(2, 2, 1, 1),
        torch.zeros(2, 2, 1, 2).transpose(1, 3),
    ):
        with pytest.raises(RuntimeError, match="maps must be 2 or more"):
            launch.backward(2, scan, values, state, values, (maps,))
