"""The cache of attention while it grows: no state changes when a later one is made."""

import copy
import io

import pytest
import torch
from tests.layers.conftest import tokens

from statemix.layers import Attention, AttentionState, map_state, take_rows


@pytest.fixture
def layer():
    made = Attention(6, num_heads=3, rope=True, dtype=torch.float64)
    made.reset_parameters(torch.Generator().manual_seed(0))
    return made


def follow(layer, x, state):
    outputs = []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def copied(state):
    return map_state(torch.clone, state)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_every_state_of_a_long_decoding_keeps_its_values(layer, mode):
    x = tokens(2, 150)
    with mode():
        _, state = layer(x[:, :3])
        states, copies = [state], [copied(state)]
        for x_t in x[:, 3:].unbind(1):
            y, state = layer.step(x_t, state)
            states.append(state)
            copies.append(copied(state))
        torch.testing.assert_close(states, copies, rtol=0, atol=0)
        whole, last = layer(x)
    torch.testing.assert_close(y, whole[:, -1], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-11, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kept", [1, 60])
def test_branches_from_one_state_that_take_turns_do_not_meet(layer, kept):
    """As in beam search and speculative decoding: back to an earlier state, more than once."""
    start, words = tokens(2, kept), [tokens(2, 40, seed) for seed in (2, 3, 4)]
    _, state = follow(layer, start, layer.init_state(2))
    branches, outputs = [state] * 3, [None] * 3
    for t in range(40):
        for n, x in enumerate(words):
            outputs[n], branches[n] = layer.step(x[:, t], branches[n])
    for x, y, branch in zip(words, outputs, branches, strict=True):
        whole, last = layer(torch.cat([start, x], 1))
        torch.testing.assert_close(y, whole[:, -1], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(branch, last, rtol=1e-11, atol=1e-12)


@torch.no_grad()
def test_a_state_with_one_part_from_elsewhere_is_copied(layer):
    _, state = follow(layer, tokens(2, 4), layer.init_state(2))
    other = state._replace(values=2 * state.values)
    _, after = layer.step(tokens(2, 1)[:, 0], other)
    assert torch.equal(after.values[:, :4], 2 * state.values)
    shorter = AttentionState(*(part[:, :2] for part in state))
    _, after = layer.step(tokens(2, 1, 5)[:, 0], shorter)
    torch.testing.assert_close(state, layer(tokens(2, 4))[1])
    assert after.keys.shape[1] == 3


def memory(part):
    # Asking for data_ptr would copy memory that is shared until someone writes.
    return torch._C._data_address(part)


@torch.no_grad()
def test_a_decoding_copies_its_cache_seldom(layer):
    _, state = layer(tokens(1, 1000))
    seen = []
    for x_t in tokens(1, 250).unbind(1):
        _, state = layer.step(x_t, state)
        seen.append(memory(state.keys))
    assert len(set(seen)) <= 2
    assert state.keys.untyped_storage().nbytes() < 1.3 * state.keys.nbytes


@torch.no_grad()
def test_copies_have_no_spare_room(layer):
    _, state = follow(layer, tokens(2, 40), layer.init_state(2))
    needed = [part.nbytes for part in state]
    assert [part.untyped_storage().nbytes() for part in state] > needed
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file)
    for other in (loaded, copy.deepcopy(state), take_rows(state, torch.tensor([0, 1]))):
        assert isinstance(other, AttentionState)
        torch.testing.assert_close(other, state, rtol=0, atol=0)
        assert [part.untyped_storage().nbytes() for part in other] == needed
    _, after = layer.step(tokens(2, 1)[:, 0], loaded)
    assert after.keys.shape[1] == 41


def test_states_of_inference_mode_are_continued_outside_it(layer):
    with torch.inference_mode():
        _, state = follow(layer, tokens(2, 20), layer.init_state(2))
    with torch.no_grad():
        _, state = follow(layer, tokens(2, 20, 2), state)
    x = tokens(2, 1, 3).requires_grad_()
    y, _ = layer.step(x[:, 0], state)
    y.sum().backward()
    whole = torch.cat([tokens(2, 20), tokens(2, 20, 2), tokens(2, 1, 3)], 1)
    torch.testing.assert_close(y, layer(whole)[0][:, -1], rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@torch.no_grad()
def test_transforms_see_a_concatenation(layer):
    _, state = follow(layer, tokens(2, 20), layer.init_state(2))
    x = tokens(3, 2)
    expected = [layer.step(x_t, copied(state)) for x_t in x]
    found = torch.vmap(layer.step, in_dims=(0, None))(x, state)
    torch.testing.assert_close(found[0], torch.stack([y for y, _ in expected]))
    torch.testing.assert_close(found[1].keys, torch.stack([after.keys for _, after in expected]))
    _, after = layer.step(x[0], state)
    assert memory(after.keys) == memory(state.keys)
