"""Proofs of modules that are no models of Statemix."""

import numpy as np
import pytest
import torch
from torch import nn

from statemix import BDLRU, HLRU, layers
from statemix.automaton import Automaton
from statemix.errors import RequestError
from statemix.proofs import (
    StateMachine,
    check_word,
    harden,
    parse_property,
    prove,
    prove_safety,
    prune,
    read_actions,
    read_tables,
    refit,
    refute,
    search,
)
from statemix.proofs.check_certificate import check
from statemix.proofs.stepping import HARDENED

# [state, bit] -> next state, which is also the answer.
MODULO_4 = (np.arange(4)[:, None] + np.arange(2)) % 4
COUNTER = Automaton(0, MODULO_4, MODULO_4)
PARITY_TABLE = np.array([[0, 1], [1, 0]])
PARITY = Automaton(0, PARITY_TABLE, PARITY_TABLE)
ALTERNATES = parse_property(
    "start: even\nbad: wrong\neven 1 even wrong\neven 1 odd odd\nodd 1 even even\n",
    ["0", "1"],
    ["even", "odd"],
)
# Raw gates so far apart that only the largest counts.
SHARP = 40.0


class Block(nn.Module):
    """A layer and an MLP with norms and residual connections around them."""

    def __init__(self, width=16, num_blocks=2):
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(width), nn.LayerNorm(width)
        self.layer = BDLRU.tracker(width, num_blocks=num_blocks, block_size=2)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        x = x + self.layer(self.norm(x))[0]
        return x + self.mlp(self.mlp_norm(x))


@torch.no_grad()
def swap_if(layer, norm, x, swaps):
    """Let the first block exchange its two entries after inputs x (N, d) where ``swaps`` says so.

    The second block keeps its entries if there is one.
    """
    gates = torch.full((len(x), 2, 3, layer.num_blocks), -SHARP)
    for row, swap in enumerate(swaps):
        for entry in range(2):
            gates[row, entry, entry] = SHARP
            gates[row, entry, entry ^ bool(swap), 0] = SHARP
            gates[row, entry, entry ^ (not swap), 0] = -SHARP
    layer.gate_proj.weight.copy_(torch.linalg.lstsq(norm(x), gates.flatten(1)).solution.T)
    layer.gate_proj.bias.zero_()


