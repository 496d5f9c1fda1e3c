"""Models of hard blocks, written down gate by gate."""

import ctypes
import itertools
import shutil
import subprocess

import numpy as np
import pytest
import torch

from statemix.automaton import Automaton
from statemix.layers import LayerSpec
from statemix.models import TokenClassifier
from statemix.tasks.groups import group

# Raw gates so far apart that only the largest counts.
SHARP = 8.0


def hard_tracker(sources, values, readout, num_classes, initial_state="zero"):
    """A model of hard blocks, written down gate by gate.

    Args:
        sources: for each block, token (the learned one last) and entry, which entry to copy, or
            -1 to load.
        values: for each block, token and entry, the value to load, or one for each of its channels.
        readout: logits are its product with all entries, block by block, entry by entry, and
            channel by channel.
    """
    num_blocks, num_tokens, m = np.shape(sources)
    values = np.reshape(values, (num_blocks, num_tokens, m, -1))
    C = values.shape[-1]
    blocks = {"num_blocks": num_blocks, "block_size": m, "value_channels": C}
    spec = LayerSpec("bd_lru", **blocks, initial_state=initial_state)
    width = num_tokens + num_blocks * m * C
    options = {"bos": True, "residual": False, "norm": "none"}
    model = TokenClassifier(num_tokens - 1, {"answer": num_classes}, width, [spec], **options)
    layer = model.backbone.blocks[0].mixer
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.backbone.embedding.weight[:, :num_tokens] = torch.eye(num_tokens)
        gates = layer.gate_proj.weight.view(m, m + 1, num_blocks, -1)
        loads = layer.value_proj.weight.view(m, C, num_blocks, -1)
        read = layer.out_proj.weight.view(-1, m, C, num_blocks)
        for block, token, entry in itertools.product(
            range(num_blocks), range(num_tokens), range(m)
        ):
            gates[entry, sources[block][token][entry], block, token] = SHARP
            loads[entry, :, block, token] = torch.tensor(values[block, token, entry]).float()
            for channel in range(C):
                read[(block * m + entry) * C + channel, entry, channel, block] = 1
        model.readouts["answer"].weight[:, : num_blocks * m * C] = torch.as_tensor(readout).float()
    return model


def behind_an_idle_layer(model):
    """A hard tracker of one block as the second layer of a stack whose first holds zeros."""
    (tracking,) = model.backbone.blocks
    m, num_tokens = tracking.mixer.block_size, model.backbone.vocab_size + 1
    (head,) = model.heads.items()
    layers = [LayerSpec("bd_lru", num_blocks=1, block_size=size) for size in (2, m)]
    stack = TokenClassifier(
        model.backbone.vocab_size, dict([head]), m + num_tokens, layers, bos=True, norm="none"
    )
    idle, second = (block.mixer for block in stack.backbone.blocks)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.zero_()
        # Tokens behind the entries that the second layer writes.
        stack.backbone.embedding.weight[:, m:] = torch.eye(num_tokens)
        for entry in range(2):
            idle.gate_proj.weight.view(2, 3, 1, -1)[entry, entry, 0, m:] = SHARP
        for ours, theirs in ((second.gate_proj, "gate_proj"), (second.value_proj, "value_proj")):
            weight = tracking.mixer.get_parameter(f"{theirs}.weight")
            ours.weight[:, m:] = weight[:, :num_tokens]
        second.out_proj.weight[:m] = tracking.mixer.out_proj.weight[:m]
        read = model.readouts[head[0]]
        stack.readouts[head[0]].weight[:, :m] = read.weight[:, :m]
        stack.readouts[head[0]].bias.copy_(read.bias)
    return stack


def group_tracker(name, *more_sources, initial_state="zero"):
    """The exact tracker of a permutation group: one block, written by the learned token."""
    elements = np.array(group(name).elements)
    order, m = elements.shape
    sources = [[*(elements - 1).tolist(), [-1] * m], *more_sources]
    # Entry i holds g(i); rearranged, no other permutation agrees as well with itself.
    written = [[0.0] * m] * order + [list(range(1, m + 1))]
    others = [[[float(token)] * m for token in range(order + 1)] for _ in more_sources]
    readout = np.concatenate([elements, *(np.zeros_like(elements) for _ in more_sources)], 1)
    return hard_tracker(sources, [written, *others], readout, order, initial_state)


def group_tracker_of_channels(name, *more):
    """The exact tracker of a permutation group whose entries hold the rows of an identity matrix.

    Args:
        name: name of the group.
        *more: sources and values of more blocks, which nothing reads.
    """
    elements = np.array(group(name).elements)
    order, m = elements.shape
    sources = [[*(elements - 1).tolist(), [-1] * m], *(one for one, _ in more)]
    values = np.zeros((1 + len(more), order + 1, m, m))
    values[0, order] = np.eye(m)
    values[1:] = [one for _, one in more] or values[1:]
    readout = np.zeros((order, 1 + len(more), m, m))
    readout[:, 0] = np.eye(m)[elements - 1]
    return hard_tracker(sources, values, readout.reshape(order, -1), order)


# After one word of each length below 3, and after all longer ones.
PASSING = Automaton(0, np.array([[1], [2], [3], [3]]), np.array([[0], [1], [2], [2]]))


@pytest.fixture
def passing():
    """A model of PASSING, whose learned token writes a 5, which the tokens push out."""
    sources = [[[-1, 0, 1], [-1, -1, -1]]]
    values = [[[0.0] * 3, [5.0, 0.0, 0.0]]]
    model = hard_tracker(sources, values, [[0, 0.3, 0], [0, 0, 1], [0, 0, 0]], 3)
    with torch.no_grad():
        model.readouts["answer"].bias[2] = 1
    return model, PASSING


@pytest.fixture(scope="session")
def tracker():
    return hard_tracker


@pytest.fixture(scope="session")
def stacked():
    return behind_an_idle_layer


@pytest.fixture(scope="session")
def of_group():
    return group_tracker


@pytest.fixture(scope="session")
def of_group_in_channels():
    return group_tracker_of_channels


@pytest.fixture
def compiled(tmp_path):
    """Compile a machine with the system's C compiler, and return its functions."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def build(machine):
        source = tmp_path / "machine.c"
        source.write_text(machine.to_c("m"))
        library = tmp_path / "machine.so"
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2"]
        subprocess.run(
            [compiler, *flags, "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        functions = ctypes.CDLL(str(library))
        functions.m_run.restype = ctypes.c_size_t
        return functions

    return build
