"""States as trees with one leaf or many: selection, checks and names."""

from typing import NamedTuple

import pytest
import torch

from statemix.layers import map_state, take_rows
from statemix.layers.state import check_like, tensors


class Memory(NamedTuple):
    keys: torch.Tensor
    inner: tuple


def leaf(rows=3, width=2, start=0.0, dtype=torch.float64):
    return start + torch.arange(rows * width, dtype=dtype).reshape(rows, width)


def nested(rows=3, dtype=torch.float64):
    inner = (leaf(rows, 1, 20.0, dtype), torch.arange(rows))
    return Memory(leaf(rows, 2, 0.0, dtype), (inner, leaf(rows, 4, 50.0, dtype)))


STATES = {"tensor": leaf, "tuple": lambda: (leaf(), leaf(3, 4)), "nested": nested}


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
@pytest.mark.parametrize("rows", [[1, 2, 1, 0], []], ids=str)
def test_rows_are_selected_repeated_and_reordered_in_every_tensor(make, rows):
    state, index = make(), torch.tensor(rows, dtype=torch.int64)
    taken = take_rows(state, index)
    assert type(taken) is type(state)
    for (name, part), (same_name, of) in zip(tensors(taken), tensors(state), strict=True):
        assert name == same_name
        assert torch.equal(part, of[rows])


def test_a_function_of_several_states_meets_the_same_places():
    summed = map_state(torch.add, nested(), nested())
    assert type(summed) is Memory
    for (_, ours), (_, once) in zip(tensors(summed), tensors(nested()), strict=True):
        assert torch.equal(ours, 2 * once)
    with pytest.raises(ValueError, match="zip"):
        map_state(torch.add, (leaf(), leaf()), (leaf(),))


def changed(**parts):
    return nested()._replace(**parts)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (leaf(), TypeError, "state must be a Memory, got Tensor"),
        (tuple(nested()), TypeError, "state must be a Memory, got tuple"),
        (changed(keys=[1]), TypeError, "state.keys must be a tensor, got list"),
        (changed(inner=()), TypeError, "state.inner must have 2 parts, got 0"),
        (changed(inner=(3, leaf())), TypeError, "state.inner.0 must be a tuple, got int"),
        (changed(keys=leaf(2)), ValueError, r"state.keys must have shape \(B=3, 2\), got \(2, 2\)"),
        (changed(keys=leaf().long()), TypeError, "state.keys must be floating"),
        (
            changed(inner=((leaf(3, 1), torch.zeros(3)), leaf(3, 4))),
            TypeError,
            "state.inner.0.1 must have an integer dtype",
        ),
    ],
)
def test_a_state_that_is_unlike_its_template_is_refused_by_name(state, error, message):
    with pytest.raises(error, match=f"^{message}"):
        check_like(state, nested(1), 3, "B")


@pytest.mark.parametrize("width", [0, 3])
def test_bad_rows_are_named(width):
    for rows, error in [
        ([0], TypeError),
        (torch.tensor([0.0]), TypeError),
        (torch.tensor([[0]]), ValueError),
        (torch.tensor([2]), ValueError),
        (torch.tensor([-1]), ValueError),
        (torch.tensor([0], device="meta"), ValueError),
    ]:
        with pytest.raises(error, match=r"^rows must"):
            take_rows(torch.zeros(2, width), rows)