@torch.no_grad()
def counter():
    """Two residual blocks count bits modulo 4: the first the low digit, the second the high one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(2, 16), Block(), Block(), nn.Linear(16, 4)).eval()
    embedding, low, high, readout = model
    swap_if(low.layer, low.norm, embedding.weight, [0, 1])
    # Words that lead to every low digit after every bit, and then to every high digit.
    words = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])
    x = harden(nn.Sequential(embedding, low))(words)[:, -1]
    swap_if(high.layer, high.norm, x, [0, 0, 0, 1])
    ones = [[0] * (3 - n) + [1] * n for n in range(4)]
    words = torch.tensor([[*start, bit] for start in ones for bit in (0, 1)])
    hidden = harden(model[:3])(words)[:, -1]
    targets = SHARP * torch.eye(4)[words.sum(1) % 4]
    readout.weight.copy_(torch.linalg.lstsq(hidden, targets).solution.T)
    readout.bias.zero_()
    return model


class Parity(nn.Module):
    """A tracker of the parity of bits inside a module; subclasses say how it is called."""

    def __init__(self, layer=None, num_blocks=1):
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.readout = nn.Embedding(2, 8), nn.Linear(8, 2)
        self.layer = layer or BDLRU.tracker(8, num_blocks=num_blocks, block_size=2)
        if getattr(self.layer, "gate", "") not in HARDENED or isinstance(self.layer, HLRU):
            return
        swap_if(self.layer, nn.Identity(), self.embedding.weight, [0, 1])
        if self.layer.learned_state is not None:
            with torch.no_grad():
                self.layer.learned_state.zero_()[0] = torch.tensor([-1.0, 1.0])
                # The readout sees one channel, in which the two entries differ most.
                first, second = self.layer.out_proj.weight[:, [0, num_blocks]].T
                channel = (second - first).abs().argmax()
                sign = (second - first)[channel].sign()
                self.readout.weight.zero_()[:, channel] = torch.tensor([9.0, -9.0]) * sign
                self.readout.bias.zero_()

    def forward(self, bits):
        return self.readout(self.layer(self.embedding(bits))[0])


class Dropping(Parity):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.9)

    def forward(self, bits):
        return self.readout(self.layer(self.dropout(self.embedding(bits)))[0])


class Tuple(Parity):
    def forward(self, bits, state):
        y, state = self.layer(self.embedding(bits), state=state)
        return self.readout(y), state


class Heads(Parity):
    def forward(self, bits, *, dropped=None):
        return {"answer": super().forward(bits), "dropped": dropped}


class Loop(Parity):
    def forward(self, bits):
        state, outputs = None, []
        for x_t in self.embedding(bits).unbind(1):
            y_t, state = self.layer.step(x_t, state)
            outputs.append(self.readout(y_t))
        return torch.stack(outputs, 1)


class Step(Parity):
    forward = nn.Module.forward

    def step(self, bits, state):
        y, state = self.layer.step(self.embedding(bits), state)
        return self.readout(y), state


def flip(readout):
    """Change the sign of the largest weight of a readout."""
    with torch.no_grad():
        weight = readout.weight.view(-1)
        weight[weight.abs().argmax()] *= -1


def test_two_residual_layers_are_proven_and_a_changed_readout_is_refuted():
    model = counter()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = prove(model, COUNTER)
    assert (found.verdict, found.network, found.result.pairs) == ("proven", "pruned", 4)
    # Blocks 0 and 2 are the digits; the other two never change.
    assert (found.tracking, found.num_blocks, found.head) == ((0, 1, 2, 3), 4, "logits")
    assert prune(harden(model), COUNTER).varying == (0, 2)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert found.tables(COUNTER) == "the network is not one BD-LRU layer"
    bits = torch.randint(2, (2, 300), generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.model(bits).argmax(-1), bits.cumsum(1) % 4)
    flip(found.model[3])
    wrong = search(found.model, COUNTER)
    assert wrong.verdict == "refuted"
    answer = int(found.model(torch.tensor([wrong.word]))[0, -1].argmax())
    assert answer == wrong.answer != COUNTER.answers(wrong.word)[-1]


def test_a_layer_whose_gates_read_another_is_pruned_after_it():
    """Random gates let the last block of the first layer remember many tokens."""
    model = counter()
    gates = model[1].layer.gate_proj.weight.view(2, 3, 2, 16)
    with torch.no_grad():
        gates[:, :, 1] = 5 * torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(3))
    cut = prune(harden(model), COUNTER)
    assert set(cut.tracking) >= {0, 2, 3}
    assert 1 not in cut.tracking
    assert not cut.model[1].layer.learned_state[1].any()
    assert prove(model, COUNTER).verdict == "proven"


@pytest.mark.parametrize("kind", [Parity, Tuple, Heads, Loop, Step])
def test_every_way_to_call_a_module_is_proven(kind):
    model = kind()
    found = prove(model, PARITY)
    assert (found.verdict, found.network, found.tracking) == ("proven", "pruned", (0,))
    assert found.head == ("answer" if kind is Heads else "logits")
    flip(model.readout)
    wrong = search(harden(model), PARITY)
    assert wrong.verdict == "refuted"
    assert wrong.answer != wrong.expected == PARITY.answers(wrong.word)[-1]
    with pytest.raises(ValueError, match=r"head must be one of .*, got 'x'"):
        prove(model, PARITY, head="x")


def test_tables_maps_and_properties_of_a_module():
    model = Parity(num_blocks=2)
    found = prove(model, PARITY)
    tables = found.tables(PARITY)
    assert check(tables)[1] is None
    machine = StateMachine.from_tables(tables)
    assert machine.transitions.tolist() == machine.answers.tolist() == PARITY_TABLE.tolist()
    first, second = read_actions(model, PARITY)
    assert (first["role"], first["sources"]) == ("tracks", [[0, 1], [1, 0]])
    assert (second["role"], second["sources"]) == ("idles", [[0, 1], [0, 1]])
    with pytest.raises(ValueError, match="automaton must be given for a Parity, got None"):
        read_actions(model)
    assert prove_safety(found.model, ALTERNATES).verdict == "proven"
    with torch.no_grad():
        found.model.readout.weight.neg_()
    assert prove_safety(found.model, ALTERNATES).word == (1,)


def test_columns_and_convolutions_are_proven():
    columns = Parity(BDLRU.tracker(8, num_blocks=1, block_size=2, gate="column_softmax"))
    found = prove(columns, PARITY)
    assert found.verdict == "proven"
    assert check(found.tables(PARITY))[1] is None

    class Convolved(Parity):
        def __init__(self):
            super().__init__()
            self.conv = layers.CausalConv(8, kernel_size=3, depthwise=True)

        def forward(self, bits):
            return self.readout(self.layer(self.conv(self.embedding(bits))[0])[0])

    model = Convolved()
    with torch.no_grad():
        weight, _ = (parameter.zero_() for parameter in model.conv.parameters())
        weight[..., 2] = 1.0
    found = prove(model, PARITY)
    # The convolution remembers the last two bits: there are 2 words of one, and then 2 * 4 pairs.
    assert (found.verdict, found.network, found.result.pairs) == ("proven", "hardened", 10)
    with torch.no_grad():
        # After a word that ends with 1 1, the tracker reads 1 no more.
        weight[..., 1] = -1.0
    assert search(harden(model), PARITY).verdict == "refuted"


def test_a_readout_that_shares_its_weight_with_the_embedding_is_fitted_alone():
    model = Parity()
    model.readout = nn.Linear(8, 2, bias=False)
    model.readout.weight = model.embedding.weight
    fitted = refit(prune(harden(model), PARITY).model, PARITY, None)
    assert torch.equal(fitted.embedding.weight, model.embedding.weight)
    assert search(fitted, PARITY).verdict == "proven"


class Mixing(nn.Module):
    """The mean of all tokens so far."""

    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1).view(-1, 1)


class Attending(Parity):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, bits):
        x = self.embedding(bits)
        return self.readout(self.layer(self.attention(x, x, x)[0])[0])


class Positions(Parity):
    def forward(self, bits):
        places = torch.arange(bits.shape[1]).view(1, -1, 1)
        return self.readout(self.layer(self.embedding(bits) + places)[0])


class Pairs(Parity):
    def forward(self, bits):
        return super().forward(bits).softmax(-1)


class Last(Parity):
    def forward(self, bits):
        return super().forward(bits)[:, -1]


class Twice(Parity):
    def forward(self, bits):
        return self.readout(self.layer(self.layer(self.embedding(bits))[0])[0])


def wrapped(part):
    model = Parity()
    model.embedding = nn.Sequential(model.embedding, part)
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Parity(layers.Attention(8, num_heads=2)), r"got layer \(Attention\)$"),
        (lambda: Parity(layers.LSTM(8)), r"got layer \(LSTM\)$"),
        (
            lambda: Parity(BDLRU(8, num_blocks=4, block_size=2, gate="householder")),
            r"got layer \(BDLRU with gate='householder'\)$",
        ),
        (lambda: wrapped(nn.LSTM(8, 8)), r"got embedding.1 \(LSTM\)$"),
        (lambda: wrapped(nn.Conv1d(8, 8, 2)), r"got embedding.1 \(Conv1d\)$"),
        (lambda: wrapped(Mixing()), r"got embedding.1 \(Mixing\)$"),
        (Attending, r"got attention \(MultiheadAttention\)$"),
        (Positions, r"got a Positions that also depends on positions or other tokens$"),
        (Pairs, "model must return the output of an nn.Linear as logits, got another"),
        (Last, r"model must return logits \(B, T, classes\), got \(2, 2\)"),
        (Twice, r"model must run each of \['layer'\] once for a token, got \['layer', 'layer'\]"),
        (lambda: nn.Linear(2, 2), "model must have a layer of Statemix, got Linear"),
        (lambda: Parity().forward, "model must be an nn.Module, got method"),
        (
            lambda: nn.ModuleList([Parity()]),
            r"model must have forward\(tokens\) or step\(tokens_t, state\), got ModuleList",
        ),
    ],
)
def test_what_cannot_be_proven_is_refused_by_name(model, message):
    with pytest.raises((TypeError, ValueError), match=message):
        prove(model(), PARITY)


def test_an_h_lru_is_searched():
    model = Parity(HLRU(8, num_channels=2, order=2))
    assert prove(model, PARITY).verdict == "refuted"


@pytest.mark.parametrize(
    "prove_it",
    [
        lambda model: prove(model, PARITY).result.verdict,
        lambda model: search(harden(model), PARITY).verdict,
        lambda model: refute(model, PARITY, budget=2_000).verdict,
        lambda model: check_word(model, PARITY, (0, 1)).verdict,
        lambda model: read_actions(model, PARITY),
        lambda model: prove_safety(harden(model), ALTERNATES).verdict,
        lambda model: read_tables(harden(model), PARITY, "logits"),
    ],
)
def test_a_model_in_training_is_judged_without_dropout_and_keeps_its_modes(prove_it):
    model = Dropping()
    expected = prove_it(model.eval())
    model.train()
    model.readout.eval()
    assert prove_it(model) == expected
    modes = {name: part.training for name, part in model.named_modules()}
    assert [name for name, training in modes.items() if not training] == ["readout"]


@pytest.mark.parametrize("judge", [prove, search, refute, read_actions])
def test_more_letters_than_the_model_reads_are_refused(judge):
    table = np.zeros((1, 5), int)
    with pytest.raises((ValueError, RequestError), match=r"read the token.* 4, got: index out"):
        judge(Parity(), Automaton(0, table, table))
