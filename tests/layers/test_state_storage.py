"""Every state has memory of its own: writing into one changes nothing else."""

import pytest
import torch

from statemix.layers import pack, take_rows
from statemix.layers.state import tensors

MODES = [torch.enable_grad, torch.inference_mode]


def returned(layer):
    """Return everything that a caller may hold after calls of every kind, by a name."""
    x = torch.randn(2, 7, layer.hidden_size, dtype=torch.float64)
    bounds = torch.tensor([0, 3, 3, 7])
    held = {"x": x, "initial": layer.init_state(2)}

    def keep(name, result):
        held[f"{name}: y"], held[name] = result
        return held[name]

    keep("continued start", layer(x, held["initial"]))
    state = keep("whole", layer(x))
    for t in range(3):
        state = keep(f"step {t}", layer.step(x[:, t], state))
    keep("step again", layer.step(x[:, 0], held["step 1"]))
    for t in range(2):
        state = keep(f"piece {t}", layer(x[:, t : 2 * t + 1], state))
    keep("no tokens", layer(x[:, :0], state))
    keep("no sequences", layer(x[:0]))
    keep("step of none", layer.step(x[:0, 0], layer.init_state(0)))
    state = keep("packed", layer(x[:1], None, bounds))
    keep("packed again", layer(x[:1], state, bounds))
    keep("packed one", layer(x[:1], None, torch.tensor([0, 7])))
    mask = torch.tensor([[0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
    packed, bounds = pack(x, mask)
    state = keep("padded", layer(packed, None, bounds))
    keep("step after padded", layer.step(x[:, 0], state))
    held["rows"] = take_rows(state, torch.tensor([0, 1]))
    return held | dict(layer.named_parameters()) | dict(layer.named_buffers())


@pytest.mark.parametrize("mode", MODES)
def test_writing_into_a_state_changes_nothing_else(build_first, mode):
    with mode():
        held = returned(build_first())
        parts = {
            (name, part): tensor for name, one in held.items() for part, tensor in tensors(one)
        }
        before = {key: tensor.detach().clone() for key, tensor in parts.items()}
        for name in reversed(held):
            for part, _ in tensors(held[name]):
                tensor = parts[name, part].detach().fill_(7)
                before[name, part] = tensor.clone()
                changed = [key for key, old in before.items() if not torch.equal(parts[key], old)]
                assert not changed, f"writing into {part} of {name!r}"
