"""Memory orders between projections and operators."""

import torch
from tests.ops.conftest import in_pairs

from statemix.ops.layout import join_units, split_units


@in_pairs(batch=[(1,), (2,), (2, 3), (0,)], inference=[False, True])
def test_joining_undoes_splitting_and_copies_nothing(batch, inference):
    flat = torch.arange(5 * 4 * torch.Size(batch).numel()).reshape(*batch, 20)
    with torch.inference_mode(inference):
        units = split_units(flat, (4,), num_units=5)
        assert units.shape == (*batch, 5, 4)
        joined = join_units(units)
    assert torch.equal(joined, flat)
    assert joined.data_ptr() == flat.data_ptr()


def test_units_in_another_memory_order_are_joined_alike():
    units = torch.arange(24).reshape(2, 4, 3)
    expected = [[units[b, h, i] for i in range(3) for h in range(4)] for b in range(2)]
    assert torch.equal(join_units(units), torch.tensor(expected))
