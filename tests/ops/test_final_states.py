"""Final states belong to the caller: they may be changed, and hold no more than themselves."""

import torch
from tests.ops.conftest import in_pairs, usable

from statemix import ops

RECURRENCES = {
    "blocks": (ops.bd_lru, {}),
    "lags": (ops.h_lru, {}),
    "observer": (ops.h_lru, {"realization": "observer"}),
}


@in_pairs(recurrence=list(RECURRENCES), lengths=[None, (3, 0, 4), (0,)], size=[1, 2], **usable())
def test_final_states_own_their_memory_and_may_be_changed(
    problem, recurrence, size, lengths, backend
):
    run, options = RECURRENCES[recurrence]
    kind = "blocks" if recurrence == "blocks" else "lags"
    p = problem(kind, size=size, lengths=lengths).to(torch.float32)
    for gates in (p.gates, p.gates.requires_grad_()):
        states, final = run(
            gates, p.values, "softmax", p.initial_state, p.cu_seqlens, backend=backend, **options
        )
        assert final.untyped_storage().nbytes() == final.numel() * final.element_size()
        assert states.untyped_storage().data_ptr() != final.untyped_storage().data_ptr()
        final[0] = 0
