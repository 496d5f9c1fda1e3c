"""The largest tensor of a forward, found without memory."""

import signal

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from statemix.bench.compared_layers import compared
from statemix.layers import LAYERS, CausalConv, LayerSpec
from statemix.layers.largest import largest_tensor


def allocated(call):
    """Return the bytes of the largest block that ``call`` allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("length", [3, 64])
def test_no_forward_allocates_less(name, length):
    spec = compared(32)[name]
    layer, x = spec.build(hidden_size=32), torch.randn(2, length, 32)
    found = largest_tensor(spec, hidden_size=32, batch_size=2, length=length)
    assert x.nbytes <= found <= allocated(lambda: layer(x))


class Interrupted(CausalConv):
    """A convolution during whose forward a signal comes, and that counts forwards that ended."""

    ended = 0

    def forward(self, x, state=None, cu_seqlens=None):
        results = super().forward(x, state, cu_seqlens)
        signal.raise_signal(signal.SIGINT)
        Interrupted.ended += 1
        return results


def test_a_signal_waits_until_the_tensors_have_data_again(monkeypatch):
    """PyTorch aborts the process if a handler raises within its operations on shapes."""
    monkeypatch.setattr(LAYERS, "_entries", dict(LAYERS._entries))
    Interrupted.name = "interrupted"
    LAYERS.register(Interrupted)
    with pytest.raises(KeyboardInterrupt):
        largest_tensor(
            LayerSpec("interrupted", kernel_size=2), hidden_size=4, batch_size=1, length=5
        )
    assert Interrupted.ended == 1


def test_updates_of_one_token_form_one_matrix():
    spec = LayerSpec("delta_product", num_heads=1, num_householder=2_000_000)
    found = largest_tensor(spec, hidden_size=1, batch_size=3, length=2)
    assert found == 4 * 3 * 2 * 2_000_000**2


def test_a_state_may_be_largest():
    spec = LayerSpec("mamba2", head_dim=16, d_state=5_000_000)
    found = largest_tensor(spec, hidden_size=8, batch_size=1, length=1, dtype=torch.float64)
    assert found == 8 * 16 * 5_000_000


def test_scores_that_no_kernel_keeps_do_not_count():
    spec = LayerSpec("attention", num_heads=8)
    tokens = 4 * 8 * 64
    assert largest_tensor(spec, hidden_size=8, batch_size=1, length=64) == 3 * tokens


def test_longer_sequences_count_as_their_first_tokens():
    spec = LayerSpec("conv", kernel_size=2)
    first, whole = (
        largest_tensor(spec, hidden_size=4, batch_size=1, length=n) for n in (64, 10**9)
    )
    assert first == whole


def test_options_are_refused_as_when_the_layer_is_built():
    with pytest.raises(ValueError, match="num_heads must divide hidden_size, got 3"):
        largest_tensor(LayerSpec("attention", num_heads=3), hidden_size=8, batch_size=1, length=1)


def test_a_tensor_beyond_all_memories_is_no_error(caplog, capfd):
    spec = LayerSpec("delta_product", num_heads=1, num_householder=2_000_000_000)
    assert largest_tensor(spec, hidden_size=1, batch_size=8, length=8) >= 2**63
    assert (caplog.text, capfd.readouterr().err) == ("", "")


class Reader(CausalConv):
    name = "reader"

    def forward(self, x, state=None, cu_seqlens=None):
        assert x.sum().item() == 0
        return super().forward(x, state, cu_seqlens)


def test_a_layer_that_reads_its_values_counts_until_then():
    LAYERS.register(Reader)
    try:
        spec = LayerSpec("reader", kernel_size=3)
        assert largest_tensor(spec, hidden_size=4, batch_size=1, length=4) == 4
    finally:
        LAYERS.remove("reader")
